//! How a system makes dma-bufs, and begins and ends accesses of the CPU to their pages.

use std::fmt;

use super::{Descriptor, OsError};

/// The host's turn on the pages of a dma-buf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The host is about to read or write: what devices wrote arrives.
    Begins,
    /// The host is done: what it wrote leaves for the devices.
    Ends,
}

/// What a system does to make dma-bufs.
///
/// [`dma_bufs`](super::dma_bufs()) is the one of this machine.
pub trait DmaBufSystem: fmt::Debug + Send + Sync {
    /// A dma-buf of the first `bytes` bytes (whole pages) of a memory file that cannot shrink.
    ///
    /// # Errors
    /// The system has no such facility, does not let this process use it, or refuses the size.
    fn create(&self, file: &Descriptor, bytes: u64) -> Result<Descriptor, OsError>;

    /// Begins or ends an access by the CPU (`DMA_BUF_IOCTL_SYNC`).
    ///
    /// # Errors
    /// What the system says.
    fn sync(&self, buffer: &Descriptor, turn: Turn) -> Result<(), OsError>;

    /// Gives a dma-buf back.
    fn close(&self, buffer: Descriptor) {
        drop(buffer);
    }
}
