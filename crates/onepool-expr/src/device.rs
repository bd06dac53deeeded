//! Functions of one value in terms of what devices have: arithmetic, comparisons, `exp`, `log` and `sqrt`.
//!
//! Their own functions lack some of these, or may have too large an error. Each is within a few units in the last place
//! of what the device's `exp`, `log` and `sqrt` give.

use super::pointwise::{BinaryOp, CompareOp, Expr, ExprId, PointwiseDesc, UnaryOp};
use super::value::{Plain, Sym, Value};

/// The same arithmetic in operations of devices. What is left of [`UnaryOp::Sin`], [`UnaryOp::Cos`], [`UnaryOp::Tan`],
/// [`UnaryOp::Log`] and [`BinaryOp::Pow`] is the device's own function.
pub fn device_form(desc: &PointwiseDesc) -> PointwiseDesc {
    let live = desc.live();
    let mut form = PointwiseDesc::new(desc.inputs());
    let mut moved: Vec<Option<ExprId>> = vec![None; desc.exprs().len()];
    for (at, expr) in desc.exprs().iter().enumerate().filter(|(at, _)| live[*at]) {
        // Operands come first, and those of a live expression are live.
        let mut of = |id: ExprId| moved[id.index()].unwrap_or_else(|| form.add(Expr::Const(f32::NAN)));
        let id = match *expr {
            Expr::Input(_) | Expr::Const(_) => form.add(*expr),
            Expr::Unary(op, a) => {
                let a = of(a);
                Sym::write(&mut form, [a], |[a]| unary(op, a))
            }
            Expr::Binary(BinaryOp::Pow, a, b) => {
                let (a, b) = (of(a), of(b));
                Sym::write(&mut form, [a, b], |[a, b]| pow(a, b))
            }
            Expr::Binary(op, a, b) => {
                let (a, b) = (of(a), of(b));
                form.add_binary(op, a, b)
            }
            Expr::Select { test, a, b, then, otherwise } => {
                let [a, b, then, otherwise] = [a, b, then, otherwise].map(of);
                form.add(Expr::Select { test, a, b, then, otherwise })
            }
        };
        moved[at] = Some(id);
    }
    for output in desc.outputs() {
        if let Some(id) = moved[output.index()] {
            form.add_output(id);
        }
    }
    form
}

const LN_2: f64 = std::f64::consts::LN_2;
const PI_OVER_2: f64 = std::f64::consts::FRAC_PI_2;
/// Up to here angles are reduced; larger ones are left to the device.
const LARGEST_ANGLE: f64 = 1e5;

fn unary(op: UnaryOp, x: Sym<'_>) -> Sym<'_> {
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Sqrt | UnaryOp::Exp => {
            x.unary(op)
        }
        UnaryOp::Log => ln(x),
        UnaryOp::Expm1 => expm1(x),
        UnaryOp::Sigmoid => ((-x).exp() + 1.0).reciprocal(),
        UnaryOp::Softplus => x.at_least(0.0) + log1p((-x.abs()).exp()),
        UnaryOp::Erf => erf(x),
        UnaryOp::NormalCdf => normal_cdf(x),
        UnaryOp::Sin => turned(x, |[k, sine, cosine]| quarter(k, sine, cosine), Value::sin),
        UnaryOp::Cos => turned(x, |[k, sine, cosine]| quarter(k + 1.0, sine, cosine), Value::cos),
        UnaryOp::Tan => {
            turned(x, |[k, sine, cosine]| if_even(k, sine, -cosine) / if_even(k, cosine, sine), Value::tan)
        }
        UnaryOp::Asin => {
            let size = x.abs();
            let large = with_sign(half_angle(size) * -2.0 + PI_OVER_2, x);
            size.if_at_most(0.5, asin_small(x), large)
        }
        UnaryOp::Acos => {
            let (size, large) = (x.abs(), half_angle(x.abs()) * 2.0);
            let large = x.if_less(0.0, -large + 2.0 * PI_OVER_2, large);
            size.if_at_most(0.5, -asin_small(x) + PI_OVER_2, large)
        }
        UnaryOp::Atan => atan(x),
        UnaryOp::Sinh => {
            let series = [2.755_731_92e-6, 1.984_126_98e-4, 8.333_333_33e-3, 1.0 / 6.0, 1.0];
            let small = x * polynomial(x * x, &series);
            let (half, rest) = half_powers(x);
            x.abs().if_less(1.0, small, with_sign(half - rest, x))
        }
        UnaryOp::Cosh => {
            let (half, rest) = half_powers(x);
            half + rest
        }
        UnaryOp::Tanh => {
            let series = [0.017_988_744, -0.053_387_111, 0.133_304_76, -0.333_333_11, 1.0];
            let (size, small) = (x.abs(), x * polynomial(x * x, &series));
            let large = -(x.number(2.0) / ((size * 2.0).exp() + 1.0)) + 1.0;
            size.if_less(0.5, small, with_sign(large, x))
        }
        UnaryOp::Asinh => {
            let size = x.abs();
            let square = size * size;
            let near = log1p(size + square / ((square + 1.0).sqrt() + 1.0));
            with_sign(size.if_greater(1e9, size.log() + LN_2, near), x)
        }
        UnaryOp::Acosh => {
            // Below -2 the square would overflow, which hides that there is no number.
            let t = x.at_least(-2.0) - 1.0;
            x.if_greater(1e9, x.log() + LN_2, log1p(t + (t * (t + 2.0)).sqrt()))
        }
        UnaryOp::Atanh => {
            let size = x.abs();
            with_sign(log1p(size * 2.0 / (-size + 1.0)) * 0.5, x)
        }
    }
}

/// The polynomial of `x` with these coefficients, the highest power first.
fn polynomial<'d>(x: Sym<'d>, coefficients: &[f64]) -> Sym<'d> {
    let mut all = coefficients.iter();
    let first = x.number(all.next().copied().unwrap_or(0.0));
    all.fold(first, |sum, c| sum * x + *c)
}

/// `size`, which is not negative, with the sign of `x`.
fn with_sign<'d>(size: Sym<'d>, x: Sym<'d>) -> Sym<'d> {
    x.if_less(0.0, -size, size)
}

/// `log((1 + s) / (1 - s))` for |s| <= 0.18.
fn log_ratio(s: Sym<'_>) -> Sym<'_> {
    s * 2.0 * polynomial(s * s, &[1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0])
}

fn ln(x: Sym<'_>) -> Sym<'_> {
    let (near, far) = (log_ratio((x - 1.0) / (x + 1.0)), x.log());
    x.if_greater(0.7, x.if_less(1.42, near, far), far)
}

/// `log(1 + x)`
fn log1p(x: Sym<'_>) -> Sym<'_> {
    let (near, far) = (log_ratio(x / (x + 2.0)), (x + 1.0).log());
    x.if_greater(-0.3, x.if_less(0.42, near, far), far)
}

fn expm1(x: Sym<'_>) -> Sym<'_> {
    let series = [1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];
    let small = x + x * x * polynomial(x, &series);
    x.abs().if_less(0.5, small, x.exp() - 1.0)
}

/// Half of `e^|x|` and of `e^-|x|`; the half powers stay finite where the result does.
fn half_powers(x: Sym<'_>) -> (Sym<'_>, Sym<'_>) {
    let h = (x.abs() * 0.5).exp();
    (h * 0.5 * h, x.number(0.5) / (h * h))
}

/// Absolute error below 1e-7: an odd polynomial below 1, `1 - exp(-g(x))` above.
fn erf(x: Sym<'_>) -> Sym<'_> {
    let size = x.abs().at_most(4.0);
    let below = [
        7.875_875_05e-5,
        -8.016_864_28e-4,
        5.189_087_42e-3,
        -0.026_854_212,
        0.112_835_947,
        -0.376_126_267,
        std::f64::consts::FRAC_2_SQRT_PI,
    ];
    let above = [
        -1.637_151_42e-6,
        4.605_804_28e-5,
        -5.968_056_27e-4,
        4.759_596_3e-3,
        -0.026_421_136,
        0.110_080_083,
        0.631_826_052,
        1.130_233_43,
        -3.201_380_53e-4,
    ];
    let small = size * polynomial(size * size, &below);
    let large = -(-polynomial(size, &above)).exp() + 1.0;
    with_sign(size.if_less(1.0, small, large), x)
}

/// By `exp(-h(|x|)) / 2`, the part beyond |x|: `h` is fitted to 6, so that the error of that part is least, and grows
/// on from there.
fn normal_cdf(x: Sym<'_>) -> Sym<'_> {
    let size = x.abs();
    let h = [
        6.251_477_02e-7,
        -1.039_129_08e-5,
        4.470_208_12e-5,
        3.074_626_09e-4,
        -5.181_915_11e-3,
        0.036_586_560_2,
        0.318_235_73,
        0.797_891_844,
    ];
    let beyond = (-(size * polynomial(size, &h))).exp() * 0.5;
    x.if_less(0.0, beyond, -beyond + 1.0)
}

/// What `near` makes of quarter turns and of the sine and cosine of the rest, or `far` of the angle itself.
///
/// Built-in sines are only good between -pi and pi, and need be no better than 2^-11 there. The reduction takes pi / 2
/// in three parts, the first of so few bits that its multiples are exact (Cody and Waite, Software Manual for the
/// Elementary Functions, 1980).
fn turned<'d>(
    x: Sym<'d>,
    near: impl Fn([Sym<'d>; 3]) -> Sym<'d>,
    far: impl Fn(Sym<'d>) -> Sym<'d>,
) -> Sym<'d> {
    let k = (x * std::f64::consts::FRAC_2_PI).round();
    let r = x - k * 1.570_312_5 - k * 4.837_512_969_970_703e-4 - k * 7.549_789_95e-8;
    let z = r * r;
    let sine = r + r * z * polynomial(z, &[-1.958_291_721e-4, 8.332_725_119e-3, -0.166_666_645_4]);
    let tail = polynomial(z, &[2.454_294_755e-5, -1.388_827_977e-3, 0.041_666_664_54]);
    let cosine = z * -0.5 + 1.0 + z * z * tail;
    x.abs().if_at_most(LARGEST_ANGLE, near([k, sine, cosine]), far(x))
}

/// `even` or `odd`, as the whole number `k` is.
fn if_even<'d>(k: Sym<'d>, even: Sym<'d>, odd: Sym<'d>) -> Sym<'d> {
    let half = k * 0.5;
    half.floor().if_equal(half, even, odd)
}

/// The sine after `k` quarter turns, from the sine and cosine of the rest.
fn quarter<'d>(k: Sym<'d>, sine: Sym<'d>, cosine: Sym<'d>) -> Sym<'d> {
    let y = if_even(k, sine, cosine);
    let turn = k * 0.25;
    (turn - turn.floor()).if_less(0.5, y, -y)
}

fn asin_small(x: Sym<'_>) -> Sym<'_> {
    x * polynomial(
        x * x,
        &[0.038_085_023_6, 0.026_554_542_2, 0.045_001_380_1, 0.074_988_550_7, 0.166_666_724, 1.0],
    )
}

/// Half of the arc cosine of `size`, which is above 1/2.
fn half_angle(size: Sym<'_>) -> Sym<'_> {
    asin_small(((-size + 1.0) * 0.5).sqrt())
}

fn atan(x: Sym<'_>) -> Sym<'_> {
    let size = x.abs();
    let r = size.if_greater(1.0, size.reciprocal(), size);
    let t = r.if_greater(0.414_213_562, (r - 1.0) / (r + 1.0), r);
    let series = [-0.064_515_972_3, 0.107_436_316, -0.142_639_464, 0.199_995_402, -0.333_333_318, 1.0];
    let y = t * polynomial(t * t, &series);
    let y = r.if_greater(0.414_213_562, y + PI_OVER_2 / 2.0, y);
    with_sign(size.if_greater(1.0, -y + PI_OVER_2, y), x)
}

/// The power as C has it, but for the sign of a zero base, which is lost, and for a NaN exponent, which gives NaN: the
/// device's own is defined for positive bases only.
fn pow<'d>(x: Sym<'d>, y: Sym<'d>) -> Sym<'d> {
    let (nan, infinity) = (x.number(f64::NAN), f64::INFINITY);
    let size = x.abs();
    let magnitude = size.binary(BinaryOp::Pow, y);
    // A negative base takes the sign of an odd exponent, and no fraction.
    let signed = if_even(y, magnitude, -magnitude);
    let fraction = size.if_equal(infinity, magnitude, nan);
    let negative = y.floor().if_equal(y, signed, fraction);
    let value = x.if_less(0.0, negative, magnitude);
    // Zero, NaN, and an exponent of zero.
    let of_zero = y.if_less(0.0, infinity, 0.0);
    let value = x.if_equal(0.0, of_zero, value);
    let value = x.select(CompareOp::Unordered, y, nan, value);
    y.if_equal(0.0, 1.0, value)
}
