//! Numbers of elements as kernels take them: words of 32 bits.

use crate::ops::OpError;

/// A number that a kernel counts to.
pub(crate) fn word(n: usize) -> Result<u32, OpError> {
    u32::try_from(n)
        .map_err(|_| OpError::unsupported(format!("{n} elements, the kernels count to {}", u32::MAX)))
}

/// A stride or an offset, in elements.
pub(crate) fn signed_word(n: isize) -> Result<i32, OpError> {
    i32::try_from(n).map_err(|_| {
        OpError::unsupported(format!("an offset of {n} elements, the kernels reach {}", i32::MAX))
    })
}

/// A number of elements that a kernel indexes with signed words.
pub(crate) fn index32(elements: usize) -> Result<u32, OpError> {
    match u32::try_from(elements) {
        Ok(n) if n <= i32::MAX as u32 => Ok(n),
        _ => Err(OpError::unsupported(format!("{elements} elements, the kernel indexes {}", i32::MAX))),
    }
}
