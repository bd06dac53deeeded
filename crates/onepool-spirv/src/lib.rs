//! SPIR-V: read, check, reflect and build kernels.
//!
//! Pure functions over words; no device and no driver. A user's module passes `check_module`
//! before a driver sees it, because a driver does not validate.

#![forbid(unsafe_code)]

mod access;
pub mod builder;
pub mod check;
mod grid;
mod layout;
pub mod opencl_c;
pub mod parse;
pub mod reflect;
mod requires;
mod specialize;
pub mod types;
mod typing;

pub use builder::build_pointwise;
pub use check::check_module;
pub use grid::{PART_BYTES, PartForm};
pub use layout::{Fetch, KernelLayout, Walk, Walked};
pub use parse::{SpirvError, SpirvErrorKind};
pub use reflect::{BindingAccess, BindingInfo, BindingKind, ParamInfo, Reflection, SpecInfo, reflect};
pub use requires::Requires;
pub use specialize::shared_bytes;
pub use types::{Element, ScalarType, ValueType};
