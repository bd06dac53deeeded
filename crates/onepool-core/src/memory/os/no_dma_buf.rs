//! Systems that have no dma-bufs.

use std::sync::Arc;

use super::OsError;
use super::dma_bufs::{DmaBufSystem, Turn};

/// An open file of the system; there is none that a dma-buf could be made of.
#[derive(Debug)]
pub enum Descriptor {}

impl Descriptor {
    /// Its number.
    pub fn number(&self) -> i32 {
        match *self {}
    }

    /// Its number, to whoever closes it from now on.
    pub fn into_number(self) -> i32 {
        match self {}
    }

    /// Another descriptor of the same file.
    ///
    /// # Errors
    /// None.
    pub fn duplicate(&self) -> Result<Descriptor, OsError> {
        match *self {}
    }
}

/// Makes none.
#[derive(Debug)]
struct NoDmaBufs;

impl DmaBufSystem for NoDmaBufs {
    fn create(&self, _: &Descriptor, _: u64) -> Result<Descriptor, OsError> {
        Err(OsError::Unsupported { what: "a dma-buf" })
    }

    fn sync(&self, _: &Descriptor, _: Turn) -> Result<(), OsError> {
        Err(OsError::Unsupported { what: "a dma-buf" })
    }
}

pub(super) fn dma_bufs() -> Arc<dyn DmaBufSystem> {
    Arc::new(NoDmaBufs)
}
