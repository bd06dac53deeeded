//! A device opened: its context, and the memory of its loss.

use std::sync::{Arc, OnceLock};

use super::handle::{self, DeviceId};
use super::image::{Images, try_images};
use super::info::with_images;
use super::platform::OpenableDevice;
use super::share::{self, Shared};
use crate::backend::pace::Waiters;
use crate::backend::{DeviceError, DeviceInfo, DeviceKind};

/// A device opened.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) id: DeviceId,
    pub(super) info: DeviceInfo,
    pub(super) fp16: bool,
    pub(super) fp64: bool,
    pub(super) waiters: Waiters,
    /// For mappings and for copies between mapped memory and the device's.
    pub(super) transfers: handle::Queue,
    lost: OnceLock<String>,
    pub(super) shared: Arc<Shared>,
}

impl Device {
    pub(super) fn open(found: OpenableDevice) -> Result<Self, DeviceError> {
        let shared = share::share(found.device)?;
        let limits = &found.info.limits;
        let images = shared
            .images
            .get_or_init(|| try_images(&shared.context, found.device, &found.facts.images, limits));
        let info = with_images(found.info, images);
        tracing::debug!(target: "onepool::opencl", device = info.name, ?images, "images");
        Ok(Device {
            id: found.device,
            fp16: found.facts.has("cl_khr_fp16"),
            fp64: found.facts.doubles,
            waiters: Waiters::new(info.kind == DeviceKind::Cpu),
            info,
            transfers: shared.context.queue(found.device, false)?,
            lost: OnceLock::new(),
            shared,
        })
    }

    /// The images that it was found to have.
    pub(super) fn images(&self) -> &Images {
        // Opening the device tried them.
        self.shared.images.get_or_init(Images::default)
    }

    pub(super) fn alive(&self) -> Result<(), DeviceError> {
        match self.lost.get() {
            None => Ok(()),
            Some(detail) => Err(DeviceError::Lost { detail: detail.clone() }),
        }
    }

    /// Remembers an error that is a loss, and passes it on.
    pub(super) fn note(&self, error: DeviceError) -> DeviceError {
        if let DeviceError::Lost { detail } = &error {
            share::forget(&self.shared);
            let _ = self.lost.set(detail.clone());
        }
        error
    }
}
