//! Tensors of other libraries, by DLPack 1: the layout of its `DLManagedTensorVersioned`, in and out.

use std::ffi::c_void;
use std::ptr;

use onepool::dlpack::{
    COPIED, CPU, DataType, Device, DlTensor, MAJOR, ManagedTensor, PADDED, READ_ONLY, Version,
};
use onepool::{Shape, Tensor, TensorInfo};

use crate::arg::{In, null};
use crate::caller::{Foreign, Side, check_strides};
use crate::region::View;
use crate::status::{Failure, Status};
use crate::types::MAX_RANK;

/// A tensor of another library's.
#[derive(Debug)]
pub(crate) struct Managed {
    tensor: Foreign<ManagedTensor>,
    pub(crate) info: TensorInfo,
    /// Its first byte.
    pub(crate) start: *mut c_void,
}

impl Managed {
    pub(crate) fn read(tensor: *mut c_void, side: Side, name: &str, argument: &str) -> Result<Self, Failure> {
        let tensor: *mut ManagedTensor = tensor.cast();
        if tensor.is_null() {
            return Err(null(argument));
        }
        // SAFETY: not null; every layout of DLPack's managed tensors begins with a version, as the caller promised.
        let version = unsafe { tensor.cast::<Version>().read_unaligned() };
        if version.major != MAJOR {
            let problem = format!("is of DLPack {}.{}, expected {MAJOR}", version.major, version.minor);
            return Err(Failure::argument(argument, problem));
        }
        // SAFETY: the layout is that of its major version, as the caller promised.
        let ManagedTensor { flags, tensor: t, .. } = unsafe { tensor.read_unaligned() };
        if t.device.device_type != CPU {
            let problem = format!("is on device type {}, expected the CPU (1)", t.device.device_type);
            return Err(Failure::argument(argument, problem));
        }
        if side == Side::Output && flags & READ_ONLY != 0 {
            return Err(Failure::argument(argument, "is read-only, so no output can be written there"));
        }
        let Some(dtype) = t.dtype.element() else {
            return Err(Failure::new(
                Status::WrongType,
                format!("argument `{argument}` has elements of {:?}, which there are none of here", t.dtype),
            ));
        };
        if t.dtype.bits < 8 && flags & PADDED == 0 {
            return Err(Failure::new(
                Status::WrongType,
                format!(
                    "argument `{argument}` packs elements of {} bits; they need a byte each",
                    t.dtype.bits
                ),
            ));
        }
        let rank = usize::try_from(t.ndim).map_err(|_| Failure::argument(argument, "has a negative rank"))?;
        let dims = list(t.shape, rank, argument)?;
        let shape = Shape::from_i64(&dims).map_err(|e| Failure::from(e).of(argument))?;
        if !t.strides.is_null() {
            check_strides(name, &shape, &list(t.strides, rank, argument)?)?;
        }
        let info = TensorInfo::new(dtype, shape);
        let offset = usize::try_from(t.byte_offset).ok().filter(|offset| *offset <= isize::MAX as usize);
        let offset = offset.ok_or_else(|| Failure::argument(argument, "has an impossible byte_offset"))?;
        if t.data.is_null() && info.bytes() > 0 {
            return Err(Failure::argument(argument, "has no data"));
        }
        let start = t.data.wrapping_byte_add(offset);
        Ok(Managed { tensor: Foreign(tensor), info, start })
    }

    /// Gives it back.
    pub(crate) fn delete(self) {
        let tensor = self.tensor.pointer();
        // SAFETY: it was taken over when the call that was given it succeeded, and is given back once.
        let deleter = unsafe { tensor.read_unaligned() }.deleter;
        if let Some(deleter) = deleter {
            deleter(tensor);
        }
    }
}

// SAFETY: the pointers are handed back to the deleter, which any thread may call, and to the import of the bytes.
unsafe impl Send for Managed {}

fn list(values: *mut i64, rank: usize, argument: &str) -> Result<Vec<i64>, Failure> {
    In::from_field(values).values(rank, MAX_RANK, argument)
}

/// What a tensor of this library's keeps until its deleter is called.
struct Kept {
    dims: Vec<i64>,
    strides: Vec<i64>,
    _view: Option<View>,
    _value: Option<Tensor>,
    managed: ManagedTensor,
}

/// A tensor in place, which is kept from runs until it is deleted.
pub(crate) fn of_view(info: &TensorInfo, view: View) -> *mut ManagedTensor {
    let start = view.start();
    managed(info, start, READ_ONLY, Some(view), None)
}

/// A copy.
pub(crate) fn of_value(value: Tensor) -> *mut ManagedTensor {
    let start = value.bytes().as_ptr().cast_mut().cast();
    managed(&value.info().clone(), start, READ_ONLY | COPIED, None, Some(value))
}

fn managed(
    info: &TensorInfo,
    data: *mut c_void,
    flags: u64,
    view: Option<View>,
    value: Option<Tensor>,
) -> *mut ManagedTensor {
    let signed = |sizes: &[usize]| sizes.iter().map(|s| i64::try_from(*s).unwrap_or(i64::MAX)).collect();
    let (dims, strides): (Vec<i64>, Vec<i64>) = (signed(&info.shape), signed(&info.shape.strides()));
    let dtype = DataType::of(info.dtype);
    let flags = if dtype.bits < 8 { flags | PADDED } else { flags };
    let tensor = DlTensor {
        data,
        device: Device { device_type: CPU, device_id: 0 },
        ndim: info.shape.rank() as i32,
        dtype,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let version = Version { major: MAJOR, minor: 0 };
    let managed =
        ManagedTensor { version, manager_ctx: ptr::null_mut(), deleter: Some(delete), flags, tensor };
    let kept = Box::into_raw(Box::new(Kept { dims, strides, _view: view, _value: value, managed }));
    // SAFETY: the box was just made and is no one else's; its lists do not move with it.
    unsafe {
        (*kept).managed.tensor.shape = (*kept).dims.as_mut_ptr();
        (*kept).managed.tensor.strides = (*kept).strides.as_mut_ptr();
        (*kept).managed.manager_ctx = kept.cast();
        &raw mut (*kept).managed
    }
}

extern "C" fn delete(tensor: *mut ManagedTensor) {
    let delete = || {
        if !tensor.is_null() {
            // SAFETY: the tensor is of `managed`, whose context is the box, and a consumer deletes it once.
            drop(unsafe { Box::from_raw((*tensor).manager_ctx.cast::<Kept>()) });
        }
        Ok(())
    };
    // There is no one to tell of a defect.
    let _ = crate::status::caught(delete);
}
