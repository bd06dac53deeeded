//! The rules that every shipped kernel keeps, so that no backend has to handle anything else.

use onepool_spirv::reflect::Reflection;
use onepool_spirv::types::ScalarType;

/// Push-constant bytes that every device has.
const MAX_PARAMS_BYTES: u32 = 128;

/// Checks the interface of a shipped kernel.
pub(super) fn check(kernel: &Reflection) -> Result<(), String> {
    if kernel.entry_point != "main" {
        return Err(format!("the entry point is {}, not main", kernel.entry_point));
    }
    for (at, binding) in kernel.bindings.iter().enumerate() {
        if binding.set != 0 {
            return Err(format!("{} is in set {}, not 0", binding.name, binding.set));
        }
        if binding.binding as usize != at {
            return Err(format!("bindings must be numbered 0, 1, ..; {} breaks it", binding.name));
        }
    }
    if kernel.params_bytes > MAX_PARAMS_BYTES {
        return Err(format!("Params has {} bytes, more than {MAX_PARAMS_BYTES}", kernel.params_bytes));
    }
    let mut end = 0;
    for param in &kernel.params {
        let name = &param.name;
        if !matches!(param.ty.scalar, ScalarType::U32 | ScalarType::I32 | ScalarType::F32 | ScalarType::U64) {
            return Err(format!("Params.{name} is of type {:?}; use uint, int or float", param.ty.scalar));
        }
        if param.offset_bytes != end {
            return Err(format!(
                "Params.{name} is at byte {}, and the member before ends at {end}; order the members so \
                 that there is no gap",
                param.offset_bytes
            ));
        }
        let element = param.ty.scalar.bytes() * param.ty.components;
        if let Some((_, stride)) = param.ty.array
            && stride != element
        {
            return Err(format!("Params.{name} has a stride of {stride} bytes for {element}-byte elements"));
        }
        end += param.ty.bytes();
    }
    let align = kernel.params.iter().map(|param| param.ty.scalar.bytes()).max().unwrap_or(1);
    if !end.is_multiple_of(align) {
        return Err(format!("Params has {end} bytes; add members to make it a multiple of {align}"));
    }
    if let Some(unnamed) = kernel.spec.iter().find(|constant| constant.name.is_empty()) {
        return Err(format!("specialization constant {} has no name", unnamed.id));
    }
    if kernel.local_size.contains(&0) {
        return Err(format!("the work-group size is {:?}", kernel.local_size));
    }
    Ok(())
}
