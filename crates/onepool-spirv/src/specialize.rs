//! What specialization changes in the interface of a kernel.

use super::parse::{SpirvError, parse};
use super::reflect;
use super::types::Index;

/// Bytes of workgroup memory of the module in `words` when each `(constant_id, value)` of `specialized`
/// replaces a default. A device has a limit for it that its driver does not check.
///
/// # Errors
/// The words are no sound module, or an array's length is not an expression of integers.
pub fn shared_bytes(words: &[u32], specialized: &[(u32, u32)]) -> Result<u32, SpirvError> {
    let module = parse(words)?;
    reflect::shared_bytes(&Index::new(&module, specialized)?)
}
