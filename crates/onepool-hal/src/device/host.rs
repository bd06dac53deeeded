//! Host slices over device memory: guards that wait, make visible, lend, and keep submissions away.
//!
//! What makes the slices sound: while a guard lives, its bytes are in the context's list of holds, and a
//! submission that touches them is refused under the same lock under which the guard was made, after
//! every earlier submission that touches them had finished. Guards exclude each other as references do,
//! on atoms of non-coherent memory, so that no flush tears what another guard writes. Leaking a guard
//! leaves its bytes held for good.

#![allow(unsafe_code, reason = "slices of mapped memory are lent here, under the rules above")]

use std::ops::{Deref, DerefMut};
use std::slice;
use std::sync::Arc;

use bytemuck::Pod;

use super::buffer::{Buffer, Memory};
use super::core::{Flight, HostHold, Payload, State, Work, resource_of};
use super::error::{Error, Problem, UsageError, busy};
use crate::backend::HostAddress;
use crate::recording::{Command, Recording};
use onepool_core::memory::coherency::{Access, Barrier, HostStep, Origin};
use onepool_core::memory::host::{ReadGuard, WriteGuard};
use onepool_core::memory::range::ByteRange;
use onepool_core::memory::stream::copy_uncached;
use onepool_core::sync::lock;

/// Bytes of a buffer that the device has finished with, lent for reading.
#[derive(Debug)]
pub struct HostRead<'a> {
    hold: Hold<'a>,
    _region: Option<ReadGuard<'a>>,
}

/// Bytes of a buffer that the device has finished with, lent for writing; the next submission sees them.
#[derive(Debug)]
pub struct HostWrite<'a> {
    hold: Hold<'a>,
    _region: Option<WriteGuard<'a>>,
}

/// An entry in the context's list of holds.
#[derive(Debug)]
struct Hold<'a> {
    memory: &'a Arc<Memory>,
    id: u64,
    address: HostAddress,
    bytes: usize,
    range: ByteRange,
    write: bool,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let flush = if self.write { lock(&self.memory.host).written(self.range) } else { None };
        if let Some(range) = flush {
            self.memory.core.flush_or_keep(self.memory.buffer_range(range));
        }
        let mut state = self.memory.core.state();
        state.holds.retain(|hold| hold.id != self.id);
    }
}

impl Deref for HostRead<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie in the mapping of a memory that the guard keeps alive; the hold keeps
        // writers away from them, on the device and on the host.
        unsafe { slice::from_raw_parts(self.hold.address.0.as_ptr(), self.hold.bytes) }
    }
}

impl Deref for HostWrite<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as for `HostRead`; the hold keeps everyone else away.
        unsafe { slice::from_raw_parts(self.hold.address.0.as_ptr(), self.hold.bytes) }
    }
}

impl DerefMut for HostWrite<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` makes this the only slice of the guard.
        unsafe { slice::from_raw_parts_mut(self.hold.address.0.as_ptr(), self.hold.bytes) }
    }
}

impl HostRead<'_> {
    /// Copies the first bytes into all of `to`, by streaming loads where the host reads the memory past its caches.
    ///
    /// # Errors
    /// [`Problem::OutOfBounds`] where `to` is longer.
    pub fn copy_to(&self, to: &mut [u8]) -> Result<(), UsageError> {
        let (range, bytes) = (ByteRange::new(0, to.len() as u64), self.len() as u64);
        let outside = || UsageError::new("copy_to", Problem::OutOfBounds { range, bytes });
        let from = self.get(..to.len()).ok_or_else(outside)?;
        let info = &self.hold.memory.info;
        if info.cached || info.imported {
            to.copy_from_slice(from);
        } else {
            copy_uncached(from, to);
        }
        Ok(())
    }

    /// The bytes as elements.
    ///
    /// # Errors
    /// They are no whole, aligned elements.
    pub fn as_slice_of<T: Pod>(&self) -> Result<&[T], UsageError> {
        bytemuck::try_cast_slice(self).map_err(|cause| elements::<T>("as_slice_of", self.len(), cause))
    }
}

impl HostWrite<'_> {
    /// The bytes as elements.
    ///
    /// # Errors
    /// They are no whole, aligned elements.
    pub fn as_mut_slice_of<T: Pod>(&mut self) -> Result<&mut [T], UsageError> {
        let bytes = self.len();
        bytemuck::try_cast_slice_mut(self).map_err(|cause| elements::<T>("as_mut_slice_of", bytes, cause))
    }
}

fn elements<T>(context: &'static str, bytes: usize, cause: bytemuck::PodCastError) -> UsageError {
    let (bytes, element_bytes) = (bytes as u64, size_of::<T>() as u64);
    UsageError::new(context, Problem::Elements { bytes, element_bytes, cause: cause.to_string() })
}

impl Buffer {
    /// Lends the bytes for reading: waits for submissions that write them and makes their writes visible.
    ///
    /// # Errors
    /// [`Problem::NotMapped`] for device-only memory, [`Problem::Busy`] while a write guard holds bytes of
    /// it or an [`Inlay`](super::Inlay) that writes them lives, and the device's.
    pub fn map_read(&self) -> Result<HostRead<'_>, Error> {
        let hold = self.hold("map_read", false)?;
        let region = match &self.lease.memory.region {
            Some(region) => Some(region.read_range(self.range).map_err(|error| busy("map_read", &error))?),
            None => None,
        };
        Ok(HostRead { hold, _region: region })
    }

    /// Lends the bytes for writing (and reading): waits for submissions that touch them. Dropping the
    /// guard makes the writes visible to whatever is submitted afterwards.
    ///
    /// # Errors
    /// As [`Buffer::map_read`], also while a read guard holds bytes of it or an inlay reads them, and
    /// [`Problem::Access`] for memory that was lent for reading only.
    pub fn map_write(&self) -> Result<HostWrite<'_>, Error> {
        let hold = self.hold("map_write", true)?;
        let region = match &self.lease.memory.region {
            Some(region) => Some(region.write_range(self.range).map_err(|error| busy("map_write", &error))?),
            None => None,
        };
        Ok(HostWrite { hold, _region: region })
    }

    /// Refuses what the host is to do by copies on the device, where [`Buffer::map_read`] and [`Buffer::map_write`] would
    /// refuse it for an [`Inlay`](super::Inlay).
    ///
    /// # Errors
    /// [`Problem::Busy`].
    pub fn check_idle(&self, context: &'static str, write: bool) -> Result<(), UsageError> {
        let (memory, access) =
            (&self.lease.memory, if write { Access::HOST_WRITE } else { Access::HOST_READ });
        memory.core.state().check_inlays(context, resource_of(memory.id), self.range, access)
    }

    fn hold(&self, context: &'static str, write: bool) -> Result<Hold<'_>, Error> {
        let memory = &self.lease.memory;
        let address = self.host_address().ok_or_else(|| UsageError::new(context, Problem::NotMapped))?;
        let bytes =
            usize::try_from(self.bytes()).map_err(|_| UsageError::new(context, Problem::NotMapped))?;
        if write && !self.lease.access.writes() {
            let problem = Problem::Access { argument: 0, wanted: "written by the host", given: "reading" };
            return Err(UsageError::new(context, problem).into());
        }
        let range = memory.rounded(self.range);
        let resource = resource_of(memory.id);
        let access = if write { Access::HOST_WRITE } else { Access::HOST_READ };
        memory.core.flush_queues();
        loop {
            let conflict = |_: usize, flight: &Flight| flight.work().conflicts(resource, range, access);
            let taken = memory.core.when_free(conflict, |state| -> Result<_, Error> {
                if self.lease.is_revoked() {
                    return Err(UsageError::new(context, Problem::Revoked).into());
                }
                state.check_inlays(context, resource, range, access)?;
                let step = lock(&memory.host).access(range);
                let invalidate = match step {
                    HostStep::Show { by, barrier } => return Ok(Err((by, show(state, by, barrier)?))),
                    HostStep::Go { invalidate } => invalidate,
                };
                check_guards(context, state, HostHold { id: 0, resource, range, write })?;
                if !invalidate.is_empty() {
                    let ranges: Vec<_> = invalidate.iter().map(|range| memory.buffer_range(*range)).collect();
                    memory.core.invalidate(&ranges)?;
                    lock(&memory.host).refreshed(&invalidate);
                }
                state.next_hold += 1;
                let id = state.next_hold;
                state.holds.push(HostHold { id, resource, range, write });
                Ok(Ok(id))
            })??;
            match taken {
                Ok(id) => {
                    memory.core.traffic.lent(self.bytes(), write, memory.info.cached || memory.info.imported);
                    return Ok(Hold { memory, id, address, bytes, range, write });
                }
                Err((by, barrier)) => {
                    if let Some((queue, backend, point)) = barrier {
                        memory.core.wait(queue, &*backend, point, None)?;
                    }
                    lock(&memory.host).shown(by);
                }
            }
        }
    }
}

type Pending = (usize, Arc<dyn crate::backend::QueueBackend>, crate::backend::Timepoint);

/// Submits the barrier that shows the host what the submissions up to `by` wrote, where no recording did; gives the
/// submission to wait for. Without a queue the device is done with everything.
fn show(state: &mut State, by: Origin, barrier: Barrier) -> Result<Option<Pending>, Error> {
    // A queue that is gone has waited for all its work; a new barrier on any queue shows it.
    let lanes = state.queues.iter_mut().enumerate();
    let mut lanes: Vec<_> = lanes.filter_map(|(index, lane)| Some((index, lane.as_mut()?))).collect();
    let at = lanes.iter().position(|(index, _)| *index == by.queue).unwrap_or(0);
    let Some((index, lane)) = lanes.get_mut(at) else { return Ok(None) };
    let recording = Recording { commands: vec![Command::Barrier(barrier)], ..Recording::default() };
    let point = lane.backend.submit(&recording)?;
    let payload = Payload::Once(Arc::new(Work::default()));
    lane.flights.push_back(Flight {
        point,
        payload,
        regions: Vec::new(),
        claim: None,
        ends: true,
        deadline: None,
    });
    Ok(Some((*index, Arc::clone(&lane.backend), point)))
}

fn check_guards(context: &'static str, state: &State, wanted: HostHold) -> Result<(), UsageError> {
    let rival = state.holds.iter().find(|hold| {
        hold.resource == wanted.resource && hold.range.overlaps(wanted.range) && (hold.write || wanted.write)
    });
    match rival {
        Some(hold) => {
            let how = if hold.write { "writing" } else { "reading" };
            let what = format!("bytes {} are mapped for {how} already", hold.range);
            Err(UsageError::new(context, Problem::Busy { what }))
        }
        None => Ok(()),
    }
}
