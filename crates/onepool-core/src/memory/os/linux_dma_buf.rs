//! Linux: memory files, and dma-bufs made of them by `/dev/udmabuf` (linux/udmabuf.h, linux/dma-buf.h).
//!
//! An island of `unsafe`: the two ioctl calls, and descriptors by their numbers.

#![allow(unsafe_code, reason = "ioctl calls are unsafe, and so is a descriptor that someone else owns")]

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};

use super::OsError;
use super::dma_bufs::{DmaBufSystem, Turn};

/// An open file of the system, closed when dropped.
#[derive(Debug)]
pub struct Descriptor(OwnedFd);

impl Descriptor {
    pub(super) fn file(&self) -> &OwnedFd {
        &self.0
    }

    /// Its number, while it lives.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Its number, to whoever closes it from now on.
    pub fn into_number(self) -> i32 {
        self.0.into_raw_fd()
    }

    /// Another descriptor of the file that someone else's descriptor `number` is of.
    ///
    /// # Safety
    /// Who owns that descriptor leaves it open meanwhile; a number that is none is an error.
    ///
    /// # Errors
    /// The number is no descriptor's, or the process has too many.
    pub unsafe fn of_number(number: i32) -> Result<Descriptor, OsError> {
        if number < 0 {
            return Err(OsError::Call { call: "fcntl F_DUPFD_CLOEXEC", code: Errno::BADF.raw_os_error() });
        }
        // SAFETY: not -1, and open during the call, as the caller promises, or refused by the system.
        let theirs = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_dupfd_cloexec(theirs, 0).map(Descriptor).map_err(failed("fcntl F_DUPFD_CLOEXEC"))
    }

    /// Another descriptor of the same file.
    ///
    /// # Errors
    /// The process has too many.
    pub fn duplicate(&self) -> Result<Descriptor, OsError> {
        rustix::io::fcntl_dupfd_cloexec(&self.0, 0).map(Descriptor).map_err(failed("fcntl F_DUPFD_CLOEXEC"))
    }
}

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Self {
        Descriptor(fd)
    }
}

impl From<File> for Descriptor {
    fn from(file: File) -> Self {
        Descriptor(file.into())
    }
}

/// A memory file of `bytes` bytes that cannot shrink, as udmabuf demands of one.
pub(super) fn memory_file(bytes: u64) -> Result<Descriptor, OsError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("onepool", flags).map_err(failed("memfd_create"))?;
    rustix::fs::ftruncate(&file, bytes).map_err(failed("ftruncate"))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).map_err(failed("fcntl F_ADD_SEALS"))?;
    Ok(Descriptor(file))
}

fn failed(call: &'static str) -> impl Fn(Errno) -> OsError {
    move |errno| OsError::Call { call, code: errno.raw_os_error() }
}

const DEVICE: &str = "/dev/udmabuf";

/// `/dev/udmabuf`. Opened for each dma-buf: its rights are asked for when they are needed, and nothing is kept open.
#[derive(Debug)]
struct Udmabuf;

pub(super) fn dma_bufs() -> Arc<dyn DmaBufSystem> {
    Arc::new(Udmabuf)
}

/// `struct udmabuf_create`.
#[repr(C)]
struct CreateArgs {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_FLAGS_CLOEXEC`.
const CLOEXEC: u32 = 1;

/// `UDMABUF_CREATE`, which answers with a descriptor.
struct Create(CreateArgs);

// SAFETY: the number is that of the call, whose argument is a `struct udmabuf_create` that the kernel only reads; a
// result that is no error is a fresh descriptor, which belongs to the caller alone.
unsafe impl Ioctl for Create {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<CreateArgs>(b'u', 0x42)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(&mut self.0).cast()
    }

    // SAFETY: called by `ioctl` alone, with the call's own result, which is looked at before it is made a descriptor.
    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        if out < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: as said above.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

/// `DMA_BUF_IOCTL_SYNC`, whose argument is `struct dma_buf_sync`, one word of flags.
const SYNC: Opcode = opcode::write::<u64>(b'b', 0);
const SYNC_READ_WRITE: u64 = 3;
const SYNC_END: u64 = 4;

impl DmaBufSystem for Udmabuf {
    fn create(&self, file: &Descriptor, bytes: u64) -> Result<Descriptor, OsError> {
        let memfd = u32::try_from(file.number()).map_err(|_| OsError::Call { call: "udmabuf", code: 0 })?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device =
            rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(failed("open of /dev/udmabuf"))?;
        let create = Create(CreateArgs { memfd, flags: CLOEXEC, offset: 0, size: bytes });
        // SAFETY: the device is udmabuf's, so the call is the one that `Create` describes.
        unsafe { ioctl(&device, create) }
            .map(Descriptor)
            .map_err(failed("ioctl UDMABUF_CREATE of /dev/udmabuf"))
    }

    fn sync(&self, buffer: &Descriptor, turn: Turn) -> Result<(), OsError> {
        let end = if turn == Turn::Ends { SYNC_END } else { 0 };
        loop {
            // SAFETY: the opcode's argument is one word that the kernel only reads; on a descriptor of anything
            // else than a dma-buf the kernel answers ENOTTY.
            let done = unsafe { ioctl(&buffer.0, Setter::<SYNC, u64>::new(SYNC_READ_WRITE | end)) };
            if !matches!(done, Err(Errno::INTR | Errno::AGAIN)) {
                return done.map_err(failed("ioctl DMA_BUF_IOCTL_SYNC"));
            }
        }
    }
}
