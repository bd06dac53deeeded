//! The devices that the cases run on.

use std::sync::{Arc, Mutex};

use onepool::backend::cpu::CpuDriver;
#[cfg(feature = "opencl")]
use onepool::backend::opencl::OpenClDriver;
use onepool::backend::sim::{SimConfig, SimDriver};
#[cfg(feature = "vulkan")]
use onepool::backend::vulkan::{VulkanDriver, Without};
use onepool::backend::{ContextBackend, ContextDesc, DeviceError, Driver};

/// A context, and what its validation collects, also when it closes.
pub(crate) struct Opened {
    pub(crate) context: Arc<dyn ContextBackend>,
    pub(crate) messages: Option<Arc<Mutex<Vec<String>>>>,
}

/// Which form of a kernel the target takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Spirv,
    OpenClC,
    Native,
}

/// A backend, opened in one of the ways that it has.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) api: &'static str,
    pub(crate) code: Code,
    /// Bytes that take long to fill, again and again.
    pub(crate) slow_bytes: u64,
    driver: fn() -> Box<dyn Driver>,
    open: fn(&ContextDesc) -> Result<Opened, DeviceError>,
}

impl Target {
    pub(crate) fn open(&self, desc: &ContextDesc) -> Result<Opened, DeviceError> {
        (self.open)(desc)
    }

    pub(crate) fn driver(&self) -> Box<dyn Driver> {
        (self.driver)()
    }
}

const LONG: u64 = 64 << 20;

/// Every backend, and for Vulkan and OpenCL what they do where a driver lacks something.
pub(crate) static TARGETS: [Target; TARGET_COUNT] = [
    #[cfg(feature = "vulkan")]
    vulkan("vulkan", |desc| open_vulkan(desc, Without::default())),
    #[cfg(feature = "vulkan")]
    vulkan("vulkan-fences", |desc| open_vulkan(desc, Without { timeline: true, ..Without::default() })),
    #[cfg(feature = "vulkan")]
    vulkan("vulkan-old", |desc| open_vulkan(desc, Without { timeline: true, synchronization2: true })),
    #[cfg(feature = "opencl")]
    opencl("opencl", Code::Spirv, |desc| OpenClDriver.open(0, desc).map(plain)),
    #[cfg(feature = "opencl")]
    opencl("opencl-c", Code::OpenClC, |desc| OpenClDriver.open(0, desc).map(plain)),
    #[cfg(feature = "opencl")]
    opencl("opencl-discrete", Code::OpenClC, |desc| OpenClDriver.open_as_discrete(0, desc).map(plain)),
    Target {
        name: "cpu",
        api: "cpu",
        code: Code::Native,
        slow_bytes: LONG,
        driver: || Box::new(CpuDriver),
        open: |desc| CpuDriver.open(0, &ContextDesc { threads: 2, ..desc.clone() }).map(plain),
    },
    sim("sim-coherent", |_| open_sim(SimConfig::coherent())),
    sim("sim-noncoherent", |_| open_sim(SimConfig::noncoherent())),
    sim("sim-discrete", |_| open_sim(SimConfig::discrete())),
];

const TARGET_COUNT: usize =
    4 + if cfg!(feature = "vulkan") { 3 } else { 0 } + if cfg!(feature = "opencl") { 3 } else { 0 };

type Open = fn(&ContextDesc) -> Result<Opened, DeviceError>;

#[cfg(feature = "vulkan")]
const fn vulkan(name: &'static str, open: Open) -> Target {
    let driver = || -> Box<dyn Driver> { Box::new(VulkanDriver::new()) };
    Target { name, api: "vulkan", code: Code::Spirv, slow_bytes: LONG, driver, open }
}

#[cfg(feature = "opencl")]
const fn opencl(name: &'static str, code: Code, open: Open) -> Target {
    let driver = || -> Box<dyn Driver> { Box::new(OpenClDriver) };
    Target { name, api: "opencl", code, slow_bytes: LONG, driver, open }
}

/// Of a simulated device the host learns late that it is done, however short the work.
const fn sim(name: &'static str, open: Open) -> Target {
    let driver = || -> Box<dyn Driver> { Box::new(SimDriver::default()) };
    Target { name, api: "sim", code: Code::Native, slow_bytes: 4096, driver, open }
}

fn plain(context: Arc<dyn ContextBackend>) -> Opened {
    Opened { context, messages: None }
}

/// The validation layer with its checks of synchronization is on.
#[cfg(feature = "vulkan")]
fn open_vulkan(desc: &ContextDesc, without: Without) -> Result<Opened, DeviceError> {
    let desc = ContextDesc { validation: true, ..desc.clone() };
    let (context, messages) = VulkanDriver::new().open_validated(0, &desc, without)?;
    Ok(Opened { context, messages })
}

fn open_sim(config: SimConfig) -> Result<Opened, DeviceError> {
    SimDriver::with(vec![config]).open(0, &ContextDesc::default()).map(plain)
}
