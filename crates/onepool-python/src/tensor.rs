//! Tensors in pages that every device can import.

#![allow(unsafe_code, reason = "the buffer protocol lends out pointers")]

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::Arc;

use onepool::{DType, HostRegion, Shape, SharedRegion, TensorInfo};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyTuple};
use pyo3::{Bound, ffi};

use crate::dlpack;
use crate::errors::{Class, raised, raised_of};
use crate::log::detached;

/// Owned pages: bytes that NumPy arrays look at.
#[pyclass(frozen, module = "onepool._onepool")]
#[derive(Debug)]
pub(crate) struct Pages {
    region: Arc<SharedRegion>,
    bytes: isize,
}

#[pymethods]
impl Pages {
    /// # Safety
    /// The interpreter calls it, with a structure to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let pages = slf.get();
        let (start, bytes) = (pages.region.as_ptr().as_ptr(), pages.bytes);
        // SAFETY: `view` is the interpreter's; the object, which the view keeps, keeps so many bytes at `start`.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), bytes, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// A compact tensor in pages that every device can import.
#[pyclass(frozen, module = "onepool")]
#[derive(Debug)]
pub(crate) struct Tensor {
    region: Arc<SharedRegion>,
    info: TensorInfo,
    dims: Vec<isize>,
    strides: Vec<isize>,
}

impl Tensor {
    /// Zeros.
    pub(crate) fn zeros(py: Python<'_>, argument: &str, info: TensorInfo) -> PyResult<Self> {
        let region = detached(py, || HostRegion::new(info.bytes()));
        Ok(Tensor::over(region.map_err(|e| raised_of(py, argument, e))?, info))
    }

    /// In these pages.
    pub(crate) fn over(region: HostRegion, info: TensorInfo) -> Self {
        let signed = |sizes: &[usize], by: usize| {
            sizes.iter().map(|size| isize::try_from(size * by).unwrap_or(isize::MAX)).collect()
        };
        let (dims, strides) = (signed(&info.shape, 1), signed(&info.shape.strides(), info.dtype.bytes()));
        Tensor { region: region.into_shared(), info, dims, strides }
    }

    /// A copy of a value.
    pub(crate) fn of_value(py: Python<'_>, value: &onepool::Tensor) -> PyResult<Self> {
        let region = HostRegion::from_bytes(value.bytes()).map_err(|e| raised(py, e))?;
        Ok(Tensor::over(region, value.info().clone()))
    }

    pub(crate) fn region(&self) -> &Arc<SharedRegion> {
        &self.region
    }

    pub(crate) fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// The NumPy array over the same bytes.
    pub(crate) fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static VIEW: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let view = VIEW
            .get_or_try_init(py, || Ok::<_, PyErr>(py.import("onepool._numpy")?.getattr("view")?.unbind()))?;
        let bytes = isize::try_from(self.info.bytes()).unwrap_or(isize::MAX);
        let pages = Pages { region: Arc::clone(&self.region), bytes };
        view.bind(py).call1((pages, self.info.dtype.name(), self.shape(py)?))
    }
}

#[pymethods]
impl Tensor {
    #[new]
    #[pyo3(signature = (shape, dtype = "float32"))]
    fn new(py: Python<'_>, shape: Vec<i64>, dtype: &str) -> PyResult<Self> {
        let dtype = DType::from_name(dtype)
            .ok_or_else(|| Class::DType.says(py, format!("dtype: there is no element type {dtype:?}")))?;
        let shape = Shape::from_i64(&shape).map_err(|e| raised_of(py, "shape", e))?;
        Tensor::zeros(py, "shape", TensorInfo::new(dtype, shape))
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.info.shape.iter())
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.info.dtype.name()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.info.bytes()
    }

    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.array(py)
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if stream.is_some() {
            return Err(
                Class::Argument.says(py, "stream: memory of the process has no streams, expected None")
            );
        }
        if let Some(device) = dl_device.filter(|device| *device != dlpack::HERE) {
            return Err(PyBufferError::new_err(format!(
                "dl_device: {device:?} is not the CPU, {:?}",
                dlpack::HERE
            )));
        }
        let versioned = max_version.is_some_and(|(major, _)| major >= onepool::dlpack::MAJOR);
        if copy == Some(true) {
            let seen = self.region.read().map_err(|e| raised(py, e))?;
            let bytes = HostRegion::from_bytes(&seen).map_err(|e| raised(py, e))?;
            return dlpack::capsule(py, (&bytes.into_shared(), &self.info), versioned, true);
        }
        dlpack::capsule(py, (&self.region, &self.info), versioned, false)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::HERE
    }

    fn __repr__(&self) -> String {
        format!("onepool.Tensor(shape={}, dtype={:?})", self.info.shape, self.info.dtype.name())
    }

    /// # Safety
    /// The interpreter calls it, with a structure to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let tensor = slf.get();
        let Some(format) = format_of(tensor.info.dtype) else {
            let dtype = tensor.info.dtype;
            return Err(PyBufferError::new_err(format!(
                "the buffer protocol has no format for {dtype}; use numpy() or DLPack"
            )));
        };
        let asked = |flag: c_int| flags & flag == flag;
        let list = |values: &[isize]| values.as_ptr().cast_mut();
        let filled = ffi::Py_buffer {
            buf: tensor.region.as_ptr().as_ptr().cast(),
            obj: slf.clone().into_ptr(),
            len: isize::try_from(tensor.info.bytes()).unwrap_or(isize::MAX),
            itemsize: isize::try_from(tensor.info.dtype.bytes()).unwrap_or(1),
            readonly: 0,
            ndim: c_int::try_from(tensor.dims.len()).unwrap_or(c_int::MAX),
            format: if asked(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { ptr::null_mut() },
            shape: if asked(ffi::PyBUF_ND) { list(&tensor.dims) } else { ptr::null_mut() },
            strides: if asked(ffi::PyBUF_STRIDES) { list(&tensor.strides) } else { ptr::null_mut() },
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        };
        // SAFETY: `view` is the interpreter's. The object, which the view keeps, keeps the bytes and the lists; consumers
        // do not write to the lists.
        unsafe { view.write(filled) };
        Ok(())
    }
}

/// The letter of an element type in the buffer protocol.
fn format_of(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::F32 => c"f",
        DType::F16 => c"e",
        DType::F64 => c"d",
        DType::I8 => c"b",
        DType::I16 => c"h",
        DType::I32 => c"i",
        DType::I64 => c"q",
        DType::U8 => c"B",
        DType::U16 => c"H",
        DType::U32 => c"I",
        DType::U64 => c"Q",
        DType::Bool => c"?",
        _ => return None,
    })
}
