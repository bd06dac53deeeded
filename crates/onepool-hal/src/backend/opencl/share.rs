//! What the contexts of one device in this process share.

use std::sync::{Arc, Mutex, OnceLock};

use super::cache::BinaryCache;
use super::handle::{self, DeviceId, Program};
use super::image::Images;
use super::program::{ProgramText, Programs};
use crate::backend::DeviceError;
use onepool_core::sync::lock;

/// What all contexts of one device in this process share: programs are compiled once.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) programs: Programs,
    /// Tried when the device is first opened.
    pub(super) images: OnceLock<Images>,
    // Goes after its programs.
    pub(super) context: handle::Context,
}

impl Shared {
    /// The program of a text, as [`Programs::get`] has it.
    pub(super) fn program(
        &self,
        device: DeviceId,
        cache: Option<&BinaryCache>,
        name: &str,
        text: ProgramText,
    ) -> Result<Arc<Program>, DeviceError> {
        self.programs.get(&self.context, device, cache, name, text)
    }
}

/// Those in use, kept while the process runs: programs stay compiled, and drivers race when their last context
/// goes while another one is made (PoCL 3.1 does).
static OPEN: Mutex<Vec<(DeviceId, Arc<Shared>)>> = Mutex::new(Vec::new());

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

/// Lets whoever opens the device from now on get a context of their own.
pub(super) fn forget(shared: &Arc<Shared>) {
    lock(&OPEN).retain(|(_, open)| !Arc::ptr_eq(open, shared));
}

/// As [`share`], where no image is tried: that takes a while.
#[cfg(any(test, feature = "testing"))]
pub(super) fn share_without_images(device: DeviceId) -> Result<Arc<Shared>, DeviceError> {
    let shared = share(device)?;
    shared.images.get_or_init(Images::default);
    Ok(shared)
}
