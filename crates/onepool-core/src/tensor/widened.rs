//! `float32` constants that are kept in `float16`.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use half::slice::HalfFloatSliceExt;

use super::Tensor;
use super::weight::no_memory;
use crate::memory::host::{HostError, HostRegion};
use crate::sync::lock;

/// Numbers of 16 bits as `float32`, several at a time where the processor can.
pub(super) fn all<H>(from: &[H]) -> Vec<f32>
where
    [H]: HalfFloatSliceExt,
{
    let mut to = vec![0.0; from.len()];
    from.convert_to_f32_slice(&mut to);
    to
}

/// The elements of a `float16` tensor as `float32`, made for whoever asks.
#[derive(Debug)]
pub(super) struct Widened {
    half: Tensor,
    /// Bytes that were lent as a slice stay for as long as the constant.
    lent: OnceLock<Arc<HostRegion>>,
    /// Bytes that may still be held.
    plain: Mutex<Weak<HostRegion>>,
}

impl Widened {
    pub(super) fn new(half: Tensor) -> Self {
        Widened { half, lent: OnceLock::new(), plain: Mutex::default() }
    }

    pub(super) fn half(&self) -> &Tensor {
        &self.half
    }

    fn byte_count(&self) -> usize {
        self.half.info().elements() * size_of::<f32>()
    }

    /// The bytes, which stay from now on.
    pub(super) fn bytes(&self) -> &[u8] {
        let lent = self.lent.get_or_init(|| self.plain().unwrap_or_else(|_| no_memory(self.byte_count())));
        lent.as_slice().get(..self.byte_count()).unwrap_or_default()
    }

    /// The bytes, for as long as the caller holds them.
    pub(super) fn plain(&self) -> Result<Arc<HostRegion>, HostError> {
        let mut plain = lock(&self.plain);
        if let Some(region) = plain.upgrade() {
            return Ok(region);
        }
        let half = self.half.unkept()?;
        // A texel view may round the end up.
        let mut region = HostRegion::new(self.byte_count().next_multiple_of(16))?;
        let from: &[half::f16] = bytemuck::try_cast_slice(half.bytes()).unwrap_or_default();
        let to: &mut [f32] = bytemuck::try_cast_slice_mut(region.as_mut_slice()).unwrap_or_default();
        if let Some(to) = to.get_mut(..from.len()) {
            from.convert_to_f32_slice(to);
        }
        let region = Arc::new(region);
        *plain = Arc::downgrade(&region);
        Ok(region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn halves_are_widened_for_whoever_asks() {
        let values = [1.5f32, -2.0, 65504.0, 6e-8, f32::INFINITY];
        let half = Tensor::new([5], &values.map(half::f16::from_f32)).unwrap();
        let wide = Tensor::widened(half.clone());
        assert_eq!((wide.dtype(), wide.shape()), (DType::F32, half.shape()));
        assert_eq!(wide.narrowed().unwrap().identity(), half.identity());
        assert!(half.narrowed().is_none() && wide.region().is_none());
        // What one holds the other shares, and no one keeps it.
        let (first, second) = (wide.unkept().unwrap(), wide.unkept().unwrap());
        assert_eq!(first.identity(), second.identity());
        assert_eq!(first.to_f32s().unwrap(), half.to_f32s().unwrap());
        let left = Arc::downgrade(&first.region().unwrap().0);
        drop((first, second));
        assert!(left.upgrade().is_none());
        // A slice lasts.
        assert_eq!(wide.as_slice::<f32>().unwrap().as_ptr(), wide.as_slice::<f32>().unwrap().as_ptr());
        // Whoever widens one tensor has one parameter, which is not that tensor.
        assert_eq!(wide.identity(), Tensor::widened(half.clone()).identity());
        assert_ne!(wide.identity(), half.identity());
        let weak = wide.downgrade();
        assert!(weak.upgrade().is_some());
        drop(wide);
        assert!(weak.upgrade().is_none());
    }
}
