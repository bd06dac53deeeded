//! Constant tensors on the host.

#![forbid(unsafe_code)]

mod packed;
mod shared;
mod weight;
mod widened;

pub use packed::PackedForm;
pub use packed::{PackInPlaceFn, PackKey, PackLines, PackLinesFn, UnpackFn};
pub use shared::TensorSource;
pub use weight::WeightStore;

use std::fmt;
use std::sync::{Arc, Weak};

use self::weight::{MovedLayout, Way, Weight};
use self::widened::Widened;
use crate::dtype::{DType, Element};
use crate::memory::host::{HostError, HostRegion};
use crate::shape::{Shape, ShapeError};

/// A tensor's element type and shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct TensorInfo {
    /// The type of its elements.
    pub dtype: DType,
    /// Its sizes.
    pub shape: Shape,
}

impl TensorInfo {
    /// A tensor of `dtype` and `shape`.
    pub fn new(dtype: DType, shape: Shape) -> Self {
        TensorInfo { dtype, shape }
    }

    /// How many elements it has.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// How many bytes it has, without padding.
    pub fn bytes(&self) -> usize {
        self.shape.elements() * self.dtype.bytes()
    }
}

impl fmt::Display for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// Why bytes do not make a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The sizes are impossible.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The data's length does not match the shape.
    #[error("a tensor {info} has {expected} bytes, got {got}")]
    Length {
        /// Type and shape.
        info: String,
        /// What they need.
        expected: usize,
        /// What there is.
        got: usize,
    },
    /// The data is viewed as another type than it has.
    #[error("a tensor of {have} cannot be read as {asked}")]
    Type {
        /// Its type.
        have: DType,
        /// The type asked for.
        asked: DType,
    },
    /// The data lies at an address the type cannot have.
    #[error("tensor data of {dtype} is not aligned")]
    Alignment {
        /// Its type.
        dtype: DType,
    },
}

/// Constants of at least so many bytes have pages of their own: the end of the last page is a small part of them.
pub const WEIGHT_BYTES: usize = 16 << 10;

/// Bytes aligned for every element type.
#[derive(Clone, Debug, Default)]
struct Words {
    words: Vec<u128>,
    bytes: usize,
}

impl Words {
    fn zeroed(bytes: usize) -> Self {
        Words { words: vec![0; bytes.div_ceil(16)], bytes }
    }

    fn as_slice(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words).get(..self.bytes).unwrap_or(&[])
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words).get_mut(..self.bytes).unwrap_or(&mut [])
    }
}

#[derive(Clone)]
enum Data {
    Owned(Arc<Words>),
    Region { region: Arc<HostRegion>, offset: usize },
    Weight(Arc<Weight>),
    Widened(Arc<Widened>),
}

/// An immutable tensor on the host; clones share its bytes.
#[derive(Clone)]
pub struct Tensor {
    info: TensorInfo,
    data: Data,
}

impl Tensor {
    /// A tensor of the elements `values` in row-major order.
    ///
    /// # Errors
    /// [`TensorError::Length`] where the shape has another number of elements, [`TensorError::Shape`].
    pub fn new<T: Element>(dims: impl Into<Vec<usize>>, values: &[T]) -> Result<Self, TensorError> {
        let info = TensorInfo::new(T::DTYPE, Shape::new(dims)?);
        Tensor::from_bytes(info, bytemuck::cast_slice(values))
    }

    /// A tensor of `bytes`: little-endian elements in row-major order, copied.
    ///
    /// # Errors
    /// [`TensorError::Length`].
    pub fn from_bytes(info: TensorInfo, bytes: &[u8]) -> Result<Self, TensorError> {
        if info.bytes() != bytes.len() {
            return Err(TensorError::Length {
                expected: info.bytes(),
                got: bytes.len(),
                info: info.to_string(),
            });
        }
        let mut words = Words::zeroed(bytes.len());
        words.as_mut_slice().copy_from_slice(bytes);
        Ok(Tensor { info, data: Data::Owned(Arc::new(words)) })
    }

    /// A tensor whose bytes `fill` writes; they are zero before.
    ///
    /// # Errors
    /// What `fill` returns.
    pub fn build<E>(info: TensorInfo, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let mut words = Words::zeroed(info.bytes());
        fill(words.as_mut_slice())?;
        Ok(Tensor { info, data: Data::Owned(Arc::new(words)) })
    }

    /// A tensor that lies in `region` from `offset` on, not copied.
    ///
    /// # Errors
    /// [`TensorError::Length`] where it would end beyond the region, [`TensorError::Alignment`] where the
    /// offset does not suit the element type.
    pub fn in_region(info: TensorInfo, region: Arc<HostRegion>, offset: usize) -> Result<Self, TensorError> {
        let end = offset.checked_add(info.bytes());
        if end.is_none_or(|end| end > region.bytes()) {
            return Err(TensorError::Length {
                expected: info.bytes(),
                got: region.bytes().saturating_sub(offset),
                info: info.to_string(),
            });
        }
        if !offset.is_multiple_of(info.dtype.bytes()) {
            return Err(TensorError::Alignment { dtype: info.dtype });
        }
        Ok(Tensor { info, data: Data::Region { region, offset } })
    }

    /// A tensor at the start of `region`, which may keep its bytes only in a layout that a device reads.
    ///
    /// # Errors
    /// [`TensorError::Length`] where it would end beyond the region.
    pub fn weight(info: TensorInfo, region: HostRegion) -> Result<Self, TensorError> {
        if info.bytes() > region.bytes() {
            return Err(TensorError::Length {
                expected: info.bytes(),
                got: region.bytes(),
                info: info.to_string(),
            });
        }
        let weight = Weight::new(region, info.bytes());
        Ok(Tensor { info, data: Data::Weight(Arc::new(weight)) })
    }

    /// As [`Tensor::build`], for constants that devices read: large ones get pages of their own.
    ///
    /// # Errors
    /// What `fill` returns.
    pub fn build_weight<E>(
        info: TensorInfo,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let bytes = info.bytes();
        // A texel view may round the end up.
        let region = (bytes >= WEIGHT_BYTES).then(|| HostRegion::new(bytes.next_multiple_of(16)).ok());
        let Some(mut region) = region.flatten() else { return Tensor::build(info, fill) };
        fill(region.as_mut_slice().get_mut(..bytes).unwrap_or_default())?;
        Ok(Tensor { info, data: Data::Weight(Arc::new(Weight::new(region, bytes))) })
    }

    /// The elements of `half`, a `float16` tensor, as `float32`: only `half` is kept, its elements are widened for
    /// whoever asks.
    pub fn widened(half: Tensor) -> Self {
        let info = TensorInfo::new(DType::F32, half.shape().clone());
        Tensor { info, data: Data::Widened(Arc::new(Widened::new(half))) }
    }

    /// The `float16` tensor that the elements are kept in, where they are.
    pub fn narrowed(&self) -> Option<Tensor> {
        match &self.data {
            Data::Widened(widened) => widened.half().reshaped(self.info.shape.clone()).ok(),
            _ => None,
        }
    }

    /// A one-dimensional `int64` tensor, as shapes and axes are.
    pub fn from_i64s(values: &[i64]) -> Self {
        let info = TensorInfo { dtype: DType::I64, shape: Shape::new([values.len()]).unwrap_or_default() };
        let mut words = Words::zeroed(values.len() * 8);
        words.as_mut_slice().copy_from_slice(bytemuck::cast_slice(values));
        Tensor { info, data: Data::Owned(Arc::new(words)) }
    }

    /// A scalar.
    pub fn scalar<T: Element>(value: T) -> Self {
        let mut words = Words::zeroed(size_of::<T>());
        words.as_mut_slice().copy_from_slice(bytemuck::bytes_of(&value));
        Tensor { info: TensorInfo::new(T::DTYPE, Shape::scalar()), data: Data::Owned(Arc::new(words)) }
    }

    /// Type and shape.
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.info.dtype
    }

    /// Sizes.
    pub fn shape(&self) -> &Shape {
        &self.info.shape
    }

    /// The elements' bytes. Those of a large parameter that is kept only as a device reads it are made again, and
    /// stay as long as the tensor.
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Owned(words) => words.as_slice(),
            Data::Region { region, offset } => {
                let end = offset + self.info.bytes();
                region.as_slice().get(*offset..end).unwrap_or(&[])
            }
            Data::Weight(weight) => weight.bytes(),
            Data::Widened(widened) => widened.bytes(),
        }
    }

    /// The region that the elements are kept in and where they begin, where they lie in one. A large parameter may be
    /// kept only in the layout that a device reads, or only in `float16`: then there is none.
    pub fn region(&self) -> Option<(Arc<HostRegion>, usize)> {
        match &self.data {
            Data::Owned(_) | Data::Widened(_) => None,
            Data::Region { region, offset } => Some((Arc::clone(region), *offset)),
            Data::Weight(weight) => weight.kept().map(|region| (region, 0)),
        }
    }

    /// The same elements, whose bytes need stay no longer than the result.
    ///
    /// # Errors
    /// There is no memory for bytes that have to be made again.
    pub fn unkept(&self) -> Result<Tensor, HostError> {
        let data = match &self.data {
            Data::Weight(weight) => Data::Region { region: weight.plain()?, offset: 0 },
            Data::Widened(widened) => Data::Region { region: widened.plain()?, offset: 0 },
            data => data.clone(),
        };
        Ok(Tensor { info: self.info.clone(), data })
    }

    /// The elements in the layout `key`, where a device reads them so.
    pub fn packed(&self, key: &PackKey) -> Option<Arc<HostRegion>> {
        match &self.data {
            Data::Weight(weight) => weight.packed(key),
            _ => None,
        }
    }

    /// Whether the bytes can be given back where another form of them is kept.
    pub fn is_weight(&self) -> bool {
        matches!(self.data, Data::Weight(_))
    }

    /// Keeps the bytes as they are, which a device reads from `region`.
    pub fn keep_plain(&self, region: &Arc<HostRegion>) {
        if let Data::Weight(weight) = &self.data {
            weight.keep_plain(region);
        }
    }

    /// Moves the bytes of a large constant into a layout, so that they are hardly there twice meanwhile; `bytes` is the
    /// size of the region that the layout begins. Nothing where they are held, or the layout is not made so.
    ///
    /// # Errors
    /// There is no memory for the layout.
    pub fn move_packed(
        &self,
        packed: &PackedForm<'_>,
        bytes: usize,
    ) -> Result<Option<Arc<HostRegion>>, HostError> {
        match (&self.data, packed.lines, packed.unpack) {
            (Data::Weight(weight), None, Some(unpack)) => match packed.in_place {
                Some(pack) => weight.pack_in_place(packed.key, bytes, &**pack, unpack),
                None => Ok(None),
            },
            (Data::Weight(weight), Some(lines), Some(unpack)) => {
                weight.move_packed(packed.key, bytes, lines, unpack)
            }
            _ => Ok(None),
        }
    }

    /// Moves a large constant to memory that `store` reads from then on and that `write` lends, in the layout `packed` or
    /// as it is; `false` where that cannot be done part by part, and nothing was.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn move_to<E: From<HostError>>(
        &self,
        packed: Option<&PackedForm<'_>>,
        store: Arc<dyn WeightStore>,
        write: impl FnOnce(&mut dyn FnMut(&mut [u8])) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Data::Weight(weight) = &self.data else { return Ok(false) };
        let layout = match packed {
            None => None,
            Some(PackedForm { lines: Some(lines), unpack: Some(unpack), bytes, .. }) => {
                Some(MovedLayout { bytes: *bytes, way: Way::Lines(lines), unpack })
            }
            Some(PackedForm { in_place: Some(pack), unpack: Some(unpack), bytes, .. }) => {
                Some(MovedLayout { bytes: *bytes, way: Way::InPlace(&***pack), unpack })
            }
            Some(_) => return Ok(false),
        };
        weight.move_to(layout, store, write)
    }

    /// Lets go of pages of a mapped file until they are read again.
    pub fn release_mapped(&self) {
        if let Data::Region { region, .. } = &self.data {
            region.release_mapped();
        }
    }

    /// Whether the bytes can be had: those that a device's memory alone has go with the device.
    pub fn is_there(&self) -> bool {
        match &self.data {
            Data::Weight(weight) => weight.is_there(),
            Data::Widened(widened) => widened.half().is_there(),
            Data::Owned(_) | Data::Region { .. } => true,
        }
    }

    /// Brings a large constant back to the host, where a device's memory alone has it.
    ///
    /// # Errors
    /// [`HostError::Unreadable`] where it is gone with the device, or there is no memory.
    pub fn recall(&self) -> Result<(), HostError> {
        match &self.data {
            Data::Weight(weight) => weight.recall(),
            Data::Owned(_) | Data::Region { .. } | Data::Widened(_) => Ok(()),
        }
    }

    /// Keeps a large constant only in `store`, which holds it in the layout `packed` or as it is.
    pub fn keep_stored(&self, packed: Option<&PackedForm<'_>>, store: Arc<dyn WeightStore>) {
        let Data::Weight(weight) = &self.data else { return };
        match packed {
            None => weight.keep_stored(store, None),
            Some(PackedForm { unpack: Some(unpack), bytes, .. }) => {
                weight.keep_stored(store, Some((*bytes, Arc::clone(unpack))));
            }
            Some(_) => {}
        }
    }

    /// Keeps the bytes in the layout `key`, which a device reads from `region` and which `unpack` turns into all of
    /// them.
    pub fn keep_packed(&self, key: PackKey, region: &Arc<HostRegion>, unpack: &Arc<UnpackFn>) {
        if let Data::Weight(weight) = &self.data {
            weight.keep_packed(key, region, unpack);
        }
    }

    /// The elements.
    ///
    /// # Errors
    /// [`TensorError::Type`] where the tensor holds another type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        if !T::holds(self.dtype()) {
            return Err(TensorError::Type { have: self.dtype(), asked: T::DTYPE });
        }
        bytemuck::try_cast_slice(self.bytes()).map_err(|_| TensorError::Alignment { dtype: self.dtype() })
    }

    /// The elements of an integer tensor (or of a `bool` one as 0 and 1) as `i64`.
    ///
    /// # Errors
    /// [`TensorError::Type`] for float tensors and for `uint64` values beyond `i64`.
    pub fn to_i64s(&self) -> Result<Vec<i64>, TensorError> {
        let fail = || TensorError::Type { have: self.dtype(), asked: DType::I64 };
        Ok(match self.dtype() {
            DType::I64 => self.as_slice::<i64>()?.to_vec(),
            DType::I32 => self.as_slice::<i32>()?.iter().map(|&v| v.into()).collect(),
            DType::I16 => self.as_slice::<i16>()?.iter().map(|&v| v.into()).collect(),
            DType::I8 => self.as_slice::<i8>()?.iter().map(|&v| v.into()).collect(),
            DType::U8 | DType::Bool => self.as_slice::<u8>()?.iter().map(|&v| v.into()).collect(),
            DType::U16 => self.as_slice::<u16>()?.iter().map(|&v| v.into()).collect(),
            DType::U32 => self.as_slice::<u32>()?.iter().map(|&v| v.into()).collect(),
            DType::U64 => {
                let values: Result<Vec<i64>, _> =
                    self.as_slice::<u64>()?.iter().map(|&v| v.try_into()).collect();
                values.map_err(|_| fail())?
            }
            _ => return Err(fail()),
        })
    }

    /// The elements of a float tensor as `f32` (`float64` is rounded).
    ///
    /// # Errors
    /// [`TensorError::Type`] for other tensors.
    pub fn to_f32s(&self) -> Result<Vec<f32>, TensorError> {
        Ok(match self.dtype() {
            DType::F32 => self.as_slice::<f32>()?.to_vec(),
            DType::F16 => widened::all(self.as_slice::<half::f16>()?),
            DType::BF16 => widened::all(self.as_slice::<half::bf16>()?),
            DType::F64 => self.as_slice::<f64>()?.iter().map(|&v| v as f32).collect(),
            have => return Err(TensorError::Type { have, asked: DType::F32 }),
        })
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// [`TensorError::Length`] where the number of elements differs.
    pub fn reshaped(&self, shape: Shape) -> Result<Self, TensorError> {
        let info = TensorInfo::new(self.dtype(), shape);
        if info.bytes() != self.info.bytes() {
            return Err(TensorError::Length {
                expected: info.bytes(),
                got: self.info.bytes(),
                info: info.to_string(),
            });
        }
        Ok(Tensor { info, data: self.data.clone() })
    }

    /// Equal for tensors that share their bytes: identifies a parameter across graphs and sessions.
    pub fn identity(&self) -> TensorIdentity {
        match &self.data {
            Data::Owned(words) => TensorIdentity(Arc::as_ptr(words) as usize, 0, self.info.bytes()),
            Data::Region { region, offset } => {
                TensorIdentity(Arc::as_ptr(region) as usize, *offset, self.info.bytes())
            }
            Data::Weight(weight) => TensorIdentity(Arc::as_ptr(weight) as usize, 0, self.info.bytes()),
            // Equal for all that widen one tensor.
            Data::Widened(widened) => {
                let TensorIdentity(address, offset, _) = widened.half().identity();
                TensorIdentity(address, !offset, self.info.bytes())
            }
        }
    }
}

/// A tensor that does not keep its bytes.
#[derive(Clone, Debug)]
pub struct WeakTensor {
    info: TensorInfo,
    data: WeakData,
}

#[derive(Clone, Debug)]
enum WeakData {
    Owned(Weak<Words>),
    Region { region: Weak<HostRegion>, offset: usize },
    Weight(Weak<Weight>),
    Widened(Weak<Widened>),
}

impl Tensor {
    /// The same data, not kept alive.
    pub fn downgrade(&self) -> WeakTensor {
        let data = match &self.data {
            Data::Owned(words) => WeakData::Owned(Arc::downgrade(words)),
            Data::Region { region, offset } => {
                WeakData::Region { region: Arc::downgrade(region), offset: *offset }
            }
            Data::Weight(weight) => WeakData::Weight(Arc::downgrade(weight)),
            Data::Widened(widened) => WeakData::Widened(Arc::downgrade(widened)),
        };
        WeakTensor { info: self.info.clone(), data }
    }
}

impl WeakTensor {
    /// The tensor, if its bytes are still there.
    pub fn upgrade(&self) -> Option<Tensor> {
        let data = match &self.data {
            WeakData::Owned(words) => Data::Owned(words.upgrade()?),
            WeakData::Region { region, offset } => {
                Data::Region { region: region.upgrade()?, offset: *offset }
            }
            WeakData::Weight(weight) => Data::Weight(weight.upgrade()?),
            WeakData::Widened(widened) => Data::Widened(widened.upgrade()?),
        };
        Some(Tensor { info: self.info.clone(), data })
    }
}

/// See [`Tensor::identity`]. Meaningful only while a clone of the tensor is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorIdentity(usize, usize, usize);

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({})", self.info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_gives_back_its_elements_and_refuses_other_types() {
        let t = Tensor::new([2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(t.as_slice::<f32>().unwrap(), &[1.0, 2.0, 3.0, 4.0]);
        assert!(matches!(t.as_slice::<i32>(), Err(TensorError::Type { .. })));
        assert!(matches!(Tensor::new([3], &[1.0f32]), Err(TensorError::Length { .. })));
        assert_eq!(t.identity(), t.reshaped(Shape::new([4]).unwrap()).unwrap().identity());
    }

    #[test]
    fn integers_of_every_width_widen() {
        assert_eq!(Tensor::new([2], &[-1i8, 2]).unwrap().to_i64s().unwrap(), [-1, 2]);
        assert!(Tensor::new([1], &[u64::MAX]).unwrap().to_i64s().is_err());
        assert!(Tensor::new([1], &[1.0f32]).unwrap().to_i64s().is_err());
    }
}
