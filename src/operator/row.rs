//! Construction of operators from files: one row for every name.

use std::fmt;
use std::sync::Arc;

use super::{AttrReader, OpError, Operator};
use crate::dtype::DType;

/// Makes an operator from its attributes as the given opset defines them.
pub type ReadFn = fn(&mut AttrReader<'_>, i64) -> Result<Arc<dyn Operator>, OpError>;

/// Construction of ONNX operators: one row for every operator name.
#[derive(Clone, Copy)]
pub struct OpDef {
    /// The operator's name.
    pub name: &'static str,
    /// Its domain; "" is ONNX's own.
    pub domain: &'static str,
    /// The first opset it is read from.
    pub since: i64,
    /// Element types of its data inputs on the CPU, for the table of operators; a test asks the operator.
    pub types: &'static [DType],
    /// Whether it has device kernels; a test asks the operator.
    pub gpu: bool,
    /// Makes the operator from its attributes.
    pub read: ReadFn,
}

/// The row of an operator of ONNX's own that has device kernels.
pub(crate) const fn row(name: &'static str, since: i64, types: &'static [DType], read: ReadFn) -> OpDef {
    OpDef { name, domain: "", since, types, gpu: true, read }
}

/// The row of one of com.microsoft's.
pub(crate) const fn contrib(name: &'static str, types: &'static [DType], read: ReadFn) -> OpDef {
    OpDef { domain: "com.microsoft", ..row(name, 1, types, read) }
}

impl fmt::Debug for OpDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpDef")
            .field("name", &self.name)
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// A family of operators: a name for reports and its rows.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name; kernels are in `shaders/<name>/`.
    pub name: &'static str,
    /// Its rows.
    pub ops: &'static [OpDef],
}
