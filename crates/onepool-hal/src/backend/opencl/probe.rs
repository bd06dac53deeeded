//! Finds out by trying whether host memory is really shared with a device.
//!
//! A driver may claim unified memory, or give the caller's pointer back from a map, and copy all the same. So
//! memory is only taken as shared when kernels, fills and copies on it read what the host wrote last without
//! any call of the API in between, and the host reads what they wrote, several times over and in full.

use std::ptr::NonNull;

use super::handle::{Backing, Context, DeviceId, Mem, Queue};
use super::share::share;
use crate::backend::DeviceError;
use onepool_core::memory::host::HostRegion;

/// More than a cache of a driver's for small buffers holds, and quick to check.
const BYTES: usize = 512 << 10;
const WORDS: usize = BYTES / 4;
/// Every second one leaves the device's words as they are and works on from them.
const ROUNDS: u32 = 6;
/// A part of the buffer, as kernels are given it: at a multiple of every known base alignment.
const PART: usize = 64 << 10;
/// Bytes around an import that belong to someone else.
const MARGIN: usize = 4096;

const SOURCE: &str = "
__kernel void probe(__global uint *words, uint n, uint round) {
    const uint i = get_global_id(0);
    if (i < n) { words[i] = words[i] * 3u + i + round; }
}
";

/// What holds of a device's memory; the reason where something does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Findings {
    /// Memory of the driver's that stays mapped is the device's memory.
    pub(super) mapped: Result<(), String>,
    /// The caller's memory is used in place.
    pub(super) imported: Result<(), String>,
}

impl Findings {
    /// What a person ought to know.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        match &self.imported {
            Ok(()) => words.push(
                "tried: kernels read and write the caller's memory in place, so it is imported".to_owned(),
            ),
            Err(reason) => words.push(format!(
                "tried: kernels do not use the caller's memory in place ({reason}), so application memory is copied"
            )),
        }
        if let Err(reason) = &self.mapped {
            words.push(format!(
                "tried: mapped memory is not the device's own ({reason}), so it is copied when it is flushed"
            ));
        }
        words
    }
}

/// Tries a device.
pub(super) fn probe(device: DeviceId) -> Result<Findings, DeviceError> {
    let shared = share(device)?;
    let context = &shared.context;
    let queue = context.queue(device, false)?;
    let program = context.program_from_source(SOURCE)?;
    program.build("probe", device, c"-cl-std=CL1.2")?;
    let mut kernel = program.kernel(c"probe")?;
    let mut run = |memory: &Mem, words: usize, round: u32| {
        kernel.set_memory(0, memory.raw())?;
        kernel.set_bytes(1, &(words as u32).to_ne_bytes())?;
        kernel.set_bytes(2, &round.to_ne_bytes())?;
        let global = words.next_multiple_of(64);
        // SAFETY: the arguments are set; the memory lives until the wait below is over.
        unsafe { queue.nd_range(&kernel, &[global, 1, 1], &[64, 1, 1])? }.wait()
    };

    // SAFETY: memory of the driver's.
    let own = unsafe { context.buffer(Backing::Host, BYTES)? };
    // The kernel itself has to work, whatever it is given.
    run(&own, WORDS, 0)?;
    let address = queue.map(&own, BYTES)?;
    // SAFETY: mapped for the length of the buffer.
    let mapped = unsafe { is_shared(&queue, &own, address, &mut run) };
    // SAFETY: the mapping's address, which no one uses any more.
    unsafe { queue.unmap(&own, address)? };

    let imported = try_import(context, &queue, &mut run).unwrap_or_else(|error| Err(error.to_string()));
    Ok(Findings { mapped: mapped.unwrap_or_else(|error| Err(error.to_string())), imported })
}

fn try_import(
    context: &Context,
    queue: &Queue,
    run: &mut impl FnMut(&Mem, usize, u32) -> Result<(), DeviceError>,
) -> Result<Result<(), String>, DeviceError> {
    let bytes = BYTES + 2 * MARGIN;
    let region = HostRegion::new(bytes).map_err(|_| DeviceError::OutOfHostMemory { bytes: bytes as u64 })?;
    // SAFETY: within the region.
    let address = unsafe { region.as_ptr().add(MARGIN) };
    // SAFETY: the region outlives the buffer, which is dropped before it.
    let memory = unsafe { context.buffer(Backing::Use(address), BYTES)? };
    // SAFETY: the region's own pages, which no one else touches.
    let shared = unsafe { is_shared(queue, &memory, address, run)? };
    drop(memory);
    let margins = [0, MARGIN + BYTES];
    // SAFETY: within the region, read only.
    let intact = margins
        .iter()
        .all(|start| unsafe { (0..MARGIN).all(|at| region.as_ptr().add(start + at).read_volatile() == 0) });
    Ok(if intact { shared } else { Err("a kernel wrote outside the memory it was given".to_owned()) })
}

/// Whether the words at `address` are those of `memory`, both ways.
///
/// # Safety
/// `BYTES` bytes at `address` are readable and writable, and no one else touches them.
unsafe fn is_shared(
    queue: &Queue,
    memory: &Mem,
    address: NonNull<u8>,
    run: &mut impl FnMut(&Mem, usize, u32) -> Result<(), DeviceError>,
) -> Result<Result<(), String>, DeviceError> {
    let words = address.cast::<u32>();
    // SAFETY: in bounds by the caller's promise; volatile, because the device is a second party.
    let read = |at: usize| unsafe { words.add(at).read_volatile() };
    // SAFETY: as above.
    let write = |at: usize, value: u32| unsafe { words.add(at).write_volatile(value) };
    let part = memory.part(PART, PART)?;
    let mut model = vec![0u32; WORDS];
    for round in 0..ROUNDS {
        if round % 2 == 0 {
            for (at, word) in model.iter_mut().enumerate() {
                *word = (at as u32).wrapping_mul(0x9e37_79b9).wrapping_add(round);
                write(at, *word);
            }
        }
        // The host has every word in its cache now, so that a stale one would be seen.
        if (0..WORDS).any(|at| read(at) != model[at]) {
            return Ok(Err("the host does not see its own writes".to_owned()));
        }
        run(memory, WORDS, round)?;
        for (at, word) in model.iter_mut().enumerate() {
            *word = word.wrapping_mul(3).wrapping_add(at as u32).wrapping_add(round);
        }
        if (0..WORDS).any(|at| read(at) != model[at]) {
            let what = "the writes of a kernel are not seen, or it did not see the host's";
            return Ok(Err(what.to_owned()));
        }
        run(&part, PART / 4, round)?;
        for (at, word) in model[PART / 4..PART / 2].iter_mut().enumerate() {
            *word = word.wrapping_mul(3).wrapping_add(at as u32).wrapping_add(round);
        }
        if (0..WORDS).any(|at| read(at) != model[at]) {
            return Ok(Err("a kernel on a part of the memory does not work in place".to_owned()));
        }
        // SAFETY: both ranges are in the buffer, made of words, and apart.
        unsafe {
            let last = (memory.raw(), 3 * PART);
            queue.fill((memory.raw(), 2 * PART), PART, round ^ 0x5555_5555)?.wait()?;
            queue.copy((memory.raw(), 0), last, PART)?.wait()?;
        }
        let (first, rest) = model.split_at_mut(PART / 2);
        rest[..PART / 4].fill(round ^ 0x5555_5555);
        rest[PART / 4..PART / 2].copy_from_slice(&first[..PART / 4]);
        if (0..WORDS).any(|at| read(at) != model[at]) {
            return Ok(Err("fills and copies do not work in place".to_owned()));
        }
    }
    Ok(Ok(()))
}
