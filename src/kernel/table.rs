//! The shipped kernels, written by the build script from `shaders/`.

use std::borrow::Cow;

use rspirv::spirv::Capability;

use super::{KernelId, KernelInfo, Requires};
use crate::spirv::{Access, BindingInfo, BindingKind, Element, ParamInfo, ScalarType, SpecInfo, ValueType};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// Bytes aligned for SPIR-V words.
#[repr(C, align(4))]
struct Aligned<T: ?Sized>(T);

/// `count` words of the blob from `first` on.
pub(super) fn words((first, count): (usize, usize)) -> &'static [u32] {
    &bytemuck::cast_slice(&WORDS.0)[first..first + count]
}
