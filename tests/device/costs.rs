//! What imports and copies cost is measured, or said to be preset.

use std::sync::Arc;

use onepool::backend::ContextDesc;
use onepool::memory::import::costs::ImportTimes;
use onepool::memory::import::{CostSource, ImportCosts, Path};
use onepool::registry::Registry;
use onepool::{DType, GraphBuilder, Memory, Session};

use super::common::opencl;
use crate::values::{op, region};

fn open(device: &str, costs: CostSource) -> onepool::device::Context {
    let desc = ContextDesc { validation: device == "vulkan", costs, ..ContextDesc::default() };
    Registry::with_defaults().open(device, &desc).unwrap()
}

#[test]
fn a_device_is_measured_once_and_within_bounds() {
    for device in ["vulkan"].into_iter().chain(opencl().map(|_| "opencl")) {
        let context = open(device, CostSource::Measured);
        let report = context.cost_report();
        let times = report.times.clone().unwrap_or_else(|| panic!("{device}: {}", report.note));
        assert!(times.copy_ns > 0.0, "{device}: {times:?}");
        // On a busy machine the time may be over before kernels ran.
        assert_eq!(times.own_read_ns > 0.0, times.imported_read_ns > 0.0, "{device}: {times:?}");
        assert!(!times.host_read_ns.is_empty() && times.host_read_ns.iter().all(|(_, ns)| *ns > 0.0));
        assert_eq!(report.costs, ImportCosts::of(&times, true));
        // Another context on the device takes what is known.
        assert_eq!(open(device, CostSource::Measured).cost_report(), report);
        assert_eq!(context.validation_messages(), [""; 0]);
        assert_eq!((context.usage().allocated, context.usage().imported), (0, 0));
    }
}

#[test]
fn costs_can_be_given_and_preset() {
    let given = ImportCosts { copy_threshold: 12_288, direct_reads: Some(3), parameters_in_place: false };
    assert_eq!(open("vulkan", CostSource::Given(given)).import_costs(), given);
    let preset = open("vulkan", CostSource::Preset).cost_report();
    assert_eq!((preset.costs, preset.times), (ImportCosts::preset(true), None));
    let own = open("cpu", CostSource::Measured).cost_report();
    assert!(own.times.is_none() && own.note.contains("not measured"), "{}", own.note);
    let bus = open("sim:discrete", CostSource::Measured).import_costs();
    assert_eq!(bus, ImportCosts::preset(false));
}

/// Memory of a binding for one run is imported only where that costs less than one copy: on an APU, whose driver takes some
/// microseconds for an import, and on a card whose driver takes hundreds.
#[test]
fn imports_for_one_run_pay_in_it() {
    let apu = ImportTimes {
        submit_byte_ns: 0.0,
        import_ns: 20_000.0,
        import_byte_ns: 0.01,
        copy_call_ns: 100.0,
        copy_ns: 0.1,
        own_read_ns: 0.02,
        imported_read_ns: 0.02,
        device_copy_ns: 0.03,
        host_read_ns: Vec::new(),
    };
    let card = ImportTimes { import_ns: 300_000.0, import_byte_ns: 0.07, copy_ns: 0.125, ..apu.clone() };
    // Bytes, and whether a binding for one run imports them.
    let large = 16 << 20;
    let cases = [("sim:coherent", &apu, 64 << 10, false), ("sim:coherent", &apu, 1 << 20, true)];
    let card = [("sim:discrete", &card, 1 << 20, false), ("sim:discrete", &card, large, true)];
    for (device, times, bytes, pays) in cases.into_iter().chain(card) {
        let n = bytes / 4;
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [n.into()]);
        let y = g.op(op("Relu"), &[x]);
        g.output("y", y);
        let context = open(device, CostSource::Times(Arc::new(times.clone())));
        let session = Session::builder().graph(g.build().unwrap()).context(context).build().unwrap();
        let x = region(&vec![1.0; n]);
        let path = |runs: Option<u32>, strict: bool| {
            let builder = session.bind().input("x", Memory::region(&x)).strict(strict);
            let builder = runs.into_iter().fold(builder, |builder, runs| builder.runs(runs));
            let mut binding = builder.build().unwrap();
            binding.run().unwrap();
            assert_eq!(binding.get_output("y").unwrap().to_f32s().unwrap()[n - 1], 1.0);
            binding.verdicts().find(|verdict| verdict.tensor == "x").unwrap().path
        };
        assert!(path(None, false).imports(), "{device}, {bytes} bytes, many runs");
        assert!(path(Some(1), true).imports(), "{device}, {bytes} bytes, strict");
        assert_eq!(path(Some(1), false).imports(), pays, "{device}, {bytes} bytes, one run");
        assert_eq!(path(Some(1), false) == Path::Staged, !pays, "{device}, {bytes} bytes");
    }
}
