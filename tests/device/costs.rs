//! What imports and copies cost is measured, or said to be preset.

use onepool::backend::ContextDesc;
use onepool::memory::import::{CostSource, ImportCosts};
use onepool::registry::Registry;

use super::common::opencl;

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
    let given = ImportCosts { copy_threshold: 12_288, direct_reads: 3 };
    assert_eq!(open("vulkan", CostSource::Given(given)).import_costs(), given);
    let preset = open("vulkan", CostSource::Preset).cost_report();
    assert_eq!((preset.costs, preset.times), (ImportCosts::preset(true), None));
    let own = open("cpu", CostSource::Measured).cost_report();
    assert!(own.times.is_none() && own.note.contains("not measured"), "{}", own.note);
    let bus = open("sim:discrete", CostSource::Measured).import_costs();
    assert_eq!(bus, ImportCosts::preset(false));
}
