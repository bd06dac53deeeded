use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::backend::DeviceInfo;
use crate::device::Context;
use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, Tensor, TensorInfo};
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::custom::{CustomKernel, KernelCall};
use crate::ops::linalg::MatMul;
use crate::ops::norm::{Softmax, SoftmaxKind};
use crate::ops::{self, AttrMap, AttrReader, BinaryFunction, Function, Operator};
use crate::plan::{Compiler, PlanCache, PlanOptions};
use crate::registry::Registry;
use crate::session::tests::{check_messages, desc};
use crate::session::tuning::tests::keep_others;
use crate::session::{Memory, Session, SessionError, Tuning};
use crate::shape::Shape;

fn open(name: &str) -> Context {
    Registry::with_defaults().open(name, &desc()).unwrap()
}

fn builder(graph: &Graph, table: &[&str]) -> super::super::SessionBuilder {
    let builder = Session::builder().graph(graph.clone()).placement(NodePlacement::Auto);
    // All is measured, on a busy machine too.
    let builder = builder.placement_budget(Duration::from_secs(600));
    table.iter().fold(builder, |b, name| b.context(open(name)))
}

/// `y = softmax(x w)`, `z = (y + x) * x`: a product, a node of its own, a chain.
fn graph() -> Graph {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, ["n".into(), 16.into()]);
    let w: Vec<f32> = (0..256).map(|i| (i % 7) as f32 / 7.0).collect();
    let w = g.constant("w", Tensor::new([16, 16], &w).unwrap());
    let (_, p) = g.node("product", Arc::new(MatMul::default()) as Arc<dyn Operator>, &[Some(x), Some(w)], 1);
    let (_, y) = g.node(
        "soft",
        Arc::new(Softmax { kind: SoftmaxKind::Soft, axis: -1, flatten: false }) as Arc<dyn Operator>,
        &[Some(p[0])],
        1,
    );
    let (_, s) = g.node("sum", ops::add(), &[Some(y[0]), Some(x)], 1);
    let (_, z) = g.node("scaled", ops::binary(BinaryFunction::Mul), &[Some(s[0]), Some(x)], 1);
    g.output("y", y[0]);
    g.output("z", z[0]);
    g.build().unwrap()
}

fn values(n: usize) -> Tensor {
    let x: Vec<f32> = (0..n * 16).map(|i| (i % 11) as f32 / 11.0 - 0.5).collect();
    Tensor::new([n, 16], &x).unwrap()
}

fn outputs(session: &mut Session, x: &Tensor) -> [Vec<f32>; 2] {
    session.set_input("x", x).unwrap();
    session.run().unwrap();
    ["y", "z"].map(|name| session.get_output(name).unwrap().to_f32s().unwrap())
}

fn assert_close(a: &[Vec<f32>; 2], b: &[Vec<f32>; 2]) {
    let (a, b) = (a.concat(), b.concat());
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + b.abs())), "{a:?} {b:?}");
}

fn plan_report(session: &Session) -> &crate::plan::PlanReport {
    &session.binding().unwrap().plan().report
}

#[test]
fn results_do_not_depend_on_the_placement() {
    let (graph, x) = (graph(), values(5));
    let mut plain = Session::builder().graph(graph.clone()).context(open("cpu")).build().unwrap();
    let expected = outputs(&mut plain, &x);
    for table in
        [["vulkan", "cpu"], ["cpu", "vulkan"], ["sim", "cpu"], ["vulkan", "vulkan"], ["vulkan", "sim"]]
    {
        let mut session = builder(&graph, &table).build().unwrap();
        assert_close(&outputs(&mut session, &x), &expected);
        let report = plan_report(&session);
        let placement = report.placement.as_ref().unwrap();
        let chosen = &placement.candidates[placement.chosen];
        // With neither device native the table has a third.
        let devices = session.devices().count() as u32;
        for d in 0..devices {
            let all: Vec<_> = placement.candidates.iter().filter(|c| c.device == Some(d)).collect();
            assert!(matches!(all[..], [one] if one.estimate_ns > 0), "{table:?} {placement:?}");
        }
        if let Some(d) = chosen.device {
            assert!(report.nodes.iter().all(|n| n.device == d), "{table:?} {report:?}");
            assert_eq!(session.binding().unwrap().plan().segments.len(), 1, "{table:?}");
        }
        assert_eq!(placement.devices.len(), devices as usize);
        assert!(placement.devices.iter().all(Roofline::is_sound));
        assert_eq!(placement.nodes.len(), report.nodes.len());
        assert!(
            placement.nodes.iter().all(|n| !n.fixed && n.nanos.iter().all(Option::is_some)),
            "{placement:?}"
        );
        check_messages(&session);
    }
}

#[test]
fn times_are_those_of_the_chosen_kernels() {
    let (folder, x) = (tempfile::tempdir().unwrap(), values(40));
    let cache = PlacementCache::in_memory();
    let auto = || builder(&graph(), &["vulkan", "cpu"]).placement_cache(Arc::clone(&cache));
    let mut plain = auto().build().unwrap();
    let expected = outputs(&mut plain, &x);
    let known = cache.len();
    assert!(known > 0);
    let info = plain.devices().next().unwrap().clone();
    let choices = keep_others(folder.path(), &graph(), &[x.info().clone()], &info);
    let mut tuned = auto().tuning(Tuning::Kept).tuning_folder(folder.path()).build().unwrap();
    assert_close(&outputs(&mut tuned, &x), &expected);
    assert!(cache.len() > known, "the times of other kernels");
    assert!(!plan_report(&tuned).placement.as_ref().unwrap().cached);
    // A node alone runs the kernel that was chosen for it.
    let alone = |choices: Arc<crate::ops::Choices>| {
        let mut g = GraphBuilder::new("product");
        let x = g.input("x", DType::F32, [40.into(), 16.into()]);
        let w = g.constant("w", Tensor::new([16, 16], &[0.5f32; 256]).unwrap());
        let y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[x, w]);
        g.output("y", y);
        let graph = g.build().unwrap();
        let binding = measure::alone(&tuned.core, &tuned.core.devices[0], graph, choices).unwrap();
        let tuned = binding.compiled.plan.report.nodes.iter().flat_map(|n| &n.tuned);
        tuned.count()
    };
    assert_eq!((alone(Arc::default()), alone(Arc::new(choices))), (0, 1));
    check_messages(&tuned);
}

#[test]
fn what_is_placed_stays_there() {
    let x = values(3);
    let expected = outputs(&mut Session::builder().graph(graph()).context(open("cpu")).build().unwrap(), &x);
    let devices = |session: &Session| -> Vec<(String, u32)> {
        plan_report(session).nodes.iter().map(|n| (n.name.clone(), n.device)).collect()
    };
    for d in 0..2 {
        let mut session = builder(&graph(), &["vulkan", "cpu"]).place_node("soft", d).build().unwrap();
        assert_close(&outputs(&mut session, &x), &expected);
        assert!(devices(&session).contains(&("soft".to_owned(), d)), "{:?}", devices(&session));
        let placement = plan_report(&session).placement.as_ref().unwrap();
        let fixed: Vec<bool> = placement.nodes.iter().map(|n| n.fixed).collect();
        assert_eq!(fixed.iter().filter(|f| **f).count(), 1, "{placement:?}");
        // By operator, although the product would absorb its activation.
        let mut session = builder(&graph(), &["vulkan", "cpu"])
            .place_op("Softmax", d)
            .place_op("MatMul", 1 - d)
            .build()
            .unwrap();
        assert_close(&outputs(&mut session, &x), &expected);
        let found = devices(&session);
        assert!(
            found.contains(&("product".to_owned(), 1 - d)) && found.contains(&("soft".to_owned(), d)),
            "{found:?}"
        );
        // By the graph.
        let mut g = graph();
        let sum = g.nodes.iter_mut().find(|n| n.name == "sum").unwrap();
        sum.device = Some(d);
        let mut session = builder(&g, &["vulkan", "cpu"]).build().unwrap();
        assert_close(&outputs(&mut session, &x), &expected);
        assert!(devices(&session).iter().any(|(n, on)| (n == "sum" || n == "scaled") && *on == d));
        check_messages(&session);
    }
    // All nodes that nothing else places.
    for d in 0..2 {
        for auto in [NodePlacement::Auto, NodePlacement::Manual] {
            let builder = builder(&graph(), &["vulkan", "cpu"]).placement(auto);
            let mut session = builder.place_rest(d).place_op("Softmax", 1 - d).build().unwrap();
            assert_close(&outputs(&mut session, &x), &expected);
            let found = devices(&session);
            let wanted = |(name, on): &(String, u32)| *on == if name == "soft" { 1 - d } else { d };
            assert!(found.iter().all(wanted) && found.iter().any(|(n, _)| n == "soft"), "{found:?}");
            assert_eq!(plan_report(&session).placement, None);
        }
    }
    let e = builder(&graph(), &["vulkan", "cpu"]).place_rest(2).build().unwrap_err();
    assert!(e.to_string().contains("entry 2 of the device table, which has 2"), "{e}");
    // If everything is placed there is no choice.
    let mut session = builder(&graph(), &["vulkan", "cpu"]);
    for (name, d) in [("product", 1), ("soft", 0), ("sum", 1), ("scaled", 0)] {
        session = session.place_node(name, d);
    }
    let mut session = session.build().unwrap();
    assert_close(&outputs(&mut session, &x), &expected);
    assert_eq!(plan_report(&session).placement, None);
    assert_eq!(devices(&session).iter().map(|(_, d)| *d).collect::<Vec<_>>(), [1, 0, 1, 0]);
}

#[test]
fn places_that_are_not_there_are_errors_that_name_what_is() {
    let refused = |b: super::super::SessionBuilder| match b.build() {
        Err(Error::Session(e)) => e,
        other => panic!("{other:?}"),
    };
    for auto in [NodePlacement::Auto, NodePlacement::Manual] {
        let b = || builder(&graph(), &["cpu", "vulkan"]).placement(auto);
        let e = refused(b().place_node("prodigy", 0));
        assert!(
            matches!(&e, SessionError::UnknownPlace { what: "node", known, .. } if known[0] == "product"),
            "{e}"
        );
        let e = refused(b().place_op("Conv", 0));
        assert!(
            matches!(&e, SessionError::UnknownPlace { what: "operator", known, .. } if known.len() == 4),
            "{e}"
        );
        let e = refused(b().place_op("Add", 2));
        let expected = SessionError::NoEntry { what: "operator", name: "Add".into(), device: 2, devices: 2 };
        assert_eq!(e, expected);
        let mut g = graph();
        g.nodes[0].device = Some(9);
        let mut session = builder(&g, &["cpu", "vulkan"]).placement(auto).build().unwrap();
        session.set_input("x", &values(2)).unwrap();
        let e = session.run().unwrap_err();
        assert!(matches!(e, Error::Plan(PlanError::UnknownDevice { device: 9, devices: 2, .. })), "{e}");
    }
}

#[test]
fn a_choice_is_kept_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let x = values(4);
    let run = |graph: &Graph, x: &Tensor| {
        let cache = PlacementCache::in_folder(folder.path());
        let mut session = builder(graph, &["vulkan", "cpu"]).placement_cache(cache).build().unwrap();
        let found = outputs(&mut session, x);
        (found, plan_report(&session).clone())
    };
    let (first, then) = (run(&graph(), &x), run(&graph(), &x));
    assert_close(&first.0, &then.0);
    let placement = |r: &crate::plan::PlanReport| r.placement.clone().unwrap();
    let (a, b) = (placement(&first.1), placement(&then.1));
    assert_eq!((a.cached, b.cached, b.timed), (false, true, 0));
    assert_eq!((a.candidates, a.chosen, a.devices), (b.candidates, b.chosen, b.devices.clone()));
    let devices = |r: &crate::plan::PlanReport| r.nodes.iter().map(|n| n.device).collect::<Vec<_>>();
    assert_eq!(devices(&first.1), devices(&then.1));
    // Other sizes and other constraints need other choices.
    assert!(!placement(&run(&graph(), &values(9)).1).cached);
    let mut g = graph();
    g.nodes[0].device = Some(0);
    assert!(!placement(&run(&g, &x).1).cached);
    // The device's speeds are not measured again.
    assert_eq!(placement(&run(&g, &x).1).devices, b.devices);
}

#[test]
fn runs_are_measured_as_the_caller_makes_them() {
    // Very long rows: copying all of them in takes many times as long as the run.
    const ROWS: usize = 2 << 20;
    let gather = (ops::find("", "Gather").unwrap().read)(&mut AttrReader::new(&AttrMap::new(), 2, 1), 17);
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [ROWS.into(), 2.into()]);
    let at = g.constant("at", Tensor::from_i64s(&[3]));
    let y = g.op(gather.unwrap(), &[x, at]);
    g.output("y", y);
    let graph = g.build().unwrap();
    let cache = PlacementCache::in_memory();
    let session = || builder(&graph, &["vulkan", "cpu"]).placement_cache(Arc::clone(&cache)).build().unwrap();
    let info = TensorInfo::new(DType::F32, Shape::new([ROWS, 2]).unwrap());
    let memory = || crate::session::bind::memory::owned(&info).unwrap().0;
    let value = Tensor::new([ROWS, 2], &vec![1.5f32; 2 * ROWS]).unwrap();
    let placement = |binding: &crate::Binding<'_>| binding.plan().report.placement.clone().unwrap();
    let mut by_value = session();
    by_value.set_input("x", &value).unwrap();
    by_value.run().unwrap();
    let copied = placement(by_value.binding().unwrap());
    assert_eq!((copied.copied_in, copied.copied_out, copied.cached), (true, true, false));
    // The bound memory is part of the key, in one session too.
    let bind = |session: &Session, input: Memory<'static>, output: Option<Memory<'static>>| {
        let builder = session.bind().input("x", input);
        let builder = output.into_iter().fold(builder, |b, memory| b.output("y", memory));
        let mut binding = builder.build().unwrap();
        binding.run().unwrap();
        assert_eq!(binding.get_output("y").unwrap().info().elements(), 2);
        let planned = session.bind().input("x", Memory::region(&memory())).plan().unwrap().report.placement;
        (placement(&binding), planned.unwrap())
    };
    let (bound, planned) = bind(&by_value, Memory::region(&memory()), Some(Memory::region(&memory())));
    assert_eq!((bound.copied_in, bound.copied_out, bound.cached), (false, false, false));
    assert_eq!((planned.copied_in, planned.copied_out), (false, true));
    let best =
        |report: &PlacementReport| report.candidates.iter().filter_map(|c| c.measured_ns).min().unwrap();
    assert!(best(&copied) > 2 * best(&bound), "{copied:?} {bound:?}");
    // Each choice is kept separately.
    let (mixed, _) = bind(&session(), Memory::value(value.clone()), Some(Memory::region(&memory())));
    assert_eq!((mixed.copied_in, mixed.copied_out, mixed.cached), (true, false, false));
    let (again, _) = bind(&session(), Memory::region(&memory()), Some(Memory::region(&memory())));
    assert_eq!((again.copied_in, again.copied_out, again.cached), (false, false, true));
}

#[test]
fn without_time_estimates_decide() {
    let x = values(5);
    let mut session = builder(&graph(), &["vulkan", "cpu"]).placement_budget(Duration::ZERO).build().unwrap();
    let expected = outputs(&mut Session::builder().graph(graph()).context(open("cpu")).build().unwrap(), &x);
    assert_close(&outputs(&mut session, &x), &expected);
    let placement = plan_report(&session).placement.as_ref().unwrap();
    assert_eq!(placement.timed, 0);
    assert!(placement.candidates.iter().all(|c| c.measured_ns.is_none()));
    assert!(placement.nodes.iter().all(|n| !n.timed));
}

#[test]
fn a_callers_function_is_called_for_results_alone_and_where_it_can_run() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let native = NativeKernel::new("halve", move |args| {
        counted.fetch_add(1, Ordering::SeqCst);
        let x = args.read::<f32>(0)?;
        for (y, x) in args.take_write::<f32>(1)?.iter_mut().zip(x) {
            *y = x / 2.0;
        }
        Ok::<(), KernelError>(())
    });
    let info = TensorInfo::new(DType::F32, Shape::new([64]).unwrap());
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [64.into()]);
    let a = g.op(ops::unary(Function::Exp), &[x]);
    let op = CustomKernel::fixed("halve", KernelCall::native(native), vec![info]);
    let b = g.op(Arc::new(op) as Arc<dyn Operator>, &[a]);
    let c = g.op(ops::add(), &[b, b]);
    g.output("y", c);
    let graph = g.build().unwrap();
    for (at, fallback) in [true, false].into_iter().enumerate() {
        let mut session = builder(&graph, &["vulkan", "cpu"]).fallback(fallback).build().unwrap();
        session.set_input("x", &Tensor::new([64], &[0.5f32; 64]).unwrap()).unwrap();
        session.run().unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), at + 1);
        let y = session.get_output("y").unwrap().to_f32s().unwrap();
        assert!(y.iter().all(|y| (y - 0.5f32.exp()).abs() < 1e-5));
        let report = plan_report(&session);
        let custom: Vec<u32> =
            report.nodes.iter().filter(|n| n.op == "CustomKernel").map(|n| n.device).collect();
        assert_eq!(custom, [1]);
        let placement = report.placement.as_ref().unwrap();
        assert!(placement.candidates.iter().all(|c| c.measured_ns.is_none()));
        let known =
            report.nodes.iter().zip(&placement.nodes).find(|(n, _)| n.op == "CustomKernel").unwrap().1;
        assert!(known.nanos[0].is_none() && known.nanos[1].is_some());
        check_messages(&session);
    }
    // A choice is cached even where a node without a kernel cannot run elsewhere.
    let cache = PlacementCache::in_memory();
    let cached = [(); 2].map(|()| {
        let builder = builder(&graph, &["vulkan", "cpu"]).fallback(false).placement_cache(Arc::clone(&cache));
        let mut session = builder.build().unwrap();
        session.set_input("x", &Tensor::new([64], &[0.5f32; 64]).unwrap()).unwrap();
        session.run().unwrap();
        plan_report(&session).placement.as_ref().unwrap().cached
    });
    assert_eq!(cached, [false, true]);
    // Without a device that can run it there is no plan.
    let mut session = builder(&graph, &["vulkan", "vulkan"]).fallback(false).build().unwrap();
    session.set_input("x", &Tensor::new([64], &[0.5f32; 64]).unwrap()).unwrap();
    let e = session.run().unwrap_err();
    assert!(matches!(e, Error::Plan(PlanError::NoKernel { .. })), "{e}");
}

#[test]
fn one_device_leaves_nothing_to_choose() {
    let x = values(5);
    let mut session = builder(&graph(), &["cpu"]).build().unwrap();
    outputs(&mut session, &x);
    assert_eq!(plan_report(&session).placement, None);
}

#[test]
fn entry_one_can_have_everything_an_output_that_is_a_copy_included() {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [8.into()]);
    let y = g.op(ops::add(), &[x, x]);
    g.output("y", y);
    g.output("z", y);
    let graph = g.build().unwrap();
    let contexts = [open("vulkan"), open("cpu")];
    let devices: Vec<&DeviceInfo> = contexts.iter().map(Context::info).collect();
    let infos = [TensorInfo::new(DType::F32, Shape::new([8]).unwrap())];
    let (options, cache) = (PlanOptions::default(), PlanCache::default());
    let compile = |assignment: Assignment| {
        let compiler = Compiler { devices: &devices, options: &options, assignment, cache: &cache };
        compiler.compile(&PlanRequest::new(&graph, &infos))?.plan()
    };
    for device in 0..2 {
        let plan = compile(Assignment::All(device)).unwrap();
        assert_eq!(plan.segments.iter().map(|s| s.device).collect::<Vec<_>>(), [device]);
    }
    let assigned = |places: &[u32]| Assignment::Each(places.into());
    assert_eq!(compile(assigned(&[1])).unwrap().report.nodes[0].device, 1);
    let e = compile(assigned(&[1, 1])).unwrap_err();
    assert_eq!(e, PlanError::Assignment { assigned: 2, nodes: 1 });
    assert!(matches!(compile(assigned(&[2])), Err(PlanError::UnknownDevice { device: 2, .. })));
    let beyond = Assignment::All(2);
    assert!(matches!(compile(beyond), Err(PlanError::UnknownDevice { device: 2, .. })));
}
