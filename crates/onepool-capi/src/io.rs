//! Inputs and outputs as a session declares them, with strings that C can read.

use std::ffi::{CString, c_char};
use std::ptr;

use onepool::session::IoInfo;
use onepool::{DType, Dim};

use crate::status::{Failure, Status};
use crate::types::{self, MAX_RANK};

/// One input or output.
#[derive(Debug)]
pub(crate) struct Declared {
    name: CString,
    pub(crate) dtype: Option<DType>,
    dims: Option<Vec<i64>>,
    /// Names of open sizes.
    symbols: Vec<Option<CString>>,
}

impl Declared {
    pub(crate) fn new(info: &IoInfo) -> Result<Self, Failure> {
        let dims = info.shape.as_ref().map_or(&[][..], |shape| &shape.0);
        if dims.len() > MAX_RANK {
            let message =
                format!("{:?} has {} sizes, at most {MAX_RANK} are supported", info.name, dims.len());
            return Err(Failure::new(Status::Model, message));
        }
        let size = |dim: &Dim| match dim {
            Dim::Known(size) => i64::try_from(*size).unwrap_or(i64::MAX),
            Dim::Symbol(_) | Dim::Unknown => -1,
        };
        let symbol = |dim: &Dim| match dim {
            Dim::Symbol(name) => Some(text(name)),
            Dim::Known(_) | Dim::Unknown => None,
        };
        Ok(Declared {
            name: text(&info.name),
            dtype: info.dtype,
            dims: info.shape.is_some().then(|| dims.iter().map(size).collect()),
            symbols: dims.iter().map(symbol).collect(),
        })
    }

    /// Its name, for messages.
    pub(crate) fn name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        self.name.as_bytes() == name.as_bytes()
    }

    /// As C reads it, for as long as this lives.
    pub(crate) fn to_c(&self, struct_size: usize) -> types::IoInfo {
        let mut dims = [0; MAX_RANK];
        let mut symbols: [*const c_char; MAX_RANK] = [ptr::null(); MAX_RANK];
        let known = self.dims.as_deref().unwrap_or_default();
        for (i, (dim, symbol)) in known.iter().zip(&self.symbols).enumerate() {
            dims[i] = *dim;
            symbols[i] = symbol.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        }
        types::IoInfo {
            struct_size,
            name: self.name.as_ptr(),
            dtype: types::dtype_number(self.dtype),
            has_shape: self.dims.is_some().into(),
            rank: known.len(),
            dims,
            symbols,
        }
    }
}

/// Text as C reads it.
pub(crate) fn text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}
