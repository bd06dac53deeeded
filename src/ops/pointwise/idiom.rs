//! Functions that models spell out in simple operators, found again in the expression.
//!
//! The whole function has kernels of its own, and convolutions and matrix products take it as their activation.

use super::function::Pointwise;
use crate::dtype::DType;
use crate::expr::{BinaryOp as Two, Expr, ExprId, Function, Indexing, PointwiseDesc, UnaryOp as One};
use crate::ops::{Elementwise, Operator, Structure};

/// Relative difference of constants that models round differently, where these are of `float32`.
const ROUNDED: f64 = 1e-5;
/// The same where they are of `float16`: two of them are multiplied, each rounded by up to `2^-11`.
const ROUNDED_F16: f64 = 1e-3;

/// Whether `op` can be the last operator of something [`whole_function`] finds.
pub fn may_end_function(op: &dyn Operator) -> bool {
    matches!(op.structure(), Some(Structure::Elementwise(Elementwise::Mul | Elementwise::Div)))
}

/// The function of one element that `desc` spells out, where it has one input and one output and is Swish, HardSwish
/// or Gelu in either form. Its constants are rounded to `dtype`.
pub fn whole_function(desc: &PointwiseDesc, dtype: DType) -> Option<Pointwise> {
    let rounded = if dtype == DType::F16 { ROUNDED_F16 } else { ROUNDED };
    let near = |found: f64, expected: f64| (found - expected).abs() <= rounded * expected.abs();
    let (&[Indexing::Full], &[output]) = (desc.inputs(), desc.outputs()) else { return None };
    let spelled = Spelled { exprs: desc.exprs() };
    let mut product = Product { factor: 1.0, inputs: 0, others: Vec::new() };
    spelled.product(output, &mut product)?;
    let (Product { factor, inputs: 1, .. }, &[other]) = (&product, &product.others[..]) else { return None };
    let found = |op| Some(Pointwise::new(op));
    match spelled.expr(other)? {
        Expr::Unary(One::Sigmoid, x) if *factor == 1.0 => {
            let [0.0, slope, 0.0, 0.0] = spelled.polynomial(x)? else { return None };
            Some(Pointwise { function: Function::Swish, params: [slope as f32, 0.0] })
        }
        Expr::Binary(Two::Add, a, b) if *factor == 0.5 => {
            let other = match [spelled.expr(a)?, spelled.expr(b)?] {
                [Expr::Const(1.0), other] | [other, Expr::Const(1.0)] => other,
                _ => return None,
            };
            match other {
                Expr::Unary(One::Erf, x) => {
                    let [0.0, slope, 0.0, 0.0] = spelled.polynomial(x)? else { return None };
                    if near(slope, std::f64::consts::FRAC_1_SQRT_2) { found(Function::Gelu) } else { None }
                }
                Expr::Unary(One::Tanh, x) => {
                    let [0.0, slope, 0.0, cubic] = spelled.polynomial(x)? else { return None };
                    let expected = (2.0 / std::f64::consts::PI).sqrt();
                    let is_gelu = near(slope, expected) && near(cubic, 0.044_715 * expected);
                    if is_gelu { found(Function::GeluTanh) } else { None }
                }
                _ => None,
            }
        }
        // max(0, min(6, x + 3)) in either order.
        Expr::Binary(outer, inner, a) => {
            let Expr::Binary(op, x, b) = spelled.expr(inner)? else { return None };
            let (Expr::Const(a), Expr::Const(b)) = (spelled.expr(a)?, spelled.expr(b)?) else { return None };
            let (low, high) = match (outer, op) {
                (Two::Min | Two::AtMost, Two::Max | Two::AtLeast) => (b, a),
                (Two::Max | Two::AtLeast, Two::Min | Two::AtMost) => (a, b),
                _ => return None,
            };
            let [offset, slope, 0.0, 0.0] = spelled.polynomial(x)? else { return None };
            let is_swish = low == 0.0
                && near(factor * f64::from(high), 1.0)
                && near(factor * slope, 1.0 / 6.0)
                && near(factor * offset, 0.5);
            if is_swish { found(Function::HardSwish) } else { None }
        }
        _ => None,
    }
}

/// `factor * x^inputs * others[0] * others[1] ..`
struct Product {
    factor: f64,
    inputs: u32,
    others: Vec<ExprId>,
}

struct Spelled<'a> {
    exprs: &'a [Expr],
}

impl Spelled<'_> {
    fn expr(&self, id: ExprId) -> Option<Expr> {
        self.exprs.get(id.index()).copied()
    }

    /// Multiplies `product` by an expression.
    fn product(&self, id: ExprId, product: &mut Product) -> Option<()> {
        match self.expr(id)? {
            Expr::Input(_) => product.inputs += 1,
            Expr::Const(value) => product.factor *= f64::from(value),
            Expr::Binary(Two::Mul, a, b) => {
                self.product(a, product)?;
                self.product(b, product)?;
            }
            Expr::Binary(Two::Div, a, b) => {
                let Expr::Const(by) = self.expr(b)? else { return None };
                product.factor /= f64::from(by);
                self.product(a, product)?;
            }
            _ => product.others.push(id),
        }
        // Something that large is none of these functions.
        (product.inputs <= 1 && product.others.len() <= 1).then_some(())
    }

    /// An expression as a polynomial of the input, from the constant on.
    fn polynomial(&self, id: ExprId) -> Option<[f64; 4]> {
        match self.expr(id)? {
            Expr::Input(_) => Some([0.0, 1.0, 0.0, 0.0]),
            Expr::Const(value) => Some([value.into(), 0.0, 0.0, 0.0]),
            Expr::Unary(One::Neg, a) => Some(self.polynomial(a)?.map(|c| 0.0 - c)),
            Expr::Binary(op @ (Two::Add | Two::Sub), a, b) => {
                let (mut sum, b) = (self.polynomial(a)?, self.polynomial(b)?);
                let sign = if op == Two::Add { 1.0 } else { -1.0 };
                sum.iter_mut().zip(b).for_each(|(sum, b)| *sum += sign * b);
                Some(sum)
            }
            Expr::Binary(Two::Div, a, b) => {
                let (a, by) = (self.polynomial(a)?, self.expr(b)?);
                let Expr::Const(by) = by else { return None };
                Some(a.map(|c| c / f64::from(by)))
            }
            Expr::Binary(Two::Mul, a, b) => {
                let (a, b) = (self.polynomial(a)?, self.polynomial(b)?);
                let mut all = [0.0; 7];
                for (i, a) in a.iter().enumerate() {
                    b.iter().enumerate().for_each(|(j, b)| all[i + j] += a * b);
                }
                let (low, high) = all.split_first_chunk::<4>()?;
                high.iter().all(|c| *c == 0.0).then_some(*low)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(make: impl Fn(&mut PointwiseDesc, ExprId) -> ExprId) -> Option<(Function, f32)> {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let x = desc.input(0).unwrap();
        let y = make(&mut desc, x);
        desc.output(y).unwrap();
        whole_function(&desc, DType::F32).map(|found| (found.function, found.params[0]))
    }

    fn two(desc: &mut PointwiseDesc, op: Two, a: ExprId, b: ExprId) -> ExprId {
        desc.binary(op, a, b).unwrap()
    }

    fn c(desc: &mut PointwiseDesc, value: f32) -> ExprId {
        desc.constant(value).unwrap()
    }

    #[test]
    fn functions_are_found_as_models_spell_them() {
        let swish = |by: f32| {
            move |d: &mut PointwiseDesc, x| {
                let by = c(d, by);
                let scaled = two(d, Two::Mul, x, by);
                let gate = d.unary(One::Sigmoid, scaled).unwrap();
                two(d, Two::Mul, gate, x)
            }
        };
        assert_eq!(of(swish(1.0)), Some((Function::Swish, 1.0)));
        assert_eq!(of(swish(1.702)), Some((Function::Swish, 1.702)));
        let gelu = |slope: f32| {
            move |d: &mut PointwiseDesc, x| {
                let (slope, one, half) = (c(d, slope), c(d, 1.0), c(d, 0.5));
                let scaled = two(d, Two::Div, x, slope);
                let erf = d.unary(One::Erf, scaled).unwrap();
                let gate = two(d, Two::Add, erf, one);
                let product = two(d, Two::Mul, x, gate);
                two(d, Two::Mul, product, half)
            }
        };
        assert_eq!(of(gelu(std::f32::consts::SQRT_2)), Some((Function::Gelu, 0.0)));
        assert_eq!(of(gelu(1.5)), None);
        let gelu_tanh = |d: &mut PointwiseDesc, x| {
            let (one, half, cubic, slope) = (c(d, 1.0), c(d, 0.5), c(d, 0.044_715), c(d, 0.797_884_6));
            let square = two(d, Two::Mul, x, x);
            let cube = two(d, Two::Mul, square, x);
            let cube = two(d, Two::Mul, cubic, cube);
            let sum = two(d, Two::Add, x, cube);
            let inner = two(d, Two::Mul, slope, sum);
            let tanh = d.unary(One::Tanh, inner).unwrap();
            let gate = two(d, Two::Add, one, tanh);
            let half = two(d, Two::Mul, half, x);
            two(d, Two::Mul, half, gate)
        };
        assert_eq!(of(gelu_tanh), Some((Function::GeluTanh, 0.0)));
    }

    #[test]
    fn hard_swish_is_found_with_its_own_constants_only() {
        let hard = |offset: f32, high: f32, by: f32| {
            move |d: &mut PointwiseDesc, x| {
                let (offset, by) = (c(d, offset), c(d, by));
                let sum = two(d, Two::Add, x, offset);
                let bounded = Function::Clip.build(d, sum, [0.0, high]).unwrap();
                let product = two(d, Two::Mul, x, bounded);
                two(d, Two::Div, product, by)
            }
        };
        assert_eq!(of(hard(3.0, 6.0, 6.0)), Some((Function::HardSwish, 0.0)));
        assert_eq!(of(hard(3.0, 6.0, 5.0)), None);
        assert_eq!(of(hard(2.0, 6.0, 6.0)), None);
        assert_eq!(of(hard(3.0, 5.0, 6.0)), None);
        let gated = |d: &mut PointwiseDesc, x| {
            let gate = Function::HardSigmoid.build(d, x, [1.0 / 6.0, 0.5]).unwrap();
            two(d, Two::Mul, x, gate)
        };
        assert_eq!(of(gated), Some((Function::HardSwish, 0.0)));
    }

    #[test]
    fn other_expressions_are_left() {
        assert_eq!(of(|d, x| two(d, Two::Mul, x, x)), None);
        assert_eq!(of(|d, x| d.unary(One::Sigmoid, x).unwrap()), None);
        let twice = |d: &mut PointwiseDesc, x| {
            let gate = d.unary(One::Sigmoid, x).unwrap();
            let product = two(d, Two::Mul, gate, x);
            two(d, Two::Mul, product, x)
        };
        assert_eq!(of(twice), None);
    }
}
