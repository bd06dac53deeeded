//! A queue that runs a recording while it is submitted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onepool::backend::slots::SlotTable;
use onepool::backend::{DeviceError, QueueBackend, Timepoint};
use onepool::kernel::{NativeArg, NativeArgs};
use onepool::memory::coherency::Access;
use onepool::recording::{Arg, Command, Dispatch, PreparedId, Recording};

use crate::{Tables, lock};

#[derive(Debug)]
pub(crate) struct ToyQueue {
    tables: Arc<Tables>,
    prepared: Mutex<SlotTable<PreparedId, Recording>>,
    reached: AtomicU64,
    /// What went wrong, by point, until someone waits for it.
    failed: Mutex<Vec<(u64, DeviceError)>>,
}

impl ToyQueue {
    pub(crate) fn new(tables: Arc<Tables>) -> ToyQueue {
        ToyQueue { tables, prepared: Mutex::default(), reached: AtomicU64::new(0), failed: Mutex::default() }
    }

    fn run(&self, recording: &Recording) -> Timepoint {
        let result = recording.commands.iter().try_for_each(|command| self.command(command));
        let mut failed = lock(&self.failed);
        let point = self.reached.fetch_add(1, Ordering::AcqRel) + 1;
        if let Err(error) = result {
            failed.push((point, error));
        }
        Timepoint(point)
    }

    fn command(&self, command: &Command) -> Result<(), DeviceError> {
        match command {
            Command::Dispatch(dispatch) => self.dispatch(dispatch),
            Command::Copy { src, dst } => {
                let buffers = lock(&self.tables.buffers);
                let (words, bytes) = buffers.get(src.buffer)?.read(src)?;
                buffers.get(dst.buffer)?.write(dst, &bytemuck::cast_slice(&words)[..bytes])
            }
            Command::Fill { dst, value } => {
                let data = value.to_ne_bytes().repeat((dst.bytes / 4) as usize);
                lock(&self.tables.buffers).get(dst.buffer)?.write(dst, &data)
            }
            // Nothing is ever unfinished, and there is no clock.
            _ => Ok(()),
        }
    }

    /// Calls the function on copies of its arguments, and writes back those that it may write.
    fn dispatch(&self, dispatch: &Dispatch) -> Result<(), DeviceError> {
        let kernel = lock(&self.tables.kernels).get(dispatch.kernel)?.clone();
        let buffers = lock(&self.tables.buffers);
        let mut copies = Vec::new();
        for arg in &dispatch.args {
            copies.push(match arg {
                Arg::Absent => None,
                Arg::Buffer(range, access) | Arg::Image(range, _, access) => {
                    let (words, bytes) = buffers.get(range.buffer)?.read(range)?;
                    Some((*range, access.intersects(Access::KERNEL_WRITE), words, bytes))
                }
            });
        }
        // Kernels run with the tables free.
        drop(buffers);
        let mut args: Vec<NativeArg<'_>> = copies
            .iter_mut()
            .map(|copy| match copy {
                None => NativeArg::Absent,
                Some((_, true, words, bytes)) => {
                    NativeArg::Write(&mut bytemuck::cast_slice_mut(words)[..*bytes])
                }
                Some((_, false, words, bytes)) => NativeArg::Read(&bytemuck::cast_slice(words)[..*bytes]),
            })
            .collect();
        kernel
            .call(&mut NativeArgs::new(&mut args, &dispatch.params))
            .map_err(|source| DeviceError::Kernel { kernel: kernel.name().to_owned(), source })?;
        let buffers = lock(&self.tables.buffers);
        for (range, written, words, bytes) in copies.iter().flatten() {
            if *written {
                buffers.get(range.buffer)?.write(range, &bytemuck::cast_slice(words)[..*bytes])?;
            }
        }
        Ok(())
    }
}

impl QueueBackend for ToyQueue {
    fn submit(&self, recording: &Recording) -> Result<Timepoint, DeviceError> {
        Ok(self.run(recording))
    }

    fn prepare(&self, recording: &Recording) -> Result<PreparedId, DeviceError> {
        Ok(lock(&self.prepared).insert(recording.clone()))
    }

    fn submit_prepared(&self, prepared: PreparedId) -> Result<Timepoint, DeviceError> {
        let recording = lock(&self.prepared).get(prepared)?.clone();
        Ok(self.run(&recording))
    }

    fn release_prepared(&self, prepared: PreparedId) {
        let removed = lock(&self.prepared).remove(prepared);
        drop(removed);
    }

    fn wait(&self, point: Timepoint, _: Option<Duration>) -> Result<(), DeviceError> {
        if point.0 > self.reached.load(Ordering::Acquire) {
            return Err(DeviceError::Stale { object: "timepoint" });
        }
        let mut failed = lock(&self.failed);
        match failed.iter().position(|(at, _)| *at <= point.0) {
            Some(at) => Err(failed.remove(at).1),
            None => Ok(()),
        }
    }

    fn completed(&self) -> Result<Timepoint, DeviceError> {
        Ok(Timepoint(self.reached.load(Ordering::Acquire)))
    }

    fn timestamps(&self, _: Timepoint) -> Result<Vec<u64>, DeviceError> {
        Ok(Vec::new())
    }
}
