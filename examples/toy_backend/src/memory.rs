//! Memory that the host has mapped while the device copies from and to it.

use std::ptr::NonNull;

use onepool::backend::{DeviceError, HostAddress};
use onepool::recording::BufferRange;

/// The memory of one buffer: zeroed words.
#[derive(Debug)]
pub(crate) struct Memory {
    words: NonNull<[u64]>,
    bytes: u64,
}

// SAFETY: the words are owned; who touches them when is the device layer's duty, on any thread.
unsafe impl Send for Memory {}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Result<Memory, DeviceError> {
        let refused = DeviceError::OutOfDeviceMemory { bytes };
        let len = usize::try_from(bytes.div_ceil(8)).map_err(|_| refused.clone())?;
        let mut words = Vec::new();
        words.try_reserve_exact(len).map_err(|_| refused)?;
        words.resize(len, 0u64);
        Ok(Memory { words: NonNull::from(Box::leak(words.into_boxed_slice())), bytes })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn address(&self) -> HostAddress {
        HostAddress(self.words.cast())
    }

    /// Offset and length of a range that lies in the memory.
    fn check(&self, range: &BufferRange) -> Result<(usize, usize), DeviceError> {
        let asked = range.offset.saturating_add(range.bytes);
        if asked > self.bytes {
            return Err(DeviceError::Limit { what: "a range's end", asked, limit: self.bytes });
        }
        // Not above the length of a slice.
        Ok((range.offset as usize, range.bytes as usize))
    }

    /// The bytes of a range, as words so that every element type is aligned, and how many they are.
    pub(crate) fn read(&self, range: &BufferRange) -> Result<(Vec<u64>, usize), DeviceError> {
        let (offset, bytes) = self.check(range)?;
        let mut copy = vec![0u64; bytes.div_ceil(8)];
        // SAFETY: in bounds on both sides; the device layer keeps the host's writers away while a
        // submission uses the range, and this queue is the only other user.
        unsafe {
            let from = self.words.cast::<u8>().as_ptr().add(offset);
            from.copy_to_nonoverlapping(copy.as_mut_ptr().cast(), bytes);
        }
        Ok((copy, bytes))
    }

    /// Writes a range.
    pub(crate) fn write(&self, range: &BufferRange, data: &[u8]) -> Result<(), DeviceError> {
        let (offset, bytes) = self.check(range)?;
        let bytes = bytes.min(data.len());
        // SAFETY: as in `read`.
        unsafe {
            let to = self.words.cast::<u8>().as_ptr().add(offset);
            to.copy_from_nonoverlapping(data.as_ptr(), bytes);
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: leaked from a box in `new`, and freed once, here.
        drop(unsafe { Box::from_raw(self.words.as_ptr()) });
    }
}
