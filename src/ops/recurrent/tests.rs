//! Recurrent layers against the equations of their definition, and devices against the native function.

use super::{Direction, Kind, Recurrent};
use crate::expr::Function;
use crate::graph::Tensor;
use crate::kernel::{KernelError, NativeArg, NativeArgs};
use crate::ops::test_util::{assert_near, attrs, facts, read_op, run_cpu, tensor, tensor_of};
use crate::ops::{AttrValue, OpError, Operator};

/// A layer, its sizes and which optional inputs are given.
#[derive(Clone, Debug)]
struct Case {
    name: &'static str,
    direction: &'static str,
    steps: usize,
    batch: usize,
    input: usize,
    hidden: usize,
    extra: Vec<(&'static str, AttrValue)>,
    bias: bool,
    lens: Option<Vec<i32>>,
    initial: bool,
    peepholes: bool,
    batch_first: bool,
}

impl Case {
    fn new(name: &'static str, direction: &'static str, [steps, batch, input, hidden]: [usize; 4]) -> Case {
        Case {
            name,
            direction,
            steps,
            batch,
            input,
            hidden,
            extra: Vec::new(),
            bias: true,
            lens: None,
            initial: true,
            peepholes: false,
            batch_first: false,
        }
    }

    fn with(mut self, name: &'static str, value: AttrValue) -> Case {
        self.extra.push((name, value));
        self
    }

    fn functions(self, names: &[&str], alpha: &[f32], beta: &[f32]) -> Case {
        let names = names.iter().map(|n| n.as_bytes().to_vec()).collect();
        self.with("activations", AttrValue::Strs(names))
            .with("activation_alpha", AttrValue::Floats(alpha.to_vec()))
            .with("activation_beta", AttrValue::Floats(beta.to_vec()))
    }

    fn op(&self) -> std::sync::Arc<dyn Operator> {
        let mut list = vec![
            ("direction", AttrValue::Str(self.direction.into())),
            ("hidden_size", AttrValue::Int(self.hidden as i64)),
            ("layout", AttrValue::Int(self.batch_first.into())),
        ];
        list.extend(self.extra.iter().cloned());
        read_op(self.name, 14, &attrs(&list)).unwrap()
    }

    fn gates(&self) -> usize {
        [("RNN", 1), ("GRU", 3), ("LSTM", 4)].iter().find(|g| g.0 == self.name).unwrap().1
    }

    fn outputs(&self) -> usize {
        if self.name == "LSTM" { 3 } else { 2 }
    }

    fn dirs(&self) -> usize {
        if self.direction == "bidirectional" { 2 } else { 1 }
    }

    fn inputs(&self) -> Vec<Option<Tensor>> {
        let (dirs, width) = (self.dirs(), self.gates() * self.hidden);
        let (x, state) = if self.batch_first {
            ([self.batch, self.steps, self.input], [self.batch, dirs, self.hidden])
        } else {
            ([self.steps, self.batch, self.input], [dirs, self.batch, self.hidden])
        };
        let mut inputs = vec![
            Some(tensor(&x, 1)),
            Some(tensor(&[dirs, width, self.input], 2)),
            Some(tensor(&[dirs, width, self.hidden], 3)),
            self.bias.then(|| tensor(&[dirs, 2 * width], 4)),
            self.lens.as_ref().map(|l| Tensor::new([self.batch], l).unwrap()),
            self.initial.then(|| tensor(&state, 5)),
        ];
        if self.name == "LSTM" {
            inputs.push(self.initial.then(|| tensor(&state, 6)));
            inputs.push(self.peepholes.then(|| tensor(&[dirs, 3 * self.hidden], 7)));
        }
        inputs
    }
}

fn apply(kind: Function, alpha: f64, beta: f64, x: f64) -> f64 {
    match kind {
        Function::Affine => alpha * x + beta,
        Function::Relu => x.max(0.0),
        Function::LeakyRelu if x < 0.0 => alpha * x,
        Function::ThresholdedReluGate if x < alpha => 0.0,
        Function::Elu if x < 0.0 => alpha * x.exp_m1(),
        Function::LeakyRelu | Function::ThresholdedReluGate | Function::Elu => x,
        Function::Tanh => x.tanh(),
        Function::ScaledTanh => alpha * (beta * x).tanh(),
        Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Function::HardSigmoid => (alpha * x + beta).clamp(0.0, 1.0),
        Function::Softsign => x / (1.0 + x.abs()),
        Function::Softplus => x.exp().ln_1p(),
        other => panic!("{other:?} is no gate"),
    }
}

/// The equations of the operator's definition, element by element in `f64`.
fn reference(case: &Case, op: &Recurrent, inputs: &[Option<Tensor>]) -> Vec<Vec<f64>> {
    let wide: Vec<Option<Vec<f64>>> = inputs
        .iter()
        .map(|t| {
            let t = t.as_ref().filter(|t| t.dtype().is_float())?;
            Some(t.to_f32s().unwrap().into_iter().map(f64::from).collect())
        })
        .collect();
    let of = |i: usize, at: usize| wide.get(i).and_then(Option::as_ref).map_or(0.0, |v| v[at]);
    let Case { steps, batch, input, hidden, .. } = *case;
    let (dirs, gates) = (case.dirs(), case.gates());
    let state_at = |d: usize, b: usize| if case.batch_first { b * dirs + d } else { d * batch + b } * hidden;
    let mut y = vec![0.0; steps * dirs * batch * hidden];
    let mut last = vec![vec![0.0; dirs * batch * hidden]; 2];
    for d in 0..dirs {
        let f = |which: usize, x: f64, clipped: bool| {
            let f = op.functions[d][which];
            let clip = op.clip.filter(|_| clipped).map_or(f64::INFINITY, f64::from);
            apply(f.function, f.params[0].into(), f.params[1].into(), x.clamp(-clip, clip))
        };
        for b in 0..batch {
            let len = case.lens.as_ref().map_or(steps, |l| l[b] as usize);
            if len == 0 {
                continue;
            }
            let mut h: Vec<f64> = (0..hidden).map(|j| of(5, state_at(d, b) + j)).collect();
            let mut c: Vec<f64> = (0..hidden).map(|j| of(6, state_at(d, b) + j)).collect();
            for s in 0..len {
                let t = if case.direction == "reverse" || d == 1 { len - 1 - s } else { s };
                let x_at = if case.batch_first { b * steps + t } else { t * batch + b } * input;
                let own = |g: usize, j: usize| {
                    let row = (d * gates + g) * hidden + j;
                    let sum: f64 = (0..input).map(|i| of(0, x_at + i) * of(1, row * input + i)).sum();
                    sum + of(3, (d * 2 * gates + g) * hidden + j)
                };
                let back = |g: usize, j: usize, h: &[f64]| {
                    let row = (d * gates + g) * hidden + j;
                    let sum: f64 = (0..hidden).map(|i| h[i] * of(2, row * hidden + i)).sum();
                    sum + of(3, (d * 2 * gates + gates + g) * hidden + j)
                };
                let both = |g: usize, j: usize| own(g, j) + back(g, j, &h);
                let peephole = |g: usize, j: usize| of(7, (d * 3 + g) * hidden + j);
                let mut next = h.clone();
                for j in 0..hidden {
                    next[j] = match op.kind {
                        Kind::Rnn => f(0, both(0, j), true),
                        Kind::Gru { linear_before_reset } => {
                            let reset: Vec<f64> = (0..hidden).map(|i| f(0, both(1, i), true)).collect();
                            let new = if linear_before_reset {
                                own(2, j) + reset[j] * back(2, j, &h)
                            } else {
                                let scaled: Vec<f64> = reset.iter().zip(&h).map(|(r, h)| r * h).collect();
                                own(2, j) + back(2, j, &scaled)
                            };
                            let z = f(0, both(0, j), true);
                            (1.0 - z) * f(1, new, true) + z * h[j]
                        }
                        Kind::Lstm => {
                            let i = f(0, both(0, j) + peephole(0, j) * c[j], true);
                            let forget = f(0, both(2, j) + peephole(2, j) * c[j], true);
                            let forget = if op.input_forget { 1.0 - i } else { forget };
                            c[j] = forget * c[j] + i * f(1, both(3, j), true);
                            f(0, both(1, j) + peephole(1, j) * c[j], true) * f(2, c[j], false)
                        }
                    };
                }
                h = next;
                let y_at =
                    if case.batch_first { (b * steps + t) * dirs + d } else { (t * dirs + d) * batch + b };
                y[y_at * hidden..][..hidden].copy_from_slice(&h);
            }
            last[0][state_at(d, b)..][..hidden].copy_from_slice(&h);
            last[1][state_at(d, b)..][..hidden].copy_from_slice(&c);
        }
    }
    std::iter::once(y).chain(last).take(case.outputs()).collect()
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for name in ["RNN", "GRU", "LSTM"] {
        let strings = match name {
            "RNN" => vec!["Affine", "ScaledTanh"],
            "GRU" => vec!["HardSigmoid", "Softsign", "sigmoid", "Elu"],
            _ => vec!["HardSigmoid", "LeakyRelu", "Softplus", "Sigmoid", "ThresholdedRelu", "Relu"],
        };
        let one = Case::new(name, "forward", [1, 1, 3, 5]);
        cases.push(Case { bias: false, initial: false, ..one.clone() });
        cases.push(Case { batch_first: true, ..Case::new(name, "bidirectional", [4, 3, 5, 7]) });
        cases.push(Case { peepholes: true, ..Case::new(name, "reverse", [5, 2, 9, 8]) });
        let lens = Some(vec![2, 0, 5, 4, 1, 3]);
        let ragged = Case { lens, peepholes: true, ..Case::new(name, "bidirectional", [5, 6, 4, 9]) };
        cases.push(ragged.clone());
        cases.push(Case { batch_first: true, direction: "reverse", initial: false, ..ragged.clone() });
        cases.push(Case::new(name, "forward", [3, 1, 17, 33]).with("clip", AttrValue::Float(0.3)));
        cases.push(Case { peepholes: true, ..Case::new(name, "bidirectional", [3, 5, 2, 6]) }.functions(
            &strings,
            &[0.3, 0.9],
            &[0.2],
        ));
    }
    let lstm = Case { peepholes: true, ..Case::new("LSTM", "forward", [3, 2, 4, 6]) };
    cases.push(lstm.with("input_forget", AttrValue::Int(1)));
    for case in cases.clone().into_iter().filter(|c| c.name == "GRU") {
        cases.push(case.with("linear_before_reset", AttrValue::Int(1)));
    }
    cases
}

fn layer(op: &dyn Operator) -> &Recurrent {
    op.downcast_ref().unwrap()
}

#[test]
fn layers_match_their_equations() {
    for case in cases() {
        let (op, inputs) = (case.op(), case.inputs());
        let want = reference(&case, layer(&*op), &inputs);
        let got = run_cpu(&*op, &inputs, case.outputs()).unwrap();
        for (got, want) in got.iter().zip(&want) {
            assert_near(got, want, 2e-5);
        }
    }
}

#[test]
fn other_float_types_match_too() {
    for case in cases().into_iter().step_by(3) {
        let op = case.op();
        let half = |t: Tensor| match t.dtype().is_float() {
            true => tensor_of(t.shape(), &t.to_f32s().unwrap(), half::f16::from_f32),
            false => t,
        };
        let wide = |t: Tensor| match t.dtype().is_float() {
            true => tensor_of(t.shape(), &t.to_f32s().unwrap(), f64::from),
            false => t,
        };
        let run = |convert: &dyn Fn(Tensor) -> Tensor, tolerance: f64| {
            let inputs: Vec<_> = case.inputs().into_iter().map(|t| t.map(convert)).collect();
            let want = reference(&case, layer(&*op), &inputs);
            let got = run_cpu(&*op, &inputs, case.outputs()).unwrap();
            got.iter().zip(&want).for_each(|(got, want)| assert_near(got, want, tolerance));
        };
        run(&half, 2e-3);
        run(&wide, 1e-6);
    }
}

#[test]
fn parameters_go_to_the_functions_that_have_them() {
    let op = Case::new("LSTM", "forward", [1, 1, 1, 1]).functions(
        &["Tanh", "hardsigmoid", "LeakyRelu"],
        &[0.7],
        &[0.1],
    );
    let op = op.op();
    let functions = &layer(&*op).functions[0];
    assert_eq!(functions[1].function, Function::HardSigmoid);
    assert_eq!(functions[1].params, [0.7, 0.1]);
    assert_eq!((functions[2].function, functions[2].params[0]), (Function::LeakyRelu, 0.01));
    assert_eq!(layer(&*op).direction, Direction::Forward);
}

#[test]
fn misfits_are_errors() {
    let case = Case::new("GRU", "forward", [2, 3, 4, 5]);
    let op = case.op();
    for i in 0..6 {
        let mut inputs = case.inputs();
        inputs[i] = Some(if i == 4 { Tensor::new([2], &[1i32, 2]).unwrap() } else { tensor(&[1, 2, 2], 1) });
        assert!(matches!(facts(&*op, &inputs, 2), Err(OpError::InputShape { .. })), "input {i}");
    }
    assert!(matches!(facts(&*op, &case.inputs(), 3), Err(OpError::Count { .. })));
    let mut inputs = case.inputs();
    inputs[1] = None;
    assert!(matches!(facts(&*op, &inputs, 1), Err(OpError::MissingInput { input: 1 })));
    let fails =
        |list: &[(&str, AttrValue)]| matches!(read_op("RNN", 14, &attrs(list)), Err(OpError::Attr(_)));
    let names = |n: &[&str]| AttrValue::Strs(n.iter().map(|n| n.as_bytes().to_vec()).collect());
    assert!(fails(&[("activations", names(&["Tanh", "Tanh"]))]));
    assert!(fails(&[("activations", names(&["Gelu"]))]));
    assert!(fails(&[("direction", AttrValue::Str(b"sideways".to_vec()))]));
    assert!(fails(&[("layout", AttrValue::Int(2))]));
    assert!(fails(&[("hidden_size", AttrValue::Int(-1))]));
    assert!(fails(&[("clip", AttrValue::Float(f32::NAN))]));
}

#[test]
fn a_sequence_length_beyond_the_steps_is_an_error() {
    for bad in [-1, 3, i32::MIN] {
        let case = Case { lens: Some(vec![2, bad]), ..Case::new("RNN", "forward", [2, 2, 3, 4]) };
        let (op, inputs) = (case.op(), case.inputs());
        let kernel = op.cpu(&facts(&*op, &inputs, 1).unwrap()).unwrap();
        let mut y = vec![0f32; 16];
        let reads =
            inputs.iter().map(|t| t.as_ref().map_or(NativeArg::Absent, |t| NativeArg::Read(t.bytes())));
        let mut args: Vec<NativeArg<'_>> = reads.collect();
        args.push(NativeArg::Write(bytemuck::cast_slice_mut(&mut y)));
        let result = kernel.call(&mut NativeArgs::new(&mut args, &[]));
        assert!(matches!(result, Err(KernelError::Value { .. })), "{bad}");
    }
}

#[test]
fn without_time_steps_the_last_states_are_zero() {
    let case = Case::new("LSTM", "bidirectional", [0, 2, 3, 4]);
    let got = run_cpu(&*case.op(), &case.inputs(), 3).unwrap();
    assert_eq!(got[0].shape().elements(), 0);
    assert!(got[1..].iter().all(|t| t.to_f32s().unwrap() == [0.0; 16]));
}

#[cfg(feature = "vulkan")]
#[test]
fn devices_compute_the_same() {
    use crate::backend::DeviceInfo;
    use crate::ops::testing::{Check, as_is, no_texels, short_texels};
    for (i, case) in cases().into_iter().enumerate() {
        let (op, inputs) = (case.op(), case.inputs());
        let known: &[usize] = if i % 2 == 0 { &[1, 2, 3] } else { &[] };
        let pretend = if i % 3 == 2 { short_texels } else { as_is };
        let changes: [fn(&mut DeviceInfo); 4] = [
            pretend,
            no_texels,
            // Too few arguments for whole sequences at once.
            |info| info.limits.max_arguments = 8,
            |info| {
                no_texels(info);
                info.limits.max_arguments = 8;
            },
        ];
        for change in changes {
            let check = Check::new(&*op, &inputs).outputs(case.outputs()).constants(known);
            check.pretend(change).tolerance(2e-5).run();
        }
    }
    // As many elements as local memory holds, and more.
    for (name, hidden) in [("LSTM", 256), ("GRU", 256), ("RNN", 257)] {
        let case = Case { peepholes: true, ..Case::new(name, "reverse", [3, 2, 5, hidden]) };
        let (op, inputs) = (case.op(), case.inputs());
        Check::new(&*op, &inputs).outputs(case.outputs()).pretend(no_texels).tolerance(5e-5).run();
    }
    let empty = Case::new("GRU", "forward", [0, 2, 3, 4]);
    Check::new(&*empty.op(), &empty.inputs()).outputs(2).run();
    // A length that the native function refuses is bounded on devices.
    let long = Case { lens: Some(vec![9, -4]), ..Case::new("GRU", "reverse", [2, 2, 3, 4]) };
    let bounded = Case { lens: Some(vec![2, 0]), ..long.clone() };
    let want = run_cpu(&*long.op(), &bounded.inputs(), 2).unwrap();
    let (op, inputs) = (long.op(), long.inputs());
    let check = Check::new(&*op, &inputs).outputs(2);
    for context in crate::ops::testing::devices() {
        let got = check.run_on(context).unwrap();
        for (got, want) in got.iter().zip(&want) {
            let want: Vec<f64> = want.to_f32s().unwrap().into_iter().map(f64::from).collect();
            assert_near(got, &want, 2e-5);
        }
    }
}

#[cfg(feature = "vulkan")]
#[test]
fn devices_compute_the_same_in_half() {
    use crate::ops::testing::Check;
    for case in cases().into_iter().step_by(2) {
        let op = case.op();
        let half = |t: Tensor| match t.dtype().is_float() {
            true => tensor_of(t.shape(), &t.to_f32s().unwrap(), half::f16::from_f32),
            false => t,
        };
        let inputs: Vec<_> = case.inputs().into_iter().map(|t| t.map(half)).collect();
        Check::new(&*op, &inputs).outputs(case.outputs()).tolerance(1e-2).run();
    }
}

/// Layers of sizes that no kernel's tiles divide, and of as many sequences as are done at once, and more.
fn sized_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut directions = ["forward", "bidirectional", "reverse"].into_iter().cycle();
    let mut batches = (1..10usize).cycle();
    for name in ["RNN", "GRU", "LSTM"] {
        for hidden in [1, 3, 37, 129] {
            for linear in [false, true] {
                let (Some(direction), Some(batch)) = (directions.next(), batches.next()) else { break };
                let case = Case {
                    peepholes: linear,
                    batch_first: batch % 2 == 0,
                    lens: (batch % 3 == 0).then(|| (0..batch).map(|b| [3, 0, 1, 2][b % 4]).collect()),
                    initial: batch % 4 != 0,
                    bias: batch != 5,
                    ..Case::new(name, direction, [3, batch, 4, hidden])
                };
                let case = if batch == 7 { case.with("clip", AttrValue::Float(0.2)) } else { case };
                let is_gru = name == "GRU";
                cases.push(if is_gru {
                    case.with("linear_before_reset", AttrValue::Int(linear.into()))
                } else {
                    case
                });
            }
        }
    }
    cases
}

#[cfg(feature = "vulkan")]
fn check_ways(cases: Vec<Case>, half: bool) {
    use crate::ops::testing::{Check, devices};
    let mut ran = std::collections::BTreeSet::new();
    for (i, case) in cases.into_iter().enumerate() {
        let to_half = |t: Tensor| match half && t.dtype().is_float() {
            true => tensor_of(t.shape(), &t.to_f32s().unwrap(), half::f16::from_f32),
            false => t,
        };
        let inputs: Vec<_> = case.inputs().into_iter().map(|t| t.map(to_half)).collect();
        let (op, known) = (case.op(), [&[][..], &[1, 2, 3]][i % 2]);
        let check = Check::new(&*op, &inputs).outputs(case.outputs()).constants(known);
        ran.extend(check.tolerance(if half { 1e-2 } else { 5e-5 }).run_candidates_of("recurrent "));
    }
    if !devices().is_empty() {
        assert_eq!(ran.into_iter().collect::<Vec<_>>(), ["held", "products", "sequence", "steps"]);
    }
}

#[cfg(feature = "vulkan")]
#[test]
fn every_way_of_every_cell_is_right() {
    check_ways(cases().into_iter().step_by(3).collect(), false);
}

#[cfg(feature = "vulkan")]
#[test]
fn every_way_is_right_for_odd_sizes() {
    check_ways(sized_cases(), false);
}

#[cfg(feature = "vulkan")]
#[test]
fn every_way_is_right_for_odd_sizes_in_half() {
    check_ways(sized_cases().into_iter().step_by(2).collect(), true);
}

#[test]
fn gates_of_many_sequences_are_computed_in_parallel() {
    let case = Case::new("LSTM", "forward", [2, 40, 3, 130]);
    let inputs = case.inputs();
    let op = case.op();
    let want = reference(&case, layer(&*op), &inputs);
    let got = run_cpu(&*op, &inputs, 3).unwrap();
    got.iter().zip(&want).for_each(|(got, want)| assert_near(got, want, 5e-5));
}

#[test]
fn scratch_memory_does_not_grow_with_the_steps() {
    use crate::ops::{Fact, Lowering, OpCx};
    let mut device = crate::registry::Registry::with_defaults().find("sim:discrete").unwrap();
    (device.prefers_texels, device.processors) = (false, Some(132));
    let scratch = |steps: usize| {
        // A product for each step, whose depth is shared out.
        let case = Case::new("LSTM", "forward", [steps, 16, 8, 512]);
        let (op, inputs) = (case.op(), case.inputs());
        let facts = inputs.iter().map(|t| t.as_ref().map(|t| Fact::of(t.info().clone()))).collect();
        let cx = OpCx::for_infer(facts, 3);
        let cx = cx.clone().with_outputs(op.infer(&cx).unwrap());
        let mut lower = Lowering::new(&device);
        op.gpu(&cx, &mut lower).unwrap();
        let lowered = lower.finish();
        let sums = lowered.steps.iter().filter(|step| match step {
            crate::ops::Step::Dispatch { kernel: crate::ops::StepKernel::Table(id), .. } => {
                id.info().name.starts_with("sum_parts")
            }
            _ => false,
        });
        assert!(sums.count() >= steps);
        lowered.scratch.len()
    };
    assert_eq!(scratch(2), scratch(7));
}
