//! The layouts in which kernels read weights.

use crate::dtype::{DType, Element};
use crate::graph::Tensor;
use crate::kernel::table::{id, params};
use crate::ops::{Lowering, OpCx, OpError, Operand, PackKey};

/// `[group][channel / tile][ic][kd][kh][kw][tile]`, zeros behind the last channel, read from weights at
/// `first + group * group_stride + channel * oc_stride + ...`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pack {
    pub(super) groups: usize,
    pub(super) tile: usize,
    pub(super) oc: usize,
    pub(super) ic: usize,
    pub(super) taps: [usize; 3],
    pub(super) first: i64,
    pub(super) group_stride: i64,
    pub(super) oc_stride: i64,
    pub(super) ic_stride: i64,
    pub(super) tap_strides: [i64; 3],
}

impl Pack {
    fn sizes(&self) -> [usize; 7] {
        let [kd, kh, kw] = self.taps;
        [self.groups, self.oc.div_ceil(self.tile), self.ic, kd, kh, kw, self.tile]
    }

    /// Elements of the result.
    pub(super) fn len(&self) -> usize {
        self.sizes().iter().product()
    }

    /// A number for every layout, to tell packed constants apart.
    fn key(&self) -> PackKey {
        let [kd, kh, kw] = self.tap_strides;
        let strides = [self.first, self.group_stride, self.oc_stride, self.ic_stride, kd, kh, kw];
        let sizes = self.sizes().map(|s| s as i64);
        // FNV-1a, twice from different starts.
        let hash = |start: u64| {
            sizes.iter().chain(&strides).chain([&(self.oc as i64)]).fold(start, |h, v| {
                v.to_le_bytes().iter().fold(h, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
            })
        };
        let (a, b) = (hash(0xcbf2_9ce4_8422_2325), hash(0x9e37_79b9_7f4a_7c15));
        PackKey {
            layout: "convolution weights",
            numbers: [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32],
        }
    }

    fn fill<T: Element + Default>(&self, w: &[T], out: &mut [T]) {
        if self.len() == 0 {
            return;
        }
        let [kd, kh, kw] = self.taps;
        for (i, out) in out.chunks_mut(self.tile).enumerate() {
            let (x, i) = (i % kw, i / kw);
            let (y, i) = (i % kh, i / kh);
            let (z, i) = (i % kd, i / kd);
            let (c, i) = (i % self.ic, i / self.ic);
            let tiles = self.oc.div_ceil(self.tile);
            let (tile, group) = (i % tiles, i / tiles);
            let [sz, sy, sx] = self.tap_strides;
            let base = self.first
                + group as i64 * self.group_stride
                + c as i64 * self.ic_stride
                + z as i64 * sz
                + y as i64 * sy
                + x as i64 * sx;
            for (lane, out) in out.iter_mut().enumerate() {
                let channel = tile * self.tile + lane;
                let from = usize::try_from(base + channel as i64 * self.oc_stride).ok();
                let value = from.filter(|_| channel < self.oc).and_then(|f| w.get(f)).copied();
                *out = value.unwrap_or_default();
            }
        }
    }

    /// The packed weights of input 1: made at load where they are known, else by a kernel.
    pub(super) fn emit(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<Operand, OpError> {
        let dtype = cx.dtype(1)?;
        // A texel view has at least one texel.
        let bytes = (self.len() * dtype.bytes()).max(16);
        if let Some(value) = cx.value(1) {
            let pack = *self;
            return Ok(lower.packed(value, self.key(), bytes, move |t: &Tensor, out| {
                match dtype {
                    DType::F16 => {
                        let out: &mut [half::f16] = bytemuck::cast_slice_mut(out);
                        pack.fill(t.as_slice::<half::f16>()?, out);
                    }
                    _ => pack.fill(t.as_slice::<f32>()?, bytemuck::cast_slice_mut(out)),
                }
                Ok(())
            }));
        }
        let kernel = if dtype == DType::F16 { id::PACK_WEIGHTS_F16 } else { id::PACK_WEIGHTS_F32 };
        let packed = lower.scratch(bytes);
        let [kd_stride, kh_stride, kw_stride] = self.tap_strides.map(|s| s as i32);
        let [kd, kh, kw] = self.taps.map(|t| t as u32);
        let params = params::PackWeights {
            n: self.len() as u32,
            tile: self.tile as u32,
            oc: self.oc as u32,
            ic: self.ic as u32,
            kd,
            kh,
            kw,
            first: self.first as i32,
            group_stride: self.group_stride as i32,
            oc_stride: self.oc_stride as i32,
            ic_stride: self.ic_stride as i32,
            kd_stride,
            kh_stride,
            kw_stride,
        };
        lower.dispatch_1d(kernel, &[], &[Operand::Input(1), packed], &params, self.len())?;
        Ok(packed)
    }
}
