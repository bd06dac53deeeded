//! The structures and numbers of `onepool.h`.

use std::ffi::{CStr, c_char, c_void};

use onepool::memory::import::{Path, ReadWrite};
use onepool::{DType, TensorInfo};

use crate::arg::{In, Structure, Text};
use crate::frame::Frame;
use crate::handle::Handle;
use crate::status::Failure;

/// `ONEPOOL_MAX_RANK`.
pub const MAX_RANK: usize = onepool::limits::MAX_RANK;

/// The element types, their numbers in the header (0 is none) and their names there.
pub const DTYPES: [(u32, &str, DType); 23] = [
    (1, "ONEPOOL_FLOAT32", DType::F32),
    (2, "ONEPOOL_FLOAT16", DType::F16),
    (3, "ONEPOOL_BFLOAT16", DType::BF16),
    (4, "ONEPOOL_FLOAT64", DType::F64),
    (5, "ONEPOOL_INT8", DType::I8),
    (6, "ONEPOOL_INT16", DType::I16),
    (7, "ONEPOOL_INT32", DType::I32),
    (8, "ONEPOOL_INT64", DType::I64),
    (9, "ONEPOOL_UINT8", DType::U8),
    (10, "ONEPOOL_UINT16", DType::U16),
    (11, "ONEPOOL_UINT32", DType::U32),
    (12, "ONEPOOL_UINT64", DType::U64),
    (13, "ONEPOOL_BOOL", DType::Bool),
    (14, "ONEPOOL_FLOAT8_E4M3FN", DType::F8E4M3Fn),
    (15, "ONEPOOL_FLOAT8_E4M3FNUZ", DType::F8E4M3FnUz),
    (16, "ONEPOOL_FLOAT8_E5M2", DType::F8E5M2),
    (17, "ONEPOOL_FLOAT8_E5M2FNUZ", DType::F8E5M2FnUz),
    (18, "ONEPOOL_FLOAT8_E8M0FNU", DType::F8E8M0),
    (19, "ONEPOOL_FLOAT4_E2M1FN", DType::F4E2M1),
    (20, "ONEPOOL_INT4", DType::I4),
    (21, "ONEPOOL_UINT4", DType::U4),
    (22, "ONEPOOL_INT2", DType::I2),
    (23, "ONEPOOL_UINT2", DType::U2),
];

/// The number of an element type in the header.
pub(crate) fn dtype_number(dtype: Option<DType>) -> u32 {
    DTYPES.iter().find(|(.., known)| Some(*known) == dtype).map_or(0, |(number, ..)| *number)
}

/// The element type of a number; 0 is none.
pub(crate) fn dtype_of(number: u32, argument: &str) -> Result<Option<DType>, Failure> {
    let known = DTYPES.iter().find(|(known, ..)| *known == number);
    match known {
        Some((.., dtype)) => Ok(Some(*dtype)),
        None if number == 0 => Ok(None),
        None => Err(Failure::argument(argument, format!("is {number}, which is no element type"))),
    }
}

/// The paths of verdicts, their numbers and names in the header.
pub const PATHS: [(u32, &str, Path); 6] = [
    (0, "ONEPOOL_PATH_HOST", Path::Host),
    (1, "ONEPOOL_PATH_DIRECT", Path::Direct),
    (2, "ONEPOOL_PATH_IMPORTED", Path::Imported),
    (3, "ONEPOOL_PATH_IMPORTED_DMA", Path::ImportedDma),
    (4, "ONEPOOL_PATH_DMA_BUF", Path::DmaBuf),
    (5, "ONEPOOL_PATH_STAGED", Path::Staged),
];

/// What a device does with a tensor, its numbers and names in the header.
pub const ACCESSES: [(u32, &str, ReadWrite); 3] = [
    (0, "ONEPOOL_READ", ReadWrite::Read),
    (1, "ONEPOOL_WRITE", ReadWrite::Write),
    (2, "ONEPOOL_READ_WRITE", ReadWrite::ReadWrite),
];

/// Kinds of [`Memory`]: their numbers and names in the header.
pub const KINDS: [(u32, &str); 5] = [
    (OWN, "ONEPOOL_MEMORY_OWN"),
    (POINTER, "ONEPOOL_MEMORY_POINTER"),
    (REGION, "ONEPOOL_MEMORY_REGION"),
    (VALUE, "ONEPOOL_MEMORY_VALUE"),
    (DLPACK, "ONEPOOL_MEMORY_DLPACK"),
];
pub(crate) const OWN: u32 = 0;
pub(crate) const POINTER: u32 = 1;
pub(crate) const REGION: u32 = 2;
pub(crate) const VALUE: u32 = 3;
pub(crate) const DLPACK: u32 = 4;

/// Other numbers of the header.
pub const NUMBERS: [(u32, &str); 31] = [
    (0, "ONEPOOL_DTYPE_NONE"),
    (0, "ONEPOOL_ACTIVATIONS_ALLOWED"),
    (1, "ONEPOOL_ACTIVATIONS_EXACT"),
    (0, "ONEPOOL_INTEGERS_AUTO"),
    (1, "ONEPOOL_INTEGERS_ALWAYS"),
    (2, "ONEPOOL_INTEGERS_NEVER"),
    (0, "ONEPOOL_TUNING_OFF"),
    (1, "ONEPOOL_TUNING_KEPT"),
    (2, "ONEPOOL_TUNING_WITHIN"),
    (0, "ONEPOOL_PLACE_NODE"),
    (1, "ONEPOOL_PLACE_OPERATOR"),
    (2, "ONEPOOL_PLACE_REST"),
    (0, "ONEPOOL_SUBMISSION_OF_ENVIRONMENT"),
    (1, "ONEPOOL_SUBMISSION_AUTO"),
    (2, "ONEPOOL_SUBMISSION_OFF"),
    (3, "ONEPOOL_SUBMISSION_AT_MOST"),
    (0, "ONEPOOL_WAIT_ADAPTIVE"),
    (1, "ONEPOOL_WAIT_BLOCK"),
    (2, "ONEPOOL_WAIT_SPIN"),
    (0, "ONEPOOL_PRIORITY_AUTO"),
    (1, "ONEPOOL_PRIORITY_NORMAL"),
    (0, "ONEPOOL_ROBUSTNESS_CALLERS"),
    (1, "ONEPOOL_ROBUSTNESS_ALL"),
    (2, "ONEPOOL_ROBUSTNESS_OFF"),
    (0, "ONEPOOL_PRECISION_F32"),
    (1, "ONEPOOL_PRECISION_F16"),
    (0, "ONEPOOL_PLACEMENT_MANUAL"),
    (1, "ONEPOOL_PLACEMENT_AUTO"),
    (0, "ONEPOOL_STRICT_AS_SESSION"),
    (1, "ONEPOOL_STRICT_ON"),
    (2, "ONEPOOL_STRICT_OFF"),
];

/// `onepool_session_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Size of the structure.
    pub struct_size: usize,
    /// Selectors of devices.
    pub devices: In<Text>,
    /// How many.
    pub device_count: usize,
    /// Folder of caches.
    pub cache_dir: Text,
    /// Bytes below which tensors are copied.
    pub copy_threshold: In<u64>,
    /// What the model computes in.
    pub precision: u32,
    /// How nodes get their devices.
    pub placement: u32,
    /// Threads of the CPU backend; 0 takes one for each core.
    pub threads: u32,
    /// Whether copies by the CPU are errors.
    pub strict: u32,
    /// Whether operators may not fall back to the CPU.
    pub no_fallback: u32,
    /// Zero.
    pub reserved: u32,
    /// Inputs and outputs that are frames.
    pub frames: In<Frame>,
    /// How many.
    pub frame_count: usize,
    /// The file of a TVM graph's parameters.
    pub params: Text,
    /// Whether nodes of a TVM graph run where no device of theirs is.
    pub any_device: u32,
    /// Whether activations may be rounded.
    pub activations: u32,
    /// Where operators compute with bytes.
    pub integers: u32,
    /// Whether hardware may interpolate coarsely.
    pub coarse_filter: u32,
    /// Whether operators are kept apart.
    pub no_fuse: u32,
    /// Which kernels run.
    pub tuning: u32,
    /// The most time to measure them.
    pub tuning_ns: u64,
    /// Folder of what was measured.
    pub tuning_dir: Text,
    /// Where nodes run.
    pub places: In<Place>,
    /// How many.
    pub place_count: usize,
    /// The most time that placement measures.
    pub placement_ns: In<u64>,
    /// How submissions are limited.
    pub submission: u32,
    /// How the host waits.
    pub wait: u32,
    /// How long a submission may be.
    pub submission_ns: u64,
    /// Whose work comes first.
    pub priority: u32,
    /// Which kernels are guarded.
    pub robustness: u32,
    /// Whether the API's validation is on.
    pub validation: u32,
    /// Whether files of weights are mapped.
    pub map_weights: u32,
}

/// `onepool_place`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Size of the structure.
    pub struct_size: usize,
    /// What is placed.
    pub kind: u32,
    /// The entry of the device table.
    pub device: u32,
    /// The node or the operator.
    pub name: Text,
}

// SAFETY: `repr(C)`, begins with its size, holds numbers and a pointer that may be anything.
unsafe impl Structure for Place {}

// SAFETY: `repr(C)`, begins with its size, holds numbers and pointers that may be anything.
unsafe impl Structure for SessionOptions {}

/// `onepool_io_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoInfo {
    /// Size of the structure.
    pub struct_size: usize,
    /// Its name.
    pub name: *const c_char,
    /// Its element type.
    pub dtype: u32,
    /// Whether the model declares sizes.
    pub has_shape: u32,
    /// How many sizes.
    pub rank: usize,
    /// The sizes, -1 where they are open.
    pub dims: [i64; MAX_RANK],
    /// Names of open sizes.
    pub symbols: [*const c_char; MAX_RANK],
}

// SAFETY: as above.
unsafe impl Structure for IoInfo {}

/// `onepool_tensor_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TensorInfoC {
    /// Size of the structure.
    pub struct_size: usize,
    /// Its element type.
    pub dtype: u32,
    /// Zero.
    pub reserved: u32,
    /// How many sizes.
    pub rank: usize,
    /// The sizes.
    pub dims: [i64; MAX_RANK],
    /// Its size.
    pub bytes: usize,
}

// SAFETY: as above.
unsafe impl Structure for TensorInfoC {}

impl TensorInfoC {
    pub(crate) fn new(info: &TensorInfo, struct_size: usize) -> Self {
        let mut dims = [0; MAX_RANK];
        for (to, from) in dims.iter_mut().zip(info.shape.iter()) {
            *to = *from as i64;
        }
        let (dtype, rank, bytes) = (dtype_number(Some(info.dtype)), info.shape.rank(), info.bytes());
        TensorInfoC { struct_size, dtype, reserved: 0, rank, dims, bytes }
    }
}

/// `onepool_memory`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Size of the structure.
    pub struct_size: usize,
    /// The input or output.
    pub name: Text,
    /// What it is.
    pub kind: u32,
    /// The element type.
    pub dtype: u32,
    /// The first byte.
    pub data: *mut c_void,
    /// How many bytes.
    pub bytes: usize,
    /// The region.
    pub region: Handle,
    /// Where in the region.
    pub offset: usize,
    /// The sizes.
    pub dims: In<i64>,
    /// Strides in elements.
    pub strides: In<i64>,
    /// How many sizes and strides.
    pub rank: usize,
    /// Called when the library has let go of the memory.
    pub release: Option<extern "C" fn(*mut c_void)>,
    /// Its argument.
    pub user: *mut c_void,
    /// Of an output, the input that is the same memory.
    pub updates: Text,
}

// SAFETY: as above; a function pointer is null or an address that nothing follows before the caller's promise holds.
unsafe impl Structure for Memory {}

/// `onepool_verdict`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Size of the structure.
    pub struct_size: usize,
    /// Name of the tensor.
    pub tensor: *const c_char,
    /// The path taken.
    pub path: u32,
    /// What the device does with it.
    pub access: u32,
    /// Size of the tensor.
    pub bytes: u64,
    /// Where in its import it starts.
    pub offset: u64,
    /// Bytes that the CPU copies in each run.
    pub cpu_copied: u64,
    /// Bytes that the device copies in each run.
    pub device_copied: u64,
    /// Why this path.
    pub reason: *const c_char,
    /// What would make it better.
    pub fix: *const c_char,
    /// All of it in one sentence.
    pub sentence: *const c_char,
}

// SAFETY: as above.
unsafe impl Structure for Verdict {}

/// `onepool_run_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Size of the structure.
    pub struct_size: usize,
    /// Nanoseconds after which the run ends; 0 for none.
    pub time_limit_ns: u64,
    /// What cancels it.
    pub cancel: Handle,
}

// SAFETY: as above.
unsafe impl Structure for RunOptions {}

/// The name of an element type, as "float32"; null for another number.
#[unsafe(no_mangle)] // SAFETY: no other library has names that begin with `onepool_`.
pub extern "C" fn onepool_dtype_name(dtype: u32) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"none",
        c"float32",
        c"float16",
        c"bfloat16",
        c"float64",
        c"int8",
        c"int16",
        c"int32",
        c"int64",
        c"uint8",
        c"uint16",
        c"uint32",
        c"uint64",
        c"bool",
        c"float8_e4m3fn",
        c"float8_e4m3fnuz",
        c"float8_e5m2",
        c"float8_e5m2fnuz",
        c"float8_e8m0fnu",
        c"float4_e2m1fn",
        c"int4",
        c"uint4",
        c"int2",
        c"uint2",
    ];
    NAMES.get(dtype as usize).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Bytes of one element; 0 for `ONEPOOL_DTYPE_NONE` and other numbers.
#[unsafe(no_mangle)] // SAFETY: as above.
pub extern "C" fn onepool_dtype_bytes(dtype: u32) -> usize {
    DTYPES.iter().find(|(number, ..)| *number == dtype).map_or(0, |(.., dtype)| dtype.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_type_has_its_number_and_name() {
        for dtype in DType::ALL {
            let number = dtype_number(Some(dtype));
            assert_eq!(dtype_of(number, "x").unwrap(), Some(dtype));
            assert_eq!(onepool_dtype_bytes(number), dtype.bytes());
            // SAFETY: a string of this file.
            let name = unsafe { CStr::from_ptr(onepool_dtype_name(number)) };
            assert_eq!(name.to_str().unwrap(), dtype.name());
        }
        assert_eq!(dtype_number(None), 0);
        assert!(dtype_of(24, "x").is_err() && onepool_dtype_name(24).is_null());
    }
}
