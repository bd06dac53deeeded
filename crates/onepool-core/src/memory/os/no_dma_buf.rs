//! Systems that have no dma-bufs.

#![allow(unsafe_code, reason = "a signature: a descriptor by its number")]

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

    /// Another descriptor of the file that someone else's descriptor is of.
    ///
    /// # Safety
    /// None: there are no such descriptors.
    ///
    /// # Errors
    /// Always.
    // SAFETY: it does nothing.
    pub unsafe fn of_number(_: i32) -> Result<Descriptor, OsError> {
        Err(OsError::Unsupported { what: "memory by a file descriptor" })
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
