//! Runs whose dispatches are split compute what whole ones do.

use std::sync::Arc;
use std::time::Duration;

use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder};
use crate::ops::conv::Conv;
use crate::ops::linalg::MatMul;
use crate::ops::norm::{Softmax, SoftmaxKind};
use crate::ops::reduce::{Reduce, ReduceKind};
use crate::ops::test_util::tensor;
use crate::ops::{self, Operator, WindowAttrs};
use crate::session::tests::{check_messages, desc};
use crate::session::*;

/// A dispatch that takes this many nanoseconds is split at every work-group, or into as many parts as there may be.
const FOREVER: u64 = 1 << 50;

/// A convolution, a sum with broadcasting, products of each matrix, a softmax and a sum over rows.
fn graph() -> Graph {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [1.into(), 16.into(), 24.into(), 24.into()]);
    let w = g.constant("w", tensor(&[40, 16, 3, 3], 2));
    let window = WindowAttrs { pads: vec![1; 4], ..WindowAttrs::default() };
    let y = g.op(Arc::new(Conv { window, ..Conv::default() }) as Arc<dyn Operator>, &[x, w]);
    let k = g.constant("k", tensor(&[40, 1, 1], 3));
    let y = g.op(ops::add(), &[y, k]);
    let m = g.constant("m", tensor(&[24, 70], 4));
    let y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[y, m]);
    let soft = Softmax { kind: SoftmaxKind::Soft, axis: -1, flatten: false };
    let y = g.op(Arc::new(soft) as Arc<dyn Operator>, &[y]);
    g.output("y", y);
    let sum =
        Reduce { kind: ReduceKind::Sum, axes: Some(vec![2]), keep_dims: true, noop_with_empty_axes: false };
    let z = g.op(Arc::new(sum) as Arc<dyn Operator>, &[y]);
    g.output("z", z);
    g.build().unwrap()
}

#[test]
fn split_dispatches_give_the_same_bits_and_one_time_for_each_operator() {
    let Ok(context) = crate::registry::Registry::with_defaults().open("vulkan", &desc()) else {
        let required = std::env::var("REQUIRE_BACKENDS").is_ok_and(|v| v.contains("vulkan"));
        assert!(!required, "there is no Vulkan device");
        return;
    };
    let session = |limit| {
        let builder = Session::builder().graph(graph()).fuse(false).context(context.clone());
        builder.submission_limit(limit).build().unwrap()
    };
    let x = tensor(&[1, 16, 24, 24], 1);
    let outputs =
        |binding: &Binding<'_>| ["y", "z"].map(|name| binding.get_output(name).unwrap().bytes().to_vec());
    let whole = session(SubmissionLimit::Off);
    let mut expected = whole.bind().input("x", Memory::value(x.clone())).build().unwrap();
    expected.run().unwrap();

    let session = session(SubmissionLimit::AtMost(Duration::from_secs(1)));
    let mut binding = session.bind().input("x", Memory::value(x.clone())).build().unwrap();
    let pieces = |binding: &Binding<'_>| -> usize {
        binding.segments.iter().filter_map(|launch| launch.cut.as_ref()).map(|cut| cut.pieces.len()).sum()
    };
    binding.run().unwrap();
    assert_eq!(pieces(&binding), 1);
    assert!(outputs(&binding) == outputs(&expected));
    binding.compiled.schedule.assume(FOREVER);
    for _ in 0..2 {
        binding.run().unwrap();
        assert!(pieces(&binding) > 100, "{}", pieces(&binding));
        assert!(outputs(&binding) == outputs(&expected));
    }
    let profile = binding.profile().unwrap();
    if context.info().timestamp_ns > 0.0 {
        let names: Vec<&str> = profile.nodes.iter().map(|node| node.name.as_str()).collect();
        let all: Vec<&str> = binding.plan().report.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, all);
        let sum: u64 = profile.nodes.iter().map(|node| node.nanos).sum();
        assert!(sum <= profile.device_nanos, "{sum} of {}", profile.device_nanos);
    }
    drop((binding, expected));
    check_messages(&session);
}
