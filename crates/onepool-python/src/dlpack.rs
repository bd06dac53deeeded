//! Tensors of other libraries by DLPack, in and out, in capsules.

#![allow(unsafe_code, reason = "DLPack hands over pointers")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use onepool::dlpack::{
    COPIED, CPU, DataType, Device, DlTensor, LegacyTensor, MAJOR, ManagedTensor, PADDED, READ_ONLY, Version,
};
use onepool::{Shape, SharedRegion, TensorInfo, limits};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::errors::{Class, raised_of};

/// The device of the process's memory: type and number.
pub(crate) const HERE: (i32, i32) = (CPU, 0);

const VERSIONED: &std::ffi::CStr = c"dltensor_versioned";
const LEGACY: &std::ffi::CStr = c"dltensor";

/// A tensor of another library's, which is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Managed(Owned);

#[derive(Debug)]
enum Owned {
    Versioned(NonNull<ManagedTensor>),
    Legacy(NonNull<LegacyTensor>),
}

// SAFETY: the pointer is handed back to the deleter alone, which any thread may call.
unsafe impl Send for Managed {}
// SAFETY: as above; nothing is read through a shared reference.
unsafe impl Sync for Managed {}

impl Drop for Managed {
    fn drop(&mut self) {
        // After the end of the interpreter its objects are no one's.
        let _ = Python::try_attach(|_| match self.0 {
            Owned::Versioned(tensor) => {
                // SAFETY: the capsule gave the tensor to this value alone, which deletes it once.
                if let Some(delete) = unsafe { tensor.read() }.deleter {
                    delete(tensor.as_ptr());
                }
            }
            Owned::Legacy(tensor) => {
                // SAFETY: as above.
                if let Some(delete) = unsafe { tensor.read() }.deleter {
                    delete(tensor.as_ptr());
                }
            }
        });
    }
}

/// A tensor of another library's, as its description says.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) managed: Managed,
    pub(crate) info: TensorInfo,
    /// In elements; none where the tensor is compact.
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) start: *mut c_void,
    pub(crate) readonly: bool,
}

/// Takes the tensor of an object with `__dlpack__`.
pub(crate) fn take(object: &Bound<'_, PyAny>, argument: &str) -> PyResult<Taken> {
    let py = object.py();
    let wrong = |problem: String| Class::ArrayType.says(py, format!("{argument}: {problem}"));
    let refused = |error: PyErr| wrong(format!("gives no tensor by DLPack: {error}"));
    let device = object.call_method0("__dlpack_device__").and_then(|device| device.extract::<(i32, i32)>());
    let (device, _) = device.map_err(refused)?;
    if device != CPU {
        return Err(wrong(format!("is on DLPack device type {device}, expected the CPU ({CPU})")));
    }
    let keywords = PyDict::new(py);
    keywords.set_item("max_version", (MAJOR, 0))?;
    let capsule = match object.call_method("__dlpack__", (), Some(&keywords)) {
        // Libraries of before DLPack 1 do not know the word.
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => {
            object.call_method0("__dlpack__")
        }
        made => made,
    };
    let capsule = capsule.and_then(|made| Ok(made.cast_into::<PyCapsule>()?)).map_err(refused)?;
    let (owned, tensor, flags) = if capsule.is_valid_checked(Some(VERSIONED)) {
        let pointer = capsule.pointer_checked(Some(VERSIONED))?.cast::<ManagedTensor>();
        // SAFETY: a capsule of this name holds a tensor whose layout begins with a version.
        let version = unsafe { pointer.cast::<Version>().read() };
        if version.major != MAJOR {
            return Err(wrong(format!("is of DLPack {}.{}, expected {MAJOR}", version.major, version.minor)));
        }
        // SAFETY: the layout is that of its major version.
        let managed = unsafe { pointer.read() };
        // SAFETY: the capsule is valid; DLPack has a consumer rename it, so that its destructor deletes nothing.
        unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), c"used_dltensor_versioned".as_ptr()) };
        (Owned::Versioned(pointer), managed.tensor, managed.flags)
    } else {
        let pointer = capsule.pointer_checked(Some(LEGACY)).map_err(refused)?.cast::<LegacyTensor>();
        // SAFETY: a capsule of this name holds such a tensor.
        let managed = unsafe { pointer.read() };
        // SAFETY: as above.
        unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), c"used_dltensor".as_ptr()) };
        // This layout cannot say that its bytes must not be written, so they are not.
        (Owned::Legacy(pointer), managed.tensor, READ_ONLY | PADDED)
    };
    let managed = Managed(owned);
    let dtype = tensor.dtype.element().ok_or_else(|| {
        Class::DType
            .says(py, format!("{argument}: has elements of {:?}, which there are none of here", tensor.dtype))
    })?;
    if tensor.dtype.bits < 8 && flags & PADDED == 0 {
        return Err(
            Class::DType.says(py, format!("{argument}: packs elements of {dtype}; they need a byte each"))
        );
    }
    let rank = usize::try_from(tensor.ndim).ok().filter(|rank| *rank <= limits::MAX_RANK);
    let rank =
        rank.ok_or_else(|| wrong(format!("has {} dimensions, at most {}", tensor.ndim, limits::MAX_RANK)))?;
    let list = |values: *mut i64| match (rank, values.is_null()) {
        (0, _) | (_, true) => Vec::new(),
        // SAFETY: the producer has so many there until its deleter is called.
        _ => unsafe { slice::from_raw_parts(values, rank) }.to_vec(),
    };
    let shape = Shape::from_i64(&list(tensor.shape)).map_err(|e| raised_of(py, argument, e))?;
    let strides = (!tensor.strides.is_null()).then(|| list(tensor.strides));
    let offset = usize::try_from(tensor.byte_offset).ok().filter(|offset| *offset <= isize::MAX as usize);
    let offset = offset.ok_or_else(|| wrong("has an impossible byte_offset".to_owned()))?;
    let start = tensor.data.wrapping_byte_add(offset);
    let info = TensorInfo::new(dtype, shape);
    if tensor.data.is_null() && info.bytes() > 0 {
        return Err(wrong("has no data".to_owned()));
    }
    Ok(Taken { managed, info, strides, start, readonly: flags & READ_ONLY != 0 })
}

/// What a tensor that was handed out keeps until its deleter is called.
struct Kept<T> {
    dims: Vec<i64>,
    strides: Vec<i64>,
    _region: Arc<SharedRegion>,
    managed: T,
}

/// A capsule over the bytes of a tensor.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    (region, info): (&Arc<SharedRegion>, &TensorInfo),
    versioned: bool,
    copied: bool,
) -> PyResult<Bound<'py, PyCapsule>> {
    let signed = |sizes: &[usize]| sizes.iter().map(|s| i64::try_from(*s).unwrap_or(i64::MAX)).collect();
    let dtype = DataType::of(info.dtype);
    let plain = DlTensor {
        data: region.as_ptr().as_ptr().cast(),
        device: Device { device_type: HERE.0, device_id: HERE.1 },
        ndim: info.shape.rank() as i32,
        dtype,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let (dims, strides): (Vec<i64>, Vec<i64>) = (signed(&info.shape), signed(&info.shape.strides()));
    let _region = Arc::clone(region);
    if versioned {
        let copied = if copied { COPIED } else { 0 };
        let padded = if dtype.bits < 8 { PADDED } else { 0 };
        let version = Version { major: MAJOR, minor: 0 };
        let managed = ManagedTensor {
            version,
            manager_ctx: ptr::null_mut(),
            deleter: Some(delete_versioned),
            flags: copied | padded,
            tensor: plain,
        };
        let mut kept = Box::new(Kept { dims, strides, _region, managed });
        kept.managed.tensor.shape = kept.dims.as_mut_ptr();
        kept.managed.tensor.strides = kept.strides.as_mut_ptr();
        let kept = Box::into_raw(kept);
        // SAFETY: the box was just made and is no one else's.
        let managed = unsafe {
            (*kept).managed.manager_ctx = kept.cast();
            NonNull::from(&mut (*kept).managed)
        };
        // SAFETY: the tensor lives until its deleter is called, which the destructor does where no consumer took it.
        return unsafe {
            PyCapsule::new_with_pointer_and_destructor(py, managed.cast(), VERSIONED, Some(drop_versioned))
        };
    }
    let managed = LegacyTensor { tensor: plain, manager_ctx: ptr::null_mut(), deleter: Some(delete_legacy) };
    let mut kept = Box::new(Kept { dims, strides, _region, managed });
    kept.managed.tensor.shape = kept.dims.as_mut_ptr();
    kept.managed.tensor.strides = kept.strides.as_mut_ptr();
    let kept = Box::into_raw(kept);
    // SAFETY: as above.
    let managed = unsafe {
        (*kept).managed.manager_ctx = kept.cast();
        NonNull::from(&mut (*kept).managed)
    };
    // SAFETY: as above.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, managed.cast(), LEGACY, Some(drop_legacy)) }
}

extern "C" fn delete_versioned(tensor: *mut ManagedTensor) {
    if !tensor.is_null() {
        // SAFETY: the tensor is of `capsule`, whose context is the box, and a consumer deletes it once.
        drop(unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Kept<ManagedTensor>>()) });
    }
}

extern "C" fn delete_legacy(tensor: *mut LegacyTensor) {
    if !tensor.is_null() {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Kept<LegacyTensor>>()) });
    }
}

/// # Safety
/// The interpreter calls it with a capsule of [`capsule`].
unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is the interpreter's; one that was taken has another name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// # Safety
/// As [`drop_versioned`].
unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) != 0 {
            delete_legacy(ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()).cast());
        }
    }
}
