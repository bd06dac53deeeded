use std::fs;
use std::path::Path;

use super::*;
use crate::backend::sim::DriverProfile;
use crate::dtype::DType;
use crate::graph::GraphBuilder;
use crate::kernel::{KernelId, Requires};
use crate::memory::model::DeviceKind;
use crate::ops::conv::Conv;
use crate::ops::linalg::MatMul;
use crate::ops::norm::{Softmax, SoftmaxKind};
use crate::ops::test_util::tensor;
use crate::ops::{Operator, WindowAttrs};
use crate::plan::{Plan, PlanCache};
use crate::registry::Registry;
use crate::session::tests::{check_messages, desc};
use crate::session::{Session, SessionBuilder};

/// Convolutions of three kinds, products of many rows and of one, and a softmax.
fn graph() -> Graph {
    let mut g = GraphBuilder::new("g");
    let conv = |group: usize, pad: i64| -> Arc<dyn Operator> {
        let window = WindowAttrs { pads: vec![pad; 4], ..WindowAttrs::default() };
        Arc::new(Conv { window, group, activation: crate::ops::Activation::None })
    };
    let x = g.input("x", DType::F32, [1.into(), 16.into(), 12.into(), 12.into()]);
    let weights: [&[usize]; 3] = [&[24, 16, 3, 3], &[32, 24, 1, 1], &[32, 1, 3, 3]];
    let [w1, w2, w3] = [0, 1, 2].map(|i| g.constant(format!("w{i}"), tensor(weights[i], 7 + i as u64)));
    let y = g.op(conv(1, 1), &[x, w1]);
    let y = g.op(conv(1, 0), &[y, w2]);
    let y = g.op(conv(32, 1), &[y, w3]);
    g.output("y", y);
    let (a, v) =
        (g.input("a", DType::F32, [48.into(), 64.into()]), g.input("v", DType::F32, [1.into(), 64.into()]));
    let b = g.constant("b", tensor(&[64, 72], 5));
    let product = || Arc::new(MatMul::default()) as Arc<dyn Operator>;
    let p = g.op(product(), &[a, b]);
    let soft = Softmax { kind: SoftmaxKind::Soft, axis: -1, flatten: false };
    let p = g.op(Arc::new(soft) as Arc<dyn Operator>, &[p]);
    g.output("p", p);
    let q = g.op(product(), &[v, b]);
    g.output("q", q);
    g.build().unwrap()
}

fn inputs() -> [(&'static str, Tensor); 3] {
    [("x", tensor(&[1, 16, 12, 12], 1)), ("a", tensor(&[48, 64], 2)), ("v", tensor(&[1, 64], 3))]
}

fn infos() -> Vec<TensorInfo> {
    inputs().iter().map(|(_, t)| t.info().clone()).collect()
}

/// A builder for `device`; none where the device is missing and need not be there.
fn builder(device: &str) -> Option<SessionBuilder> {
    match Registry::with_defaults().open(device, &desc()) {
        Ok(context) => Some(Session::builder().graph(graph()).context(context)),
        Err(error) => {
            let required = std::env::var("REQUIRE_BACKENDS").is_ok_and(|v| v.contains(device));
            assert!(!required, "{device}: {error}");
            None
        }
    }
}

fn outputs(session: &mut Session) -> Vec<Vec<f32>> {
    for (name, value) in inputs() {
        session.set_input(name, &value).unwrap();
    }
    session.run().unwrap();
    ["y", "p", "q"].map(|name| session.get_output(name).unwrap().to_f32s().unwrap()).into()
}

#[track_caller]
fn assert_close(got: &[Vec<f32>], want: &[Vec<f32>], what: &str) {
    for (got, want) in got.iter().zip(want) {
        let near = |(g, w): (&f32, &f32)| (g - w).abs() <= 2e-4 * w.abs().max(1.0);
        assert!(got.len() == want.len() && got.iter().zip(want).all(near), "{what}");
    }
}

/// The nodes that ask for a choice with `choices` on `device`.
fn tunable(graph: &Graph, device: &DeviceInfo, choices: &Choices) -> Vec<TunableNode> {
    let options = PlanOptions { choices: vec![Arc::new(choices.clone())], ..PlanOptions::default() };
    let (cache, assignment) = (PlanCache::default(), Assignment::default());
    let compiler =
        Compiler { graph, devices: &[device], options: &options, assignment, cache: &cache, updates: &[] };
    compiler.tunable(&infos(), &BTreeMap::new()).unwrap().plan().unwrap()
}

fn plan(graph: &Graph, devices: &[&DeviceInfo], choices: &Choices) -> Plan {
    let options = PlanOptions { choices: vec![Arc::new(choices.clone())], ..PlanOptions::default() };
    let (cache, assignment) = (PlanCache::default(), Assignment::default());
    let compiler = Compiler { graph, devices, options: &options, assignment, cache: &cache, updates: &[] };
    compiler.compile(&infos(), &BTreeMap::new()).unwrap().plan().unwrap()
}

/// Calls `f` with choices that take each candidate of each choice of the graph on `device` once, and the candidate.
fn each_candidate(graph: &Graph, device: &DeviceInfo, mut f: impl FnMut(&Choices, &str)) {
    let mut known = BTreeSet::new();
    let mut waiting = vec![Choices::default()];
    while let Some(choices) = waiting.pop() {
        for asked in tunable(graph, device, &choices).into_iter().flat_map(|node| node.asked) {
            if known.insert(asked.key.clone()) {
                for name in asked.candidates.iter().skip(1) {
                    let with = choices.with(&asked.key, name);
                    f(&with, name);
                    waiting.push(with);
                }
            }
        }
    }
    assert!(!known.is_empty(), "{}", device.name);
}

/// The same session with other choices, made of what it holds.
fn with_choices(session: &Session, choices: &Choices) -> Session {
    let SessionCore { graph, devices, options, params, .. } = &*session.core;
    let mut options = options.clone();
    (options.chooser, options.plan.choices) = (None, vec![Arc::new(choices.clone())]);
    let core =
        SessionCore::new(Arc::clone(graph), devices.clone(), options, Arc::clone(params), Arc::default());
    let (origins, values) = (session.origins.clone(), Default::default());
    Session { core: Arc::new(core), values, current: None, origins, tuner: None }
}

#[test]
fn every_candidate_computes_the_same_in_a_session() {
    let want = outputs(&mut builder("cpu").unwrap().build().unwrap());
    for device in ["vulkan", "opencl"] {
        let Some(builder) = builder(device) else { continue };
        let session = builder.build().unwrap();
        let info = session.devices().next().unwrap().clone();
        each_candidate(&session.core.graph, &info, |choices, name| {
            let mut chosen = with_choices(&session, choices);
            assert_close(&outputs(&mut chosen), &want, &format!("{name} on {device}"));
            let tuned = chosen.plan(&infos()).unwrap().report.nodes.into_iter().flat_map(|n| n.tuned);
            assert!(tuned.into_iter().any(|tuned| tuned.chosen == name), "{name} on {device}");
        });
        check_messages(&session);
    }
}

/// What is chosen for a recorded driver fits it, whatever it is.
#[test]
fn plans_are_valid_on_recorded_drivers_with_every_choice() {
    let registry = Registry::with_defaults();
    let all = KernelId::all().fold(Requires::NONE, |all, id| all.union(id.info().requires));
    let cpu = registry.find("cpu").unwrap();
    let graph = graph();
    for (at, profile) in DriverProfile::names().enumerate() {
        let mut device = registry.find(&format!("sim:{profile}")).unwrap();
        device.native = false;
        // Some with everything that kernels use for speed, some without.
        device.features = if at % 3 == 0 { Requires::NONE } else { all };
        device.prefers_texels = device.kind == DeviceKind::Cpu;
        let check = |choices: &Choices, name: &str| {
            let plan = plan(&graph, &[&device, &cpu], choices);
            for node in &plan.report.nodes {
                assert_eq!(node.fallback, None, "{name} on {profile}");
            }
        };
        check(&Choices::default(), "the default");
        each_candidate(&graph, &device, check);
    }
}

fn kernels(plan: &Plan) -> Vec<String> {
    plan.kernels.iter().map(|kernel| format!("{:?} {:?}", kernel.code, kernel.spec)).collect()
}

fn tuned(device: &str, folder: &Path, tuning: Tuning) -> Option<Session> {
    Some(builder(device)?.tuning(tuning).tuning_folder(folder).build().unwrap())
}

#[test]
fn what_was_measured_is_kept_and_taken_by_later_sessions() {
    for device in ["vulkan", "opencl"] {
        let folder = tempfile::tempdir().unwrap();
        let within = Tuning::Within(Duration::from_secs(900));
        let Some(mut first) = tuned(device, folder.path(), within) else { continue };
        let want = outputs(&mut builder("cpu").unwrap().build().unwrap());
        assert_close(&outputs(&mut first), &want, device);
        let report = first.tuning_report();
        assert!(report.measured.len() >= 4 && report.out_of_time.is_empty(), "{report:#?}");
        assert!(report.measured.iter().all(|choice| choice.wrong.is_empty()), "{report:#?}");
        assert!(report.measured.iter().all(|c| c.is_changed() || c.chosen_ns == c.default_ns));
        let changed: BTreeSet<_> =
            report.measured.iter().filter(|c| c.is_changed()).map(|c| (c.key.clone(), &c.chosen)).collect();
        check_messages(&first);

        let mut second = tuned(device, folder.path(), Tuning::Kept).unwrap();
        assert_close(&outputs(&mut second), &want, device);
        assert_eq!(second.tuning_report(), TuningReport::default());
        let (one, two) = (first.plan(&infos()).unwrap(), second.plan(&infos()).unwrap());
        assert_eq!(kernels(&one), kernels(&two));
        let taken = two.report.nodes.iter().flat_map(|n| &n.tuned).map(|t| (t.key.clone(), &t.chosen));
        assert_eq!(taken.collect::<BTreeSet<_>>(), changed);

        // Nothing is measured again.
        let third = tuned(device, folder.path(), within).unwrap();
        third.plan(&infos()).unwrap();
        assert_eq!(third.tuning_report().measured, []);
        // A folder without it, and none at all, change nothing.
        let empty = tempfile::tempdir().unwrap();
        let plain = builder(device).unwrap().build().unwrap().plan(&infos()).unwrap();
        let kept = tuned(device, empty.path(), Tuning::Kept).unwrap().plan(&infos()).unwrap();
        assert_eq!(kernels(&plain), kernels(&kept));
        let off = tuned(device, folder.path(), Tuning::Off).unwrap().plan(&infos()).unwrap();
        assert_eq!(kernels(&plain), kernels(&off));
    }
}

#[test]
fn a_damaged_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(session) = tuned("vulkan", folder.path(), Tuning::Within(Duration::from_secs(900))) else {
        return;
    };
    session.plan(&infos()).unwrap();
    let plain = kernels(&builder("vulkan").unwrap().build().unwrap().plan(&infos()).unwrap());
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let file = files.iter().find(|file| file.extension().is_some_and(|e| e == "onepool")).unwrap();
    let whole = fs::read(file).unwrap();
    for bytes in [&whole[..whole.len() / 2], b"", b"{}"] {
        fs::write(file, bytes).unwrap();
        let kept = tuned("vulkan", folder.path(), Tuning::Kept).unwrap();
        assert_eq!(kernels(&kept.plan(&infos()).unwrap()), plain);
    }
}

#[test]
fn without_time_nothing_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let Some(session) = tuned("vulkan", folder.path(), Tuning::Within(Duration::ZERO)) else { return };
    session.plan(&infos()).unwrap();
    assert_eq!(session.tuning_report(), TuningReport::default());
    let session = tuned("vulkan", folder.path(), Tuning::Within(Duration::from_nanos(1))).unwrap();
    session.plan(&infos()).unwrap();
    let report = session.tuning_report();
    assert!(report.measured.is_empty() && !report.out_of_time.is_empty(), "{report:#?}");
    assert_eq!(fs::read_dir(folder.path()).map_or(0, Iterator::count), 0, "nothing is kept");
}

#[test]
fn the_processors_functions_are_not_tuned() {
    let folder = tempfile::tempdir().unwrap();
    let session = tuned("cpu", folder.path(), Tuning::Within(Duration::from_secs(9))).unwrap();
    session.plan(&infos()).unwrap();
    assert_eq!(session.tuning_report(), TuningReport::default());
}
