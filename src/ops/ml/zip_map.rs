//! ZipMap: what a classifier's scores belong to.

use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::NativeKernel;
use crate::ops::window::bad;
use crate::ops::{AttrReader, OpCx, OpError, Operator};
use crate::shape::Shape;

/// The scores `[rows, classes]` themselves. ONNX makes a sequence of maps of them, one map from labels to scores
/// for every row; there are no maps here, so the labels, which are the same for all rows, stay with the model
/// (`SummaryIo::classes` of the loader has them), in the order of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZipMap {
    /// Number of labels.
    pub classes: usize,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let integers = attrs.ints_opt("classlabels_int64s")?.map_or(0, |l| l.len());
    let texts = attrs.strs_opt("classlabels_strings")?.map_or(0, |l| l.len());
    match (integers, texts) {
        (0, 0) => Err(bad("classlabels_int64s", "is missing".into())),
        (classes, 0) | (0, classes) => Ok(Arc::new(ZipMap { classes })),
        _ => Err(bad("classlabels_int64s", "is given together with classlabels_strings".into())),
    }
}

impl Operator for ZipMap {
    fn name(&self) -> &'static str {
        "ZipMap"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.expect_dtype(0, DType::F32)?;
        let [n, len] = super::rows(cx)?;
        if len != self.classes {
            return Err(cx.shape_error(0, format!("scores of {} classes", self.classes)));
        }
        Ok(vec![TensorInfo::new(DType::F32, Shape::new([n, len])?)])
    }

    fn alias(&self, _: &OpCx) -> Option<usize> {
        Some(0)
    }

    fn cpu(&self, _: &OpCx) -> Result<NativeKernel, OpError> {
        Ok(NativeKernel::copy("ZipMap"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ints, read};
    use crate::graph::Tensor;
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, facts, run_cpu};

    #[test]
    fn scores_stay_a_table() {
        let x = |dims: &[usize]| Some(Tensor::new(dims, &[0.25f32, 0.75, 0.5, 0.5]).unwrap());
        let mut map = attrs(&[("classlabels_int64s", ints(&[5, 6]))]);
        let op = read("ZipMap", &map).unwrap();
        let y = run_cpu(&*op, &[x(&[2, 2])], 1).unwrap();
        assert_near(&y[0], &[0.25, 0.75, 0.5, 0.5], 0.0);
        assert!(facts(&*op, &[x(&[1, 4])], 1).is_err());
        map.insert("classlabels_strings".into(), AttrValue::Strs(vec![b"a".to_vec()]));
        assert!(read("ZipMap", &map).is_err());
        map.remove("classlabels_int64s");
        assert!(facts(&*read("ZipMap", &map).unwrap(), &[x(&[4, 1])], 1).is_ok());
        assert!(read("ZipMap", &attrs(&[])).is_err());
    }
}
