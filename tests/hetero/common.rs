//! Device tables, memory and operators of the tests.

#[path = "../support/disguise.rs"]
mod disguise;
#[path = "../support/recorded.rs"]
mod recorded;
#[path = "../support/values.rs"]
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;

use onepool::backend::sim::{SimConfig, SimDriver};
use onepool::backend::{ContextDesc, DeviceKind};
use onepool::device::Context;
use onepool::kernel::NativeKernel;
use onepool::loader::tvm::device_type;
use onepool::ops::Operator;
use onepool::ops::custom::{CustomKernel, KernelCall};
use onepool::ops::pointwise::{Function, Pointwise};
use onepool::plan::{Crossing, Plan, Work};
use onepool::registry::Registry;
use onepool::{DType, Graph, Session, TensorInfo};

use self::recorded::RECORDED;
pub(crate) use self::values::{floats, numbers, op, region, shape, tensor};

/// Pairs of devices that TVM's graphs run on: (the one that stands for the host, the one for the accelerator).
const TABLES: [[&str; 2]; 13] = [
    ["cpu", "vulkan"],
    ["vulkan", "vulkan"],
    ["cpu", "sim:coherent"],
    ["cpu", "sim:noncoherent"],
    ["cpu", "sim:discrete"],
    ["cpu", "alone"],
    ["alone", "alone"],
    ["alone", "vulkan"],
    ["bus", "alone"],
    ["bus", "opencl"],
    ["cpu", "bus"],
    ["cpu", "opencl"],
    ["vulkan", "opencl"],
];

/// Those pairs, and each recorded driver with the CPU.
pub(crate) fn tables() -> impl Iterator<Item = [&'static str; 2]> {
    TABLES.into_iter().chain(recorded())
}

/// Each recorded driver with the CPU.
pub(crate) fn recorded() -> impl Iterator<Item = [&'static str; 2]> {
    RECORDED.into_iter().map(|device| ["cpu", device])
}

/// Opens a device; "alone" is a simulated one that can import nothing, "bus" Vulkan's with memory of its own.
pub(crate) fn open(device: &str) -> Context {
    let mut registry = Registry::with_defaults();
    let desc = ContextDesc { validation: true, threads: 2, ..ContextDesc::default() };
    let config = match device {
        "sim:coherent" => SimConfig::coherent(),
        "sim:noncoherent" => SimConfig::noncoherent(),
        "sim:discrete" => SimConfig::discrete(),
        "alone" => SimConfig::discrete().without_imports(),
        "bus" => return disguise::behind_a_bus(registry.open_backend("vulkan", &desc).unwrap()),
        named => return registry.open(named, &desc).unwrap(),
    };
    registry.register(Box::new(SimDriver::with(vec![config])));
    registry.open("sim:0", &desc).unwrap()
}

pub(crate) fn open_all(devices: &[&str]) -> Vec<Context> {
    devices.iter().map(|d| open(d)).collect()
}

/// Whether every device can use host memory in place.
pub(crate) fn all_share(contexts: &[Context]) -> bool {
    contexts.iter().all(|c| c.info().import.is_some())
}

/// Whether no device has memory of its own across a bus, which it may rather use than the caller's.
pub(crate) fn in_place(contexts: &[Context]) -> bool {
    contexts.iter().all(|c| c.info().kind != DeviceKind::Discrete)
}

/// No message of a validation layer, which checks synchronization too.
pub(crate) fn check_messages(contexts: &[Context]) {
    for context in contexts {
        assert_eq!(context.validation_messages(), Vec::<String>::new(), "{}", context.info().name);
    }
}

/// The DLPack device, as (type, id), of every entry of a table.
pub(crate) fn dl_devices(contexts: &[Context]) -> Vec<(i32, u32)> {
    let mut seen: BTreeMap<i32, u32> = BTreeMap::new();
    let next = |context: &Context| {
        let ty = device_type::of_api(context.info().api);
        let count = seen.entry(ty).or_default();
        *count += 1;
        (ty, *count - 1)
    };
    contexts.iter().map(next).collect()
}

pub(crate) fn session(graph: Graph, contexts: &[Context]) -> Session {
    let mut builder = Session::builder().graph(graph).copy_threshold(0).fuse(false);
    for context in contexts {
        builder = builder.context(context.clone());
    }
    builder.build().unwrap()
}

pub(crate) fn abs() -> Arc<dyn Operator> {
    Arc::new(Pointwise::new(Function::Abs))
}

/// An operator that runs a native function over `n` floats: `f(inputs, output)`.
pub(crate) fn native(
    name: &'static str,
    n: usize,
    f: impl Fn(&[&[f32]], &mut [f32]) + Send + Sync + 'static,
) -> Arc<dyn Operator> {
    Arc::new(CustomKernel::fixed(name, KernelCall::native(function(name, f)), vec![info(&[n])]))
}

pub(crate) fn function(
    name: &'static str,
    f: impl Fn(&[&[f32]], &mut [f32]) + Send + Sync + 'static,
) -> NativeKernel {
    NativeKernel::new(name, move |args| {
        let inputs = args.len() - 1;
        let x = (0..inputs).map(|i| args.read::<f32>(i)).collect::<Result<Vec<_>, _>>()?;
        let y = args.take_write::<f32>(inputs)?;
        f(&x, y);
        Ok(())
    })
}

pub(crate) fn info(dims: &[usize]) -> TensorInfo {
    TensorInfo::new(DType::F32, shape(dims))
}

/// Commands that only move bytes.
pub(crate) fn copies(plan: &Plan) -> usize {
    let commands = plan.segments.iter().flat_map(|s| &s.commands);
    commands.filter(|c| matches!(c.work, Work::Copy { .. } | Work::Move { .. })).count()
}

/// That no tensor between devices is copied.
pub(crate) fn check_nothing_copied(plan: &Plan, what: &str) {
    assert_eq!(copies(plan), 0, "{what}");
    for crossing in &plan.report.crossings {
        assert_eq!((crossing.path, crossing.copied()), (Crossing::Shared, 0), "{what}: {crossing:?}");
    }
}
