//! A second opinion: spirv-reflect reads each source, and must see what our own reflection sees.
//!
//! spirv-reflect 0.2.3 reads SPIR-V 1.0 without specialization constants, so it gets each source compiled
//! once more in that form; what cannot be expressed so is listed instead. Its C structures are read
//! directly, because the crate's own conversion makes slices of null pointers.

#![allow(unsafe_code, reason = "spirv-reflect's results are C structures")]

use std::ffi::{CStr, c_char};

use rspirv::spirv::Capability;
use spirv_reflect::convert::result_to_string;
use spirv_reflect::ffi;

use onepool_spirv::reflect::{BindingKind, Reflection, reflect};

/// Why spirv-reflect cannot read this kernel, if it cannot.
pub(super) fn unreadable(kernel: &Reflection) -> Option<String> {
    let reason = kernel.capabilities.iter().find(|capability| {
        !matches!(
            capability,
            Capability::Shader
                | Capability::Matrix
                | Capability::SampledBuffer
                | Capability::ImageBuffer
                | Capability::ImageQuery
        )
    });
    reason.map(|capability| format!("{capability:?}"))
}

/// Compares what spirv-reflect sees in `words` with our reflection of the same variant.
pub(super) fn compare(words: &[u32], kernel: &Reflection) -> Result<(), String> {
    let plain = reflect(words).map_err(|error| error.to_string())?;
    if let Some(constant) = plain.spec.first() {
        return Err(format!(
            "specialization constant {} ({}) is not declared through include/spec.glsl",
            constant.id, constant.name
        ));
    }
    let seen = read(words)?;
    let ours: Vec<_> = kernel.bindings.iter().map(|b| (b.set, b.binding, Some(b.kind))).collect();
    if ours != seen.bindings {
        return Err(format!("bindings differ: we read {ours:?}, spirv-reflect {:?}", seen.bindings));
    }
    let ours: Vec<_> = kernel
        .params
        .iter()
        .map(|param| (param.name.to_string(), param.offset_bytes, param.ty.bytes()))
        .collect();
    if ours != seen.params {
        return Err(format!("Params differ: we read {ours:?}, spirv-reflect {:?}", seen.params));
    }
    Ok(())
}

/// The results of spirv-reflect, in the order of our own reflection.
struct Seen {
    /// Set, binding, kind.
    bindings: Vec<(u32, u32, Option<BindingKind>)>,
    /// Name, offset, bytes.
    params: Vec<(String, u32, u32)>,
}

fn read(words: &[u32]) -> Result<Seen, String> {
    let mut module = ffi::SpvReflectShaderModule::default();
    // SAFETY: the pointer and the size describe `words`, which the call copies.
    let result = unsafe {
        ffi::spvReflectCreateShaderModule(size_of_val(words), words.as_ptr().cast(), &raw mut module)
    };
    if result != ffi::SpvReflectResult_SPV_REFLECT_RESULT_SUCCESS {
        return Err(format!("spirv-reflect: {}", result_to_string(result)));
    }
    // SAFETY: the module was created; its pointers and counts describe arrays that live until it is destroyed,
    // and everything is copied out of them before.
    let seen = unsafe {
        let mut bindings: Vec<_> = items(module.descriptor_bindings, module.descriptor_binding_count)
            .iter()
            .map(|binding| (binding.set, binding.binding, kind(binding.descriptor_type)))
            .collect();
        bindings.sort_by_key(|(set, binding, _)| (*set, *binding));
        bindings.dedup();
        let mut params: Vec<_> = items(module.push_constant_blocks, module.push_constant_block_count)
            .iter()
            .flat_map(|block| items(block.members, block.member_count))
            .map(|member| (name(member.name), member.offset, member.size))
            .collect();
        params.sort_by_key(|(_, offset, _)| *offset);
        Seen { bindings, params }
    };
    // SAFETY: the module was created and is not used again.
    unsafe { ffi::spvReflectDestroyShaderModule(&raw mut module) };
    Ok(seen)
}

/// The array of `count` items at `first`, which is null if there are none.
///
/// # Safety
/// `first` points to `count` items that live as long as the slice is used, or `count` is zero.
unsafe fn items<'a, T>(first: *const T, count: u32) -> &'a [T] {
    if first.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller says so, and the pointer is not null.
    unsafe { std::slice::from_raw_parts(first, count as usize) }
}

/// # Safety
/// `text` is null or a C string.
unsafe fn name(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller says so.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn kind(kind: ffi::SpvReflectDescriptorType) -> Option<BindingKind> {
    match kind {
        ffi::SpvReflectDescriptorType_SPV_REFLECT_DESCRIPTOR_TYPE_STORAGE_BUFFER => {
            Some(BindingKind::StorageBuffer)
        }
        ffi::SpvReflectDescriptorType_SPV_REFLECT_DESCRIPTOR_TYPE_UNIFORM_BUFFER => {
            Some(BindingKind::UniformBuffer)
        }
        ffi::SpvReflectDescriptorType_SPV_REFLECT_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER => {
            Some(BindingKind::UniformTexelBuffer)
        }
        ffi::SpvReflectDescriptorType_SPV_REFLECT_DESCRIPTOR_TYPE_STORAGE_TEXEL_BUFFER => {
            Some(BindingKind::StorageTexelBuffer)
        }
        ffi::SpvReflectDescriptorType_SPV_REFLECT_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER => {
            Some(BindingKind::SampledImage)
        }
        ffi::SpvReflectDescriptorType_SPV_REFLECT_DESCRIPTOR_TYPE_STORAGE_IMAGE => {
            Some(BindingKind::StorageImage)
        }
        _ => None,
    }
}
