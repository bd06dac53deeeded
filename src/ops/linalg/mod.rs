//! Operators of this family.

use super::Family;

/// The family's rows.
pub const FAMILY: Family = Family { name: "linalg", ops: &[] };
