//! Places the parameters of a model in memory that a device can import.

use super::error::LoadError;
use crate::graph::{Tensor, TensorInfo};

/// Makes a tensor of each of `infos`; `fill` writes the bytes of the one it is given the position of.
///
/// The caller has checked the sum of the sizes against the size of the file they come from.
pub(super) fn pack(
    infos: &[TensorInfo],
    mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), LoadError>,
) -> Result<Vec<Tensor>, LoadError> {
    infos.iter().enumerate().map(|(i, info)| Tensor::build(info.clone(), |bytes| fill(i, bytes))).collect()
}
