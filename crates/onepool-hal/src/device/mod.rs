//! The safe, OpenCL-shaped interface over any backend.
//!
//! A [`Context`] makes [`Buffer`]s, [`Kernel`]s and [`Queue`]s; a queue takes single commands
//! (`enqueue_*`), a whole [`Recording`](crate::recording::Recording), or one prepared for many
//! submissions, and answers with an [`Event`].
//!
//! What this layer takes care of, so that no backend has to:
//! * every argument is checked before a backend sees it ([`UsageError`]);
//! * whatever a submission uses is kept alive until it has finished: its buffers, its kernels, and the
//!   application's memory of imports (which is given back only after the device let go of it);
//! * submissions of one queue are ordered after each other, submissions of two queues that touch the
//!   same bytes are ordered by a wait of the host, submissions of two contexts that touch the same
//!   application memory are refused while one of them may write it ([`Problem::Busy`]);
//! * host slices over device memory exist only as guards ([`HostRead`], [`HostWrite`]), which wait,
//!   make the bytes visible, and keep submissions away from them while they live.
//!
//! What it leaves to the author of a recording: the barriers between its own commands, the host barrier
//! at its end, and its lists of ranges to flush and to invalidate.
//!
//! An island of `unsafe`: it lends the slices of guards and upholds the contract of
//! [`ContextBackend::import_host`](crate::backend::ContextBackend::import_host).

mod batch;
mod buffer;
mod check;
mod claims;
mod context;
mod core;
mod costs;
mod error;
mod event;
mod host;
mod import;
mod kernel;
mod pieces;
mod queue;
mod scope;
mod semaphore;
mod traffic;

pub use self::buffer::Buffer;
pub use self::context::Context;
pub use self::costs::{COSTS_VARIABLE, CostReport};
pub use self::error::{Error, Problem, UsageError};
pub use self::event::Event;
pub use self::host::{HostRead, HostWrite};
pub use self::kernel::{Kernel, KernelArg};
pub use self::pieces::Submission;
pub use self::queue::{Inlay, Prepared, Queue};
pub use self::scope::{HeldPages, Lent, Scope, ScopedBuffer, scope};
pub use self::semaphore::Semaphore;
pub use self::traffic::Traffic;
