//! FeatureVectorizer: columns of several inputs side by side.

use std::sync::Arc;

use super::FEATURES;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::real::check_len;
use crate::ops::window::bad;
use crate::ops::{AttrReader, OpCx, OpError, Operator};
use crate::shape::Shape;

/// Rows of all inputs' features, each cut or filled with zeros to its width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureVectorizer {
    /// The width of each input; none for as many as it has.
    pub widths: Vec<usize>,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let mut widths = Vec::new();
    for width in attrs.ints_opt("inputdimensions")?.unwrap_or_default() {
        let width = usize::try_from(width).map_err(|_| bad("inputdimensions", format!("has {width}")))?;
        widths.push(width);
    }
    Ok(Arc::new(FeatureVectorizer { widths }))
}

/// Rows and features of input `i`: a vector is one row.
fn table(cx: &OpCx, i: usize) -> Result<[usize; 2], OpError> {
    match cx.shape(i)?.dims() {
        [] => Err(cx.shape_error(i, "at least one dimension")),
        [features] => Ok([1, *features]),
        [n, rest @ ..] => Ok([*n, rest.iter().product()]),
    }
}

impl FeatureVectorizer {
    /// Rows, and of each input how many features it has and how many are wanted.
    fn layout(&self, cx: &OpCx) -> Result<(usize, Vec<[usize; 2]>), OpError> {
        let given = self.widths.len();
        if given != 0 && given != cx.input_count() {
            let problem = format!("has {given} elements for {} inputs", cx.input_count());
            return Err(bad("inputdimensions", problem));
        }
        let [rows, _] = table(cx, 0)?;
        let mut columns = Vec::with_capacity(cx.input_count());
        for i in 0..cx.input_count() {
            let [n, features] = table(cx, i)?;
            if n != rows {
                return Err(cx.shape_error(i, format!("{rows} rows")));
            }
            columns.push([features, self.widths.get(i).copied().unwrap_or(features)]);
        }
        Ok((rows, columns))
    }
}

impl Operator for FeatureVectorizer {
    fn name(&self) -> &'static str {
        "FeatureVectorizer"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=usize::MAX, 1..=1)?;
        for i in 0..cx.input_count() {
            cx.dtype_of(i, FEATURES)?;
        }
        let (rows, columns) = self.layout(cx)?;
        let width = columns.iter().fold(0, |sum: usize, [_, width]| sum.saturating_add(*width));
        Ok(vec![TensorInfo::new(DType::F32, Shape::new([rows, width])?)])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (rows, columns) = self.layout(cx)?;
        let types = (0..cx.input_count()).map(|i| cx.dtype(i)).collect::<Result<Vec<_>, _>>()?;
        let width = cx.output(0)?.shape[1];
        Ok(NativeKernel::new("FeatureVectorizer", move |args| {
            let y = args.take_write::<f32>(types.len())?;
            check_len(types.len(), y.len(), rows * width)?;
            y.fill(0.0);
            let mut at = 0;
            for (i, (&[features, wanted], dtype)) in columns.iter().zip(&types).enumerate() {
                let x: Vec<f32> = match dtype {
                    DType::F32 => args.read::<f32>(i)?.to_vec(),
                    DType::F64 => args.read::<f64>(i)?.iter().map(|v| *v as f32).collect(),
                    DType::I32 => args.read::<i32>(i)?.iter().map(|v| *v as f32).collect(),
                    _ => args.read::<i64>(i)?.iter().map(|v| *v as f32).collect(),
                };
                check_len(i, x.len(), rows * features)?;
                let kept = features.min(wanted);
                for (y, x) in y.chunks_mut(width.max(1)).zip(x.chunks(features.max(1))) {
                    y[at..][..kept].copy_from_slice(&x[..kept]);
                }
                at += wanted;
            }
            Ok(())
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ints, read};
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, attrs, facts, run_cpu, tensor};

    #[test]
    fn columns_are_put_side_by_side() {
        let a = || Some(Tensor::new([2, 2], &[1i64, 2, 3, 4]).unwrap());
        let b = || Some(Tensor::new([2, 3], &[0.5f32, 1.5, 2.5, 3.5, 4.5, 5.5]).unwrap());
        let op = read("FeatureVectorizer", &attrs(&[("inputdimensions", ints(&[3, 2]))])).unwrap();
        let y = run_cpu(&*op, &[a(), b()], 1).unwrap();
        assert_eq!(y[0].shape().dims(), [2, 5]);
        assert_near(&y[0], &[1.0, 2.0, 0.0, 0.5, 1.5, 3.0, 4.0, 0.0, 3.5, 4.5], 0.0);
        assert!(facts(&*op, &[a()], 1).is_err());
        assert!(facts(&*op, &[a(), Some(tensor(&[3, 2], 1))], 1).is_err());
        let op = read("FeatureVectorizer", &attrs(&[])).unwrap();
        assert_near(&run_cpu(&*op, &[a()], 1).unwrap()[0], &[1.0, 2.0, 3.0, 4.0], 0.0);
        assert!(read("FeatureVectorizer", &attrs(&[("inputdimensions", ints(&[-1]))])).is_err());
        let op = read("FeatureVectorizer", &attrs(&[("inputdimensions", ints(&[i64::MAX]))])).unwrap();
        assert!(facts(&*op, &[a()], 1).is_err());
    }
}
