//! Who sees which write: memory that is coherent and memory that is not, results that the host reads, and parameters
//! of dispatches in one command buffer.

use std::sync::Arc;

use onepool::device::Context;
use onepool::memory::coherency::Access;
use onepool::memory::import::Path;
use onepool::ops::Operator;
use onepool::ops::movement::Transpose;
use onepool::plan::Work;
use onepool::{DType, Graph, GraphBuilder, Memory, Session, TensorInfo};

use crate::common::{check_messages, devices, floats, numbers, op, open, region, shape, tensor};

const N: usize = 40_000;

/// `sum = |x| + x` and `again = sum + |x|`: results that are read again, and an output that is not the last write.
fn graph() -> Graph {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [N.into()]);
    let a = g.op(op("Abs"), &[x]);
    let sum = g.op(op("Add"), &[a, x]);
    let again = g.op(op("Add"), &[sum, a]);
    g.output("sum", sum);
    g.output("again", again);
    g.build().unwrap()
}

fn session(graph: Graph, context: &Context, copy_threshold: u64) -> Session {
    let builder = Session::builder().graph(graph).context(context.clone()).fuse(false).chains(false);
    builder.copy_threshold(copy_threshold).build().unwrap()
}

#[test]
fn runs_on_coherent_and_non_coherent_memory_are_free_of_races() {
    for device in devices() {
        for copy_threshold in [0, u64::MAX] {
            let context = open(device);
            let session = session(graph(), &context, copy_threshold);
            let sides: Vec<_> = (0..2).map(|_| [0; 3].map(|_| region(&vec![0.0; N]))).collect();
            let bind = |side: &[Arc<onepool::SharedRegion>; 3]| {
                let bind = session.bind().input("x", Memory::region(&side[0]));
                let bind =
                    bind.output("sum", Memory::region(&side[1])).output("again", Memory::region(&side[2]));
                bind.build().unwrap()
            };
            let mut bindings = [bind(&sides[0]), bind(&sides[1])];
            for round in 0..6 {
                let side = &sides[round % 2];
                let x = numbers(N, round);
                side[0].write().unwrap().as_mut_slice_of::<f32>().unwrap().copy_from_slice(&x);
                bindings[round % 2].run().unwrap();
                let sum: Vec<f32> = x.iter().map(|v| v.abs() + v).collect();
                assert_eq!(floats(&side[1]), sum, "{device}: round {round}");
                let again: Vec<f32> = x.iter().map(|v| v.abs() + v + v.abs()).collect();
                assert_eq!(floats(&side[2]), again, "{device}: round {round}");
            }
            let copied = copy_threshold > 0 || context.info().import.is_none();
            let staged = |path: Path| (path == Path::Staged) == copied;
            let host = device == "cpu";
            assert!(bindings[0].verdicts().all(|v| host || staged(v.path)), "{device}");
            check_messages(&context);
        }
    }
}

/// TVM's copies to the host wait for a fence and say no barrier.
#[test]
fn results_are_shown_to_the_host_by_a_barrier() {
    for device in devices() {
        let context = open(device);
        let info = TensorInfo::new(DType::F32, shape(&[N]));
        let plan = session(graph(), &context, 0).plan(&[info]).unwrap();
        let closing = plan.segments.last().unwrap().closing;
        // The last kernels wrote the outputs; where commands run in order on memory that everyone sees there is nothing to say.
        let shown =
            closing.map(|b| (b.src.contains(Access::KERNEL_WRITE), b.dst.contains(Access::HOST_READ)));
        assert_eq!(shown, (!context.info().in_order).then_some((true, true)), "{device}: {closing:?}");
        assert_eq!(context.info().in_order, ["cpu", "opencl"].contains(&device), "{device}");
    }
}

/// TVM keeps parameters above 128 bytes in one buffer for each thread, where those of the dispatch recorded last stay.
#[test]
fn two_dispatches_with_large_parameters_in_one_command_buffer_keep_their_own() {
    const DIMS: [usize; 6] = [2, 3, 4, 5, 2, 3];
    let perms: [[usize; 6]; 2] = [[5, 3, 1, 0, 2, 4], [2, 0, 5, 4, 1, 3]];
    let count = DIMS.iter().product::<usize>();
    let expected = |x: &[f32], perm: &[usize; 6]| -> Vec<f32> {
        let strides: Vec<usize> = (0..6).map(|d| DIMS[d + 1..].iter().product()).collect();
        let sizes: Vec<usize> = perm.iter().map(|&p| DIMS[p]).collect();
        let at = |mut i: usize| {
            let mut from = 0;
            for d in (0..6).rev() {
                from += i % sizes[d] * strides[perm[d]];
                i /= sizes[d];
            }
            x[from]
        };
        (0..count).map(at).collect()
    };
    for device in devices() {
        let context = open(device);
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, DIMS.map(Into::into));
        for (i, perm) in perms.iter().enumerate() {
            let perm = Some(perm.iter().map(|&p| p as i64).collect());
            let transpose: Arc<dyn Operator> = Arc::new(Transpose { perm });
            let y = g.op(transpose, &[x]);
            g.output(format!("y{i}"), y);
        }
        let mut session = session(g.build().unwrap(), &context, 0);
        let x = numbers(count, 1);
        session.set_input("x", &tensor(&DIMS, &x)).unwrap();
        session.run().unwrap();
        for (i, perm) in perms.iter().enumerate() {
            let y = session.get_output(&format!("y{i}")).unwrap();
            assert_eq!(y.as_slice::<f32>().unwrap(), expected(&x, perm), "{device}: {perm:?}");
        }
        let plan = session.binding().unwrap().plan();
        assert_eq!(plan.segments.len(), 1, "{device}: one command buffer");
        let params: Vec<(u32, &[u8])> = (plan.segments[0].commands.iter())
            .filter_map(|command| match &command.work {
                Work::Dispatch { kernel, params, .. } => Some((*kernel, &params[..])),
                _ => None,
            })
            .collect();
        if device == "vulkan" {
            let [(a, first), (b, second)] = params[..] else { panic!("{params:?}") };
            assert!(a == b && first != second && first.len() >= 64, "{} bytes", first.len());
        }
        check_messages(&context);
    }
}
