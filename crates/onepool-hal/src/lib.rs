//! Devices: what is recorded for them, the backends that run it, and the safe interface over any of them.
//!
//! Useful without graphs. A [`registry::Registry`] opens a [`device::Context`] by name; it makes buffers of its own or of
//! the application's memory, kernels of SPIR-V, OpenCL C or Rust, and queues.
//!
//! ```
//! use onepool_core::HostRegion;
//! use onepool_hal::backend::ContextDesc;
//! use onepool_hal::registry::Registry;
//!
//! let context = Registry::with_defaults().open("sim", &ContextDesc::default())?;
//! let region = HostRegion::new(1 << 16)?.into_shared();
//! let buffer = context.import(&region)?;
//! assert!(buffer.info().imported);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod backend;
pub mod device;
pub mod kernel;
pub mod recording;
pub mod registry;
pub mod team;
