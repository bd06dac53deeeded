//! Selectors, and drivers from outside.

use std::sync::Arc;

use onepool::backend::sim::{SimConfig, SimDriver};
use onepool::backend::{ContextBackend, ContextDesc, DeviceError, DeviceInfo, DeviceKind, Driver};
use onepool::registry::{OpenError, Registry};

/// Someone else's API: a simulator under another name.
struct Foreign {
    kind: DeviceKind,
    unusable: Option<String>,
}

impl Driver for Foreign {
    fn api(&self) -> &'static str {
        "foreign"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        let mut devices = SimDriver::with(vec![SimConfig::discrete()]).devices()?;
        for device in &mut devices {
            device.api = "foreign";
            device.name = "Foreign Graphics 9".to_owned();
            device.kind = self.kind;
            device.unusable = self.unusable.clone();
        }
        Ok(devices)
    }

    fn open(&self, index: usize, desc: &ContextDesc) -> Result<Arc<dyn ContextBackend>, DeviceError> {
        SimDriver::with(vec![SimConfig::discrete()]).open(index, desc)
    }
}

fn registry(kind: DeviceKind, unusable: Option<&str>) -> Registry {
    let mut registry = Registry::empty();
    registry.register(Box::new(onepool::backend::cpu::CpuDriver));
    registry.register(Box::new(SimDriver::default()));
    registry.register(Box::new(Foreign { kind, unusable: unusable.map(str::to_owned) }));
    registry
}

#[test]
fn selectors() {
    let registry = registry(DeviceKind::Discrete, None);
    for (selector, name) in [
        ("sim", "coherent"),
        ("sim:noncoherent", "noncoherent"),
        ("sim:1", "noncoherent"),
        ("SIM:Disc", "discrete"),
        ("sim:coherent", "coherent"),
        ("foreign:graphics", "Foreign Graphics 9"),
        (" foreign : 0 ", "Foreign Graphics 9"),
        ("auto", "Foreign Graphics 9"),
    ] {
        assert_eq!(registry.find(selector).unwrap().name, name, "{selector}");
        assert!(registry.open(selector, &ContextDesc::default()).is_ok());
    }
    assert_eq!(registry.find("cpu").unwrap().api, "cpu");
}

#[test]
fn unknown_names_are_errors_that_say_what_there_is() {
    let registry = registry(DeviceKind::Discrete, None);
    for selector in ["", "cuda", ":", "cpu2", "auto:1"] {
        let error = registry.find(selector).unwrap_err();
        assert!(matches!(error, OpenError::UnknownApi { .. }), "{selector}");
        assert!(error.to_string().ends_with("there are cpu, sim, foreign"), "{error}");
    }
    for selector in ["sim:7", "sim:radeon", "sim:", "cpu:1", "cpu:-1", "sim:99999999999999999999"] {
        let error = registry.find(selector).unwrap_err();
        assert!(matches!(error, OpenError::NoSuchDevice { .. }), "{selector}");
    }
    let error = registry.open("sim:x", &ContextDesc::default()).unwrap_err();
    let listed = "sim has no device \"x\"; it has 0 (coherent), 1 (noncoherent), 2 (discrete), ";
    assert!(error.to_string().starts_with(listed), "{error}");
}

#[test]
fn auto_takes_a_usable_gpu_and_else_the_cpu() {
    assert_eq!(registry(DeviceKind::Integrated, None).find("auto").unwrap().api, "foreign");
    assert_eq!(registry(DeviceKind::Cpu, None).find("auto").unwrap().api, "cpu");
    let broken = registry(DeviceKind::Discrete, Some("no permission for its node"));
    assert_eq!(broken.find("auto").unwrap().api, "cpu");
    // An API by its name never becomes another one.
    let error = broken.find("foreign").unwrap_err();
    assert!(matches!(&error, OpenError::Unusable { .. }));
    assert!(error.to_string().contains("no permission for its node"), "{error}");
}

#[test]
fn a_driver_takes_the_place_of_its_namesake() {
    let mut registry = Registry::with_defaults();
    let before = registry.list().len();
    registry.register(Box::new(SimDriver::with(vec![SimConfig::discrete()])));
    assert_eq!(registry.list().len(), before);
    assert_eq!(registry.find("sim").unwrap().name, "discrete");
}

#[test]
fn an_absurd_number_of_threads_is_an_error() {
    let desc = ContextDesc { threads: 1 << 20, ..ContextDesc::default() };
    let error = Registry::with_defaults().open("cpu", &desc).unwrap_err();
    assert!(matches!(error, OpenError::Driver { api: "cpu", source: DeviceError::Limit { .. } }), "{error}");
}
