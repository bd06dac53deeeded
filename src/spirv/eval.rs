//! Pointwise expressions on the CPU, a cache-sized chunk at a time.

use super::math;
use super::pointwise::{
    BinaryOp, CompareOp, Expr, ExprId, Indexing, PointwiseDesc, PointwiseError, Term, UnaryOp,
};

/// Elements of intermediate values that stay in a first-level cache beside what is read and written.
const CACHED: usize = 4096;

/// An input while it is evaluated.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// All of its elements.
    pub data: &'a [f32],
    /// How it is indexed; empty for a full input, and for a scalar.
    pub terms: &'a [Term],
}

/// A [`PointwiseDesc`] ready to run: which expression goes to which register, and when registers are free.
#[derive(Clone, Debug)]
pub struct Evaluator {
    desc: PointwiseDesc,
    steps: Vec<Step>,
    registers: usize,
    /// Where each expression's value is.
    places: Vec<Place>,
}

/// Registers of one thread, reused from chunk to chunk.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    registers: Vec<Vec<f32>>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    expr: Expr,
    to: Target,
}

#[derive(Clone, Copy, Debug)]
enum Target {
    Register(usize),
    Output(usize),
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// Not needed.
    Nowhere,
    /// In the input's own memory.
    Input(usize),
    /// The first element of an input.
    Scalar(usize),
    Const(f32),
    Register(usize),
    /// In the output's own memory; of one that no step reads.
    Output,
}

/// A value during one chunk.
#[derive(Clone, Copy)]
enum Value<'a> {
    Many(&'a [f32]),
    One(f32),
}

impl Evaluator {
    /// Prepares `desc`.
    ///
    /// # Errors
    /// The description has no output.
    pub fn new(desc: PointwiseDesc) -> Result<Self, PointwiseError> {
        desc.validate()?;
        let live = desc.live();
        let mut last_use: Vec<Option<usize>> = vec![None; desc.exprs().len()];
        for (at, expr) in desc.exprs().iter().enumerate().filter(|(at, _)| live[*at]) {
            expr.operands().for_each(|operand| last_use[operand.index()] = Some(at));
        }
        let mut evaluator =
            Self { steps: Vec::new(), registers: 0, places: vec![Place::Nowhere; desc.exprs().len()], desc };
        let mut free: Vec<usize> = Vec::new();
        for at in (0..live.len()).filter(|&at| live[at]) {
            let expr = evaluator.desc.exprs()[at];
            let mut outputs = evaluator.desc.outputs().iter().enumerate().filter(|(_, id)| id.index() == at);
            let (output, again) = (outputs.next().map(|(output, _)| output), outputs.next().is_some());
            evaluator.places[at] = match expr {
                Expr::Const(value) => Place::Const(value),
                Expr::Input(input) if evaluator.desc.inputs()[input] == Indexing::Full => Place::Input(input),
                Expr::Input(input) if evaluator.desc.inputs()[input].terms() == 0 => Place::Scalar(input),
                _ => match output {
                    Some(output) if !again && last_use[at].is_none() => {
                        evaluator.steps.push(Step { expr, to: Target::Output(output) });
                        Place::Output
                    }
                    _ => {
                        // A register that an operand frees is not taken for the result of the same step.
                        let to = free.pop().unwrap_or(evaluator.registers);
                        evaluator.registers = evaluator.registers.max(to + 1);
                        evaluator.steps.push(Step { expr, to: Target::Register(to) });
                        Place::Register(to)
                    }
                },
            };
            let mut operands: Vec<ExprId> = expr.operands().collect();
            operands.sort_unstable();
            operands.dedup();
            for operand in operands {
                if let Place::Register(register) = evaluator.places[operand.index()]
                    && last_use[operand.index()] == Some(at)
                    && !evaluator.desc.outputs().contains(&operand)
                {
                    free.push(register);
                }
            }
        }
        Ok(evaluator)
    }

    /// Elements that are best evaluated at once.
    pub fn chunk(&self) -> usize {
        (CACHED / (self.registers + 1)).clamp(256, 2048)
    }

    /// The description.
    pub fn desc(&self) -> &PointwiseDesc {
        &self.desc
    }

    /// Evaluates elements `first..` of every output, as many as the outputs hold: `outputs` are the chunks
    /// themselves, the inputs are whole.
    ///
    /// # Errors
    /// The inputs or outputs are not those of the description, or an input is too short.
    pub fn eval_chunk(
        &self,
        first: usize,
        inputs: &[Operand<'_>],
        outputs: &mut [&mut [f32]],
        scratch: &mut Scratch,
    ) -> Result<(), PointwiseError> {
        let len = self.check(first, inputs, outputs)?;
        let registers = &mut scratch.registers;
        registers.resize_with(registers.len().max(self.registers), Vec::new);
        for step in &self.steps {
            match step.to {
                Target::Output(output) => {
                    self.step(step.expr, outputs[output], first, inputs, registers);
                }
                Target::Register(register) => {
                    let mut to = std::mem::take(&mut registers[register]);
                    to.resize(len, 0.0);
                    self.step(step.expr, &mut to, first, inputs, registers);
                    registers[register] = to;
                }
            }
        }
        for (output, id) in outputs.iter_mut().zip(self.desc.outputs()) {
            if let Place::Output = self.places[id.index()] {
                continue;
            }
            match self.value(*id, first, len, inputs, registers) {
                Value::Many(values) => output.copy_from_slice(values),
                Value::One(value) => output.fill(value),
            }
        }
        Ok(())
    }

    fn step(&self, expr: Expr, to: &mut [f32], first: usize, inputs: &[Operand<'_>], registers: &[Vec<f32>]) {
        let len = to.len();
        let value = |id: ExprId| self.value(id, first, len, inputs, registers);
        match expr {
            Expr::Input(input) => gather(to, inputs[input], first),
            Expr::Const(constant) => to.fill(constant),
            Expr::Unary(op, a) => unary(op, to, value(a)),
            Expr::Binary(op, a, b) => binary(op, to, value(a), value(b)),
            Expr::Select { test, a, b, then, otherwise } => {
                select(test, to, [value(a), value(b), value(then), value(otherwise)]);
            }
        }
    }

    /// The number of elements of the chunk.
    fn check(
        &self,
        first: usize,
        inputs: &[Operand<'_>],
        outputs: &[&mut [f32]],
    ) -> Result<usize, PointwiseError> {
        let wrong = |what, found, expected| Err(PointwiseError::WrongCount { what, found, expected });
        if inputs.len() != self.desc.inputs().len() {
            return wrong("inputs", inputs.len(), self.desc.inputs().len());
        }
        if outputs.len() != self.desc.outputs().len() {
            return wrong("outputs", outputs.len(), self.desc.outputs().len());
        }
        let len = outputs.first().map_or(0, |output| output.len());
        if let Some(other) = outputs.iter().find(|output| output.len() != len) {
            return wrong("elements of an output", other.len(), len);
        }
        for (input, (operand, indexing)) in inputs.iter().zip(self.desc.inputs()).enumerate() {
            if operand.terms.len() != indexing.terms() {
                return wrong("terms", operand.terms.len(), indexing.terms());
            }
            let needed = match indexing {
                _ if len == 0 => 0,
                Indexing::Full => first.saturating_add(len),
                Indexing::Broadcast { .. } => reach(input, operand.terms)?,
            };
            if operand.data.len() < needed {
                return Err(PointwiseError::ShortInput { input, len: operand.data.len(), needed });
            }
        }
        Ok(len)
    }

    fn value<'a>(
        &self,
        id: ExprId,
        first: usize,
        len: usize,
        inputs: &[Operand<'a>],
        registers: &'a [Vec<f32>],
    ) -> Value<'a> {
        match self.places[id.index()] {
            // Nothing reads these.
            Place::Nowhere | Place::Output => Value::One(0.0),
            Place::Const(value) => Value::One(value),
            Place::Scalar(input) => Value::One(inputs[input].data.first().copied().unwrap_or(0.0)),
            Place::Input(input) => Value::Many(&inputs[input].data[first..first + len]),
            Place::Register(register) => Value::Many(&registers[register]),
        }
    }
}

/// Elements that the terms reach.
fn reach(input: usize, terms: &[Term]) -> Result<usize, PointwiseError> {
    let mut last = 0usize;
    for term in terms {
        if term.div == 0 || term.modulo == 0 {
            return Err(PointwiseError::ZeroTerm { input });
        }
        let steps = (term.modulo as usize - 1).saturating_mul(term.stride as usize);
        last = last.saturating_add(steps);
    }
    Ok(last.saturating_add(1))
}

/// Reads a broadcast input for the elements `first..`, run by run: within one, every term but those that
/// step with each element stands still.
fn gather(to: &mut [f32], operand: Operand<'_>, first: usize) {
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

fn unary(op: UnaryOp, to: &mut [f32], x: Value<'_>) {
    match op {
        UnaryOp::Neg => map(to, x, |x| -x),
        UnaryOp::Abs => map(to, x, f32::abs),
        UnaryOp::Exp => map(to, x, |x| math::exp(x, 0.0, 0.0)),
        UnaryOp::Log => map(to, x, |x| math::log(x, 0.0, 0.0)),
        UnaryOp::Sqrt => map(to, x, f32::sqrt),
        UnaryOp::Sigmoid => map(to, x, |x| math::sigmoid(x, 0.0, 0.0)),
        UnaryOp::Tanh => map(to, x, |x| math::tanh(x, 0.0, 0.0)),
        UnaryOp::Erf => map(to, x, |x| math::erf(x, 0.0, 0.0)),
        UnaryOp::Floor => map(to, x, f32::floor),
        UnaryOp::Ceil => map(to, x, f32::ceil),
    }
}

fn binary(op: BinaryOp, to: &mut [f32], a: Value<'_>, b: Value<'_>) {
    match op {
        BinaryOp::Add => zip(to, a, b, |a, b| a + b),
        BinaryOp::Sub => zip(to, a, b, |a, b| a - b),
        BinaryOp::Mul => zip(to, a, b, |a, b| a * b),
        BinaryOp::Div => zip(to, a, b, |a, b| a / b),
        BinaryOp::Min => zip(to, a, b, |a, b| if a <= b || a.is_nan() { a } else { b }),
        BinaryOp::Max => zip(to, a, b, |a, b| if a >= b || a.is_nan() { a } else { b }),
        BinaryOp::Pow => zip(to, a, b, f32::powf),
    }
}

fn select(test: CompareOp, to: &mut [f32], [a, b, then, otherwise]: [Value<'_>; 4]) {
    match test {
        CompareOp::Less => choose(to, a, b, then, otherwise, |a, b| a < b),
        CompareOp::LessEqual => choose(to, a, b, then, otherwise, |a, b| a <= b),
        CompareOp::Greater => choose(to, a, b, then, otherwise, |a, b| a > b),
        CompareOp::GreaterEqual => choose(to, a, b, then, otherwise, |a, b| a >= b),
        CompareOp::Equal => choose(to, a, b, then, otherwise, |a, b| a == b),
        CompareOp::NotEqual => choose(to, a, b, then, otherwise, |a, b| a != b),
    }
}

fn map(to: &mut [f32], x: Value<'_>, f: impl Fn(f32) -> f32) {
    match x {
        Value::Many(x) => to.iter_mut().zip(x).for_each(|(to, x)| *to = f(*x)),
        Value::One(x) => to.fill(f(x)),
    }
}

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
                all.for_each(|(((to, a), x), y)| *to = if holds(*a, b) { *x } else { *y });
            }
            (Value::Many(x), Value::One(y)) => {
                let all = to.iter_mut().zip(a).zip(x);
                all.for_each(|((to, a), x)| *to = if holds(*a, b) { *x } else { y });
            }
            (Value::One(x), Value::Many(y)) => {
                let all = to.iter_mut().zip(a).zip(y);
                all.for_each(|((to, a), y)| *to = if holds(*a, b) { x } else { *y });
            }
            (Value::One(x), Value::One(y)) => {
                to.iter_mut().zip(a).for_each(|(to, a)| *to = if holds(*a, b) { x } else { y });
            }
        }
        return;
    }
    // The result of the comparison first, so that each pass reads at most two slices.
    zip(to, a, b, |a, b| if holds(a, b) { 1.0 } else { 0.0 });
    match (then, otherwise) {
        (Value::Many(x), Value::Many(y)) => {
            to.iter_mut().zip(x).zip(y).for_each(|((to, x), y)| *to = if *to != 0.0 { *x } else { *y });
        }
        (Value::Many(x), Value::One(y)) => {
            to.iter_mut().zip(x).for_each(|(to, x)| *to = if *to != 0.0 { *x } else { y });
        }
        (Value::One(x), Value::Many(y)) => {
            to.iter_mut().zip(y).for_each(|(to, y)| *to = if *to != 0.0 { x } else { *y });
        }
        (Value::One(x), Value::One(y)) => to.iter_mut().for_each(|to| *to = if *to != 0.0 { x } else { y }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::pointwise::{Indexing, broadcast_terms};
    use super::*;

    const UNARY: [UnaryOp; 10] = [
        UnaryOp::Neg,
        UnaryOp::Abs,
        UnaryOp::Exp,
        UnaryOp::Log,
        UnaryOp::Sqrt,
        UnaryOp::Sigmoid,
        UnaryOp::Tanh,
        UnaryOp::Erf,
        UnaryOp::Floor,
        UnaryOp::Ceil,
    ];
    const BINARY: [BinaryOp; 7] = [
        BinaryOp::Add,
        BinaryOp::Sub,
        BinaryOp::Mul,
        BinaryOp::Div,
        BinaryOp::Min,
        BinaryOp::Max,
        BinaryOp::Pow,
    ];
    const COMPARE: [CompareOp; 6] = [
        CompareOp::Less,
        CompareOp::LessEqual,
        CompareOp::Greater,
        CompareOp::GreaterEqual,
        CompareOp::Equal,
        CompareOp::NotEqual,
    ];

    fn full(data: &[f32]) -> Operand<'_> {
        Operand { data, terms: &[] }
    }

    /// One output of one full input.
    fn apply(make: impl Fn(&mut PointwiseDesc, ExprId) -> ExprId, x: &[f32]) -> Vec<f32> {
        let mut desc = PointwiseDesc::new([Indexing::Full]);
        let input = desc.input(0).unwrap();
        let value = make(&mut desc, input);
        desc.output(value).unwrap();
        let mut out = vec![f32::NAN; x.len()];
        let evaluator = Evaluator::new(desc).unwrap();
        evaluator.eval_chunk(0, &[full(x)], &mut [&mut out], &mut Scratch::default()).unwrap();
        out
    }

    fn samples() -> Vec<f32> {
        let steps = (-2000..=2000).map(|i| i as f32 * 0.01);
        steps.chain([1e-6, -1e-6, 0.0, -0.0, 0.624_999, 0.625, 80.0, -80.0, 100.0, -100.0]).collect()
    }

    /// Error function by its Taylor series (small arguments) and continued fraction (large), in 64 bits.
    fn erf64(x: f64) -> f64 {
        if x.abs() < 3.0 {
            let (mut term, mut sum) = (x, x);
            for n in 1..100 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            return sum * 2.0 / std::f64::consts::PI.sqrt();
        }
        let fraction = (1..60).rev().fold(0.0, |f, n| f64::from(n) / 2.0 / (x.abs() + f));
        let tail = (-x * x).exp() / ((x.abs() + fraction) * std::f64::consts::PI.sqrt());
        x.signum() * (1.0 - tail)
    }

    #[test]
    fn functions_are_close_to_their_definitions() {
        // (function, reference, relative tolerance, absolute tolerance)
        type Case = (UnaryOp, fn(f64) -> f64, f64, f64);
        let cases: [Case; 5] = [
            (UnaryOp::Exp, f64::exp, 3e-7, 1e-44),
            (UnaryOp::Sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 5e-7, 1e-38),
            (UnaryOp::Tanh, f64::tanh, 4e-7, 0.0),
            (UnaryOp::Erf, erf64, 0.0, 5e-7),
            (UnaryOp::Neg, |x| -x, 0.0, 0.0),
        ];
        for (op, reference, relative, absolute) in cases {
            let x = samples();
            for (x, y) in x.iter().zip(apply(|desc, x| desc.unary(op, x).unwrap(), &x)) {
                let expected = reference(f64::from(*x));
                if expected.abs() > f64::from(f32::MAX) {
                    assert_eq!(f64::from(y), f64::INFINITY * expected.signum(), "{op:?}({x})");
                    continue;
                }
                let error = (f64::from(y) - expected).abs();
                assert!(error <= relative * expected.abs() + absolute, "{op:?}({x}) = {y}, not {expected}");
            }
        }
    }

    #[test]
    fn special_values_pass_through() {
        let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        let run = |op| apply(|desc, x| desc.unary(op, x).unwrap(), &x);
        for op in UNARY {
            assert!(run(op)[0].is_nan(), "{op:?}");
        }
        assert_eq!(run(UnaryOp::Exp)[1..], [f32::INFINITY, 0.0]);
        assert_eq!(run(UnaryOp::Sigmoid)[1..], [1.0, 0.0]);
        assert_eq!(run(UnaryOp::Tanh)[1..], [1.0, -1.0]);
        assert_eq!(run(UnaryOp::Erf)[1..], [1.0, -1.0]);
    }

    #[test]
    fn composed_functions() {
        let x = [-2.0, -0.5, 0.0, 0.5, 7.0];
        assert_eq!(apply(|d, x| d.relu(x).unwrap(), &x), [0.0, 0.0, 0.0, 0.5, 7.0]);
        assert_eq!(apply(|d, x| d.leaky_relu(x, 0.5).unwrap(), &x), [-1.0, -0.25, 0.0, 0.5, 7.0]);
        assert_eq!(apply(|d, x| d.clip(x, -1.0, 1.0).unwrap(), &x), [-1.0, -0.5, 0.0, 0.5, 1.0]);
        assert_eq!(apply(|d, x| d.hard_sigmoid(x, 0.5, 0.5).unwrap(), &x), [0.0, 0.25, 0.5, 0.75, 1.0]);
        let positive = |d: &mut PointwiseDesc, x| {
            let zero = d.constant(0.0).unwrap();
            d.compare(CompareOp::Greater, x, zero).unwrap()
        };
        assert_eq!(apply(positive, &x), [0.0, 0.0, 0.0, 1.0, 1.0]);
        for make in [PointwiseDesc::relu, |d: &mut PointwiseDesc, x| d.clip(x, 0.0, 1.0)] {
            assert!(apply(|d, x| make(d, x).unwrap(), &[f32::NAN])[0].is_nan());
        }
    }

    #[test]
    fn a_power_of_a_negative_number() {
        let x = [-2.0, -1.5, 0.0, 2.0];
        let cube = |d: &mut PointwiseDesc, x| {
            let three = d.constant(3.0).unwrap();
            d.binary(BinaryOp::Pow, x, three).unwrap()
        };
        assert_eq!(apply(cube, &x), [-8.0, -3.375, 0.0, 8.0]);
    }

    #[test]
    fn wrong_operands_are_errors() {
        let mut desc = PointwiseDesc::new([Indexing::Full, Indexing::Broadcast { terms: 1 }]);
        assert_eq!(Evaluator::new(desc.clone()).unwrap_err(), PointwiseError::NoOutputs);
        let (a, b) = (desc.input(0).unwrap(), desc.input(1).unwrap());
        let sum = desc.binary(BinaryOp::Add, a, b).unwrap();
        desc.output(sum).unwrap();
        let evaluator = Evaluator::new(desc).unwrap();
        let (data, mut out) = ([0.0; 8], [0.0; 4]);
        let mut run = |first, a: &[f32], terms: &[Term]| {
            let inputs = [full(a), Operand { data: &data, terms }];
            evaluator.eval_chunk(first, &inputs, &mut [&mut out], &mut Scratch::default())
        };
        let term = |div, modulo, stride| [Term { div, modulo, stride }];
        assert_eq!(run(4, &data, &term(1, 8, 1)), Ok(()));
        let short = PointwiseError::ShortInput { input: 0, len: 8, needed: 9 };
        assert_eq!(run(5, &data, &term(1, 8, 1)), Err(short));
        let short = PointwiseError::ShortInput { input: 1, len: 8, needed: 9 };
        assert_eq!(run(0, &data, &term(1, 5, 2)), Err(short));
        assert_eq!(run(0, &data, &term(0, 5, 1)), Err(PointwiseError::ZeroTerm { input: 1 }));
        assert!(matches!(run(0, &data, &[]), Err(PointwiseError::WrongCount { what: "terms", .. })));
        assert!(matches!(run(usize::MAX, &data, &term(1, 8, 1)), Err(PointwiseError::ShortInput { .. })));
    }

    /// The value of one expression at one element, straight from the definition.
    fn naive(desc: &PointwiseDesc, id: ExprId, at: &[f32]) -> f32 {
        let of = |id| naive(desc, id, at);
        match desc.exprs()[id.index()] {
            Expr::Input(input) => at[input],
            Expr::Const(value) => value,
            Expr::Unary(op, a) => {
                let mut to = [0.0];
                unary(op, &mut to, Value::One(of(a)));
                to[0]
            }
            Expr::Binary(op, a, b) => {
                let mut to = [0.0];
                binary(op, &mut to, Value::One(of(a)), Value::One(of(b)));
                to[0]
            }
            Expr::Select { test, a, b, then, otherwise } => {
                let (a, b) = (of(a), of(b));
                let holds = match test {
                    CompareOp::Less => a < b,
                    CompareOp::LessEqual => a <= b,
                    CompareOp::Greater => a > b,
                    CompareOp::GreaterEqual => a >= b,
                    CompareOp::Equal => a == b,
                    CompareOp::NotEqual => a != b,
                };
                if holds { of(then) } else { of(otherwise) }
            }
        }
    }

    proptest! {
        #[test]
        fn registers_do_not_get_mixed_up(
            steps in prop::collection::vec((0..24usize, any::<[prop::sample::Index; 4]>()), 1..12),
            outputs in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
            len in 1..70usize,
            first in 0..50usize,
        ) {
            // A full input, a scalar, and a row that repeats.
            let row = [Term { div: 3, modulo: 5, stride: 2 }];
            let inputs = [Indexing::Full, Indexing::of(&[], 100), Indexing::of(&row, 100)];
            let mut desc = PointwiseDesc::new(inputs);
            let mut ids = vec![desc.constant(0.75).unwrap()];
            ids.extend((0..3).map(|at| desc.input(at).unwrap()));
            for (op, picks) in steps {
                let pick = |at: usize| *picks[at].get(&ids);
                let id = match op {
                    0..10 => desc.unary(UNARY[op], pick(0)),
                    10..17 => desc.binary(BINARY[op - 10], pick(0), pick(1)),
                    _ => desc.select((pick(0), COMPARE[op % 6], pick(1)), pick(2), pick(3)),
                };
                ids.push(id.unwrap());
            }
            for output in &outputs {
                desc.output(*output.get(&ids)).unwrap();
            }
            let x: Vec<f32> = (0..120).map(|i| (i as f32 - 60.0) * 0.125).collect();
            let scalar = [1.25];
            let table: Vec<f32> = (0..9).map(|i| 2.0 - i as f32 * 0.5).collect();
            let operands =
                [full(&x), full(&scalar), Operand { data: &table, terms: &row }];
            let mut out = vec![vec![f32::NAN; len]; outputs.len()];
            let mut slices: Vec<&mut [f32]> = out.iter_mut().map(Vec::as_mut_slice).collect();
            let evaluator = Evaluator::new(desc.clone()).unwrap();
            // Left over registers of another length must not matter.
            let mut scratch = Scratch { registers: vec![vec![9.0; 200]; 3] };
            evaluator.eval_chunk(first, &operands, &mut slices, &mut scratch).unwrap();
            for (out, id) in out.iter().zip(desc.outputs()) {
                for (j, value) in out.iter().enumerate() {
                    let i = first + j;
                    let expected = naive(&desc, *id, &[x[i], scalar[0], table[i / 3 % 5 * 2]]);
                    prop_assert_eq!(value.to_bits(), expected.to_bits(), "element {}", i);
                }
            }
        }

        #[test]
        fn broadcasts_read_what_numpy_reads(
            dims in prop::collection::vec((1..4u32, any::<bool>()), 0..6),
            dropped in 0..3usize,
        ) {
            let output: Vec<u32> = dims.iter().map(|(extent, _)| *extent).collect();
            let own: Vec<u32> = dims.iter().map(|(extent, kept)| if *kept { *extent } else { 1 }).collect();
            let leading = own.iter().take_while(|extent| **extent == 1).count();
            let input = &own[dropped.min(leading)..];
            let terms = broadcast_terms(&output, input).unwrap();
            let len: u32 = output.iter().product();
            for i in 0..len {
                let (mut rest, mut stride, mut expected) = (i, 1, 0);
                for (at, extent) in output.iter().enumerate().rev() {
                    expected += if own[at] == 1 { 0 } else { rest % extent * stride };
                    stride *= own[at];
                    rest /= extent;
                }
                let found: u32 = terms.iter().map(|t| i / t.div % t.modulo * t.stride).sum();
                prop_assert_eq!(found, expected);
            }
            let mut to = vec![0.0; len as usize];
            let data: Vec<f32> = (0..input.iter().product()).map(|i| i as f32).collect();
            gather(&mut to, Operand { data: &data, terms: &terms }, 0);
            let found: Vec<u32> = to.iter().map(|value| *value as u32).collect();
            let expected: Vec<u32> =
                (0..len).map(|i| terms.iter().map(|t| i / t.div % t.modulo * t.stride).sum()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
