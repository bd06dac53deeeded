//! The file of a region, whose pages become a dma-buf.

use std::sync::{Arc, Mutex, Weak};

use super::dma_buf::DmaBuf;
use super::import::Refusal;
use super::os::{Descriptor, DmaBufSystem, OsError, Turn};
use crate::sync::lock;

/// The file of a region.
#[derive(Debug)]
pub struct MemoryFile {
    file: Descriptor,
    bytes: u64,
    system: Arc<dyn DmaBufSystem>,
    made: Mutex<Weak<DmaBuf>>,
}

impl MemoryFile {
    /// A file of `bytes` bytes (whole pages) that cannot shrink.
    pub(super) fn new(file: Descriptor, bytes: u64, system: Arc<dyn DmaBufSystem>) -> MemoryFile {
        MemoryFile { file, bytes, system, made: Mutex::default() }
    }

    /// The dma-buf of all its pages; the same one as long as someone keeps it.
    ///
    /// # Errors
    /// [`Refusal::NoDmaBuf`] with what the system said.
    pub fn dma_buf(&self) -> Result<Arc<DmaBuf>, Refusal> {
        let mut made = lock(&self.made);
        if let Some(buffer) = made.upgrade() {
            return Ok(buffer);
        }
        let refused = |error: OsError| Refusal::NoDmaBuf { cause: error.to_string() };
        let handle = self.system.create(&self.file, self.bytes).map_err(refused)?;
        let buffer = Arc::new(DmaBuf::new(handle, self.bytes, Arc::clone(&self.system)));
        // The pages are the host's now, and the kernel has to hear so before their turn may end.
        buffer.sync(Turn::Begins).map_err(refused)?;
        *made = Arc::downgrade(&buffer);
        Ok(buffer)
    }
}
