//! Operators that pick elements by indices.

mod gather;

pub use gather::Gather;

use super::{Family, OpDef};
use crate::dtype::DType;

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "index",
    ops: &[OpDef { name: "Gather", domain: "", since: 1, types: &DType::ALL, gpu: true, read: gather::read }],
};
