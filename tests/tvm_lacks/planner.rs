//! TVM's own planner cases as graphs, and plans that are the same every time.

use onepool::device::Context;
use onepool::plan::Plan;
use onepool::tvm::GraphModule;
use onepool::{DType, Graph, GraphBuilder, Session, TensorInfo};

use crate::common::{check_messages, devices, numbers, op, open, shape, tensor};

fn session(graph: Graph, context: &Context) -> Session {
    Session::builder().graph(graph).context(context.clone()).fuse(false).chains(false).build().unwrap()
}

/// Layers of several sizes with results that are read again much later.
fn braid() -> Graph {
    let mut g = GraphBuilder::new("braid");
    let mut live: Vec<_> = (0..4).map(|i| g.input(format!("x{i}"), DType::F32, [(64 << i).into()])).collect();
    let mut kept = Vec::new();
    for layer in 0..24usize {
        let lane = layer * 7 % 4;
        let y = g.op(op(["Abs", "Neg", "Relu"][layer % 3]), &[live[lane]]);
        if layer % 5 == 0 {
            kept.push((lane, y));
        }
        live[lane] = match kept.first().copied() {
            Some((of, old)) if of == lane && layer % 4 == 3 => {
                kept.remove(0);
                g.op(op("Add"), &[y, old])
            }
            _ => y,
        };
    }
    for (i, y) in live.into_iter().enumerate() {
        g.output(format!("y{i}"), y);
    }
    g.build().unwrap()
}

fn text(plan: &Plan) -> String {
    let arenas = serde_json::to_string(&plan.arenas).unwrap();
    format!("{arenas} {:?} {:?} {:?}", plan.segments, plan.inputs, plan.outputs)
}

#[test]
fn a_plan_is_the_same_in_a_hundred_runs() {
    let infos: Vec<_> = (0..4).map(|i| TensorInfo::new(DType::F32, shape(&[64 << i]))).collect();
    for device in ["cpu", "sim", "vulkan"] {
        let context = open(device);
        let plan = || text(&session(braid(), &context).plan(&infos).unwrap());
        let first = plan();
        for run in 1..100 {
            assert_eq!(plan(), first, "{device}: run {run}");
        }
    }
}

/// What an arena says of its ranges is what its size and its lower bound follow from.
#[test]
fn ranges_of_an_arena_that_are_in_use_at_once_are_apart() {
    let infos: Vec<_> = (0..4).map(|i| TensorInfo::new(DType::F32, shape(&[64 << i]))).collect();
    for device in devices() {
        let plan = session(braid(), &open(device)).plan(&infos).unwrap();
        let [arena] = &plan.arenas[..] else { panic!("{device}: {:?}", plan.arenas) };
        assert_eq!(arena.tensors.len(), arena.ranges, "{device}");
        assert!(
            arena.tensors.iter().all(|t| t.values > 0 && t.name.ends_with(":out")),
            "{device}: {arena:?}"
        );
        let steps = plan.report.nodes.len() as u32;
        let in_use = |step: u32| arena.tensors.iter().filter(move |t| t.first <= step && step <= t.last);
        for step in 0..=steps {
            for (i, a) in in_use(step).enumerate() {
                let clash = in_use(step)
                    .skip(i + 1)
                    .find(|b| a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes);
                assert_eq!(clash, None, "{device}: {a:?}");
            }
        }
        let most = (0..=steps).map(|step| in_use(step).map(|t| t.bytes).sum::<u64>()).max();
        assert_eq!(most, Some(arena.lower_bound), "{device}");
        assert_eq!(arena.tensors.iter().map(|t| t.offset + t.bytes).max(), Some(arena.bytes), "{device}");
    }
}

/// TVM's test_plan_memory: storage of 40, 4, 40 and 40 bytes, of which two are temporaries.
#[test]
fn a_chain_of_six_elementwise_operators_needs_two_temporaries() {
    for device in devices() {
        let context = open(device);
        let mut g = GraphBuilder::new("chain");
        let x = g.input("x", DType::F32, [10.into()]);
        let y = g.input("y", DType::F32, [1.into()]);
        let y2 = g.op(op("Exp"), &[y]);
        let mut z = g.op(op("Add"), &[x, y2]);
        for _ in 0..5 {
            z = g.op(op("Abs"), &[z]);
        }
        g.output("z", z);
        let mut session = session(g.build().unwrap(), &context);
        let infos = [TensorInfo::new(DType::F32, shape(&[10])), TensorInfo::new(DType::F32, shape(&[1]))];
        let plan = session.plan(&infos).unwrap();
        let [arena] = &plan.arenas[..] else { panic!("{:?}", plan.arenas) };
        let slot =
            context.info().limits.argument_alignment.max(64).max(context.info().limits.non_coherent_atom);
        // TVM's rule gives two; a device without need for both has less.
        assert_eq!(arena.tvm_bytes, 2 * slot, "{device}: {arena:?}");
        let most = arena.tvm_bytes.min(arena.lower_bound + slot - 1);
        assert!((40..=most).contains(&arena.bytes), "{device}: {arena:?}");
        session.set_input("x", &tensor(&[10], &numbers(10, 1))).unwrap();
        session.set_input("y", &tensor(&[1], &[0.0])).unwrap();
        session.run().unwrap();
        let want: Vec<f32> = numbers(10, 1).iter().map(|v| (v + 1.0).abs()).collect();
        assert_eq!(session.get_output("z").unwrap().as_slice::<f32>().unwrap(), want, "{device}");
        check_messages(&context);
    }
}

/// TVM's plan of `x -> abs -> reshape`, `abs -> abs -> (sqrt, reshape)`: storage 0, 1, 1, 2, 3, 2.
#[test]
fn reshapes_share_the_storage_of_what_they_reshape() {
    let node = |op: &str, function: &str, input: usize| {
        format!(
            r#"{{"op":"tvm_op","name":"{op}","attrs":{{"func_name":"{function}","flatten_data":"0","num_inputs":"1","num_outputs":"1"}},"inputs":[[{input},0,0]]}}"#
        )
    };
    let nodes = [
        r#"{"op":"null","name":"x","inputs":[]}"#.to_owned(),
        node("t0", "Abs", 0),
        node("z0", "__nop", 1),
        node("t1", "Abs", 1),
        node("z1", "Sqrt", 3),
        node("z2", "__nop", 3),
    ];
    let json = format!(
        r#"{{"nodes":[{}],"arg_nodes":[0],"heads":[[2,0,0],[4,0,0],[5,0,0]],"node_row_ptr":[0,1,2,3,4,5,6],"attrs":{{
            "shape":["list_shape",[[10,4],[10,4],[2,20],[10,4],[10,4],[1,40]]],
            "dltype":["list_str",["float32","float32","float32","float32","float32","float32"]],
            "storage_id":["list_int",[0,1,1,2,3,2]]}}}}"#,
        nodes.join(",")
    );
    for device in devices() {
        let context = open(device);
        let mut m = GraphModule::create(&json, &Default::default(), std::slice::from_ref(&context)).unwrap();
        let x = numbers(40, 1);
        m.set_input("x", &tensor(&[10, 4], &x)).unwrap();
        m.run().unwrap();
        let abs: Vec<f32> = x.iter().map(|v| v.abs()).collect();
        let shapes: [&[usize]; 3] = [&[2, 20], &[10, 4], &[1, 40]];
        for (i, dims) in shapes.into_iter().enumerate() {
            let y = m.get_output(i).unwrap();
            assert_eq!(y.shape().dims(), dims);
            let y = y.as_slice::<f32>().unwrap();
            let want = |v: &f32| if i == 1 { v.sqrt() } else { *v };
            assert!(y.iter().zip(abs.iter().map(want)).all(|(y, w)| (y - w).abs() < 1e-5), "{device}: {i}");
        }
        let other = json.replace("[0,1,1,2,3,2]", "[0,1,1,2,2,2]");
        let mut m = GraphModule::create(&other, &Default::default(), std::slice::from_ref(&context)).unwrap();
        m.set_input("x", &tensor(&[10, 4], &x)).unwrap();
        m.run().unwrap();
        // Storage numbers are a hint: a result that is still needed is never overwritten.
        assert_eq!(m.get_output(2).unwrap().as_slice::<f32>().unwrap(), abs, "{device}");
        check_messages(&context);
    }
}
