//! OneHot: indices as vectors with one element set.

use std::sync::Arc;

use super::positions::position;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::codes::one_hot::IndexKind;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{KernelError, NativeArgs, NativeKernel, Unit};
use crate::ops::norm::Along;
use crate::ops::pointwise::number::{Number, with_number};
use crate::ops::word::word;
use crate::ops::{AttrReader, Lowering, OpCx, OpError, Operand, Operator, par};
use crate::shape::{Shape, normalize_axis};

/// Every index of input 0 becomes a vector along a new axis, of as many elements as input 1 says: the second
/// element of input 2 at the index (negative ones count from the end), the first one elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneHot {
    /// Where the new axis lies in the output; negative ones count from the end.
    pub axis: i64,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(OneHot { axis: attrs.int("axis", -1)? }))
}

impl OneHot {
    fn axis(&self, cx: &OpCx) -> Result<usize, OpError> {
        Ok(normalize_axis(self.axis, cx.shape(0)?.rank() + 1)?)
    }

    fn along(&self, cx: &OpCx) -> Result<Along, OpError> {
        let axis = self.axis(cx)?;
        Ok(Along::axes(cx.output(0)?.shape.dims(), axis, axis + 1))
    }
}

/// The position on the new axis of each index, its length where it is out of range.
fn hot<I: Number>(args: &NativeArgs<'_, '_>, len: usize) -> Result<Vec<usize>, KernelError> {
    Ok(args.read::<I>(0)?.iter().map(|i| position(i.to_i64(), len).unwrap_or(len)).collect())
}

fn run<W: bytemuck::Pod + Send + Sync>(
    args: &mut NativeArgs<'_, '_>,
    hot: &[usize],
    along: Along,
) -> Result<(), KernelError> {
    let &[off, on] = args.read::<W>(2)? else {
        return Err(KernelError::Value { what: "the values of OneHot are not two".to_owned() });
    };
    par::parts(args.take_write::<W>(3)?, |first, part| {
        for (i, y) in part.iter_mut().enumerate() {
            let (i, inner) = ((first + i) / along.inner, (first + i) % along.inner);
            let at = i / along.len * along.inner + inner;
            *y = if hot.get(at) == Some(&(i % along.len)) { on } else { off };
        }
    });
    Ok(())
}

impl Operator for OneHot {
    fn name(&self) -> &'static str {
        "OneHot"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(3..=3, 1..=1)?;
        cx.dtype_of(0, DType::NUMBERS)?;
        if cx.shape(2)?.dims() != [2] {
            return Err(cx.shape_error(2, "[2]"));
        }
        let depth = cx.need_value(1)?;
        let len = match depth.dtype().is_float() {
            true => depth.to_f32s()?.first().map(|v| *v as i64),
            false => depth.to_i64s()?.first().copied(),
        };
        let len = len
            .filter(|n| *n >= 0)
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| OpError::Value { input: 1, problem: "is no length of a vector".to_owned() })?;
        let mut dims = cx.shape(0)?.to_vec();
        dims.insert(self.axis(cx)?, len);
        Ok(vec![TensorInfo::new(cx.dtype(2)?, Shape::new(dims)?)])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (along, bytes, index_type) = (self.along(cx)?, cx.dtype(2)?.bytes(), cx.dtype(0)?);
        Ok(NativeKernel::new("OneHot", move |args| {
            let hot = with_number!(index_type, I => hot::<I>(args, along.len)?, else Vec::new());
            match bytes {
                1 => run::<u8>(args, &hot, along),
                2 => run::<u16>(args, &hot, along),
                4 => run::<u32>(args, &hot, along),
                _ => run::<u64>(args, &hot, along),
            }
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let kernel = variants::OneHot { t: Unit::Bytes(cx.dtype(2)?.bytes()) }.id()?;
        let kind = match cx.dtype(0)? {
            DType::I32 => IndexKind::I32,
            DType::I64 => IndexKind::I64,
            DType::F32 => IndexKind::F32,
            other => return Err(OpError::unsupported(format!("no device kernel for indices of {other}"))),
        };
        let Along { len, inner, .. } = self.along(cx)?;
        let n = cx.output(0)?.elements();
        let p = params::OneHot { n: word(n)?, len: word(len)?, inner: word(inner)? };
        let args = [Operand::Input(0), Operand::Input(2), Operand::Output(0)];
        lower.dispatch_1d(kernel, &[(spec::one_hot::INDEX_KIND, kind as u32)], &args, &p, n)
    }
}
