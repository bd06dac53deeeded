//! Each barrier, flush and invalidate that the product records is removed in turn, and the simulated device shows its
//! purpose.

use std::sync::Arc;

use crate::backend::sim::{SimConfig, SimDriver};
use crate::dtype::DType;
use crate::graph::{Graph, GraphBuilder, NodeId};
use crate::kernel;
use crate::memory::host::{HostRegion, SharedRegion};
use crate::memory::model::TypeFlags;
use crate::ops::Operator;
use crate::ops::movement::{Concat, Transpose};
use crate::plan::Plan;
use crate::recording::{Command, Recording};
use crate::registry::Registry;
use crate::session::bind::binding::Binding;
use crate::session::bind::host_ranges::HostRanges;
use crate::session::bind::launch::LaunchWork;
use crate::session::tests::{check_messages, desc};
use crate::session::{Memory, Session};
use crate::shape::Shape;

/// Junk that the host writes to an output.
const JUNK: f32 = -7.0;

/// One part of the recording of one segment.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Barrier(usize, usize),
    Flush(usize, usize),
    Invalidate(usize, usize),
}

/// A graph bound to memory of the caller's, whose segments are recorded anew for each run.
struct Trial {
    session: Session,
    binding: Binding<'static>,
    plan: Plan,
    host: Vec<HostRanges>,
    x: Arc<SharedRegion>,
    y: Arc<SharedRegion>,
}

impl Trial {
    fn new(graph: Graph, shape: &[usize], devices: &[&str], config: SimConfig) -> Trial {
        let mut registry = Registry::with_defaults();
        registry.register(Box::new(SimDriver::with(vec![config])));
        let builder = Session::builder().graph(graph).copy_threshold(0);
        let contexts = devices.iter().map(|name| registry.open(name, &desc()).unwrap());
        let session = contexts.fold(builder, |b, context| b.context(context)).build().unwrap();
        let [input, output] = [session.inputs()[0].name.clone(), session.outputs()[0].name.clone()];
        let shape = Shape::new(shape).unwrap();
        let region = |bytes| HostRegion::new(bytes).unwrap().into_shared();
        let x = region(4 * shape.iter().product::<usize>());
        let bind = session.bind().input(&input, Memory::region(&x).shape(shape));
        let y = region(bind.plan().unwrap().outputs[0].info.bytes());
        let binding = bind.output(&output, Memory::region(&y)).build().unwrap();
        let plan = binding.ordered_plan().unwrap();
        let host = binding.host_ranges(&plan);
        Trial { session, binding, plan, host, x, y }
    }

    fn recording(&self, s: usize) -> Option<Recording> {
        let own = !self.plan.segments[s].by_session;
        own.then(|| self.binding.record(&self.plan, s, &self.host[s]).unwrap().recording)
    }

    /// Every part that can be removed.
    fn parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        for s in 0..self.plan.segments.len() {
            let Some(recording) = self.recording(s) else { continue };
            let is_barrier = |at: &usize| matches!(recording.commands[*at], Command::Barrier(_));
            parts.extend((0..recording.commands.len()).filter(is_barrier).map(|at| Part::Barrier(s, at)));
            parts.extend((0..recording.flush.len()).map(|at| Part::Flush(s, at)));
            parts.extend((0..recording.invalidate.len()).map(|at| Part::Invalidate(s, at)));
        }
        parts
    }

    /// Two runs on different inputs without one part; returns both results and the device's reports.
    fn run(&self, without: Option<Part>) -> (Vec<Vec<f32>>, Vec<String>) {
        let mut results = Vec::new();
        for round in 0..2 {
            let value = |i: usize| ((i * 7 + round * 5) % 11) as f32 / 11.0 + round as f32;
            let mut x = self.x.write().unwrap();
            x.as_mut_slice_of::<f32>().unwrap().iter_mut().enumerate().for_each(|(i, x)| *x = value(i));
            drop(x);
            self.y.write().unwrap().as_mut_slice_of::<f32>().unwrap().fill(JUNK);
            for (s, launch) in self.binding.segments.iter().enumerate() {
                let devices = &self.binding.core.devices;
                match (&launch.work, self.recording(s)) {
                    (LaunchWork::Commands(_), Some(mut recording)) => {
                        match without {
                            Some(Part::Barrier(of, at)) if of == s => drop(recording.commands.remove(at)),
                            Some(Part::Flush(of, at)) if of == s => {
                                recording.flush.remove(at);
                            }
                            Some(Part::Invalidate(of, at)) if of == s => {
                                recording.invalidate.remove(at);
                            }
                            _ => {}
                        }
                        kernel::submit(&devices[launch.device() as usize].queue, recording)
                            .unwrap()
                            .wait()
                            .unwrap();
                    }
                    _ => drop(launch.begin(devices).unwrap()),
                }
            }
            results.push(self.y.read().unwrap().as_slice_of::<f32>().unwrap().to_vec());
        }
        let contexts = (0..self.session.devices().count()).filter_map(|i| self.session.context(i));
        (results, contexts.flat_map(|context| context.validation_messages()).collect())
    }

    /// Removes each part in turn; returns the number of barriers, flushes and invalidates.
    fn remove_each(&self) -> [usize; 3] {
        let (right, messages) = self.run(None);
        assert_eq!(messages, Vec::<String>::new());
        assert!(right[0] != right[1] && right.iter().flatten().all(|y| *y != JUNK));
        let mut counts = [0; 3];
        for part in self.parts() {
            let (results, messages) = self.run(Some(part));
            match part {
                Part::Barrier(..) => counts[0] += 1,
                Part::Flush(..) => counts[1] += 1,
                Part::Invalidate(..) => counts[2] += 1,
            }
            assert!(results != right || !messages.is_empty(), "nothing depends on {part:?}");
        }
        // The device is unchanged.
        assert_eq!(self.run(None), (right, Vec::new()));
        counts
    }
}

/// A device with memory of its own, which shares the host's coherently or not.
fn discrete(coherent: bool) -> SimConfig {
    let mut config = SimConfig::discrete();
    for ty in config.profile.types.iter_mut().filter(|_| !coherent) {
        ty.flags.0 &= !TypeFlags::HOST_COHERENT.0;
    }
    config
}

/// The denoiser of `models/`, with the nodes of `on_cpu` on entry 0 of the device table and the others on `device`.
fn denoiser(on_cpu: std::ops::Range<usize>, device: u32) -> Graph {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/denoise.onnx");
    let mut graph = crate::loader::onnx::load_onnx(&path).unwrap();
    for at in 0..graph.nodes().len() {
        graph.place(NodeId(at as u32), Some(if on_cpu.contains(&at) { 0 } else { device }));
    }
    graph
}

#[test]
fn nothing_of_a_models_recording_can_be_left_out() {
    let trial = |config| Trial::new(denoiser(0..0, 0), &[1, 3, 8, 8], &["sim:0"], config).remove_each();
    let [barriers, flushes, invalidates] = trial(SimConfig::coherent());
    assert!(barriers > 10 && (flushes, invalidates) == (0, 0), "{barriers}, {flushes}, {invalidates}");
    let [barriers, flushes, invalidates] = trial(SimConfig::noncoherent());
    assert!(barriers > 10 && flushes >= 2 && invalidates == 1, "{barriers}, {flushes}, {invalidates}");
    // It reads its input twice, so the device copies it first.
    let [barriers, flushes, invalidates] = trial(SimConfig::discrete());
    assert!(barriers > 10 && (flushes, invalidates) == (0, 0), "{barriers}, {flushes}, {invalidates}");
    let [barriers, flushes, invalidates] = trial(discrete(false));
    assert!(barriers > 10 && flushes >= 2 && invalidates == 1, "{barriers}, {flushes}, {invalidates}");
}

#[test]
fn nothing_between_two_devices_can_be_left_out() {
    let trial =
        |config| Trial::new(denoiser(8..14, 1), &[1, 3, 8, 8], &["cpu", "sim:0"], config).remove_each();
    let [barriers, flushes, invalidates] = trial(SimConfig::coherent());
    assert!(barriers > 10 && (flushes, invalidates) == (0, 0), "{barriers}, {flushes}, {invalidates}");
    let [barriers, flushes, invalidates] = trial(SimConfig::noncoherent());
    assert!(barriers > 10 && flushes > 2 && invalidates > 1, "{barriers}, {flushes}, {invalidates}");
}

/// The rows and columns of a matrix in sequence: its input is read twice, so that a device with memory of its
/// own copies it first, and its output is written in parts.
#[test]
fn nothing_of_copies_in_and_out_can_be_left_out() {
    for coherent in [true, false] {
        let mut g = GraphBuilder::new("rows and columns");
        let x = g.input("x", DType::F32, [32.into(), 32.into()]);
        let columns = g.op(Arc::new(Transpose { perm: None }) as Arc<dyn Operator>, &[x]);
        let y = g.op(Arc::new(Concat { axis: 0 }) as Arc<dyn Operator>, &[x, columns]);
        g.output("y", y);
        let trial = Trial::new(g.build().unwrap(), &[32, 32], &["sim:0"], discrete(coherent));
        let copies = |r: &Recording| r.commands.iter().filter(|c| matches!(c, Command::Copy { .. })).count();
        assert!(trial.recording(0).is_some_and(|r| copies(&r) > 0));
        let [barriers, flushes, invalidates] = trial.remove_each();
        assert!(barriers > 1 && (flushes > 1) != coherent && (invalidates == 1) != coherent);
    }
}

/// The barrier at the head of a recording orders it after the previous run, which had no wait.
#[test]
fn the_barrier_before_a_recording_cannot_be_left_out() {
    let trial = Trial::new(denoiser(0..0, 0), &[1, 3, 8, 8], &["sim:0"], SimConfig::coherent());
    let queue = &trial.binding.core.devices[0].queue;
    let recording = trial.recording(0).unwrap();
    for _ in 0..2 {
        kernel::submit(queue, recording.clone()).unwrap();
    }
    queue.finish().unwrap();
    check_messages(&trial.session);
    kernel::submit(queue, recording.clone()).unwrap();
    kernel::submit_unordered(queue, recording).unwrap().wait().unwrap();
    let messages = trial.session.context(0).unwrap().validation_messages();
    assert!(messages.iter().any(|message| message.contains("hazard")), "{messages:?}");
}
