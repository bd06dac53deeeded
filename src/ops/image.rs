//! Tensors in images, for operators and the planner.

use std::sync::Arc;

use super::{Cost, Lowering, OpCx, OpError, Operand, Operator};
use crate::graph::TensorInfo;
use crate::kernel::table::{params, variants};
use crate::kernel::{KernelError, NativeArg, NativeArgs, NativeKernel, Unit};
use crate::memory::image::ImageDesc;

/// Whether `image` holds `info` as planes one below another: a row for the last dimension, and all others
/// together are the rows.
pub(crate) fn is_planes(info: &TensorInfo, image: &ImageDesc) -> bool {
    let dims = info.shape.dims();
    let Some((last, outer)) = dims.split_last() else { return false };
    let rows = outer.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    image.texel.channels() == 1
        && usize::try_from(image.width) == Ok(*last)
        && rows.is_some_and(|rows| usize::try_from(image.height) == Ok(rows))
}

/// A copy of a tensor that a plan adds.
#[derive(Clone, Copy, Debug)]
pub enum TensorCopy {
    /// From one device to another.
    Crossing,
    /// To other rows: into an image where the output lies in one, out of one where the input does.
    Image,
}

impl Operator for TensorCopy {
    fn name(&self) -> &'static str {
        match self {
            TensorCopy::Crossing => "Copy",
            TensorCopy::Image => "ImageCopy",
        }
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        Ok(vec![cx.input(0)?.clone()])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 0, bytes: cx.bytes_touched() }
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        // Other rows are what `compact` makes of it.
        Ok(NativeKernel::copy(self.name()))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let info = cx.input(0)?;
        let (from, to) = (cx.image(0), cx.output_image(0));
        let bytes = info.bytes() as u64;
        let Some(any) = from.or(to) else {
            lower.copy((Operand::Input(0), 0), (Operand::Output(0), 0), bytes);
            return Ok(());
        };
        let element = info.dtype.bytes() as u64;
        let row = any.row_bytes();
        let stride = |image: Option<&ImageDesc>| image.map_or(row, |image| image.row_pitch);
        let (from, to) = (stride(from), stride(to));
        if from == to && bytes.is_multiple_of(4) {
            lower.copy((Operand::Input(0), 0), (Operand::Output(0), 0), bytes);
            return Ok(());
        }
        let kernel = variants::ImageRows { t: Unit::Bytes(info.dtype.bytes()) }.id()?;
        let most = from.max(to).saturating_mul(any.height.into()) / element;
        if most > i32::MAX as u64 {
            return Err(OpError::unsupported("an image of more elements than a kernel can index"));
        }
        let params = params::ImageRows {
            n: info.elements() as u32,
            width: (row / element) as u32,
            from: (from / element) as u32,
            to: (to / element) as u32,
        };
        lower.dispatch_1d(kernel, &[], &[Operand::Input(0), Operand::Output(0)], &params, info.elements())
    }
}

/// A native function for tensors some of which lie in images: it is called with contiguous rows, in the
/// image's own memory where they are contiguous there.
pub fn compact(kernel: NativeKernel, cx: &OpCx) -> NativeKernel {
    let inputs = (0..cx.input_count()).map(|i| cx.image(i).copied());
    let images: Vec<Option<ImageDesc>> =
        inputs.chain((0..cx.outputs().len()).map(|o| cx.output_image(o).copied())).collect();
    if images.iter().all(Option::is_none) {
        return kernel;
    }
    let name: Arc<str> = kernel.name().into();
    NativeKernel::new(name, move |args| call(&kernel, &images, args))
}

fn call(
    kernel: &NativeKernel,
    images: &[Option<ImageDesc>],
    args: &mut NativeArgs<'_, '_>,
) -> Result<(), KernelError> {
    let params = args.params();
    let padded = |i: usize| images.get(i).copied().flatten().filter(|image| !image.is_dense());
    // Contiguous rows, for images with gaps between rows.
    let mut rows: Vec<Vec<u128>> = (0..args.len())
        .map(|i| {
            let bytes = padded(i).map_or(0, |image| image.row_bytes() * u64::from(image.height));
            vec![0; (bytes as usize).div_ceil(size_of::<u128>())]
        })
        .collect();
    let mut results: Vec<(usize, ImageDesc, &mut [u8])> = Vec::new();
    let mut inner: Vec<NativeArg<'_>> = Vec::with_capacity(args.len());
    for (i, rows) in rows.iter_mut().enumerate() {
        let image = images.get(i).copied().flatten();
        let bytes = image.map_or(usize::MAX, |image| (image.row_bytes() * u64::from(image.height)) as usize);
        if !args.has(i) {
            inner.push(NativeArg::Absent);
            continue;
        }
        let dense: &mut [u8] = bytemuck::cast_slice_mut(rows);
        inner.push(match (args.read::<u8>(i), padded(i)) {
            (Ok(from), None) => NativeArg::Read(from.get(..bytes.min(from.len())).unwrap_or(from)),
            (Ok(from), Some(image)) => {
                let lines = dense.chunks_exact_mut(image.row_bytes() as usize);
                for (to, from) in lines.zip(from.chunks(image.row_pitch as usize)) {
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                }
                NativeArg::Read(dense.get(..bytes).unwrap_or_default())
            }
            (Err(_), None) => {
                let to = args.take_write::<u8>(i)?;
                let len = bytes.min(to.len());
                NativeArg::Write(to.get_mut(..len).unwrap_or_default())
            }
            (Err(_), Some(image)) => {
                results.push((i, image, args.take_write::<u8>(i)?));
                NativeArg::Write(dense.get_mut(..bytes).unwrap_or_default())
            }
        });
    }
    kernel.call(&mut NativeArgs::new(&mut inner, params))?;
    drop(inner);
    for (i, image, to) in results {
        let dense: &[u8] = rows.get(i).map_or(&[], |rows| bytemuck::cast_slice(rows));
        let lines = dense.chunks_exact(image.row_bytes() as usize);
        for (from, to) in lines.zip(to.chunks_mut(image.row_pitch as usize)) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::memory::image::Texel;
    use crate::ops::Fact;
    use crate::shape::Shape;

    #[test]
    fn a_native_function_sees_rows_without_gaps() {
        let info = TensorInfo::new(DType::F32, Shape::new([2, 3]).unwrap());
        let padded = ImageDesc { texel: Texel::R32F, width: 3, height: 2, row_pitch: 16 };
        let dense = ImageDesc { row_pitch: 12, ..padded };
        assert!(is_planes(&info, &padded));
        let from = [1.0f32, 2.0, 3.0, -1.0, 4.0, 5.0, 6.0, -1.0];
        for (images, want) in [
            ((Some(padded), None), vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0, 9.0]),
            ((Some(padded), Some(padded)), vec![1.0, 2.0, 3.0, 9.0, 4.0, 5.0, 6.0, 9.0]),
            ((Some(dense), Some(padded)), vec![1.0, 2.0, 3.0, 9.0, -1.0, 4.0, 5.0, 9.0]),
        ] {
            let cx = OpCx::for_infer(vec![Some(Fact::of(info.clone()))], 1);
            let cx = cx.with_outputs(vec![info.clone()]).with_images(vec![images.0], vec![images.1]);
            let kernel = compact(TensorCopy::Image.cpu(&cx).unwrap(), &cx);
            let mut to = [9.0f32; 8];
            let end = if images.1.is_some() { 32 } else { 24 };
            let to_bytes = &mut bytemuck::cast_slice_mut::<f32, u8>(&mut to)[..end];
            let mut args = [NativeArg::Read(bytemuck::cast_slice(&from)), NativeArg::Write(to_bytes)];
            kernel.call(&mut NativeArgs::new(&mut args, &[])).unwrap();
            assert_eq!(to.to_vec(), want);
        }
    }
}
