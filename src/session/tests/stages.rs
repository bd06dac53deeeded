//! Graphs whose sizes the run decides, on every kind of device.

use std::sync::Arc;

use crate::graph::{Graph, GraphBuilder, TensorId};
use crate::kernel::NativeKernel;
use crate::memory::host::HostRegion;
use crate::ops::control::{If, Loop, Scan, ScanAxis};
use crate::ops::{self, OpCx, OpError, Operator};
use crate::registry::Registry;
use crate::session::tests::{check_messages, desc};
use crate::session::*;
use crate::shape::Shape;

const DEVICES: [&str; 3] = ["cpu", "sim", "vulkan"];

/// The elements above zero, however many there are.
#[derive(Debug)]
struct Positive;

impl Operator for Positive {
    fn name(&self) -> &'static str {
        "Positive"
    }

    fn infer(&self, _: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        Err(OpError::NeedsValue { input: 0 })
    }

    fn host(&self, cx: &OpCx) -> Option<Result<Vec<Tensor>, OpError>> {
        let compute = || {
            let kept: Vec<f32> = cx.need_value(0)?.to_f32s()?.into_iter().filter(|v| *v > 0.0).collect();
            Ok(vec![Tensor::new([kept.len()], &kept)?])
        };
        Some(compute())
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        Err(OpError::unsupported("a kernel"))
    }
}

fn op(op: impl Operator) -> Arc<dyn Operator> {
    Arc::new(op)
}

fn one(g: &mut GraphBuilder) -> TensorId {
    g.constant("one", Tensor::new([1], &[1.0f32]).unwrap())
}

/// `w = x + 1`, `p` = the positive of `w`, `y = p + p`.
fn filtering() -> Graph {
    let mut g = GraphBuilder::new("filtering");
    let x = g.input("x", DType::F32, ["n".into()]);
    let k = one(&mut g);
    let w = g.op(ops::add(), &[x, k]);
    let p = g.op(op(Positive), &[w]);
    let y = g.op(ops::add(), &[p, p]);
    g.output("w", w);
    g.output("y", y);
    g.build().unwrap()
}

fn open(device: &str, graph: Graph) -> Session {
    let context = Registry::with_defaults().open(device, &desc()).unwrap();
    Session::builder().graph(graph).context(context).copy_threshold(0).build().unwrap()
}

fn filtered(x: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let w: Vec<f32> = x.iter().map(|v| v + 1.0).collect();
    let y = w.iter().filter(|v| **v > 0.0).map(|v| v + v).collect();
    (w, y)
}

#[test]
fn sizes_may_come_from_the_run() {
    for device in DEVICES {
        let mut session = open(device, filtering());
        for x in [&[1.0f32, -3.0, 2.0][..], &[-1.5, -2.0, 4.0], &[-5.0; 7], &[0.5; 5000]] {
            session.set_input("x", &Tensor::new([x.len()], x).unwrap()).unwrap();
            session.run().unwrap();
            let (w, y) = filtered(x);
            assert_eq!(session.get_output("w").unwrap().as_slice::<f32>().unwrap(), w, "{device}");
            let got = session.get_output("y").unwrap();
            assert_eq!(got.as_slice::<f32>().unwrap(), y, "{device}");
            let binding = session.binding().unwrap();
            assert_eq!(binding.output_info("y").unwrap().shape[..], [y.len()], "{device}");
            assert_eq!(binding.stages().count(), 2);
        }
        check_messages(&session);
    }
}

#[test]
fn memory_of_the_caller_is_used_in_every_stage() {
    for device in DEVICES {
        let session = open(device, filtering());
        let n = 6000;
        let region = || HostRegion::new(n * 4).unwrap().into_shared();
        let (x, w, y) = (region(), region(), region());
        let shape = Shape::new([n]).unwrap();
        let mut binding = session
            .bind()
            .input("x", Memory::region(&x).shape(shape))
            .output("w", Memory::region(&w))
            .output("y", Memory::region(&y))
            .build()
            .unwrap();
        assert!(binding.get_output("y").is_err(), "nothing has run");
        for turn in 0..3 {
            let values: Vec<f32> = (0..n).map(|i| ((i * 7 + turn * 3) % 11) as f32 - 5.0).collect();
            x.write().unwrap().copy_from_slice(bytemuck::cast_slice(&values));
            binding.run().unwrap();
            let (want_w, want_y) = filtered(&values);
            assert_eq!(w.read().unwrap().as_slice_of::<f32>().unwrap(), want_w, "{device}");
            let kept = binding.output_info("y").unwrap().elements();
            assert_eq!(y.read().unwrap().as_slice_of::<f32>().unwrap()[..kept], want_y, "{device}");
        }
        // Memory that is too short for the run's results.
        let short = HostRegion::new(64).unwrap().into_shared();
        binding.rebind_output("y", Memory::region(&short)).unwrap();
        let error = binding.run().unwrap_err();
        assert!(matches!(error, Error::Session(SessionError::Capacity { .. })), "{error}");
        check_messages(&session);
    }
}

/// `y = x + 1` where the sum of the positive `x` ... is asked by `c`, else `x + x`, then `+ 1`.
fn choosing() -> Graph {
    let branch = |double: bool| {
        let mut g = GraphBuilder::new("branch");
        let x = g.captured_input("x");
        let k = one(&mut g);
        let y = g.op(ops::add(), &if double { [x, x] } else { [x, k] });
        g.output("out", y);
        Arc::new(g.build().unwrap())
    };
    let mut g = GraphBuilder::new("choosing");
    let x = g.input("x", DType::F32, ["n".into()]);
    let a = g.input("a", DType::F32, []);
    let b = g.input("b", DType::F32, []);
    let c = g.op(ops::binary(ops::BinaryFunction::Less), &[a, b]);
    let pick = op(If { then: branch(false), other: branch(true) });
    let y = g.op(pick, &[c, x]);
    let k = one(&mut g);
    let z = g.op(ops::add(), &[y, k]);
    g.output("z", z);
    g.build().unwrap()
}

#[test]
fn a_condition_chooses_in_the_run() {
    for device in DEVICES {
        let session = open(device, choosing());
        let region = |v: &[f32]| HostRegion::from_bytes(bytemuck::cast_slice(v)).unwrap().into_shared();
        let (x, a, b) = (region(&[1.0, 2.0, 5.0]), region(&[0.0]), region(&[1.0]));
        let mut binding = session
            .bind()
            .input("x", Memory::region(&x).shape(Shape::new([3]).unwrap()))
            .input("a", Memory::region(&a))
            .input("b", Memory::region(&b))
            .build()
            .unwrap();
        for less in [true, false, true] {
            a.write().unwrap().copy_from_slice(bytemuck::bytes_of(&if less { 0.5f32 } else { 1.5 }));
            binding.run().unwrap();
            let want = if less { [3.0, 4.0, 7.0] } else { [3.0, 5.0, 11.0] };
            assert_eq!(binding.get_output("z").unwrap().as_slice::<f32>().unwrap(), want, "{device}");
        }
        // Given by value, the condition is known when the plan is made: one stage.
        let mut session = open(device, choosing());
        for (name, value) in [("a", 0.0f32), ("b", 1.0)] {
            session.set_input(name, &Tensor::scalar(value)).unwrap();
        }
        session.set_input("x", &Tensor::new([2], &[1.0f32, 2.0]).unwrap()).unwrap();
        session.run().unwrap();
        assert_eq!(session.get_output("z").unwrap().as_slice::<f32>().unwrap(), [3.0, 4.0]);
        assert_eq!(session.binding().unwrap().stages().count(), 1);
        check_messages(&session);
    }
}

/// Doubles `x` while its iteration is below `n` and the first element below `limit`; stacks every state.
fn repeating() -> Graph {
    let mut g = GraphBuilder::new("body");
    g.input("i", DType::I64, []);
    g.input("c", DType::Bool, []);
    let x = g.declare_input("x", Some(DType::F32), None);
    let limit = g.captured_input("limit");
    let y = g.op(ops::add(), &[x, x]);
    let sum = ops::reduce::Reduce {
        kind: ops::reduce::ReduceKind::Max,
        axes: None,
        keep_dims: false,
        noop_with_empty_axes: false,
    };
    let most = g.op(op(sum), &[y]);
    let more = g.op(ops::binary(ops::BinaryFunction::Less), &[most, limit]);
    g.output("more", more);
    g.output("y", y);
    g.output("all", y);
    let body = Arc::new(g.build().unwrap());
    let mut g = GraphBuilder::new("repeating");
    let n = g.input("n", DType::I64, []);
    let x = g.input("x", DType::F32, ["k".into()]);
    let limit = g.input("limit", DType::F32, []);
    let k = one(&mut g);
    let from = g.op(ops::add(), &[x, k]);
    let inputs = [Some(n), None, Some(from), Some(limit)];
    let (_, out) = g.node("loop", op(Loop { body, states: 1, lists: Vec::new() }), &inputs, 2);
    let last = g.op(ops::add(), &[out[0], k]);
    g.output("last", last);
    g.output("all", out[1]);
    g.build().unwrap()
}

#[test]
fn loops_end_by_count_and_by_condition() {
    for device in DEVICES {
        let mut session = open(device, repeating());
        for (n, limit, turns) in [(3i64, 1e9f32, 3usize), (100, 20.0, 4), (5, 1e9, 5), (0, 1.0, 0)] {
            session.set_input("n", &Tensor::scalar(n)).unwrap();
            session.set_input("limit", &Tensor::scalar(limit)).unwrap();
            session.set_input("x", &Tensor::new([2], &[0.0f32, 1.0]).unwrap()).unwrap();
            session.run().unwrap();
            let states: Vec<f32> = (1..=turns)
                .flat_map(|t| [f32::powi(2.0, t as i32), 2.0 * f32::powi(2.0, t as i32)])
                .collect();
            let all = session.get_output("all").unwrap();
            assert_eq!((&all.shape()[..], all.as_slice::<f32>().unwrap()), (&[turns, 2][..], &states[..]));
            let end = f32::powi(2.0, turns as i32);
            let last = session.get_output("last").unwrap();
            assert_eq!(last.as_slice::<f32>().unwrap(), [end + 1.0, 2.0 * end + 1.0], "{device} {n}");
        }
        check_messages(&session);
    }
}

/// The body of a scan that adds every slice to its state and keeps all sums.
fn sums() -> Arc<Graph> {
    let mut g = GraphBuilder::new("body");
    let state = g.declare_input("state", Some(DType::F32), None);
    let slice = g.declare_input("slice", Some(DType::F32), None);
    let sum = g.op(ops::add(), &[state, slice]);
    g.output("sum", sum);
    g.output("each", sum);
    Arc::new(g.build().unwrap())
}

#[test]
fn scans_slice_and_stack_along_any_axis_and_direction() {
    let body = sums();
    for device in DEVICES {
        let mut g = GraphBuilder::new("scan");
        let s = g.input("s", DType::F32, [2.into()]);
        let x = g.input("x", DType::F32, [2.into(), "n".into()]);
        let scan = Scan {
            body: Arc::clone(&body),
            states: 1,
            inputs: vec![ScanAxis { axis: 1, reverse: true }],
            outputs: vec![ScanAxis { axis: -1, reverse: true }],
            batched: false,
        };
        let (_, out) = g.node("scan", op(scan), &[Some(s), Some(x)], 2);
        g.output("end", out[0]);
        g.output("each", out[1]);
        let mut session = open(device, g.build().unwrap());
        session.set_input("s", &Tensor::new([2], &[100.0f32, 200.0]).unwrap()).unwrap();
        let x = Tensor::new([2, 3], &[1.0f32, 2.0, 3.0, 10.0, 20.0, 30.0]).unwrap();
        session.set_input("x", &x).unwrap();
        session.run().unwrap();
        let end = session.get_output("end").unwrap();
        assert_eq!(end.as_slice::<f32>().unwrap(), [106.0, 260.0], "{device}");
        let each = session.get_output("each").unwrap();
        let want = [106.0, 105.0, 103.0, 260.0, 250.0, 230.0];
        assert_eq!(
            (&each.shape()[..], each.as_slice::<f32>().unwrap()),
            (&[2, 3][..], &want[..]),
            "{device}"
        );
        check_messages(&session);
    }
}

/// Every iteration keeps the positive elements and removes one from each: the body's own sizes depend on the run.
#[test]
fn a_body_may_have_stages_and_states_may_shrink() {
    let mut g = GraphBuilder::new("body");
    g.input("i", DType::I64, []);
    let c = g.input("c", DType::Bool, []);
    let x = g.declare_input("x", Some(DType::F32), None);
    let p = g.op(op(Positive), &[x]);
    let k = g.constant("k", Tensor::new([1], &[-1.0f32]).unwrap());
    let y = g.op(ops::add(), &[p, k]);
    g.output("c_out", c);
    g.output("y", y);
    let body = Arc::new(g.build().unwrap());
    for device in DEVICES {
        let mut g = GraphBuilder::new("shrinking");
        let n = g.input("n", DType::I64, []);
        let x = g.input("x", DType::F32, ["k".into()]);
        let k = one(&mut g);
        let from = g.op(ops::add(), &[x, k]);
        let inputs = [Some(n), None, Some(from)];
        let (_, out) =
            g.node("loop", op(Loop { body: Arc::clone(&body), states: 1, lists: Vec::new() }), &inputs, 1);
        let last = g.op(ops::add(), &[out[0], k]);
        g.output("last", last);
        let mut session = open(device, g.build().unwrap());
        for (n, want) in [(1i64, &[0.0f32, 1.0, 2.0, 4.0][..]), (2, &[0.0, 1.0, 3.0]), (4, &[1.0]), (9, &[])]
        {
            session.set_input("n", &Tensor::scalar(n)).unwrap();
            session.set_input("x", &Tensor::new([5], &[-4.0f32, -0.9, 0.1, 1.1, 3.1]).unwrap()).unwrap();
            session.run().unwrap();
            let last = session.get_output("last").unwrap();
            let last = last.as_slice::<f32>().unwrap();
            assert_eq!(last.len(), want.len(), "{device} {n}: {last:?}");
            assert!(last.iter().zip(want).all(|(a, b)| (a - b).abs() < 0.2), "{device} {n}: {last:?}");
        }
        check_messages(&session);
    }
}

/// Scan of opset 8: every sequence of the batch has a length of its own, after which results are 0.
#[test]
fn batched_scans_end_with_their_sequences() {
    let body = sums();
    for device in DEVICES {
        let mut g = GraphBuilder::new("scan");
        let lengths = g.input("lengths", DType::I64, ["b".into()]);
        let s = g.input("s", DType::F32, ["b".into(), 1.into()]);
        let x = g.input("x", DType::F32, ["b".into(), "n".into(), 1.into()]);
        let (inputs, outputs) = (vec![ScanAxis::default()], vec![ScanAxis::default()]);
        let scan = Scan { body: Arc::clone(&body), states: 1, inputs, outputs, batched: true };
        let (_, out) = g.node("scan", op(scan), &[Some(lengths), Some(s), Some(x)], 2);
        g.output("end", out[0]);
        g.output("each", out[1]);
        let mut session = open(device, g.build().unwrap());
        session.set_input("s", &Tensor::new([3, 1], &[100.0f32, 200.0, 300.0]).unwrap()).unwrap();
        let x = [1.0f32, 2.0, 3.0, 10.0, 20.0, 30.0, 4.0, 5.0, 6.0];
        session.set_input("x", &Tensor::new([3, 3, 1], &x).unwrap()).unwrap();
        session.set_input("lengths", &Tensor::from_i64s(&[2, 0, 3])).unwrap();
        session.run().unwrap();
        let end = session.get_output("end").unwrap();
        assert_eq!(end.as_slice::<f32>().unwrap(), [103.0, 200.0, 315.0], "{device}");
        let each = session.get_output("each").unwrap();
        let want = [101.0, 103.0, 0.0, 0.0, 0.0, 0.0, 304.0, 309.0, 315.0];
        assert_eq!(
            (&each.shape()[..], each.as_slice::<f32>().unwrap()),
            (&[3, 3, 1][..], &want[..]),
            "{device}"
        );
        for wrong in [[2, 0, 4], [-1, 0, 3]] {
            session.set_input("lengths", &Tensor::from_i64s(&wrong)).unwrap();
            let error = session.run().unwrap_err();
            let said = format!("{error:?}");
            assert!(said.contains("expected 3 lengths of 0 to 3"), "{device}: {said}");
        }
        check_messages(&session);
    }
}
