//! Memory files as dma-bufs: how pages reach a device whose driver takes no pointer to them.
//!
//! A [`MemoryFile`](super::memory_file::MemoryFile) is the file of a region
//! ([`super::host::HostRegion::in_memory_file`]); a [`DmaBuf`] is what the kernel makes of its pages for
//! devices. The kernel is reached through [`DmaBufSystem`] alone, so that everything around its calls runs
//! against a fake too.

use std::sync::Arc;

use super::os::{Descriptor, OsError};
pub use super::os::{DmaBufSystem, Turn};

/// Pages that the kernel hands to devices by a descriptor. They are kept as long as anyone has it, mapped or not.
#[derive(Debug)]
pub struct DmaBuf {
    // `None` only while it is given back.
    handle: Option<Descriptor>,
    bytes: u64,
    system: Arc<dyn DmaBufSystem>,
}

impl DmaBuf {
    /// `bytes` bytes (whole pages) that `system` made.
    pub(super) fn new(handle: Descriptor, bytes: u64, system: Arc<dyn DmaBufSystem>) -> DmaBuf {
        DmaBuf { handle: Some(handle), bytes, system }
    }

    /// The descriptor.
    pub fn descriptor(&self) -> Option<&Descriptor> {
        self.handle.as_ref()
    }

    /// Its size, whole pages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Begins or ends an access by the CPU; the kernel flushes and invalidates caches for it.
    ///
    /// # Errors
    /// What the system says.
    pub fn sync(&self, turn: Turn) -> Result<(), OsError> {
        match &self.handle {
            Some(handle) => self.system.sync(handle, turn),
            None => Ok(()),
        }
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.system.close(handle);
        }
    }
}

#[cfg(test)]
#[cfg(all(target_os = "linux", not(miri)))]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::memory::host::HostRegion;
    use crate::memory::import::Refusal;
    use crate::memory::os;

    /// Makes a dma-buf of anything, or of nothing, and tells what it was asked.
    #[derive(Debug, Default)]
    struct Fake {
        asked: Mutex<Vec<String>>,
        create_fails: bool,
        begin_fails: bool,
    }

    impl Fake {
        fn say(&self, what: impl Into<String>) {
            self.asked.lock().unwrap().push(what.into());
        }

        fn asked(&self) -> Vec<String> {
            std::mem::take(&mut self.asked.lock().unwrap())
        }
    }

    impl DmaBufSystem for Fake {
        fn create(&self, _: &Descriptor, bytes: u64) -> Result<Descriptor, OsError> {
            self.say(format!("create {bytes}"));
            if self.create_fails {
                return Err(OsError::Call { call: "open of /dev/udmabuf", code: 2 });
            }
            Ok(std::fs::File::open("/dev/null").unwrap().into())
        }

        fn sync(&self, _: &Descriptor, turn: Turn) -> Result<(), OsError> {
            self.say(format!("{turn:?}"));
            let failed = OsError::Call { call: "ioctl DMA_BUF_IOCTL_SYNC", code: 22 };
            if self.begin_fails { Err(failed) } else { Ok(()) }
        }

        fn close(&self, _: Descriptor) {
            self.say("close");
        }
    }

    fn region(fake: &Arc<Fake>) -> HostRegion {
        let system: Arc<dyn DmaBufSystem> = Arc::clone(fake) as _;
        HostRegion::in_memory_file_by(5000, &system).unwrap()
    }

    #[test]
    fn one_dma_buf_is_made_of_the_whole_pages_and_closed_with_its_last_keeper() {
        let fake = Arc::new(Fake::default());
        let region = region(&fake);
        let bytes = region.window().bytes;
        assert_eq!(bytes, 5000u64.next_multiple_of(os::page_size() as u64));
        let file = region.memory_file().unwrap();
        let first = file.dma_buf().unwrap();
        let second = file.dma_buf().unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        first.sync(Turn::Ends).unwrap();
        drop((first, second));
        assert_eq!(fake.asked(), [format!("create {bytes}"), "Begins".into(), "Ends".into(), "close".into()]);
        // No one keeps it, so the next one is new.
        drop(file.dma_buf().unwrap());
        assert_eq!(fake.asked().len(), 3);
    }

    #[test]
    fn what_the_system_refuses_is_told_and_nothing_leaks() {
        let missing = Arc::new(Fake { create_fails: true, ..Fake::default() });
        let refusal = region(&missing).memory_file().unwrap().dma_buf().unwrap_err();
        assert!(refusal.to_string().contains("open of /dev/udmabuf failed with error 2"), "{refusal}");
        assert_eq!(missing.asked().len(), 1);
        let broken = Arc::new(Fake { begin_fails: true, ..Fake::default() });
        let refusal = region(&broken).memory_file().unwrap().dma_buf().unwrap_err();
        assert!(matches!(refusal, Refusal::NoDmaBuf { .. }));
        assert_eq!(broken.asked().last().map(String::as_str), Some("close"));
    }

    /// The real calls: the machine makes dma-bufs where this process may open the device that does, and says so where not.
    #[test]
    fn this_machine_makes_one_where_it_has_the_device() {
        let mut region = HostRegion::in_memory_file(3 * os::page_size()).unwrap();
        region.as_mut_slice().fill(7);
        let device = std::fs::File::options().read(true).write(true).open("/dev/udmabuf");
        match (device, region.memory_file().unwrap().dma_buf()) {
            (Ok(_), made) => {
                let buffer = made.unwrap();
                buffer.sync(Turn::Ends).unwrap();
                buffer.sync(Turn::Begins).unwrap();
            }
            (Err(cause), made) => {
                let refusal = made.unwrap_err();
                let says =
                    format!("open of /dev/udmabuf failed with error {}", cause.raw_os_error().unwrap());
                assert!(refusal.to_string().contains(&says), "{refusal}");
            }
        }
        assert!(region.as_slice().iter().all(|byte| *byte == 7));
    }
}
