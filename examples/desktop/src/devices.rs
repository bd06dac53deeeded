//! The devices to choose from, opened when they are first used.

use std::collections::BTreeMap;
use std::sync::Arc;

use onepool::backend::{ContextDesc, DeviceInfo};
use onepool::device::Context;
use onepool::registry::Registry;
use wgpu_shared::Shared;

use crate::filter::sentence;
use crate::settings::SHARED;
use crate::state::DeviceRow;

/// The renderer's device, or why it is not shared.
pub(crate) type Sharing = Result<Arc<Shared>, String>;

/// What runs filters.
pub(crate) struct Devices {
    sharing: Sharing,
    opened: BTreeMap<String, Context>,
}

impl Devices {
    pub(crate) fn new(sharing: Sharing) -> Devices {
        Devices { sharing, opened: BTreeMap::new() }
    }

    /// The renderer's device.
    pub(crate) fn shared(&self) -> Option<&Arc<Shared>> {
        self.sharing.as_ref().ok()
    }

    /// The devices of every API, the unusable ones included.
    pub(crate) fn list(&self) -> Vec<DeviceRow> {
        let mut rows = vec![self.shared_row()];
        for api in Registry::with_defaults().list() {
            match api.devices {
                // The simulated one is for tests.
                _ if api.api == "sim" => {}
                Ok(devices) => {
                    let several = devices.len() > 1;
                    rows.extend(devices.into_iter().map(|info| row(info, several)));
                }
                Err(why) => rows.push(DeviceRow {
                    selector: api.api.to_owned(),
                    label: api.api.to_owned(),
                    unusable: Some(sentence(&why)),
                }),
            }
        }
        rows
    }

    fn shared_row(&self) -> DeviceRow {
        let (label, unusable) = match &self.sharing {
            Ok(shared) => (format!("The window's own: {}", shared.context.info().name), None),
            Err(why) => ("The window's own".to_owned(), Some(why.clone())),
        };
        DeviceRow { selector: SHARED.to_owned(), label, unusable }
    }

    /// The device of a selector.
    ///
    /// # Errors
    /// Why it cannot be used, as a sentence.
    pub(crate) fn open(&mut self, selector: &str) -> Result<Context, String> {
        if selector == SHARED {
            return match &self.sharing {
                Ok(shared) => Ok(shared.context.clone()),
                Err(why) => Err(format!("the window's device is not shared: {why}; choose another device")),
            };
        }
        if let Some(context) = self.opened.get(selector) {
            return Ok(context.clone());
        }
        let opened = Registry::with_defaults().open(selector, &ContextDesc::default());
        let context = opened.map_err(|e| sentence(&e))?;
        self.opened.insert(selector.to_owned(), context.clone());
        Ok(context)
    }

    /// Closes a device that failed, so that the next use opens it anew.
    pub(crate) fn forget(&mut self, selector: &str) {
        self.opened.remove(selector);
    }
}

fn row(info: DeviceInfo, several: bool) -> DeviceRow {
    let selector = if several { format!("{}:{}", info.api, info.index) } else { info.api.to_owned() };
    DeviceRow { label: format!("{}: {}", selector, info.name), selector, unusable: info.unusable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_listed_and_opened_once() {
        let mut devices = Devices::new(Err("wgpu found no Vulkan device".to_owned()));
        let rows = devices.list();
        assert_eq!(rows[0].unusable.as_deref(), Some("wgpu found no Vulkan device"));
        assert!(rows.iter().any(|row| row.selector == "cpu" && row.unusable.is_none()), "{rows:?}");
        assert!(rows.iter().all(|row| !row.selector.starts_with("sim")));
        let (first, again) = (devices.open("cpu").unwrap(), devices.open("cpu").unwrap());
        assert_eq!(first.id(), again.id());
        devices.forget("cpu");
        assert_ne!(devices.open("cpu").unwrap().id(), first.id());
    }

    #[test]
    fn a_device_that_is_not_there_is_a_sentence() {
        let mut devices = Devices::new(Err("wgpu found no Vulkan device".to_owned()));
        let error = devices.open(SHARED).unwrap_err();
        let expected =
            "the window's device is not shared: wgpu found no Vulkan device; choose another device";
        assert_eq!(error, expected);
        let error = devices.open("toaster").unwrap_err();
        assert!(error.starts_with("there is no device API \"toaster\""), "{error}");
    }
}
