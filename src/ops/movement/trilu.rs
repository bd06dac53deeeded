//! Trilu: the triangle of matrices above or below a diagonal.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::table::{params, spec, variants};
use crate::kernel::{NativeKernel, Unit};
use crate::ops::word::word;
use crate::ops::{AttrReader, Cost, Lowering, OpCx, OpError, Operand, Operator};

/// Keeps the elements on one side of diagonal k (input 1) of matrices, zero elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trilu {
    /// Whether elements above the diagonal are kept.
    pub upper: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    Ok(Arc::new(Trilu { upper: attrs.flag("upper", true)? }))
}

/// Rows, columns and the diagonal, which lies between `-rows` and `columns`.
fn resolve(cx: &OpCx) -> Result<(usize, usize, isize), OpError> {
    let [.., rows, cols] = *cx.shape(0)?.dims() else {
        return Err(cx.shape_error(0, "at least two dimensions"));
    };
    let k = match cx.need_i64s_opt(1)?.as_deref() {
        None => 0,
        Some(&[k]) => k.clamp(-(rows as i64), cols as i64) as isize,
        Some(_) => return Err(cx.shape_error(1, "one element")),
    };
    Ok((rows, cols, k))
}

impl Operator for Trilu {
    fn name(&self) -> &'static str {
        "Trilu"
    }

    fn value_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=2, 1..=1)?;
        if cx.has(1) {
            cx.expect_dtype(1, DType::I64)?;
        }
        resolve(cx)?;
        Ok(vec![cx.input(0)?.clone()])
    }

    fn cost(&self, cx: &OpCx) -> Cost {
        Cost { flops: 0, bytes: cx.bytes_touched() }
    }

    fn in_place(&self, _cx: &OpCx) -> Option<usize> {
        Some(0)
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (rows, cols, k) = resolve(cx)?;
        let (size, upper, inputs) = (cx.dtype(0)?.bytes(), self.upper, cx.input_count());
        Ok(NativeKernel::new("Trilu", move |args| {
            let x = args.read::<u8>(0)?;
            let y = args.take_write::<u8>(inputs)?;
            let row = (cols * size).max(1);
            for (r, (y, x)) in y.chunks_mut(row).zip(x.chunks(row)).enumerate() {
                // The diagonal's column in this row, or the one after it.
                let at = (r % rows) as isize + k + isize::from(!upper);
                let cut = at.clamp(0, cols as isize) as usize * size;
                y.copy_from_slice(x);
                if upper { y[..cut].fill(0) } else { y[cut..].fill(0) }
            }
            Ok(())
        }))
    }

    fn gpu(&self, cx: &OpCx, lower: &mut Lowering<'_>) -> Result<(), OpError> {
        let (rows, cols, k) = resolve(cx)?;
        let info = cx.input(0)?;
        let kernel = variants::Trilu { t: Unit::Bytes(info.dtype.bytes()) }.id()?;
        let n = info.elements();
        let params = params::Trilu { n: word(n)?, rows: word(rows)?, cols: word(cols)?, k: k as i32 };
        let args = [Operand::Input(0), Operand::Output(0)];
        lower.dispatch_1d(kernel, &[(spec::trilu::UPPER, u32::from(self.upper))], &args, &params, n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::ops::test_util::{facts, run_cpu, tensor, tensor_of, values};

    fn check(x: &Tensor, upper: bool, k: Option<i64>) {
        let inputs = [Some(x.clone()), k.map(Tensor::scalar)];
        let got = run_cpu(&Trilu { upper }, &inputs, 1).unwrap();
        let (rows, cols) = (x.shape()[1] as i64, x.shape()[2] as i64);
        let k = k.unwrap_or(0);
        let want: Vec<f32> = x
            .to_f32s()
            .unwrap()
            .into_iter()
            .enumerate()
            .map(|(n, v)| {
                let (r, c) = (n as i64 / cols % rows, n as i64 % cols);
                let side = c - r;
                if (upper && side >= k) || (!upper && side <= k) { v } else { 0.0 }
            })
            .collect();
        assert_eq!(got[0].to_f32s().unwrap(), want);
        #[cfg(feature = "vulkan")]
        crate::ops::testing::check_op(&Trilu { upper }, &inputs, 0.0);
    }

    #[test]
    fn one_side_of_a_diagonal_is_kept() {
        for upper in [false, true] {
            for k in [None, Some(0), Some(2), Some(-1), Some(-4), Some(9)] {
                check(&tensor(&[2, 3, 5], 1), upper, k);
            }
            let half = tensor_of(&[1, 4, 3], &values(12, 2), half::f16::from_f32);
            check(&half, upper, Some(1));
        }
        let far =
            facts(&Trilu { upper: true }, &[Some(tensor(&[2, 2], 1)), Some(Tensor::scalar(i64::MIN))], 1);
        assert!(far.is_ok());
        assert!(facts(&Trilu { upper: true }, &[Some(tensor(&[2], 1))], 1).is_err());
    }

    #[test]
    fn integers_and_bytes_are_kept_whole() {
        let x = Tensor::new([1, 2, 2], &[i64::MAX, 2, 3, i64::MIN]).unwrap();
        let got = run_cpu(&Trilu { upper: false }, &[Some(x.clone())], 1).unwrap();
        assert_eq!(got[0].as_slice::<i64>().unwrap(), [i64::MAX, 0, 3, i64::MIN]);
        #[cfg(feature = "vulkan")]
        {
            crate::ops::testing::check_op(&Trilu { upper: true }, &[Some(x)], 0.0);
            let bytes = Tensor::new([3, 3], &[1u8, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
            crate::ops::testing::check_op(&Trilu { upper: false }, &[Some(bytes)], 0.0);
        }
    }
}
