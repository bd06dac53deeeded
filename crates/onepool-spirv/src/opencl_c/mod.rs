//! SPIR-V compute modules as OpenCL C 1.2: one kernel definition for both interfaces.
//!
//! The result is a function of the words and the options alone. Every identifier is made from an id; names of
//! the module are never copied.
//!
//! # Calling convention
//! - The kernel is called [`OpenClKernel::name`]. Its arguments are first those of [`OpenClKernel::args`] in
//!   order: each is what [`OpenClArg::form`] says, a `__global` pointer with a place after it or an image. Two
//!   bindings may overlap. Sub-buffers would do without the place, but drivers differ in how well they keep
//!   many of them that overlap.
//! - Then, if [`OpenClKernel::memory_follows`], a `__global` pointer that the kernel does not use.
//! - Then, if [`OpenClKernel::params_bytes`] is not 0, the push constants by value: a structure of that many
//!   bytes, the block's own bytes at its own offsets. Its size is the block's rounded up to 4.
//! - Then a `__local` pointer for each workgroup variable that the kernel uses, of
//!   [`OpenClKernel::workgroup_bytes`] bytes each.
//! - The work-group size is that of `reqd_work_group_size`;
//!   the global offset is 0.
//! - Specialization constants are literals in the source: one source for each set of values.
//! - The source is written for `-cl-std=CL1.2` ([`BUILD_OPTIONS`]) without any relaxed arithmetic.
//!
//! # Floats
//! Without `cl_khr_fp16` a binary16 value is a float that is rounded to binary16 after every operation, which
//! gives the same bits as binary16 arithmetic for `+ - * /` and `sqrt` (binary32 has more than twice as many
//! bits and two). Divisions by an integer zero, undefined in both languages but a trap on CPUs, give some value.

#![forbid(unsafe_code)]

mod arith;
mod atomic;
mod constant;
mod convert;
mod error;
mod ext;
mod flow;
mod function;
mod helpers;
mod image;
#[cfg(test)]
#[cfg(not(without_glslang))]
mod image_tests;
mod leave;
mod literal;
mod module;
mod pointer;
#[cfg(test)]
#[cfg(not(without_glslang))]
pub mod tests;
mod types;

pub use error::OpenClError;
pub use image::{OpenClForm, OpenClImages, Planes, TexelFormat, TexelFormats};

use super::check_module;
use super::parse;
use super::reflect::{BindingAccess, BindingKind};
use crate::Requires;

/// What the build of the source must be given.
pub const BUILD_OPTIONS: &str = "-cl-std=CL1.2";

/// How a module is translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenClOptions<'a> {
    /// The entry point; the module's only one if absent.
    pub entry: Option<&'a str>,
    /// Specialization: (`constant_id`, bits). Ids that the module does not have are ignored.
    pub spec: &'a [(u32, u32)],
    /// The device has `cl_khr_fp16`.
    pub fp16: bool,
    /// The device has `cl_khr_fp64`.
    pub fp64: bool,
    /// The images of the device that lie in its buffers.
    pub images: OpenClImages,
}

/// A kernel in OpenCL C.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenClKernel {
    /// The program's source.
    pub source: String,
    /// The name of the kernel in it.
    pub name: &'static str,
    /// The work-group size, specialized.
    pub local_size: [u32; 3],
    /// One for each binding, in order.
    pub args: Vec<OpenClArg>,
    /// Whether a pointer to memory of the bindings follows, because each of them is an image.
    pub memory_follows: bool,
    /// Bytes of the push constants' structure, the argument after those; 0 if there is none.
    pub params_bytes: u32,
    /// Bytes of each workgroup variable in OpenCL C (a vector of three is as large as one of four): the last
    /// arguments, in order.
    pub workgroup_bytes: Vec<u64>,
    /// What the source uses of a device beyond the full profile: half or double precision arithmetic, 64-bit
    /// atomics.
    pub requires: Requires,
}

/// One binding as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenClArg {
    /// Its number in set 0.
    pub binding: u32,
    /// How the kernel uses it.
    pub access: BindingAccess,
    /// What is bound: a storage or uniform buffer's bytes, an image, or a texel buffer's texels as its declared
    /// format says (RGBA32 where it says none).
    pub kind: BindingKind,
    /// What stands for it.
    pub form: OpenClForm,
}

/// Translates the module in `words`.
///
/// # Errors
/// The words are no sound module, its control flow is not structured, it needs what the device lacks, or it
/// holds a construct without a translation: subgroup and cooperative matrix instructions, matrices, pointers as
/// values; images that have more than two dimensions, layers, levels or samples, or that are read and written.
pub fn translate(words: &[u32], options: &OpenClOptions<'_>) -> Result<OpenClKernel, OpenClError> {
    let reflection = check_module(words)?;
    if let Some(wanted) = options.entry
        && wanted != reflection.entry_point
    {
        let found = reflection.entry_point.into_owned();
        return Err(OpenClError::EntryPoint { wanted: wanted.to_owned(), found });
    }
    let module = parse::parse(words)?;
    module::Translator::new(&module, &reflection, options)?.run()
}
