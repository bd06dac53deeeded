//! Arrays of the caller's: what they are, and how they are lent to a session.

#![allow(unsafe_code, reason = "memory that the interpreter keeps is lent to devices")]

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use onepool::device::Lent;
use onepool::memory::import::ReadWrite;
use onepool::ops::movement::StridedView;
use onepool::session::{Memory, SessionError};
use onepool::{DType, Shape, SharedRegion, TensorInfo};
use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyMemoryView;

use crate::dlpack::{self, Managed};
use crate::errors::{Class, raised, raised_of};
use crate::tensor::Tensor;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Input,
    Output,
    /// An input and an output.
    Update,
}

impl Side {
    /// What messages call the array `name`.
    pub(crate) fn argument(self, name: &str) -> String {
        match self {
            Side::Input => format!("input {name:?}"),
            Side::Output => format!("output {name:?}"),
            Side::Update => format!("update {name:?}"),
        }
    }
}

/// What keeps the bytes of an array.
#[derive(Debug)]
#[expect(dead_code, reason = "kept for what dropping does")]
enum Keep {
    Buffer(PyUntypedBuffer),
    Managed(Managed),
    Region(Arc<SharedRegion>),
}

/// An array of the caller's.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) info: TensorInfo,
    /// The first element.
    start: NonNull<u8>,
    /// In elements; none where the array is compact.
    strides: Option<Vec<i64>>,
    /// Whether the strides are whole elements.
    aligned: bool,
    readonly: bool,
    keep: Keep,
}

impl Array {
    /// The array that `object` is; `argument` is what messages call it.
    pub(crate) fn of(object: &Bound<'_, PyAny>, argument: &str) -> PyResult<Self> {
        let py = object.py();
        if let Ok(tensor) = object.cast::<Tensor>() {
            return Ok(Array::of_tensor(tensor.get()));
        }
        if let Ok(buffer) = PyUntypedBuffer::get(object) {
            return Array::of_buffer(py, buffer, None, argument);
        }
        if let Some(array) = Array::of_numpy(object, argument)? {
            return Ok(array);
        }
        if object.hasattr("__dlpack__")? {
            return Array::of_dlpack(object, argument);
        }
        let viewed = object.is_instance_of::<PyMemoryView>();
        if viewed || object.hasattr("__array__")? || object.hasattr("__array_interface__")? {
            let array = numpy(py)?.call_method1("asarray", (object,))?;
            let made = match PyUntypedBuffer::get(&array) {
                Ok(buffer) => Some(Array::of_buffer(py, buffer, None, argument)?),
                Err(_) => Array::of_numpy(&array, argument)?,
            };
            if let Some(mut made) = made {
                // It may be a copy, where no one would look for a result.
                made.readonly |= !viewed;
                return Ok(made);
            }
        }
        let kind = object.get_type().qualname()?;
        Err(Class::ArrayType.says(
            py,
            format!("{argument}: {kind} is no array of numbers; give a NumPy array, or what has the buffer protocol or DLPack"),
        ))
    }

    pub(crate) fn of_tensor(tensor: &Tensor) -> Self {
        let region = Arc::clone(tensor.region());
        let (info, start) = (tensor.info().clone(), region.as_ptr());
        Array { info, start, strides: None, aligned: true, readonly: false, keep: Keep::Region(region) }
    }

    /// NumPy's arrays and numbers whose buffer cannot be had as it is: those of element types of ml_dtypes, which the
    /// protocol has no format for, and those of no dimensions, whose list of sizes is null.
    fn of_numpy(object: &Bound<'_, PyAny>, argument: &str) -> PyResult<Option<Self>> {
        let py = object.py();
        let number = object.is_instance(&numpy(py)?.getattr("generic")?)?;
        if !number && !object.is_instance(&numpy(py)?.getattr("ndarray")?)? {
            return Ok(None);
        }
        let name: String = object.getattr("dtype")?.getattr("name")?.extract()?;
        let Some(dtype) = DType::from_name(&name) else { return Ok(None) };
        let scalar = object.getattr("ndim")?.extract::<usize>()? == 0;
        let viewed = if scalar { object.call_method1("reshape", (1,))? } else { object.clone() };
        let bytes = match dtype {
            DType::Bool => "bool".to_owned(),
            _ => format!("u{}", dtype.bytes()),
        };
        let native = object.getattr("dtype")?.getattr("isnative")?.extract::<bool>()?;
        if !native {
            return Ok(None);
        }
        let buffer = PyUntypedBuffer::get(&viewed.call_method1("view", (bytes,))?)?;
        let mut array = Array::of_buffer(py, buffer, Some(dtype), argument)?;
        if scalar {
            array.info.shape = Shape::scalar();
        }
        // What was made of a number is a copy of it.
        array.readonly |= number;
        Ok(Some(array))
    }

    fn of_buffer(
        py: Python<'_>,
        buffer: PyUntypedBuffer,
        dtype: Option<DType>,
        argument: &str,
    ) -> PyResult<Self> {
        let wrong = |problem: String| Class::DType.says(py, format!("{argument}: {problem}"));
        let format = buffer.format();
        let dtype = match dtype {
            Some(dtype) => dtype,
            None => element(format.to_bytes(), ElementType::from_format(format)).ok_or_else(|| {
                wrong(format!("has elements of format {format:?}, which there are none of here"))
            })?,
        };
        if buffer.item_size() != dtype.bytes() {
            return Err(wrong(format!(
                "has elements of {} bytes, not {}",
                buffer.item_size(),
                dtype.bytes()
            )));
        }
        if buffer.suboffsets().is_some() {
            return Err(Class::ArrayType.says(py, format!("{argument}: lies in several pieces (suboffsets)")));
        }
        let shape = Shape::new(buffer.shape()).map_err(|e| raised_of(py, argument, e))?;
        let size = dtype.bytes() as i64;
        let strides: Vec<i64> = buffer.strides().iter().map(|s| *s as i64).collect();
        let whole = strides.iter().all(|stride| stride % size == 0);
        let elements: Vec<i64> = strides.iter().map(|stride| stride / size).collect();
        let compact = whole && shape.is_compact(&elements);
        let start = NonNull::new(buffer.buf_ptr().cast()).unwrap_or(NonNull::dangling());
        let strides = (!compact).then_some(elements);
        let readonly = buffer.readonly();
        Ok(Array {
            info: TensorInfo::new(dtype, shape),
            start,
            strides,
            aligned: whole,
            readonly,
            keep: Keep::Buffer(buffer),
        })
    }

    fn of_dlpack(object: &Bound<'_, PyAny>, argument: &str) -> PyResult<Self> {
        let taken = dlpack::take(object, argument)?;
        let strides = taken.strides.filter(|strides| !taken.info.shape.is_compact(strides));
        let start = NonNull::new(taken.start.cast()).unwrap_or(NonNull::dangling());
        Ok(Array {
            info: taken.info,
            start,
            strides,
            aligned: true,
            readonly: taken.readonly,
            keep: Keep::Managed(taken.managed),
        })
    }

    /// Checks the element type.
    pub(crate) fn check_dtype(
        &self,
        py: Python<'_>,
        name: &str,
        side: Side,
        expected: DType,
    ) -> PyResult<()> {
        let got = self.info.dtype;
        if got == expected {
            return Ok(());
        }
        let error = SessionError::DType { name: name.to_owned(), expected, got };
        Err(raised_of(py, &side.argument(name), error))
    }

    /// A copy of a compact array.
    pub(crate) fn copied(&self, py: Python<'_>, argument: &str) -> PyResult<onepool::Tensor> {
        if self.strides.is_some() {
            return Err(Class::Shape.says(py, format!("{argument}: is not C-contiguous")));
        }
        let bytes = match self.info.bytes() {
            0 => &[][..],
            // SAFETY: `keep` holds so many bytes there, and the interpreter runs nothing else meanwhile.
            bytes => unsafe { slice::from_raw_parts(self.start.as_ptr(), bytes) },
        };
        onepool::Tensor::from_bytes(self.info.clone(), bytes).map_err(|e| raised_of(py, argument, e))
    }

    /// The strides of an array that does not lie compactly.
    pub(crate) fn strided(&self) -> Option<&[i64]> {
        self.strides.as_deref()
    }

    /// Where the elements of an array with strides lie; none where those are no whole elements.
    pub(crate) fn view(&self) -> Option<StridedView> {
        let strides = self.strides.as_deref().filter(|_| self.aligned)?;
        let dims: Vec<(usize, i64)> = self.info.shape.iter().copied().zip(strides.iter().copied()).collect();
        StridedView::new(&dims).ok()
    }

    /// The memory from the lowest element to the end of the highest one, to be read by a session with `view`.
    pub(crate) fn lend_view(self, view: &StridedView) -> PyResult<Memory<'static>> {
        let size = self.info.dtype.bytes();
        // Of an array without elements the address may be anything.
        let before = if view.memory_elements() == 0 { 0 } else { view.first_element() * size };
        let lowest = self.start.as_ptr().wrapping_sub(before);
        let start = NonNull::new(lowest).unwrap_or(NonNull::dangling());
        let bytes = (view.memory_elements() * size) as u64;
        let (keep, shape) = (self.keep, Shape::new([view.memory_elements()]).unwrap_or_default());
        let release = Box::new(move || drop(keep));
        // SAFETY: `keep` holds the bytes of all elements, and so those between them, until the release; that the program
        // leaves them alone while a run uses them is said to its author.
        let lent = unsafe { Lent::raw(start, bytes, ReadWrite::Read, release) };
        Ok(Memory::lent(lent).shape(shape))
    }

    /// The `bytes` bytes of a frame's memory, whose rows begin `stride` bytes apart.
    pub(crate) fn lend_rows(
        self,
        py: Python<'_>,
        argument: &str,
        side: Side,
        bytes: u64,
        stride: u64,
    ) -> PyResult<Memory<'static>> {
        let wrong = |problem: String| Err(Class::Shape.says(py, format!("{argument}: {problem}")));
        let (dims, size) = (self.info.shape.dims().to_vec(), self.info.dtype.bytes() as u64);
        let rows = dims.first().copied().unwrap_or(1) as u64;
        let row_bytes = dims.iter().skip(1).map(|n| *n as u64).product::<u64>() * size;
        let got = match &self.strides {
            None => row_bytes,
            Some(strides) => {
                let row = Shape::new(dims.get(1..).unwrap_or_default()).unwrap_or_default();
                let outer = strides.first().copied().and_then(|stride| u64::try_from(stride).ok());
                match outer.filter(|_| self.aligned && row.is_compact(&strides[1..])) {
                    Some(outer) => outer * size,
                    None => {
                        let problem =
                            "a frame has rows of whole pixels from top to bottom, and each is compact";
                        return wrong(format!("{problem}; got strides of {strides:?} elements"));
                    }
                }
            }
        };
        if dims.len() > 1 && rows > 1 && got != stride {
            return wrong(format!("its rows are {got} bytes apart, and those of the frame {stride}"));
        }
        let reach = if rows == 0 { 0 } else { got * (rows - 1) + row_bytes };
        if reach < bytes {
            return wrong(format!("has {reach} bytes, and the frame needs {bytes}"));
        }
        if self.readonly && side == Side::Output {
            let problem = "is read-only, so no result can be written there";
            return Err(Class::Argument.says(py, format!("{argument}: {problem}")));
        }
        let access = if side == Side::Input { ReadWrite::Read } else { ReadWrite::ReadWrite };
        let keep = self.keep;
        let release = Box::new(move || drop(keep));
        // SAFETY: as in `lend`.
        let lent = unsafe { Lent::raw(self.start, bytes, access, release) };
        Ok(Memory::lent(lent).shape(Shape::new([bytes as usize]).unwrap_or_default()))
    }

    /// Memory for a compact array, which is kept until every device has let go of it.
    pub(crate) fn lend(self, py: Python<'_>, name: &str, side: Side) -> PyResult<Memory<'static>> {
        if let Some(got) = self.strides {
            let expected = self.info.shape.strides().iter().map(|s| *s as i64).collect();
            return Err(raised(py, SessionError::Strides { name: name.to_owned(), expected, got }));
        }
        let access = match side {
            Side::Input => ReadWrite::Read,
            Side::Output | Side::Update if self.readonly => {
                let argument = side.argument(name);
                return Err(Class::Argument
                    .says(py, format!("{argument}: is read-only, so no result can be written there")));
            }
            Side::Output | Side::Update => ReadWrite::ReadWrite,
        };
        let keep = self.keep;
        let release = Box::new(move || drop(keep));
        let bytes = self.info.bytes() as u64;
        // SAFETY: `keep` holds the array's bytes where they are until the release; that the program leaves them alone
        // while a run uses them is said to its author.
        let lent = unsafe { Lent::raw(self.start, bytes, access, release) };
        Ok(Memory::lent(lent).shape(self.info.shape))
    }
}

// SAFETY: what is at the address is reached through the session that it is lent to alone.
unsafe impl Send for Array {}

/// The element type of a buffer's format.
fn element(format: &[u8], kind: ElementType) -> Option<DType> {
    let foreign = if cfg!(target_endian = "little") { b">!".as_slice() } else { b"<".as_slice() };
    let swapped = format.first().is_some_and(|first| foreign.contains(first));
    let dtype = match kind {
        ElementType::Bool => DType::Bool,
        ElementType::Float { bytes: 2 } => DType::F16,
        ElementType::Float { bytes: 4 } => DType::F32,
        ElementType::Float { bytes: 8 } => DType::F64,
        ElementType::SignedInteger { bytes: 1 } => DType::I8,
        ElementType::SignedInteger { bytes: 2 } => DType::I16,
        ElementType::SignedInteger { bytes: 4 } => DType::I32,
        ElementType::SignedInteger { bytes: 8 } => DType::I64,
        ElementType::UnsignedInteger { bytes: 1 } => DType::U8,
        ElementType::UnsignedInteger { bytes: 2 } => DType::U16,
        ElementType::UnsignedInteger { bytes: 4 } => DType::U32,
        ElementType::UnsignedInteger { bytes: 8 } => DType::U64,
        _ => return None,
    };
    (!swapped || dtype.bytes() == 1).then_some(dtype)
}

fn numpy<'py>(py: Python<'py>) -> PyResult<&'py Bound<'py, PyModule>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = NUMPY.get_or_try_init(py, || py.import("numpy").map(Bound::unbind))?;
    Ok(module.bind(py))
}

/// An input that does not lie compactly: it is copied into a compact array before each run.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) name: String,
    /// Why.
    pub(crate) reason: String,
    source: Py<PyAny>,
    compact: Py<PyAny>,
}

impl Packed {
    /// A compact array for `object`, and memory of it.
    pub(crate) fn new(
        object: &Bound<'_, PyAny>,
        array: &Array,
        name: &str,
    ) -> PyResult<(Self, Memory<'static>)> {
        let py = object.py();
        let argument = Side::Input.argument(name);
        let numpy = numpy(py)?;
        let tensor = Tensor::zeros(py, &argument, array.info.clone())?;
        let viewed = match object.hasattr("__array_interface__")? || !object.hasattr("__dlpack__")? {
            true => numpy.call_method1("asarray", (object,)),
            false => numpy.call_method1("from_dlpack", (object,)),
        };
        let source = viewed.map_err(|e| {
            Class::ArrayType
                .says(py, format!("{argument}: cannot be made C-contiguous ({e}); give a contiguous array"))
        })?;
        let reason = match array.aligned {
            true => "it is small and not C-contiguous, so a copy is faster",
            false => "its strides are no whole elements, so it is not used in place",
        };
        let reason = reason.to_owned();
        let compact = tensor.array(py)?.unbind();
        let memory = Array::of_tensor(&tensor).lend(py, name, Side::Input)?;
        Ok((Packed { name: name.to_owned(), reason, source: source.unbind(), compact }, memory))
    }

    /// Copies the input.
    pub(crate) fn pack(&self, py: Python<'_>) -> PyResult<()> {
        numpy(py)?.call_method1("copyto", (&self.compact, &self.source)).map(drop)
    }
}
