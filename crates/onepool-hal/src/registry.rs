//! Which backends there are: the only file that names them.
//!
//! A crate outside this one adds its own with [`Registry::register`].

#![forbid(unsafe_code)]

use std::env;
use std::sync::Arc;

use crate::backend::choice::{is_small, small_words};
use crate::backend::cpu::CpuDriver;
use crate::backend::sim::SimDriver;
use crate::backend::{
    BareSubmit, ContextBackend, ContextDesc, DeviceError, DeviceInfo, DeviceKind, Driver, KernelCompiler,
};
use crate::device::Context;

/// The environment variable that names the device to open where no selector is given: by
/// [`Registry::open_default`], by a session that is built without a device, and by the program.
pub const DEVICE_VARIABLE: &str = "ONEPOOL_DEVICE";

/// The selector that is used where none is given: what [`DEVICE_VARIABLE`] says, else `auto`.
pub fn default_selector() -> String {
    let named = env::var(DEVICE_VARIABLE).ok().filter(|name| !name.trim().is_empty());
    named.unwrap_or_else(|| "auto".to_owned())
}

/// The drivers that devices are opened through.
///
/// A selector is `API`, `API:INDEX` or `API:NAME` (part of a device's name, in any case), or `auto`: the first usable
/// integrated device of any API, else a discrete one, else the CPU backend. A discrete one comes before an integrated one
/// that has at most 4 processors or whose driver does not tell how many. An API alone is its first usable device and never
/// a device of another API. Neither is a device under a driver to which another one of the same device is preferred
/// ([`DeviceInfo::same_as`]); its index opens it. `sim:NAME` and `sim:FILE` are simulated devices that play a
/// recorded driver: one that is part of the library, or the [profile](crate::backend::sim::DriverProfile) in a file.
///
/// ```
/// use onepool::backend::ContextDesc;
/// use onepool::registry::Registry;
///
/// let registry = Registry::with_defaults();
/// let context = registry.open("sim:discrete", &ContextDesc::default())?;
/// assert!(!context.info().memory.shares_host_memory());
/// # Ok::<(), onepool::registry::OpenError>(())
/// ```
pub struct Registry {
    drivers: Vec<Box<dyn Driver>>,
}

/// The devices of one API, or why it cannot be used.
#[derive(Debug)]
pub struct ApiDevices {
    /// The API's name, as selectors have it.
    pub api: &'static str,
    /// Its devices, the unusable ones included.
    pub devices: Result<Vec<DeviceInfo>, DeviceError>,
    /// Names of more devices, that are made when they are asked for.
    pub names: Vec<String>,
}

/// The device that is opened where none is named.
#[derive(Clone, Debug)]
pub struct DefaultDevice {
    /// The device.
    pub device: DeviceInfo,
    /// Why it is this one, for a person.
    pub reason: String,
}

/// No device was opened.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No driver is called so.
    #[error("there is no device API {name:?}; there are {}", available.join(", "))]
    UnknownApi {
        /// What was asked for.
        name: String,
        /// What there is.
        available: Vec<String>,
    },
    /// The API has no such device.
    #[error("{api} has no device {wanted:?}; {}", there_are(available))]
    NoSuchDevice {
        /// The API.
        api: &'static str,
        /// What was asked for.
        wanted: String,
        /// What there is.
        available: Vec<String>,
    },
    /// The device is there and cannot be used.
    #[error("{api} device {device:?} cannot be used: {reason}")]
    Unusable {
        /// The API.
        api: &'static str,
        /// The device.
        device: String,
        /// Why.
        reason: String,
    },
    /// The API cannot be used at all, or the device refused.
    #[error("{api}: {source}")]
    Driver {
        /// The API.
        api: &'static str,
        /// Its error.
        source: DeviceError,
    },
}

fn there_are(available: &[String]) -> String {
    if available.is_empty() { "it has none".to_owned() } else { format!("it has {}", available.join(", ")) }
}

impl Registry {
    /// A registry of nothing.
    pub fn empty() -> Registry {
        Registry { drivers: Vec::new() }
    }

    /// The backends of this crate.
    pub fn with_defaults() -> Registry {
        let mut registry = Registry::empty();
        #[cfg(feature = "vulkan")]
        registry.register(Box::new(crate::backend::vulkan::VulkanDriver::default()));
        #[cfg(feature = "opencl")]
        registry.register(Box::new(crate::backend::opencl::OpenClDriver::new()));
        registry.register(Box::new(CpuDriver));
        registry.register(Box::new(SimDriver::default()));
        registry
    }

    /// Adds a driver. One of the same name takes the earlier one's place.
    pub fn register(&mut self, driver: Box<dyn Driver>) {
        match self.drivers.iter_mut().find(|known| known.api() == driver.api()) {
            Some(known) => *known = driver,
            None => self.drivers.push(driver),
        }
    }

    /// Every API with its devices.
    pub fn list(&self) -> Vec<ApiDevices> {
        let drivers = self.drivers.iter();
        let listed = |driver: &dyn Driver| ApiDevices {
            api: driver.api(),
            devices: driver.devices(),
            names: driver.names(),
        };
        drivers.map(|driver| listed(&**driver)).collect()
    }

    /// Opens the device that the environment variable [`DEVICE_VARIABLE`] names, or `auto`.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub fn open_default(&self, desc: &ContextDesc) -> Result<Context, OpenError> {
        self.open(&default_selector(), desc)
    }

    /// Opens the device that a selector names.
    ///
    /// # Errors
    /// [`OpenError`], with what there is where the name is unknown.
    pub fn open(&self, selector: &str, desc: &ContextDesc) -> Result<Context, OpenError> {
        Ok(Context::opened(self.open_backend(selector, desc)?, desc))
    }

    /// Opens the device that a selector names, without the safe interface above it: for measuring what
    /// that interface costs.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub fn open_backend(
        &self,
        selector: &str,
        desc: &ContextDesc,
    ) -> Result<Arc<dyn ContextBackend>, OpenError> {
        let (driver, device) = self.resolve(selector)?;
        let opened = driver.open(device.index, desc);
        opened.map_err(|source| OpenError::Driver { api: driver.api(), source })
    }

    /// Opens the device that a selector names for compiling alone, also one on which nothing can run
    /// ([`Driver::open_compiler`]).
    ///
    /// # Errors
    /// As [`Registry::open`], and where the driver tells nothing of what it compiles.
    pub fn open_compiler(
        &self,
        selector: &str,
        desc: &ContextDesc,
    ) -> Result<Box<dyn KernelCompiler>, OpenError> {
        let (driver, device) = self.locate(selector)?;
        let opened = driver.open_compiler(device.index, desc);
        opened.map_err(|source| OpenError::Driver { api: driver.api(), source })
    }

    /// The bare submission of the device that a selector names ([`Driver::bare_submit`]).
    ///
    /// # Errors
    /// As [`Registry::open`].
    #[doc(hidden)]
    pub fn bare_submit(&self, selector: &str) -> Result<Option<BareSubmit>, OpenError> {
        let (driver, device) = self.resolve(selector)?;
        let made = driver.bare_submit(device.index).transpose();
        made.map_err(|source| OpenError::Driver { api: driver.api(), source })
    }

    /// What a selector stands for, without opening it.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub fn find(&self, selector: &str) -> Result<DeviceInfo, OpenError> {
        self.resolve(selector).map(|(_, device)| device)
    }

    /// What [`default_selector`] stands for, and why.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub fn default_device(&self) -> Result<DefaultDevice, OpenError> {
        let selector = default_selector();
        if !is_auto(&selector) {
            let reason = format!("{DEVICE_VARIABLE} is {selector:?}");
            return Ok(DefaultDevice { device: self.find(&selector)?, reason });
        }
        let Auto { device, reason, .. } = self.auto()?;
        Ok(DefaultDevice { device, reason })
    }

    fn resolve(&self, selector: &str) -> Result<(&dyn Driver, DeviceInfo), OpenError> {
        let (driver, device) = self.locate(selector)?;
        match device.unusable {
            None => Ok((driver, device)),
            Some(reason) => Err(OpenError::Unusable { api: driver.api(), device: device.name, reason }),
        }
    }

    /// The device that a selector names, whether it can be used or not.
    fn locate(&self, selector: &str) -> Result<(&dyn Driver, DeviceInfo), OpenError> {
        if is_auto(selector) {
            return self.auto().map(|Auto { driver, device, .. }| (driver, device));
        }
        let selector = selector.trim();
        let (api, device) = match selector.split_once(':') {
            Some((api, device)) => (api.trim(), Some(device.trim())),
            None => (selector, None),
        };
        let driver = self.driver(api)?;
        let failed = |source| OpenError::Driver { api: driver.api(), source };
        let devices = driver.devices().map_err(failed)?;
        let chosen = match device {
            None => devices.iter().find(|device| is_taken(device)).or(devices.first()).cloned(),
            Some(wanted) => match named(&devices, wanted) {
                Some(device) => Some(device.clone()),
                None => {
                    let made = driver.by_name(wanted).map_err(failed)?;
                    made.or_else(|| partly_named(&devices, wanted).cloned())
                }
            },
        };
        let wanted = device.unwrap_or_default();
        let chosen = chosen.ok_or_else(|| no_such(driver, wanted, &devices))?;
        Ok((driver, chosen))
    }

    fn driver(&self, api: &str) -> Result<&dyn Driver, OpenError> {
        let found = self.drivers.iter().find(|driver| driver.api().eq_ignore_ascii_case(api));
        found.map(|driver| &**driver).ok_or_else(|| OpenError::UnknownApi {
            name: api.to_owned(),
            available: self.drivers.iter().map(|driver| driver.api().to_owned()).collect(),
        })
    }

    fn auto(&self) -> Result<Auto<'_>, OpenError> {
        let integrated = self.first(DeviceKind::Integrated);
        let is_large = integrated.as_ref().is_some_and(|(_, device)| !is_small(device));
        let discrete = if is_large { None } else { self.first(DeviceKind::Discrete) };
        let (found, reason) = match (integrated, discrete) {
            (Some((_, small)), Some(found)) => {
                (found, format!("it is discrete and comes before {}", small_words(&small)))
            }
            (Some(found), None) if is_large => {
                (found, "it is integrated and shares the host's memory".to_owned())
            }
            (Some(found), None) => (found, "it is integrated, and no discrete device can be used".to_owned()),
            (None, Some(found)) => (found, "it is discrete, and no integrated device can be used".to_owned()),
            (None, None) => (self.resolve("cpu:0")?, "no GPU can be used".to_owned()),
        };
        let (driver, device) = found;
        Ok(Auto { driver, device, reason })
    }

    /// The first usable device of a kind. The first API that has one speaks for all: others list the same devices, and
    /// count processors in other units.
    fn first(&self, kind: DeviceKind) -> Option<(&dyn Driver, DeviceInfo)> {
        // The simulator only plays a device.
        self.drivers.iter().filter(|driver| driver.api() != "sim").find_map(|driver| {
            // An API that cannot be used is no candidate; `list` tells why.
            let devices = driver.devices().unwrap_or_default();
            let good = |device: &DeviceInfo| device.kind == kind && is_taken(device);
            Some((&**driver, devices.into_iter().find(good)?))
        })
    }
}

/// What `auto` is.
struct Auto<'a> {
    driver: &'a dyn Driver,
    device: DeviceInfo,
    reason: String,
}

/// Whether a device is taken that is not named.
fn is_taken(device: &DeviceInfo) -> bool {
    device.unusable.is_none() && device.same_as.is_none()
}

fn is_auto(selector: &str) -> bool {
    selector.trim().eq_ignore_ascii_case("auto")
}

/// A device by its position or by its whole name.
fn named<'a>(devices: &'a [DeviceInfo], wanted: &str) -> Option<&'a DeviceInfo> {
    if let Ok(index) = wanted.parse::<usize>() {
        return devices.iter().find(|device| device.index == index);
    }
    devices.iter().find(|device| device.name.eq_ignore_ascii_case(wanted))
}

/// A device by a part of its name.
fn partly_named<'a>(devices: &'a [DeviceInfo], wanted: &str) -> Option<&'a DeviceInfo> {
    let wanted = wanted.to_lowercase();
    let number = wanted.parse::<usize>().is_ok();
    let mut found = devices.iter().filter(|_| !wanted.is_empty() && !number);
    found.find(|device| device.name.to_lowercase().contains(&wanted))
}

/// What there is, and of the devices that are made by name those that are called nearly so.
fn no_such(driver: &dyn Driver, wanted: &str, devices: &[DeviceInfo]) -> OpenError {
    let mut available: Vec<String> =
        devices.iter().map(|device| format!("{} ({})", device.index, device.name)).collect();
    let (names, part) = (driver.names(), wanted.to_lowercase());
    let near: Vec<&String> = names.iter().filter(|name| !part.is_empty() && name.contains(&part)).collect();
    available.extend(near.iter().map(|name| (*name).clone()));
    let more = names.len() - near.len();
    if more > 0 {
        available.push(format!("{more} more by name, and any by the path of its profile"));
    }
    OpenError::NoSuchDevice { api: driver.api(), wanted: wanted.to_owned(), available }
}

impl Default for Registry {
    fn default() -> Registry {
        Registry::with_defaults()
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.drivers.iter().map(|driver| driver.api())).finish()
    }
}
