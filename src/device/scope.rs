//! Borrowed memory, lent to the device for the length of a scope.

#![allow(unsafe_code, reason = "a borrowed slice becomes an import that ends with the scope")]

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::process::abort;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytemuck::Pod;

use super::buffer::{Buffer, Lease};
use super::context::Context;
use super::core::{Core, Flight, lock};
use super::error::Error;
use super::import::{Source, import};
use crate::backend::DeviceError;
use crate::memory::import::ReadWrite;

/// Where borrowed memory may be lent to a device; made by [`Context::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    ending: Ending,
    // Invariant in both, as `std::thread::Scope`: neither may be shrunk or grown by the closure.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A buffer over borrowed memory; it cannot leave its scope.
#[derive(Debug)]
pub struct ScopedBuffer<'scope, T> {
    buffer: Buffer,
    scope: PhantomData<&'scope mut [T]>,
}

/// Ends the scope's imports, also when the closure panics.
struct Ending {
    core: Arc<Core>,
    id: u64,
    leases: Mutex<Vec<Arc<Lease>>>,
}

impl Context {
    /// Calls `f` with a scope in which borrowed slices can be lent to the device. Returns once the device
    /// has finished with all of them and let go of their memory, also when `f` panics; handles of the
    /// buffers that were cloned out of the scope are refused from then on.
    ///
    /// If the driver can neither finish the work nor declare the device lost, the process is aborted: the
    /// borrow must not end while the device may still write.
    pub fn scope<'env, R>(&self, f: impl for<'s> FnOnce(&'s Scope<'s, 'env>) -> R) -> R {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let ending = Ending {
            core: Arc::clone(self.core()),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            leases: Mutex::default(),
        };
        let scope = Scope { ending, scope: PhantomData, env: PhantomData };
        f(&scope)
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Lends a slice for reading and writing.
    ///
    /// # Errors
    /// An [`ImportError`](crate::memory::import::ImportError) with the reason, or the device's.
    pub fn import_mut<T: Pod>(&'scope self, slice: &'env mut [T]) -> Result<ScopedBuffer<'scope, T>, Error> {
        let bytes = size_of_val(slice) as u64;
        self.lend(NonNull::from(slice).cast(), bytes, ReadWrite::ReadWrite)
    }

    /// Lends a slice for reading; a command that writes it is refused.
    ///
    /// # Errors
    /// As [`Scope::import_mut`].
    pub fn import<T: Pod>(&'scope self, slice: &'env [T]) -> Result<ScopedBuffer<'scope, T>, Error> {
        let bytes = size_of_val(slice) as u64;
        self.lend(NonNull::from(slice).cast(), bytes, ReadWrite::Read)
    }

    fn lend<T>(
        &'scope self,
        address: NonNull<u8>,
        bytes: u64,
        access: ReadWrite,
    ) -> Result<ScopedBuffer<'scope, T>, Error> {
        let scope = Some(self.ending.id);
        // The slice is borrowed for 'env, which outlives the scope, and `Ending` ends the import within it.
        let source = Source { address, bytes, access, scope, region: None, pin: None };
        let buffer = import(&self.ending.core, source)?;
        lock(&self.ending.leases).push(Arc::clone(&buffer.lease));
        Ok(ScopedBuffer { buffer, scope: PhantomData })
    }
}

impl<T> Deref for ScopedBuffer<'_, T> {
    type Target = Buffer;
    fn deref(&self) -> &Buffer {
        &self.buffer
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("id", &self.ending.id).finish_non_exhaustive()
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let leases = std::mem::take(&mut *lock(&self.leases));
        if leases.is_empty() {
            return;
        }
        // What was enqueued inside the scope still runs.
        self.core.flush_queues();
        let state = self.core.state();
        leases.iter().for_each(|lease| lease.revoke());
        drop(state);
        let uses = |_: usize, flight: &Flight| {
            flight.work().scoped.iter().any(|lease| lease.memory.scope == Some(self.id))
        };
        match self.core.when_free(uses, |_| ()) {
            Ok(()) => {}
            // A lost device touches nothing any more.
            Err(DeviceError::Lost { .. }) => {}
            Err(error) => {
                tracing::error!(%error, "borrowed memory may still be in use by the device");
                abort();
            }
        }
        for lease in &leases {
            lease.end();
        }
    }
}
