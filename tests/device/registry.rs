//! Selectors, and drivers from outside.

use std::sync::Arc;

use onepool::backend::sim::{SimConfig, SimDriver};
use onepool::backend::{ContextBackend, ContextDesc, DeviceError, DeviceInfo, DeviceKind, Driver};
use onepool::registry::{OpenError, Registry, default_selector};

/// Someone else's API: a simulator under another name.
#[derive(Default)]
struct Foreign {
    devices: Vec<DeviceInfo>,
}

impl Driver for Foreign {
    fn api(&self) -> &'static str {
        "foreign"
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        Ok(self.devices.clone())
    }

    fn open(&self, index: usize, desc: &ContextDesc) -> Result<Arc<dyn ContextBackend>, DeviceError> {
        SimDriver::with(vec![SimConfig::discrete()]).open(index, desc)
    }
}

impl Foreign {
    /// One more device: what a recorded driver tells of it, with so many processors.
    fn and(mut self, profile: &str, processors: Option<u32>) -> Foreign {
        let device = SimDriver::default().by_name(profile).unwrap().unwrap();
        self.devices.push(DeviceInfo { api: "foreign", index: self.devices.len(), processors, ..device });
        self
    }

    /// The last device is the same as another under a driver that is preferred.
    fn same_as(mut self, index: usize) -> Foreign {
        self.devices.last_mut().unwrap().same_as = Some(index);
        self
    }

    /// The last device cannot be used.
    fn broken(mut self, why: &str) -> Foreign {
        self.devices.last_mut().unwrap().unusable = Some(why.to_owned());
        self
    }

    fn registry(self) -> Registry {
        let mut registry = Registry::empty();
        registry.register(Box::new(onepool::backend::cpu::CpuDriver));
        registry.register(Box::new(SimDriver::default()));
        registry.register(Box::new(self));
        registry
    }
}

fn registry(kind: DeviceKind, unusable: Option<&str>) -> Registry {
    let device = SimDriver::with(vec![SimConfig::discrete()]).devices().unwrap().remove(0);
    let name = "Foreign Graphics 9".to_owned();
    let unusable = unusable.map(str::to_owned);
    Foreign { devices: vec![DeviceInfo { api: "foreign", name, kind, unusable, ..device }] }.registry()
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

/// Why the default device is what it is, where the environment names no other.
fn says(registry: &Registry, why: &str) {
    if default_selector() == "auto" {
        let reason = registry.default_device().unwrap().reason;
        assert!(reason.contains(why), "{reason}");
    }
}

#[test]
fn auto_takes_a_card_before_an_integrated_device_of_few_processors() {
    let (card, apu) = ("nvidia-rtx3070-linux-small-bar", "radv-phoenix-780m");
    let (desktop, uhd) = ("radv-rembrandt-680m", "intel-windows-uhd750");
    let of =
        |integrated: &str, count: Option<u32>| Foreign::default().and(integrated, count).and(card, Some(46));
    for (foreign, index, why) in [
        (of(apu, Some(12)), 0, "it is integrated and shares the host's memory"),
        (
            of(desktop, Some(2)),
            1,
            "discrete and comes before radv-rembrandt-680m, an integrated one of 2 processors",
        ),
        (of(uhd, None), 1, "-uhd750, an integrated one whose driver does not tell its processors"),
        // A card that cannot be used is none, and one that does not tell its processors is one.
        (of(desktop, Some(2)).broken("no memory"), 0, "it is integrated, and no discrete device can be used"),
        (Foreign::default().and(uhd, None).and("anv-arc-a770", None), 1, "it is discrete and comes before"),
        (of(apu, Some(12)).and("radv-rx580-small-bar", Some(36)), 0, "it is integrated"),
        (Foreign::default().and(uhd, None), 0, "it is integrated, and no discrete device can be used"),
        (Foreign::default().and(card, None), 0, "it is discrete, and no integrated device can be used"),
    ] {
        let registry = foreign.registry();
        let chosen = registry.find("auto").unwrap();
        assert_eq!((chosen.api, chosen.index), ("foreign", index), "{why}");
        says(&registry, why);
    }
    says(&Foreign::default().registry(), "no GPU can be used");
}

#[test]
fn one_device_under_several_drivers_is_opened_under_the_preferred_one_unless_it_is_named() {
    for other in ["amdpro-apu-8types", "dozen-windows-uma", "dozen-wsl"] {
        let foreign = Foreign::default().and(other, None).same_as(1).and("radv-phoenix-780m", Some(12));
        let by_name = format!("foreign:{}", foreign.devices[0].name);
        let registry = foreign.registry();
        for selector in ["auto", "foreign", "foreign:1", "foreign:phoenix"] {
            assert_eq!(registry.find(selector).unwrap().index, 1, "{selector}");
        }
        for selector in ["foreign:0", &by_name] {
            assert_eq!(registry.find(selector).unwrap().index, 0, "{selector}");
        }
    }
}

/// What one API lists, another lists again with processors in other units.
#[test]
fn the_first_api_with_an_integrated_device_speaks_for_all() {
    struct Second(Foreign);
    impl Driver for Second {
        fn api(&self) -> &'static str {
            "second"
        }

        fn devices(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
            self.0.devices()
        }

        fn open(&self, index: usize, desc: &ContextDesc) -> Result<Arc<dyn ContextBackend>, DeviceError> {
            self.0.open(index, desc)
        }
    }
    let uhd = "intel-windows-uhd750";
    let both = Foreign::default().and(uhd, None).and("nvidia-windows-8g", Some(46));
    let mut registry = both.registry();
    registry.register(Box::new(Second(Foreign::default().and(uhd, Some(32)))));
    let chosen = registry.find("auto").unwrap();
    assert_eq!((chosen.api, chosen.kind), ("foreign", DeviceKind::Discrete));
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
    assert!(
        matches!(error, OpenError::Driver { api: "cpu", source: DeviceError::TooMany { .. } }),
        "{error}"
    );
}
