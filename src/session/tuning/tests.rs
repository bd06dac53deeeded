use std::fs;
use std::path::Path;

use super::*;
use crate::backend::sim::DriverProfile;
use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, Tensor, TensorInfo};
use crate::kernel::{KernelId, Requires};
use crate::memory::model::DeviceKind;
use crate::ops::conv::Conv;
use crate::ops::linalg::MatMul;
use crate::ops::norm::{Softmax, SoftmaxKind};
use crate::ops::test_util::tensor;
use crate::ops::{Operator, WindowAttrs};
use crate::plan::{Compiler, Plan, PlanCache};
use crate::registry::Registry;
use crate::session::tests::{check_messages, desc};
use crate::session::{CancelToken, Session, SessionBuilder, SubmissionLimit};

/// Convolutions of three kinds, products of many rows and of one, and a softmax.
fn graph() -> Graph {
    let mut g = GraphBuilder::new("g");
    let conv = |group: usize, pad: i64| -> Arc<dyn Operator> {
        let window = WindowAttrs { pads: vec![pad; 4], ..WindowAttrs::default() };
        Arc::new(Conv { window, group, ..Conv::default() })
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
    tunable_of(graph, &infos(), device, choices)
}

fn tunable_of(
    graph: &Graph,
    infos: &[TensorInfo],
    device: &DeviceInfo,
    choices: &Choices,
) -> Vec<TunableNode> {
    let options = PlanOptions { choices: vec![Arc::new(choices.clone())], ..PlanOptions::default() };
    let (cache, assignment) = (PlanCache::default(), Assignment::default());
    let compiler = Compiler { devices: &[device], options: &options, assignment, cache: &cache };
    compiler.tunable(&PlanRequest::new(graph, infos)).unwrap().plan().unwrap()
}

/// Keeps in `folder`, for each choice of `graph` on `device`, that another candidate than the default is
/// faster.
pub(in crate::session) fn keep_others(
    folder: &Path,
    graph: &Graph,
    infos: &[TensorInfo],
    device: &DeviceInfo,
) -> Choices {
    let mut kept = Kept::default();
    for asked in tunable_of(graph, infos, device, &Choices::default()).into_iter().flat_map(|node| node.asked)
    {
        let [default, chosen] = [0, 1].map(|at| asked.candidates[at].clone());
        kept.set(asked.key, Measured { default, chosen, default_ns: 2, chosen_ns: 1 });
    }
    assert!(TuningFile::new(folder, device_key(device)).add(&kept));
    kept.choices()
}

fn plan(graph: &Graph, devices: &[&DeviceInfo], choices: &Choices) -> Plan {
    let options = PlanOptions { choices: vec![Arc::new(choices.clone())], ..PlanOptions::default() };
    let (cache, assignment) = (PlanCache::default(), Assignment::default());
    let compiler = Compiler { devices, options: &options, assignment, cache: &cache };
    compiler.compile(&PlanRequest::new(graph, &infos())).unwrap().plan().unwrap()
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

        // Nothing is measured again. What a busy machine kept from being measured may be, and what that leads to.
        let third = tuned(device, folder.path(), within).unwrap();
        third.plan(&infos()).unwrap();
        let again = third.tuning_report().measured;
        let is_new = |choice: &TunedChoice| choice.follows || report.not_measured.contains(&choice.key);
        assert_eq!(again.into_iter().filter(|choice| !is_new(choice)).collect::<Vec<_>>(), []);
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
    let Some(builder) = builder("vulkan") else { return };
    let session = builder.build().unwrap();
    let plain = kernels(&session.plan(&infos()).unwrap());
    keep_others(folder.path(), &graph(), &infos(), session.devices().next().unwrap());
    let kept = || kernels(&tuned("vulkan", folder.path(), Tuning::Kept).unwrap().plan(&infos()).unwrap());
    assert_ne!(kept(), plain, "a whole one changes kernels");
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let file = files.iter().find(|file| file.extension().is_some_and(|e| e == "onepool")).unwrap();
    let whole = fs::read(file).unwrap();
    for bytes in [&whole[..whole.len() / 2], b"", b"{}"] {
        fs::write(file, bytes).unwrap();
        assert_eq!(kept(), plain);
    }
    fs::write(file, whole).unwrap();
    assert_ne!(kept(), plain);
}

/// An entry of the table may become another device, as after [`Session::recover_on`].
#[test]
fn choices_are_those_of_the_device_at_an_entry() {
    let folder = tempfile::tempdir().unwrap();
    let mut one = Registry::with_defaults().find("sim").unwrap();
    one.native = false;
    let other = DeviceInfo { uuid: format!("{}, another", one.uuid), ..one.clone() };
    let choices = keep_others(folder.path(), &graph(), &infos(), &one);
    let tuner = KernelTuner::new(Some(folder.path().to_owned()), Duration::ZERO);
    let of = |table: &[&DeviceInfo]| -> Vec<Choices> {
        tuner.known(table).into_iter().map(Arc::unwrap_or_clone).collect()
    };
    let none = Choices::default();
    assert_eq!(of(&[&one]), std::slice::from_ref(&choices));
    assert_eq!(of(&[&other]), std::slice::from_ref(&none));
    assert_eq!(of(&[&other, &one]), [none.clone(), choices.clone()]);
    assert_eq!(of(&[&one, &one, &other]), [choices.clone(), choices, none]);
}

#[test]
fn a_session_on_another_device_has_that_ones_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let (Some(first), Some(other)) = (builder("vulkan"), builder("opencl")) else { return };
    let builder = first.tuning(Tuning::Kept).tuning_folder(folder.path());
    let mut session = builder.build().unwrap();
    keep_others(folder.path(), &graph(), &infos(), session.devices().next().unwrap());
    let tuned = |session: &Session| {
        session.plan(&infos()).unwrap().report.nodes.iter().map(|node| node.tuned.len()).sum::<usize>()
    };
    assert!(tuned(&session) > 0);
    session.recover_on(vec![other.build().unwrap().context(0).unwrap().clone()]).unwrap();
    assert_eq!(tuned(&session), 0);
}

#[test]
fn what_takes_longer_than_a_submission_may_is_not_measured() {
    let folder = tempfile::tempdir().unwrap();
    let Some(builder) = builder("vulkan") else { return };
    let builder = builder.tuning(Tuning::Within(Duration::from_secs(900))).tuning_folder(folder.path());
    let limit = SubmissionLimit::AtMost(Duration::from_nanos(1));
    let session = builder.submission_limit(limit).build().unwrap();
    session.plan(&infos()).unwrap();
    let report = session.tuning_report();
    assert!(report.measured.is_empty() && report.out_of_time.is_empty(), "{report:#?}");
    assert!(report.not_measured.len() >= 4, "{report:#?}");
}

#[test]
fn a_node_is_lowered_again_only_where_something_is_to_be_found_out() {
    let key = |name: &str| ChoiceKey::new(name, DType::F32);
    let asked = |name: &str, taken: usize| Asked {
        key: key(name),
        candidates: vec!["x".to_owned(), "y".to_owned()],
        taken,
    };
    let measured = |chosen: &str| Measured {
        default: "x".to_owned(),
        chosen: chosen.to_owned(),
        default_ns: 2,
        chosen_ns: 1,
    };
    let mut known = Known::new(None);
    assert!(known.settles(&[]) && !known.settles(&[asked("a", 0)]));
    known.set(key("a"), measured("x"));
    assert!(known.settles(&[asked("a", 0)]) && !known.settles(&[asked("a", 0), asked("b", 0)]));
    known.given_up.insert(key("b"));
    assert!(known.settles(&[asked("a", 0), asked("b", 0)]));
    // What was measured since leads elsewhere.
    known.set(key("a"), measured("y"));
    assert!(!known.settles(&[asked("a", 0)]) && known.settles(&[asked("a", 1)]));
}

#[cfg(feature = "vulkan")]
mod faults {
    use super::*;
    use crate::backend::vulkan::shim::{self, Fault};
    use crate::device::Context;
    use crate::session::tests::SHIM;

    /// Two products.
    fn products() -> Graph {
        let mut g = GraphBuilder::new("products");
        let x = g.input("x", DType::F32, [48.into(), 64.into()]);
        let mut y = x;
        for (name, shape) in [("b", [64usize, 72]), ("c", [72, 40])] {
            let b = g.constant(name, tensor(&shape, 5));
            y = g.op(Arc::new(MatMul::default()) as Arc<dyn Operator>, &[y, b]);
        }
        g.output("y", y);
        g.build().unwrap()
    }

    fn session(folder: &Path) -> Session {
        let builder = Session::builder().graph(products()).context(Context::new(shim::open()));
        let within = Tuning::Within(Duration::from_secs(900));
        builder.tuning(within).tuning_folder(folder).build().unwrap()
    }

    fn x() -> Vec<TensorInfo> {
        vec![tensor(&[48, 64], 1).info().clone()]
    }

    /// The number of the first call of `name` of a plan that is tuned.
    fn first(name: &str) -> usize {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        shim::arm(None);
        session.plan(&x()).unwrap();
        let (calls, _) = shim::disarm();
        assert_eq!(session.tuning_report().measured.len(), 2, "{:#?}", session.tuning_report());
        calls.iter().position(|call| *call == name).unwrap()
    }

    #[test]
    fn memory_that_runs_out_ends_the_measurement_of_one_choice() {
        let _alone = SHIM.lock();
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path());
        shim::arm(Some((first("vkCreateBuffer"), Fault::OutOfDeviceMemory)));
        session.plan(&x()).unwrap();
        let (_, fired) = shim::disarm();
        assert_eq!(fired, Some("vkCreateBuffer"));
        let report = session.tuning_report();
        assert_eq!((report.measured.len(), report.not_measured.len()), (1, 1), "{report:#?}");
    }

    #[test]
    fn a_device_is_lost_at_a_choice_once() {
        let _alone = SHIM.lock();
        let folder = tempfile::tempdir().unwrap();
        let at = first("vkQueueSubmit");
        let mut session = session(folder.path());
        shim::arm(Some((at, Fault::Lost)));
        // Whether the plan needs the device is its own matter.
        let _ = session.plan(&x());
        let (_, fired) = shim::disarm();
        assert_eq!(fired, Some("vkQueueSubmit"));
        let lost = session.tuning_report().not_measured;
        assert_eq!((lost.len(), session.tuning_report().measured.len()), (1, 0));
        session.recover_on(vec![Context::new(shim::open())]).unwrap();
        session.plan(&x()).unwrap();
        let report = session.tuning_report();
        assert_eq!((report.measured.len(), &report.not_measured), (1, &lost), "{report:#?}");
        assert!(!lost.contains(&report.measured[0].key));
        // Nor in another process.
        let next = self::session(folder.path());
        next.plan(&x()).unwrap();
        let report = next.tuning_report();
        assert!(report.measured.is_empty() && report.not_measured.is_empty(), "{report:#?}");
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
fn a_cancelled_session_measures_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let Some(builder) = builder("vulkan") else { return };
    let builder = builder.tuning(Tuning::Within(Duration::from_secs(900))).tuning_folder(folder.path());
    let token = CancelToken::new();
    let session = builder.run_options(RunOptions::new().cancel(&token)).build().unwrap();
    token.cancel();
    session.plan(&infos()).unwrap();
    let report = session.tuning_report();
    assert!(report.measured.is_empty() && !report.out_of_time.is_empty(), "{report:#?}");
    assert!(report.seconds < 900.0, "{}", report.seconds);
}

#[test]
fn the_processors_functions_are_not_tuned() {
    let folder = tempfile::tempdir().unwrap();
    let session = tuned("cpu", folder.path(), Tuning::Within(Duration::from_secs(9))).unwrap();
    session.plan(&infos()).unwrap();
    assert_eq!(session.tuning_report(), TuningReport::default());
}
