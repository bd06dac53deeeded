//! Blocks of memory, and the calls that lend slices of them to kernels.
//!
//! An island of `unsafe`. What makes its slices sound:
//! * bounds: a [`Span`] is cut from a block that a [`Program`] keeps alive;
//! * aliasing inside a command: [`Program::push_dispatch`] and [`Program::push_copy`] refuse a written
//!   span that overlaps any other span of the command;
//! * aliasing in time: commands of a queue run one after the other; that no other queue and no host
//!   guard uses the bytes meanwhile is the duty of `device`, the only caller of a backend;
//! * imports: [`ContextBackend::import_host`](crate::backend::ContextBackend::import_host) is unsafe, and
//!   its caller keeps the pages until the buffer is destroyed; a program whose import is gone is refused.

#![allow(unsafe_code, reason = "slices over raw blocks are made here, under the rules above")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::BLOCK_ALIGNMENT;
use crate::backend::{DeviceError, HostAddress};
use crate::kernel::{NativeArg, NativeArgs, NativeKernel};
use crate::team::share;
use onepool_core::memory::host::HostRegion;

/// Blocks from this size on are pages of their own.
const PAGES_FROM: usize = 2 << 20;
/// Copies and fills of more than this many bytes are shared among the pool's threads.
const PARALLEL_BYTES: usize = 4 << 20;
const PARALLEL_CHUNK: usize = 1 << 20;

/// Memory of one buffer.
#[derive(Debug)]
pub(super) struct Block {
    address: HostAddress,
    bytes: usize,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Heap(Layout),
    /// Large blocks: pages of their own, huge ones where the system has them.
    Pages(#[allow(dead_code, reason = "owns the pages")] HostRegion),
    Imported {
        gone: AtomicBool,
    },
}

impl Block {
    /// Zeroed memory: reading what no one wrote must be defined behaviour in Rust.
    pub(super) fn allocate(bytes: u64) -> Result<Block, DeviceError> {
        let refused = DeviceError::OutOfDeviceMemory { bytes };
        let len = usize::try_from(bytes).map_err(|_| refused.clone())?;
        if len >= PAGES_FROM {
            let region = HostRegion::new(len).map_err(|_| refused)?;
            return Ok(Block {
                address: HostAddress(region.as_ptr()),
                bytes: len,
                origin: Origin::Pages(region),
            });
        }
        let layout =
            Layout::from_size_align(len.max(1), BLOCK_ALIGNMENT as usize).map_err(|_| refused.clone())?;
        // SAFETY: the layout's size is at least 1.
        let address = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(refused)?;
        Ok(Block { address: HostAddress(address), bytes: len, origin: Origin::Heap(layout) })
    }

    /// Someone else's memory, under the contract of `import_host`.
    pub(super) fn imported(address: HostAddress, bytes: u64) -> Result<Block, DeviceError> {
        let bytes = usize::try_from(bytes).map_err(|_| DeviceError::ImportRefused { code: 0 })?;
        Ok(Block { address, bytes, origin: Origin::Imported { gone: AtomicBool::new(false) } })
    }

    pub(super) fn address(&self) -> HostAddress {
        self.address
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    pub(super) fn is_imported(&self) -> bool {
        matches!(self.origin, Origin::Imported { .. })
    }

    /// The buffer was destroyed: an import must not be touched any more.
    pub(super) fn retire(&self) {
        if let Origin::Imported { gone } = &self.origin {
            gone.store(true, Ordering::Release);
        }
    }

    fn is_gone(&self) -> bool {
        matches!(&self.origin, Origin::Imported { gone } if gone.load(Ordering::Acquire))
    }

    fn span(&self, offset: u64, bytes: u64) -> Result<Span, DeviceError> {
        let outside = DeviceError::Limit {
            what: "a range's end",
            asked: offset.saturating_add(bytes),
            limit: self.bytes(),
        };
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes() => {}
            _ => return Err(outside),
        }
        // SAFETY: `offset` is at most the block's size, so the pointer stays within or one past it.
        let address = unsafe { self.address.0.add(offset as usize) };
        Ok(Span { address: HostAddress(address), bytes: bytes as usize })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Origin::Heap(layout) = self.origin {
            // SAFETY: allocated in `allocate` with this layout, and freed once, here.
            unsafe { dealloc(self.address.0.as_ptr(), layout) };
        }
    }
}

/// Part of a block that the program keeps alive.
#[derive(Clone, Copy, Debug)]
struct Span {
    address: HostAddress,
    bytes: usize,
}

impl Span {
    fn start(self) -> usize {
        self.address.0.as_ptr().addr()
    }

    fn overlaps(self, other: Span) -> bool {
        self.bytes > 0
            && other.bytes > 0
            && self.start() < other.start() + other.bytes
            && other.start() < self.start() + self.bytes
    }

    /// # Safety
    /// The block is alive and no one writes the bytes for as long as the slice lives.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: in bounds by construction; alive and not written by the caller's promise; every block
        // is initialized (zeroed, or someone's memory).
        unsafe { std::slice::from_raw_parts(self.address.0.as_ptr(), self.bytes) }
    }

    /// # Safety
    /// The block is alive and no one else touches the bytes for as long as the slice lives.
    unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: as in `bytes`, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.address.0.as_ptr(), self.bytes) }
    }
}

/// One argument of a dispatch, before it is resolved.
pub(super) enum ArgSource<'a> {
    /// Not given.
    Absent,
    /// Bytes of a block.
    Range { block: &'a Arc<Block>, offset: u64, bytes: u64, write: bool },
}

#[derive(Debug)]
enum Slot {
    Absent,
    Read(Span),
    Write(Span),
}

#[derive(Debug)]
enum Op {
    Dispatch { kernel: NativeKernel, args: Box<[Slot]>, params: Box<[u8]> },
    Copy { src: Span, dst: Span },
    Fill { dst: Span, value: u32 },
    Timestamp { slot: u32 },
}

/// A recording translated to calls.
#[derive(Debug, Default)]
pub(super) struct Program {
    ops: Vec<Op>,
    timestamps: u32,
    // Keep what the spans point into.
    blocks: Vec<Arc<Block>>,
    imports: Vec<Arc<Block>>,
}

impl Program {
    pub(super) fn new(timestamps: u32) -> Program {
        Program { timestamps, ..Program::default() }
    }

    pub(super) fn timestamps(&self) -> u32 {
        self.timestamps
    }

    /// Refuses a program whose imported memory was given back.
    pub(super) fn check_alive(&self) -> Result<(), DeviceError> {
        if self.imports.iter().any(|block| block.is_gone()) {
            return Err(DeviceError::Stale { object: "buffer" });
        }
        Ok(())
    }

    fn keep(&mut self, block: &Arc<Block>, offset: u64, bytes: u64) -> Result<Span, DeviceError> {
        let span = block.span(offset, bytes)?;
        let kept = if block.is_imported() { &mut self.imports } else { &mut self.blocks };
        if !kept.iter().any(|other| Arc::ptr_eq(other, block)) {
            kept.push(Arc::clone(block));
        }
        Ok(span)
    }

    pub(super) fn push_dispatch(
        &mut self,
        kernel: NativeKernel,
        args: &[ArgSource<'_>],
        params: &[u8],
    ) -> Result<(), DeviceError> {
        let mut slots = Vec::with_capacity(args.len());
        let mut spans: Vec<(usize, Span, bool)> = Vec::with_capacity(args.len());
        for (index, arg) in args.iter().enumerate() {
            slots.push(match arg {
                ArgSource::Absent => Slot::Absent,
                ArgSource::Range { block, offset, bytes, write } => {
                    let span = self.keep(block, *offset, *bytes)?;
                    spans.push((index, span, *write));
                    if *write { Slot::Write(span) } else { Slot::Read(span) }
                }
            });
        }
        if let Some((a, b)) = aliasing(&mut spans) {
            let what = format!(
                "arguments {a} and {b} of kernel {} that overlap while one is written; \
                 give the kernel one argument that it reads and writes",
                kernel.name()
            );
            return Err(DeviceError::Unsupported { what });
        }
        self.ops.push(Op::Dispatch { kernel, args: slots.into(), params: params.into() });
        Ok(())
    }

    pub(super) fn push_copy(
        &mut self,
        src: (&Arc<Block>, u64),
        dst: (&Arc<Block>, u64),
        bytes: u64,
    ) -> Result<(), DeviceError> {
        let src = self.keep(src.0, src.1, bytes)?;
        let dst = self.keep(dst.0, dst.1, bytes)?;
        if src.overlaps(dst) {
            return Err(DeviceError::Unsupported { what: "a copy between overlapping ranges".to_owned() });
        }
        self.ops.push(Op::Copy { src, dst });
        Ok(())
    }

    pub(super) fn push_fill(
        &mut self,
        block: &Arc<Block>,
        offset: u64,
        bytes: u64,
        value: u32,
    ) -> Result<(), DeviceError> {
        let dst = self.keep(block, offset, bytes)?;
        self.ops.push(Op::Fill { dst, value });
        Ok(())
    }

    pub(super) fn push_timestamp(&mut self, slot: u32) {
        self.ops.push(Op::Timestamp { slot });
    }

    /// Runs the calls in order; the first that fails ends the run. Called by one thread of the queue at a time.
    pub(super) fn run(&self, origin: Instant, times: &mut Vec<u64>) -> Result<(), DeviceError> {
        times.clear();
        times.resize(self.timestamps as usize, 0);
        for op in &self.ops {
            match op {
                Op::Dispatch { kernel, args, params } => call(kernel, args, params)?,
                Op::Copy { src, dst } => {
                    // SAFETY: the blocks are kept by `self`; the spans do not overlap (`push_copy`); no
                    // other command and no host guard uses them now (the module's rules).
                    let (src, dst) = unsafe { (src.bytes(), dst.bytes_mut()) };
                    copy(src, dst);
                }
                Op::Fill { dst, value } => {
                    // SAFETY: as for a copy.
                    fill(unsafe { dst.bytes_mut() }, *value);
                }
                Op::Timestamp { slot } => {
                    if let Some(time) = times.get_mut(*slot as usize) {
                        *time = origin.elapsed().as_nanos() as u64;
                    }
                }
            }
        }
        Ok(())
    }
}

fn call(kernel: &NativeKernel, slots: &[Slot], params: &[u8]) -> Result<(), DeviceError> {
    let mut args: Vec<NativeArg<'_>> = slots
        .iter()
        .map(|slot| match slot {
            Slot::Absent => NativeArg::Absent,
            // SAFETY: the block is kept by the program; written spans overlap no other span of this call
            // (`push_dispatch`); nothing else uses the bytes now (the module's rules).
            Slot::Read(span) => NativeArg::Read(unsafe { span.bytes() }),
            // SAFETY: as above.
            Slot::Write(span) => NativeArg::Write(unsafe { span.bytes_mut() }),
        })
        .collect();
    let called = kernel.call_caught(&mut NativeArgs::new(&mut args, params));
    called.map_err(|source| DeviceError::Kernel { kernel: kernel.name().to_owned(), source })
}

fn copy(src: &[u8], dst: &mut [u8]) {
    if src.len() < PARALLEL_BYTES {
        dst.copy_from_slice(src);
        return;
    }
    share(dst.chunks_mut(PARALLEL_CHUNK).zip(src.chunks(PARALLEL_CHUNK)), |(dst, src)| {
        dst.copy_from_slice(src)
    });
}

fn fill(dst: &mut [u8], value: u32) {
    let word = value.to_ne_bytes();
    let fill = |part: &mut [u8]| {
        if word.iter().all(|byte| *byte == word[0]) {
            part.fill(word[0]);
            return;
        }
        for bytes in part.chunks_mut(word.len()) {
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
    };
    if dst.len() < PARALLEL_BYTES {
        fill(dst);
    } else {
        share(dst.chunks_mut(PARALLEL_CHUNK), fill);
    }
}

/// Two spans, at least one of them written, that share a byte; by their argument indices.
fn aliasing(spans: &mut [(usize, Span, bool)]) -> Option<(usize, usize)> {
    spans.sort_unstable_by_key(|(_, span, _)| (span.start(), span.bytes));
    // In order of their starts, each span need only be held against the spans reaching furthest so far.
    let mut reach: [Option<(usize, Span)>; 2] = [None, None];
    for (index, span, write) in spans.iter().copied().filter(|(_, span, _)| span.bytes > 0) {
        let rivals = if write { &reach[..] } else { &reach[1..] };
        if let Some((other, _)) = rivals.iter().flatten().find(|(_, held)| held.overlaps(span)) {
            return Some((index.min(*other), index.max(*other)));
        }
        let furthest = &mut reach[usize::from(write)];
        if furthest.is_none_or(|(_, held)| held.start() + held.bytes < span.start() + span.bytes) {
            *furthest = Some((index, span));
        }
    }
    None
}
