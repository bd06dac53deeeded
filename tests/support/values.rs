//! Operators and values of the tests.

use std::sync::Arc;

use onepool::ops::{self, AttrMap, AttrReader, Operator};
use onepool::{HostRegion, Shape, SharedRegion, Tensor};

/// The operator `name` without attributes.
pub(crate) fn op(name: &str) -> Arc<dyn Operator> {
    (ops::find("", name).unwrap().read)(&mut AttrReader::new(&AttrMap::new(), 1, 1), 17).unwrap()
}

pub(crate) fn tensor(dims: &[usize], values: &[f32]) -> Tensor {
    Tensor::new(dims.to_vec(), values).unwrap()
}

pub(crate) fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims.to_vec()).unwrap()
}

pub(crate) fn region(values: &[f32]) -> Arc<SharedRegion> {
    HostRegion::from_bytes(bytemuck::cast_slice(values)).unwrap().into_shared()
}

pub(crate) fn floats(region: &SharedRegion) -> Vec<f32> {
    region.read().unwrap().as_slice_of::<f32>().unwrap().to_vec()
}

/// Whole numbers from -4 to 4, so that sums are exact in any order.
pub(crate) fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) % 9) as f32 - 4.0).collect()
}
