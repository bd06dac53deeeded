//! What a report holds: the page shows it, carries it as JSON, and a later report is compared with it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::CliError;
use crate::open::selector;
use onepool::memory::import::{ReadWrite, Verdict};
use onepool::plan::{Domain, Plan};
use onepool::session::{Binding, Profile, Session};

/// The version of [`Report`]'s form. Reports of another one are not compared.
pub(super) const FORMAT: u32 = 1;

/// A run or a measurement, with what was planned and what it took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) format: u32,
    /// The command: `run`, `bench model`.
    pub(crate) command: String,
    /// When it was made, in UTC.
    pub(crate) created: String,
    /// The program's version.
    pub(crate) version: String,
    /// The operating system and the processor's architecture.
    pub(crate) system: String,
    /// The program's arguments.
    pub(crate) arguments: Vec<String>,
    /// The model, as the arguments name it; what was measured where there is none.
    pub(crate) model: String,
    /// The session's device table.
    pub(crate) devices: Vec<Device>,
    /// The wall time of each run in milliseconds.
    pub(crate) runs_ms: Vec<f64>,
    /// Ways that were measured against each other.
    pub(crate) ways: Vec<Ways>,
    /// The plan of the graph, or of its first stage.
    pub(crate) plan: Option<Planned>,
    /// The times of one run.
    pub(crate) profile: Option<Times>,
    /// The bound inputs and outputs.
    pub(crate) tensors: Vec<Tensor>,
    /// Tensors that go from one device to another.
    pub(crate) crossings: Vec<Crossing>,
    /// What the devices were measured to do at most, by entry of the table.
    pub(crate) peaks: Vec<Peak>,
    /// What a reader should know of the figures.
    pub(crate) notes: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Device {
    /// What opens it.
    pub(crate) selector: String,
    pub(crate) name: String,
    /// What it is: integrated, discrete, cpu.
    pub(crate) kind: String,
    /// The driver and its version.
    pub(crate) driver: String,
    pub(crate) api_version: String,
}

/// One thing that was done in several ways.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ways {
    /// What was done.
    pub(crate) label: String,
    pub(crate) ways: Vec<Way>,
    /// What the difference is, in words.
    pub(crate) remark: String,
}

/// One way of doing it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Way {
    pub(crate) name: String,
    /// Its parts and their milliseconds, one after the other.
    pub(crate) parts: Vec<(String, f64)>,
}

/// What was planned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Planned {
    /// Nodes of the graph before folding and fusion.
    pub(crate) graph_nodes: usize,
    /// Nodes that run, in order: the steps of the arenas.
    pub(crate) nodes: Vec<Node>,
    /// Dispatches, copies and fills.
    pub(crate) commands: usize,
    /// Barriers between them.
    pub(crate) barriers: usize,
    /// Bytes of constants on all devices.
    pub(crate) constant_bytes: u64,
    /// The memory between nodes.
    pub(crate) arenas: Vec<Arena>,
}

/// A node of the plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// Its operator.
    pub(crate) op: String,
    /// Entry of the device table.
    pub(crate) device: u32,
}

/// Memory that tensors between nodes share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Arena {
    /// The entry of the device table that alone accesses it; `None` where several do.
    pub(crate) device: Option<u32>,
    /// Its size in bytes.
    pub(crate) bytes: u64,
    /// The largest sum of bytes in use at one step.
    pub(crate) lower_bound: u64,
    /// Bytes of all tensors without sharing.
    pub(crate) naive_bytes: u64,
    /// What lies in it.
    pub(crate) ranges: Vec<Range>,
}

/// A range of an arena, and what lies in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Range {
    /// The name of a tensor in it.
    pub(crate) name: String,
    /// How many tensors share it, one in place of the other.
    pub(crate) tensors: u32,
    /// Offset in bytes.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// The first step that accesses it.
    pub(crate) first: u32,
    /// The last step that accesses it.
    pub(crate) last: u32,
}

/// The times of one run, in nanoseconds from its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Times {
    /// Nodes in the order of the plan, where their device has a clock.
    pub(crate) nodes: Vec<NodeTime>,
    /// The plan's submissions, in order.
    pub(crate) segments: Vec<Segment>,
    /// From each submission's first command to its last one's end, summed.
    pub(crate) device_nanos: u64,
    /// From the first submission to the end of the wait for the last one.
    pub(crate) host_nanos: u64,
    /// How the profiled runs spread, of which this is the fastest.
    pub(crate) spread: Spread,
}

/// The least and the most nanoseconds that something took in several profiled runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    /// How many runs were profiled.
    pub(crate) runs: usize,
    /// Of each operator's nodes together.
    pub(crate) operators: BTreeMap<String, [u64; 2]>,
    /// On the devices.
    pub(crate) device: [u64; 2],
    /// Until the host knew.
    pub(crate) host: [u64; 2],
}

impl Spread {
    fn of(profiles: &[Profile]) -> Self {
        let mut spread = Spread { runs: profiles.len(), ..Spread::default() };
        let widen = |range: &mut [u64; 2], nanos: u64, first: bool| {
            *range = if first { [nanos; 2] } else { [range[0].min(nanos), range[1].max(nanos)] };
        };
        for (n, profile) in profiles.iter().enumerate() {
            widen(&mut spread.device, profile.device_nanos, n == 0);
            widen(&mut spread.host, profile.host_nanos, n == 0);
            for (op, _, nanos) in profile.by_op() {
                let first = !spread.operators.contains_key(op);
                widen(spread.operators.entry(op.to_owned()).or_default(), nanos, first);
            }
        }
        spread
    }
}

/// Most runs that are profiled, and how long another one may still begin.
const PROFILES: usize = 5;
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeTime {
    pub(crate) name: String,
    /// Its operator.
    pub(crate) op: String,
    /// Entry of the device table.
    pub(crate) device: u32,
    /// When it began.
    pub(crate) begin: u64,
    /// How long it took.
    pub(crate) nanos: u64,
    /// Arithmetic operations that the operator needs.
    pub(crate) flops: u64,
    /// Bytes that the operator reads and writes.
    pub(crate) bytes: u64,
}

/// When one submission ran, by the host's clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Segment {
    /// Entry of the device table.
    pub(crate) device: u32,
    /// When it was submitted.
    pub(crate) begin: u64,
    /// When the host saw its end.
    pub(crate) end: u64,
    /// The session's own copies to the device.
    pub(crate) by_session: bool,
    /// Earlier submissions of other devices that it waits for.
    pub(crate) waits: Vec<u32>,
}

/// Who copies the bytes of a tensor in each run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Copied {
    /// It is used in place.
    #[default]
    No,
    ByDevice,
    ByCpu,
}

/// An input or output and how it reached the device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Type and shape.
    pub(crate) info: String,
    /// What the device does with it: reads, writes.
    pub(crate) access: String,
    pub(crate) bytes: u64,
    /// The path taken, in words.
    pub(crate) path: String,
    /// Why.
    pub(crate) reason: String,
    /// What the application can do for a better path.
    pub(crate) fix: Option<String>,
    /// Who copies it.
    pub(crate) copied: Copied,
}

/// A tensor that goes from one device to another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Crossing {
    pub(crate) name: String,
    /// Entry of the device table that has it.
    pub(crate) from: u32,
    /// Entry of the device table that reads it.
    pub(crate) to: u32,
    pub(crate) bytes: u64,
    /// Bytes of it that each run copies.
    pub(crate) copied: u64,
    /// Why.
    pub(crate) reason: String,
}

/// What a device was measured to do at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Peak {
    /// Bytes read and written in a second; 0 where it is not known.
    pub(crate) bytes_per_s: f64,
    /// Arithmetic operations in a second; 0 where it is not known.
    pub(crate) flops_per_s: f64,
    /// Where the figures come from, or why there are none.
    pub(crate) source: String,
}

impl Peak {
    /// Whether both figures are known.
    pub(super) fn is_known(&self) -> bool {
        self.bytes_per_s > 0.0 && self.flops_per_s > 0.0
    }
}

impl Report {
    /// A report with a heading alone.
    pub(crate) fn new(command: &str, model: impl Into<String>) -> Self {
        Report {
            format: FORMAT,
            command: command.to_owned(),
            created: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            arguments: std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect(),
            model: model.into(),
            ..Report::default()
        }
    }

    /// Adds the devices of a table.
    pub(crate) fn add_devices<'a>(
        &mut self,
        devices: impl Iterator<Item = &'a onepool::backend::DeviceInfo>,
    ) {
        self.devices.extend(devices.map(|info| Device {
            selector: selector(info),
            name: info.name.clone(),
            kind: format!("{:?}", info.kind).to_lowercase(),
            driver: info.driver.clone(),
            api_version: info.api_version.clone(),
        }));
    }

    /// Adds what there is to say of a binding after a run, and the fastest profile of some more runs.
    pub(crate) fn add_run(&mut self, session: &Session, binding: &mut Binding<'_>) -> Result<(), CliError> {
        self.add_devices(session.devices());
        let start = Instant::now();
        let mut profiles = vec![binding.profile()?];
        while profiles.len() < PROFILES && start.elapsed() < PATIENCE {
            profiles.push(binding.profile()?);
        }
        let spread = Spread::of(&profiles);
        let fastest = profiles.into_iter().min_by_key(|profile| profile.host_nanos);
        let profile = fastest.unwrap_or_default();
        let plan = binding.plan();
        self.tensors = binding.verdicts().map(|verdict| tensor(plan, verdict)).collect();
        let bound = |name: &str| binding.verdicts().any(|verdict| verdict.tensor == name);
        let given: Vec<String> =
            session.inputs().into_iter().map(|io| io.name).filter(|name| !bound(name)).collect();
        if !given.is_empty() {
            let names = given.join(", ");
            self.notes.push(format!("Given by value when the plan was made, or not used: {names}."));
        }
        self.crossings = crossings(plan);
        self.profile = Some(times(plan, &profile, spread));
        self.plan = Some(planned(plan));
        let stages = binding.stages().count();
        if stages > 1 {
            self.notes.push(format!(
                "The run has {stages} stages, because sizes are known only in the run. What follows is of the first."
            ));
        }
        if profile.nodes.is_empty() {
            self.notes.push("The devices give no times of single operators.".to_owned());
        }
        if self.devices.iter().any(|device| device.selector.starts_with("sim:")) {
            self.notes
                .push("A simulated device has no speed: its times are those of the simulation.".to_owned());
        }
        Ok(())
    }
}

fn tensor(plan: &Plan, verdict: &Verdict) -> Tensor {
    let ios = || plan.inputs.iter().chain(&plan.outputs);
    let info = ios().find(|io| io.name == verdict.tensor).map(|io| io.info.to_string());
    Tensor {
        name: verdict.tensor.clone(),
        info: info.unwrap_or_default(),
        access: match verdict.access {
            ReadWrite::Read => "read",
            ReadWrite::Write => "written",
            ReadWrite::ReadWrite => "read and written",
        }
        .to_owned(),
        bytes: verdict.bytes,
        path: verdict.path.to_string(),
        reason: verdict.reason.sentence().into_owned(),
        fix: verdict.reason.fix().map(str::to_owned),
        copied: match verdict {
            v if v.path.copies_on_cpu() => Copied::ByCpu,
            v if v.copies_on_device() => Copied::ByDevice,
            _ => Copied::No,
        },
    }
}

fn crossings(plan: &Plan) -> Vec<Crossing> {
    let crossings = plan.report.crossings.iter().map(|c| Crossing {
        name: c.tensor.clone(),
        from: c.from,
        to: c.to,
        bytes: c.bytes,
        copied: c.copied(),
        reason: c.reason.to_owned(),
    });
    crossings.collect()
}

fn planned(plan: &Plan) -> Planned {
    let report = &plan.report;
    let nodes =
        report.nodes.iter().map(|n| Node { name: n.name.clone(), op: n.op.to_owned(), device: n.device });
    let arenas = plan.arenas.iter().map(|arena| Arena {
        device: match arena.domain {
            Domain::Device(device) => Some(device),
            Domain::Host => None,
        },
        bytes: arena.bytes,
        lower_bound: arena.lower_bound,
        naive_bytes: arena.naive_bytes,
        ranges: arena
            .tensors
            .iter()
            .map(|t| Range {
                name: t.name.clone(),
                tensors: t.values,
                offset: t.offset,
                bytes: t.bytes,
                first: t.first,
                last: t.last,
            })
            .collect(),
    });
    Planned {
        graph_nodes: report.graph_nodes,
        nodes: nodes.collect(),
        commands: report.commands,
        barriers: report.barriers,
        constant_bytes: report.constant_bytes,
        arenas: arenas.collect(),
    }
}

fn times(plan: &Plan, profile: &Profile, spread: Spread) -> Times {
    let nodes = profile.nodes.iter().map(|n| NodeTime {
        name: n.name.clone(),
        op: n.op.to_owned(),
        device: n.device,
        begin: n.begin_nanos,
        nanos: n.nanos,
        flops: n.cost.flops,
        bytes: n.cost.bytes,
    });
    let segments = profile.segments.iter().zip(&plan.segments).map(|(time, planned)| Segment {
        device: time.device,
        begin: time.begin_nanos,
        end: time.end_nanos,
        by_session: planned.by_session,
        waits: planned.waits.clone(),
    });
    Times {
        nodes: nodes.collect(),
        segments: segments.collect(),
        device_nanos: profile.device_nanos,
        host_nanos: profile.host_nanos,
        spread,
    }
}
