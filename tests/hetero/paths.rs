//! The ways of tensors between devices: shared, copied by a device, carried by the session.

use onepool::backend::ContextDesc;
use onepool::graph::NodeId;
use onepool::memory::import::{CostSource, ImportCosts};
use onepool::plan::{Crossing, Plan};
use onepool::registry::Registry;
use onepool::session::SharedArena;
use onepool::{DType, GraphBuilder, Memory, Session, ops};

use crate::common::{abs, check_messages, floats, in_place, info, numbers, op, open_all, region, session};

const N: usize = 32 << 10;

/// `y = |x| + -|x| * |x|`, where `|x|` is made on entry 0 and read `reads` times on entry 1.
fn graph(reads: usize) -> onepool::Graph {
    let mut g = GraphBuilder::new("crossing");
    let x = g.input("x", DType::F32, [N.into()]);
    let a = g.op(abs(), &[x]);
    let mut y = g.op(op("Neg"), &[a]);
    for _ in 1..reads {
        y = g.op(ops::add(), &[y, a]);
    }
    g.output("y", y);
    let mut graph = g.build().unwrap();
    for n in 0..graph.nodes().len() {
        graph.place(NodeId(n as u32), Some(u32::from(n > 0)));
    }
    graph
}

fn run(table: &[&str], reads: usize) -> Plan {
    let contexts = open_all(table);
    let session = session(graph(reads), &contexts);
    let (x, y) = (region(&numbers(N, 1)), region(&vec![0.0; N]));
    let mut binding =
        session.bind().input("x", Memory::region(&x)).output("y", Memory::region(&y)).build().unwrap();
    for _ in 0..2 {
        binding.run().unwrap();
        let want: Vec<f32> = floats(&x).iter().map(|x| (reads as f32 - 2.0) * x.abs()).collect();
        assert_eq!(floats(&y), want, "{table:?} {reads}");
    }
    check_messages(&contexts);
    binding.plan().clone()
}

#[test]
fn the_way_depends_on_the_devices_and_on_how_often_they_read() {
    let way = |table: &[&str], reads| {
        let report = run(table, reads).report;
        assert_eq!(report.crossings.len(), 1, "{table:?}: {:?}", report.crossings);
        let c = &report.crossings[0];
        assert_eq!((c.from, c.to, c.bytes), (0, 1, 4 * N as u64));
        (c.path, c.copied())
    };
    let bytes = 4 * N as u64;
    for table in [["cpu", "vulkan"], ["vulkan", "cpu"], ["vulkan", "vulkan"], ["sim:noncoherent", "cpu"]] {
        for reads in [1, 3] {
            let fetches = reads > 1 && !in_place(&open_all(&table[1..]));
            let want = if fetches { (Crossing::Direct, bytes) } else { (Crossing::Shared, 0) };
            assert_eq!(way(&table, reads), want, "{table:?} {reads}");
        }
    }
    // A device with memory of its own fetches what it reads more than once.
    assert_eq!(way(&["cpu", "sim:discrete"], 1), (Crossing::Shared, 0));
    assert_eq!(way(&["cpu", "sim:discrete"], 3), (Crossing::Direct, bytes));
    for table in [["cpu", "alone"], ["alone", "cpu"], ["alone", "alone"], ["vulkan", "alone"]] {
        assert_eq!(way(&table, 1), (Crossing::Staged, bytes), "{table:?}");
        assert_eq!(way(&table, 3), (Crossing::Staged, bytes), "{table:?}");
    }
}

/// Whether a device fetches a tensor follows from what copies and reads in place cost on it.
#[test]
fn measured_costs_decide_whether_a_device_fetches() {
    let way = |device: &str, costs: ImportCosts| {
        let desc = ContextDesc { costs: CostSource::Given(costs), ..ContextDesc::default() };
        let contexts = ["cpu", device].map(|name| Registry::with_defaults().open(name, &desc).unwrap());
        let session = session(graph(3), &contexts);
        let x = region(&numbers(N, 1));
        let bind = session.bind().input("x", Memory::region(&x));
        let crossings = bind.build().unwrap().plan().report.crossings.clone();
        (crossings[0].path, crossings[0].reason)
    };
    let costs = |copy_threshold, reads| ImportCosts {
        copy_threshold,
        direct_reads: Some(reads),
        parameters_in_place: false,
    };
    let all = 4 * N as u64;
    assert_eq!(way("sim:discrete", costs(4096, 1)).0, Crossing::Direct);
    assert_eq!(way("sim:discrete", costs(4096, 3)).0, Crossing::Shared);
    assert_eq!(way("sim:discrete", costs(all + 1, 1)).0, Crossing::Shared);
    // Memory that is shared and slow to read where it was imported.
    let (path, reason) = way("sim:coherent", costs(4096, 2));
    assert_eq!(path, Crossing::Direct);
    assert!(reason.contains("measured") && !reason.contains("own memory"), "{reason}");
}

/// One tensor is carried to two devices that share nothing with the one that made it.
#[test]
fn a_tensor_is_carried_to_two_devices() {
    let mut g = GraphBuilder::new("two");
    let x = g.input("x", DType::F32, [N.into()]);
    let a = g.op(op("Neg"), &[x]);
    let b = g.op(abs(), &[a]);
    let c = g.op(op("Relu"), &[a]);
    g.output("b", b);
    g.output("c", c);
    let mut graph = g.build().unwrap();
    for (n, device) in [2, 1, 0].into_iter().enumerate() {
        graph.place(NodeId(n as u32), Some(device));
    }
    let contexts = open_all(&["cpu", "sim:noncoherent", "alone"]);
    let mut session = session(graph, &contexts);
    session.set_input("x", &crate::common::tensor(&[N], &numbers(N, 1))).unwrap();
    session.run().unwrap();
    let of = |f: fn(&f32) -> f32| numbers(N, 1).iter().map(f).collect::<Vec<f32>>();
    assert_eq!(session.get_output("b").unwrap().as_slice::<f32>().unwrap(), of(|x| x.abs()));
    assert_eq!(session.get_output("c").unwrap().as_slice::<f32>().unwrap(), of(|x| (-x).max(0.0)));
    check_messages(&contexts);
}

/// An input that both devices read, of which one can use no memory of the caller's.
#[test]
fn an_input_of_two_devices_is_carried_to_the_one_that_cannot_share() {
    for table in [["cpu", "alone"], ["alone", "cpu"], ["alone", "alone"], ["cpu", "vulkan"]] {
        let mut g = GraphBuilder::new("both");
        let x = g.input("x", DType::F32, [N.into()]);
        let a = g.op(abs(), &[x]);
        let b = g.op(op("Neg"), &[x]);
        g.output("a", a);
        g.output("b", b);
        let mut graph = g.build().unwrap();
        graph.place(NodeId(0), Some(0));
        graph.place(NodeId(1), Some(1));
        let contexts = open_all(&table);
        let session = session(graph, &contexts);
        let (x, a, b) = (region(&numbers(N, 1)), region(&vec![0.0; N]), region(&vec![0.0; N]));
        let bind = session.bind().input("x", Memory::region(&x));
        let bind = bind.output("a", Memory::region(&a)).output("b", Memory::region(&b));
        let mut binding = bind.build().unwrap();
        for seed in 1..3 {
            x.write().unwrap().copy_from_slice(bytemuck::cast_slice(&numbers(N, seed)));
            binding.run().unwrap();
            let of = |f: fn(&f32) -> f32| numbers(N, seed).iter().map(f).collect::<Vec<f32>>();
            assert_eq!((floats(&a), floats(&b)), (of(|x| x.abs()), of(|x| -x)), "{table:?}");
        }
        check_messages(&contexts);
    }
}

#[test]
fn a_device_behind_a_bus_keeps_what_it_reads_itself() {
    // Made and read again on the discrete device, and read on the CPU.
    let mut g = GraphBuilder::new("kept");
    let x = g.input("x", DType::F32, [N.into()]);
    let a = g.op(abs(), &[x]);
    let b = g.op(op("Neg"), &[a]);
    let c = g.op(ops::add(), &[a, x]);
    g.output("b", b);
    g.output("c", c);
    let mut graph = g.build().unwrap();
    for (n, device) in [0, 0, 1].into_iter().enumerate() {
        graph.place(NodeId(n as u32), Some(device));
    }
    let contexts = open_all(&["sim:discrete", "cpu"]);
    let mut session = session(graph, &contexts);
    session.set_input("x", &crate::common::tensor(&[N], &numbers(N, 1))).unwrap();
    session.run().unwrap();
    let of = |f: fn(&f32) -> f32| numbers(N, 1).iter().map(f).collect::<Vec<f32>>();
    assert_eq!(session.get_output("b").unwrap().as_slice::<f32>().unwrap(), of(|x| -x.abs()));
    assert_eq!(session.get_output("c").unwrap().as_slice::<f32>().unwrap(), of(|x| x.abs() + x));
    let crossings = session.binding().unwrap().plan().report.crossings.clone();
    let of_a = crossings.iter().find(|c| c.from == 0 && c.path == Crossing::Direct);
    assert!(of_a.is_some(), "{crossings:?}");
    check_messages(&contexts);
}

/// Sessions over several devices with one pool for what lies between nodes.
#[test]
fn a_shared_arena_serves_plans_over_several_devices() {
    let contexts = open_all(&["cpu", "vulkan"]);
    let arena = SharedArena::new();
    let sessions = [1, 3].map(|reads| {
        let mut builder = Session::builder().graph(graph(reads)).shared_arena(arena.clone());
        for context in &contexts {
            builder = builder.context(context.clone());
        }
        builder.build().unwrap()
    });
    let mut bindings = sessions.each_ref().map(|s| s.bind().build().unwrap());
    for round in 0..3 {
        for (binding, reads) in bindings.iter_mut().zip([1.0, 3.0]) {
            binding.set_input("x", &crate::common::tensor(&[N], &numbers(N, round))).unwrap();
            binding.run().unwrap();
            let want: Vec<f32> = numbers(N, round).iter().map(|x| (reads - 2.0) * x.abs()).collect();
            assert_eq!(binding.get_output("y").unwrap().as_slice::<f32>().unwrap(), want);
        }
    }
    assert!(arena.usage().bytes > 0);
    check_messages(&contexts);
}

/// A run of many small ranges of one arena on one device in parallel with another's.
#[test]
fn plans_are_the_same_every_time() {
    let contexts = open_all(&["cpu", "sim:discrete"]);
    let plan = || {
        let mut report = session(graph(3), &contexts).plan(&[info(&[N])]).unwrap().report;
        // But for the time that it took.
        report.passes.iter_mut().for_each(|pass| pass.nanos = 0);
        format!("{report:?}")
    };
    let first = plan();
    for _ in 0..20 {
        assert_eq!(plan(), first);
    }
}
