//! The arithmetic of pointwise expressions over slices, one loop for each function, so that each is vectorized.

use super::lane::Lane;
use super::pointwise::{BinaryOp, CompareOp, Term, UnaryOp};
use super::value::{Plain, Value as _};
use crate::simd;

/// An input while it is evaluated.
#[derive(Clone, Copy, Debug)]
pub struct InputData<'a> {
    /// All of its elements.
    pub data: &'a [f32],
    /// How it is indexed; empty for a full input, and for a scalar.
    pub terms: &'a [Term],
}

/// A value during one chunk.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Many(&'a [f32]),
    One(f32),
}

/// Reads a broadcast input for the elements `first..`, run by run: within one, every term but those that
/// step with each element stands still.
pub(super) fn gather(to: &mut [f32], operand: InputData<'_>, first: usize) {
    struct Counter {
        div: usize,
        modulo: usize,
        stride: usize,
        within: usize,
        step: usize,
    }
    let counter = |term: &Term| {
        let [div, modulo, stride] = [term.div, term.modulo, term.stride].map(|word| word as usize);
        Counter { div, modulo, stride, within: first % div, step: first / div % modulo }
    };
    let mut counters: Vec<Counter> = operand.terms.iter().map(counter).collect();
    let mut rest = to;
    while !rest.is_empty() {
        let (mut run, mut index, mut stride) = (rest.len(), 0, 0);
        for counter in &counters {
            index += counter.step * counter.stride;
            if counter.div == 1 {
                run = run.min(counter.modulo - counter.step);
                stride += counter.stride;
            } else {
                run = run.min(counter.div - counter.within);
            }
        }
        let (now, later) = rest.split_at_mut(run);
        match stride {
            0 => now.fill(operand.data[index]),
            1 => now.copy_from_slice(&operand.data[index..index + run]),
            _ => {
                now.iter_mut().zip(operand.data[index..].iter().step_by(stride)).for_each(|(to, x)| *to = *x)
            }
        }
        for counter in &mut counters {
            counter.within += run;
            counter.step = (counter.step + counter.within / counter.div) % counter.modulo;
            counter.within %= counter.div;
        }
        rest = later;
    }
}

#[inline(always)]
pub(super) fn unary(op: UnaryOp, to: &mut [f32], x: Value<'_>) {
    /// One loop for each of these.
    macro_rules! loops {
        ($($name:ident)*) => {
            match op {
                UnaryOp::Sin => turned(to, x, simd::sin, f64::sin),
                UnaryOp::Cos => turned(to, x, simd::cos, f64::cos),
                UnaryOp::Tan => turned(to, x, simd::tan, f64::tan),
                $(UnaryOp::$name => map(to, x, |x| Lane(x).unary(UnaryOp::$name).0),)*
            }
        };
    }
    loops!(
        Neg Abs Floor Ceil Round Sqrt Exp Log Expm1 Sigmoid Softplus Erf NormalCdf Asin Acos Atan Sinh Cosh Tanh Asinh Acosh
        Atanh
    );
}

/// A function of angles: all by `near`, then large angles again by `far`.
#[inline(always)]
fn turned(to: &mut [f32], x: Value<'_>, near: impl Fn(f32) -> f32, far: impl Fn(f64) -> f64) {
    map(to, x, near);
    let is_far = |x: f32| x.abs() > simd::LARGEST_ANGLE;
    match x {
        Value::Many(x) => {
            let largest = x.iter().fold(0.0f32, |most, x| if x.abs() > most { x.abs() } else { most });
            if is_far(largest) {
                let all = to.iter_mut().zip(x).filter(|(_, x)| is_far(**x));
                all.for_each(|(to, x)| *to = far((*x).into()) as f32);
            }
        }
        Value::One(x) if is_far(x) => to.fill(far(x.into()) as f32),
        Value::One(_) => {}
    }
}

#[inline(always)]
pub(super) fn binary(op: BinaryOp, to: &mut [f32], a: Value<'_>, b: Value<'_>) {
    macro_rules! loops {
        ($($name:ident)*) => {
            match op {
                BinaryOp::Min => zip(to, a, b, |a, b| pick(a <= b || a.is_nan(), a, b)),
                BinaryOp::Max => zip(to, a, b, |a, b| pick(a >= b || a.is_nan(), a, b)),
                $(BinaryOp::$name => zip(to, a, b, |a, b| Lane(a).binary(BinaryOp::$name, Lane(b)).0),)*
            }
        };
    }
    loops!(Add Sub Mul Div AtLeast AtMost Pow);
}

#[inline(always)]
pub(super) fn select(test: CompareOp, to: &mut [f32], [a, b, then, otherwise]: [Value<'_>; 4]) {
    match test {
        CompareOp::Less => choose(to, a, b, then, otherwise, |a, b| a < b),
        CompareOp::LessEqual => choose(to, a, b, then, otherwise, |a, b| a <= b),
        CompareOp::Greater => choose(to, a, b, then, otherwise, |a, b| a > b),
        CompareOp::GreaterEqual => choose(to, a, b, then, otherwise, |a, b| a >= b),
        CompareOp::Equal => choose(to, a, b, then, otherwise, |a, b| a == b),
        CompareOp::NotEqual => choose(to, a, b, then, otherwise, |a, b| a != b),
        CompareOp::Unordered => choose(to, a, b, then, otherwise, |a, b| a.is_nan() || b.is_nan()),
    }
}

#[inline(always)]
fn map(to: &mut [f32], x: Value<'_>, f: impl Fn(f32) -> f32) {
    match x {
        Value::Many(x) => {
            for (to, x) in to.iter_mut().zip(x) {
                *to = f(*x);
            }
        }
        Value::One(x) => to.fill(f(x)),
    }
}

#[inline(always)]
fn zip(to: &mut [f32], a: Value<'_>, b: Value<'_>, f: impl Fn(f32, f32) -> f32) {
    match (a, b) {
        (Value::Many(a), Value::Many(b)) => {
            to.iter_mut().zip(a).zip(b).for_each(|((to, a), b)| *to = f(*a, *b));
        }
        (Value::Many(a), Value::One(b)) => to.iter_mut().zip(a).for_each(|(to, a)| *to = f(*a, b)),
        (Value::One(a), Value::Many(b)) => to.iter_mut().zip(b).for_each(|(to, b)| *to = f(a, *b)),
        (Value::One(a), Value::One(b)) => to.fill(f(a, b)),
    }
}

/// `then` or `otherwise` by masks: compilers move a load into the arm of a branch, and such a loop is not
/// vectorized.
#[inline(always)]
fn pick(holds: bool, then: f32, otherwise: f32) -> f32 {
    let mask = u32::from(holds).wrapping_neg();
    f32::from_bits((then.to_bits() & mask) | (otherwise.to_bits() & !mask))
}

#[inline(always)]
fn choose(
    to: &mut [f32],
    a: Value<'_>,
    b: Value<'_>,
    then: Value<'_>,
    otherwise: Value<'_>,
    holds: impl Fn(f32, f32) -> bool,
) {
    // What models have, in one pass: a comparison with a constant that picks an operand or a constant.
    if let (Value::Many(a), Value::One(b)) = (a, b) {
        match (then, otherwise) {
            (Value::Many(x), Value::Many(y)) => {
                let all = to.iter_mut().zip(a).zip(x).zip(y);
                all.for_each(|(((to, a), x), y)| *to = pick(holds(*a, b), *x, *y));
            }
            (Value::Many(x), Value::One(y)) => {
                let all = to.iter_mut().zip(a).zip(x);
                all.for_each(|((to, a), x)| *to = pick(holds(*a, b), *x, y));
            }
            (Value::One(x), Value::Many(y)) => {
                let all = to.iter_mut().zip(a).zip(y);
                all.for_each(|((to, a), y)| *to = pick(holds(*a, b), x, *y));
            }
            (Value::One(x), Value::One(y)) => {
                to.iter_mut().zip(a).for_each(|(to, a)| *to = pick(holds(*a, b), x, y));
            }
        }
        return;
    }
    // The result of the comparison first, so that each pass reads at most two slices.
    zip(to, a, b, |a, b| pick(holds(a, b), 1.0, 0.0));
    match (then, otherwise) {
        (Value::Many(x), Value::Many(y)) => {
            to.iter_mut().zip(x).zip(y).for_each(|((to, x), y)| *to = pick(*to != 0.0, *x, *y));
        }
        (Value::Many(x), Value::One(y)) => {
            to.iter_mut().zip(x).for_each(|(to, x)| *to = pick(*to != 0.0, *x, y));
        }
        (Value::One(x), Value::Many(y)) => {
            to.iter_mut().zip(y).for_each(|(to, y)| *to = pick(*to != 0.0, x, *y));
        }
        (Value::One(x), Value::One(y)) => to.iter_mut().for_each(|to| *to = pick(*to != 0.0, x, y)),
    }
}

#[inline(always)]
fn positive(x: f32) -> f32 {
    Lane(x).at_least(0.0).0
}

/// `max(op(a, b), 0)`, NaN kept; of [`Add`](BinaryOp::Add), [`Sub`](BinaryOp::Sub) and [`Mul`](BinaryOp::Mul).
#[inline(always)]
pub(super) fn positive_binary(op: BinaryOp, to: &mut [f32], a: Value<'_>, b: Value<'_>) {
    match op {
        BinaryOp::Add => zip(to, a, b, |a, b| positive(a + b)),
        BinaryOp::Sub => zip(to, a, b, |a, b| positive(a - b)),
        BinaryOp::Mul => zip(to, a, b, |a, b| positive(a * b)),
        _ => {
            binary(op, to, a, b);
            to.iter_mut().for_each(|v| *v = positive(*v));
        }
    }
}

/// `a * b + c` with both roundings; not below 0 where `relu`.
#[inline(always)]
pub(super) fn mul_add(to: &mut [f32], operands: [Value<'_>; 3], relu: bool) {
    match relu {
        false => zip3(to, operands, |a, b, c| a * b + c),
        true => zip3(to, operands, |a, b, c| positive(a * b + c)),
    }
}

#[inline(always)]
fn zip3(to: &mut [f32], [a, b, c]: [Value<'_>; 3], f: impl Fn(f32, f32, f32) -> f32) {
    match (a, b, c) {
        (Value::Many(a), Value::Many(b), Value::Many(c)) => {
            let all = to.iter_mut().zip(a).zip(b).zip(c);
            all.for_each(|(((to, a), b), c)| *to = f(*a, *b, *c));
        }
        (Value::Many(a), Value::Many(b), Value::One(c)) => {
            to.iter_mut().zip(a).zip(b).for_each(|((to, a), b)| *to = f(*a, *b, c));
        }
        (Value::Many(a), Value::One(b), Value::Many(c)) => {
            to.iter_mut().zip(a).zip(c).for_each(|((to, a), c)| *to = f(*a, b, *c));
        }
        (Value::Many(a), Value::One(b), Value::One(c)) => {
            to.iter_mut().zip(a).for_each(|(to, a)| *to = f(*a, b, c));
        }
        (Value::One(a), Value::Many(b), Value::Many(c)) => {
            to.iter_mut().zip(b).zip(c).for_each(|((to, b), c)| *to = f(a, *b, *c));
        }
        (Value::One(a), Value::Many(b), Value::One(c)) => {
            to.iter_mut().zip(b).for_each(|(to, b)| *to = f(a, *b, c));
        }
        (Value::One(a), Value::One(b), Value::Many(c)) => {
            to.iter_mut().zip(c).for_each(|(to, c)| *to = f(a, b, *c));
        }
        (Value::One(a), Value::One(b), Value::One(c)) => to.fill(f(a, b, c)),
    }
}
