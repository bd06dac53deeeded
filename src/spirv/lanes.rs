//! The arithmetic of pointwise expressions over slices, one loop for each function, so that each is vectorized.

use super::eval::Operand;
use super::math;
use super::pointwise::{BinaryOp, CompareOp, Term, UnaryOp};

/// A value during one chunk.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Many(&'a [f32]),
    One(f32),
}

/// Reads a broadcast input for the elements `first..`, run by run: within one, every term but those that
/// step with each element stands still.
pub(super) fn gather(to: &mut [f32], operand: Operand<'_>, first: usize) {
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
    match op {
        UnaryOp::Neg => map(to, x, |x| -x),
        UnaryOp::Abs => map(to, x, f32::abs),
        UnaryOp::Exp => map(to, x, at_zero(math::exp)),
        UnaryOp::Log => map(to, x, at_zero(math::log)),
        UnaryOp::Sqrt => map(to, x, f32::sqrt),
        UnaryOp::Sigmoid => map(to, x, at_zero(math::sigmoid)),
        UnaryOp::Tanh => map(to, x, at_zero(math::tanh)),
        UnaryOp::Erf => map(to, x, at_zero(math::erf)),
        UnaryOp::Floor => map(to, x, f32::floor),
        UnaryOp::Ceil => map(to, x, f32::ceil),
    }
}

#[inline(always)]
pub(super) fn binary(op: BinaryOp, to: &mut [f32], a: Value<'_>, b: Value<'_>) {
    match op {
        BinaryOp::Add => zip(to, a, b, |a, b| a + b),
        BinaryOp::Sub => zip(to, a, b, |a, b| a - b),
        BinaryOp::Mul => zip(to, a, b, |a, b| a * b),
        BinaryOp::Div => zip(to, a, b, |a, b| a / b),
        BinaryOp::Min => zip(to, a, b, |a, b| pick(a <= b || a.is_nan(), a, b)),
        BinaryOp::Max => zip(to, a, b, |a, b| pick(a >= b || a.is_nan(), a, b)),
        BinaryOp::Pow => zip(to, a, b, f32::powf),
    }
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
    }
}

/// A function of [`math`] that takes no parameters.
#[inline(always)]
fn at_zero(f: impl Fn(f32, f32, f32) -> f32) -> impl Fn(f32) -> f32 {
    #[inline(always)]
    move |x| f(x, 0.0, 0.0)
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
    pick(x < 0.0, 0.0, x)
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
