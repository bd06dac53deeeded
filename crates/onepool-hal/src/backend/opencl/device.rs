//! A device opened: its context, and the memory of its loss.

use std::sync::{Arc, Mutex, OnceLock};

use super::handle::{self, DeviceId};
use super::image::{Images, try_images};
use super::info::with_images;
use super::platform::OpenableDevice;
use super::program::Programs;
use crate::backend::pace::Waiters;
use crate::backend::{DeviceError, DeviceInfo, DeviceKind};
use onepool_core::sync::lock;

/// What all contexts of one device in this process share: programs are compiled once.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) programs: Programs,
    /// Tried when the device is first opened.
    images: OnceLock<Images>,
    // Goes after its programs.
    pub(super) context: handle::Context,
}

/// Those in use, kept while the process runs: programs stay compiled, and drivers race when their last context
/// goes while another one is made (PoCL 3.1 does).
static OPEN: Mutex<Vec<(DeviceId, Arc<Shared>)>> = Mutex::new(Vec::new());

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
        let shared = share(found.device)?;
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

    /// # Errors
    /// [`DeviceError::Lost`] from the first loss on.
    pub(super) fn alive(&self) -> Result<(), DeviceError> {
        match self.lost.get() {
            None => Ok(()),
            Some(detail) => Err(DeviceError::Lost { detail: detail.clone() }),
        }
    }

    /// Remembers an error that is a loss, and passes it on.
    pub(super) fn note(&self, error: DeviceError) -> DeviceError {
        if let DeviceError::Lost { detail } = &error {
            // Whoever opens the device from now on gets a context of their own.
            lock(&OPEN).retain(|(_, shared)| !Arc::ptr_eq(shared, &self.shared));
            let _ = self.lost.set(detail.clone());
        }
        error
    }
}

/// The device's context, which may be in use already.
pub(super) fn share(device: DeviceId) -> Result<Arc<Shared>, DeviceError> {
    let mut open = lock(&OPEN);
    if let Some((_, shared)) = open.iter().find(|(known, _)| *known == device) {
        return Ok(Arc::clone(shared));
    }
    let shared = Arc::new(Shared {
        programs: Programs::default(),
        images: OnceLock::new(),
        context: handle::Context::new(device)?,
    });
    open.push((device, Arc::clone(&shared)));
    Ok(shared)
}

/// As [`share`], where no image is tried: that takes a while.
#[cfg(any(test, feature = "testing"))]
pub(super) fn share_without_images(device: DeviceId) -> Result<Arc<Shared>, DeviceError> {
    let shared = share(device)?;
    shared.images.get_or_init(Images::default);
    Ok(shared)
}
