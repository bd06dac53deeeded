//! Construction of operators from files: one row for every name.

use std::fmt;
use std::sync::Arc;

use super::{AttrReader, OpError, Operator};
use crate::dtype::DType;

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
    /// Makes the operator from its attributes as opset `opset` defines them.
    pub read: fn(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError>,
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
