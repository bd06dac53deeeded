//! Pointwise expressions on the CPU, a cache-sized chunk at a time.

pub use super::lanes::InputData;
use super::lanes::{Value, binary, gather, mul_add, positive_binary, select, unary};
use super::pointwise::{BinaryOp, Expr, ExprId, Indexing, PointwiseDesc, PointwiseError, Term};
use crate::simd::wide;

/// Elements of intermediate values that stay in a first-level cache together with what is read and written.
const CACHED: usize = 4096;

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
    views: Vec<View>,
}

/// Where the elements of an input are during one run.
#[derive(Clone, Copy, Debug)]
enum View {
    /// From this one on, one after the other.
    From(usize),
    /// This one throughout.
    One(usize),
    /// Collected into the register of its step.
    Gathered,
}

/// Elements for which a run of its own is worth its overhead.
const LONG: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Step {
    work: Work,
    to: Target,
}

/// What one pass over the elements computes.
#[derive(Clone, Copy, Debug)]
enum Work {
    Expr(Expr),
    /// `max(op(a, b), 0)`
    Positive(BinaryOp, [ExprId; 2]),
    /// `a * b + c`, not below 0 where the last says so.
    MulAdd([ExprId; 3], bool),
    /// Nothing: its only user computes it.
    Folded,
}

impl Work {
    fn operands(self) -> Vec<ExprId> {
        match self {
            Work::Expr(expr) => expr.operands().collect(),
            Work::Positive(_, operands) => operands.to_vec(),
            Work::MulAdd(operands, _) => operands.to_vec(),
            Work::Folded => Vec::new(),
        }
    }
}

/// The work of each expression: what models have most is done in one pass instead of two.
fn works(desc: &PointwiseDesc, live: &[bool]) -> Vec<Work> {
    let mut works: Vec<Work> = desc.exprs().iter().map(|expr| Work::Expr(*expr)).collect();
    let mut uses = vec![0usize; works.len()];
    let users = desc.exprs().iter().zip(live).filter(|(_, live)| **live);
    users.flat_map(|(expr, _)| expr.operands()).for_each(|operand| uses[operand.index()] += 1);
    // One more than an expression can have, so that outputs stay.
    desc.outputs().iter().for_each(|output| uses[output.index()] += 4);
    for at in (0..works.len()).filter(|&at| live[at]) {
        let (work, folded) = match desc.exprs()[at] {
            Expr::Binary(BinaryOp::Add, a, b) => {
                let product = |id: ExprId| match works[id.index()] {
                    Work::Expr(Expr::Binary(BinaryOp::Mul, x, y)) if uses[id.index()] == 1 => Some([x, y]),
                    _ => None,
                };
                match (product(a), product(b)) {
                    (Some([x, y]), _) => (Work::MulAdd([x, y, b], false), a),
                    (None, Some([x, y])) => (Work::MulAdd([x, y, a], false), b),
                    (None, None) => continue,
                }
            }
            Expr::Binary(BinaryOp::AtLeast, x, zero) if uses[x.index()] == 1 => {
                // The bits, because -0 is not the same result.
                if !matches!(desc.exprs()[zero.index()], Expr::Const(c) if c.to_bits() == 0) {
                    continue;
                }
                match works[x.index()] {
                    Work::MulAdd(operands, false) => (Work::MulAdd(operands, true), x),
                    Work::Expr(Expr::Binary(op, a, b)) => (Work::Positive(op, [a, b]), x),
                    _ => continue,
                }
            }
            _ => continue,
        };
        works[at] = work;
        works[folded.index()] = Work::Folded;
    }
    works
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
    /// In the input's own memory or in a register, as its view says.
    Broadcast(usize, usize),
    Const(f32),
    Register(usize),
    /// In the output's own memory; of one that no step reads.
    Output,
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
        let works = works(&desc, &live);
        for (at, work) in works.iter().enumerate().filter(|(at, _)| live[*at]) {
            work.operands().into_iter().for_each(|operand| last_use[operand.index()] = Some(at));
        }
        let mut evaluator =
            Self { steps: Vec::new(), registers: 0, places: vec![Place::Nowhere; desc.exprs().len()], desc };
        let mut free: Vec<usize> = Vec::new();
        for at in (0..live.len()).filter(|&at| live[at]) {
            let work = works[at];
            let mut outputs = evaluator.desc.outputs().iter().enumerate().filter(|(_, id)| id.index() == at);
            let (output, again) = (outputs.next().map(|(output, _)| output), outputs.next().is_some());
            evaluator.places[at] = match work {
                Work::Folded => Place::Nowhere,
                Work::Expr(Expr::Const(value)) => Place::Const(value),
                Work::Expr(Expr::Input(input)) if evaluator.desc.inputs()[input] == Indexing::Full => {
                    Place::Input(input)
                }
                _ => match output {
                    Some(output) if !again && last_use[at].is_none() => {
                        evaluator.steps.push(Step { work, to: Target::Output(output) });
                        Place::Output
                    }
                    _ => {
                        // A register that an operand frees is not taken for the result of the same step.
                        let to = free.pop().unwrap_or(evaluator.registers);
                        evaluator.registers = evaluator.registers.max(to + 1);
                        evaluator.steps.push(Step { work, to: Target::Register(to) });
                        match work {
                            Work::Expr(Expr::Input(input)) => Place::Broadcast(input, to),
                            _ => Place::Register(to),
                        }
                    }
                },
            };
            let mut operands = work.operands();
            operands.sort_unstable();
            operands.dedup();
            for operand in operands {
                if let Place::Register(register) | Place::Broadcast(_, register) =
                    evaluator.places[operand.index()]
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
        inputs: &[InputData<'_>],
        outputs: &mut [&mut [f32]],
        scratch: &mut Scratch,
    ) -> Result<(), PointwiseError> {
        let len = self.check(first, inputs, outputs)?;
        let registers = &mut scratch.registers;
        registers.resize_with(registers.len().max(self.registers), Vec::new);
        let mut start = 0;
        while start < len {
            let run = self.look(first + start, len - start, inputs, &mut scratch.views);
            let now = Run { first: first + start, start, len: run, inputs, views: &scratch.views };
            self.eval_run(&now, outputs, registers);
            start += run;
        }
        Ok(())
    }

    /// Decides how each input is seen from element `first` on, and for how many of `len` elements.
    fn look(&self, first: usize, len: usize, inputs: &[InputData<'_>], views: &mut Vec<View>) -> usize {
        views.clear();
        let mut run = len;
        for (operand, indexing) in inputs.iter().zip(self.desc.inputs()) {
            if *indexing == Indexing::Full {
                views.push(View::From(first));
                continue;
            }
            let (mut index, mut stride, mut own) = (0, 0, len);
            for term in operand.terms {
                let [div, modulo, by] = [term.div, term.modulo, term.stride].map(|word| word as usize);
                let step = first / div % modulo;
                index += step * by;
                if div == 1 {
                    stride += by;
                    own = own.min(modulo - step);
                } else {
                    own = own.min(div - first % div);
                }
            }
            let is_short = own < LONG.min(len);
            views.push(match stride {
                _ if is_short => View::Gathered,
                0 => View::One(index),
                1 => View::From(index),
                _ => View::Gathered,
            });
            run = if is_short { run } else { run.min(own) };
        }
        run
    }

    fn eval_run(&self, run: &Run<'_>, outputs: &mut [&mut [f32]], registers: &mut [Vec<f32>]) {
        let range = run.start..run.start + run.len;
        for step in &self.steps {
            match (step.to, step.work) {
                (Target::Output(output), _) => {
                    self.step(step.work, &mut outputs[output][range.clone()], run, registers);
                }
                (_, Work::Expr(Expr::Input(input))) if !matches!(run.views[input], View::Gathered) => {}
                (Target::Register(register), _) => {
                    let mut to = std::mem::take(&mut registers[register]);
                    to.resize(run.len, 0.0);
                    self.step(step.work, &mut to, run, registers);
                    registers[register] = to;
                }
            }
        }
        for (output, id) in outputs.iter_mut().zip(self.desc.outputs()) {
            if let Place::Output = self.places[id.index()] {
                continue;
            }
            let output = &mut output[range.clone()];
            match self.value(*id, run, registers) {
                Value::Many(values) => output.copy_from_slice(values),
                Value::One(value) => output.fill(value),
            }
        }
    }

    fn step(&self, work: Work, to: &mut [f32], run: &Run<'_>, registers: &[Vec<f32>]) {
        let value = |id: ExprId| self.value(id, run, registers);
        let expr = match work {
            Work::Expr(expr) => expr,
            Work::Positive(op, [a, b]) => {
                let (a, b) = (value(a), value(b));
                return wide(
                    #[inline(always)]
                    || positive_binary(op, to, a, b),
                );
            }
            Work::MulAdd(operands, relu) => {
                let operands = operands.map(value);
                return wide(
                    #[inline(always)]
                    || mul_add(to, operands, relu),
                );
            }
            Work::Folded => return,
        };
        match expr {
            Expr::Input(input) => gather(to, run.inputs[input], run.first),
            Expr::Const(constant) => to.fill(constant),
            Expr::Unary(op, a) => {
                let a = value(a);
                wide(
                    #[inline(always)]
                    || unary(op, to, a),
                );
            }
            Expr::Binary(op, a, b) => {
                let (a, b) = (value(a), value(b));
                wide(
                    #[inline(always)]
                    || binary(op, to, a, b),
                );
            }
            Expr::Select { test, a, b, then, otherwise } => {
                let operands = [value(a), value(b), value(then), value(otherwise)];
                wide(
                    #[inline(always)]
                    || select(test, to, operands),
                );
            }
        }
    }

    /// The number of elements of the chunk.
    fn check(
        &self,
        first: usize,
        inputs: &[InputData<'_>],
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

    fn value<'a>(&self, id: ExprId, run: &Run<'a>, registers: &'a [Vec<f32>]) -> Value<'a> {
        match self.places[id.index()] {
            // Nothing reads these.
            Place::Nowhere | Place::Output => Value::One(0.0),
            Place::Const(value) => Value::One(value),
            Place::Register(register) => Value::Many(&registers[register]),
            Place::Input(input) => Value::Many(&run.inputs[input].data[run.first..run.first + run.len]),
            Place::Broadcast(input, register) => match run.views[input] {
                View::One(index) => Value::One(run.inputs[input].data[index]),
                View::From(index) => Value::Many(&run.inputs[input].data[index..index + run.len]),
                View::Gathered => Value::Many(&registers[register]),
            },
        }
    }
}

/// Elements that are evaluated at once, all inputs seen in one way.
struct Run<'a> {
    /// The first of them in the whole.
    first: usize,
    /// The first of them in the chunk.
    start: usize,
    len: usize,
    inputs: &'a [InputData<'a>],
    views: &'a [View],
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::functions::Function;
    use super::super::pointwise::{CompareOp, UnaryOp, broadcast_terms};
    use super::*;

    fn full(data: &[f32]) -> InputData<'_> {
        InputData { data, terms: &[] }
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

    #[test]
    fn functions_are_close_to_their_definitions() {
        // (function, reference, relative tolerance, absolute tolerance)
        type Case = (UnaryOp, fn(f64) -> f64, f64, f64);
        let cases: [Case; 4] = [
            (UnaryOp::Exp, f64::exp, 3e-7, 1.2e-38),
            (UnaryOp::Sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 5e-7, 1e-38),
            (UnaryOp::Tanh, f64::tanh, 4e-7, 0.0),
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
        for op in UnaryOp::ALL {
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
        let of = |f: Function, p: [f32; 2], x: &[f32]| apply(|d, x| f.build(d, x, p).unwrap(), x);
        assert_eq!(of(Function::Relu, [0.0; 2], &x), [0.0, 0.0, 0.0, 0.5, 7.0]);
        assert_eq!(of(Function::LeakyRelu, [0.5, 0.0], &x), [-1.0, -0.25, 0.0, 0.5, 7.0]);
        assert_eq!(of(Function::Clip, [-1.0, 1.0], &x), [-1.0, -0.5, 0.0, 0.5, 1.0]);
        assert_eq!(of(Function::HardSigmoid, [0.5, 0.5], &x), [0.0, 0.25, 0.5, 0.75, 1.0]);
        let positive = |d: &mut PointwiseDesc, x| {
            let zero = d.constant(0.0).unwrap();
            d.compare(CompareOp::Greater, x, zero).unwrap()
        };
        assert_eq!(apply(positive, &x), [0.0, 0.0, 0.0, 1.0, 1.0]);
        for function in [Function::Relu, Function::Clip] {
            assert!(of(function, [0.0, 1.0], &[f32::NAN])[0].is_nan());
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
            let inputs = [full(a), InputData { data: &data, terms }];
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
                    CompareOp::Unordered => a.is_nan() || b.is_nan(),
                };
                if holds { of(then) } else { of(otherwise) }
            }
        }
    }

    proptest! {
        #[test]
        fn registers_do_not_get_mixed_up(
            steps in prop::collection::vec((0..44usize, any::<[prop::sample::Index; 4]>()), 1..12),
            outputs in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
            len in 1..70usize,
            first in 0..50usize,
            long in any::<bool>(),
        ) {
            // A full input, a scalar, and a row that repeats.
            // Runs long enough to be seen in place, or too short for it.
            let row = [Term { div: if long { 70 } else { 3 }, modulo: 5, stride: 2 }];
            let inputs = [Indexing::Full, Indexing::of(&[], 100), Indexing::of(&row, 100)];
            let mut desc = PointwiseDesc::new(inputs);
            let mut ids = vec![desc.constant(0.75).unwrap()];
            ids.extend((0..3).map(|at| desc.input(at).unwrap()));
            for (op, picks) in steps {
                let pick = |at: usize| *picks[at].get(&ids);
                let id = match op {
                    0..24 => desc.unary(UnaryOp::ALL[op], pick(0)),
                    24..33 => desc.binary(BinaryOp::ALL[op - 24], pick(0), pick(1)),
                    33 => Function::Relu.build(&mut desc, pick(0), [0.0; 2]),
                    // On what was made last, so that it may have no other user.
                    34 => Function::Relu.build(&mut desc, ids[ids.len() - 1], [0.0; 2]),
                    35 | 36 => desc
                        .binary(BinaryOp::Mul, pick(0), pick(1))
                        .and_then(|product| desc.binary(BinaryOp::Add, pick(2), product)),
                    _ => desc.select((pick(0), CompareOp::ALL[op % 7], pick(1)), pick(2), pick(3)),
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
                [full(&x), full(&scalar), InputData { data: &table, terms: &row }];
            let mut out = vec![vec![f32::NAN; len]; outputs.len()];
            let mut slices: Vec<&mut [f32]> = out.iter_mut().map(Vec::as_mut_slice).collect();
            let evaluator = Evaluator::new(desc.clone()).unwrap();
            // Left over registers of another length must not matter.
            let mut scratch = Scratch { registers: vec![vec![9.0; 200]; 3], views: Vec::new() };
            evaluator.eval_chunk(first, &operands, &mut slices, &mut scratch).unwrap();
            for (out, id) in out.iter().zip(desc.outputs()) {
                for (j, value) in out.iter().enumerate() {
                    let i = first + j;
                    let expected = naive(&desc, *id, &[x[i], scalar[0], table[i / row[0].div as usize % 5 * 2]]);
                    let same = value.to_bits() == expected.to_bits() || (value.is_nan() && expected.is_nan());
                    prop_assert!(same, "element {} is {}, not {}", i, value, expected);
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
            gather(&mut to, InputData { data: &data, terms: &terms }, 0);
            let found: Vec<u32> = to.iter().map(|value| *value as u32).collect();
            let expected: Vec<u32> =
                (0..len).map(|i| terms.iter().map(|t| i / t.div % t.modulo * t.stride).sum()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
