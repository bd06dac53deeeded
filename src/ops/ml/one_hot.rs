//! OneHotEncoder: a column for every category.

use std::collections::HashMap;
use std::sync::Arc;

use super::{FEATURES, features};
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeKernel};
use crate::ops::window::bad;
use crate::ops::{AttrReader, OpCx, OpError, Operator};
use crate::shape::Shape;

/// Each element becomes a row of zeros with a 1 at the place of its category.
#[derive(Clone, Debug)]
pub struct OneHotEncoder {
    places: Arc<HashMap<i64, usize>>,
    categories: usize,
    /// Whether an element of no category becomes zeros; else it is an error.
    zeros: bool,
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    if attrs.strs_opt("cats_strings")?.is_some_and(|l| !l.is_empty()) {
        return Err(OpError::unsupported("OneHotEncoder whose categories are texts"));
    }
    let list = attrs.ints_opt("cats_int64s")?.unwrap_or_default();
    if list.is_empty() {
        return Err(bad("cats_int64s", "is missing".into()));
    }
    let categories = list.len();
    // The last of equal categories counts.
    let places = Arc::new(list.into_iter().zip(0..).collect());
    Ok(Arc::new(OneHotEncoder { places, categories, zeros: attrs.flag("zeros", true)? }))
}

impl Operator for OneHotEncoder {
    fn name(&self) -> &'static str {
        "OneHotEncoder"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.dtype_of(0, FEATURES)?;
        let mut dims = cx.shape(0)?.to_vec();
        dims.push(self.categories);
        Ok(vec![TensorInfo::new(DType::F32, Shape::new(dims)?)])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (len, dtype, op) = (cx.input(0)?.elements(), cx.dtype(0)?, self.clone());
        Ok(NativeKernel::new("OneHotEncoder", move |args| {
            let found: Vec<i64> = match dtype {
                DType::I64 => args.read::<i64>(0)?.to_vec(),
                // The part before the point.
                _ => features(args, dtype, len)?.into_iter().map(|v| v as i64).collect(),
            };
            let y = args.take_write::<f32>(1)?;
            y.fill(0.0);
            for (y, x) in y.chunks_mut(op.categories).zip(found) {
                match op.places.get(&x).and_then(|place| y.get_mut(*place)) {
                    Some(y) => *y = 1.0,
                    None if op.zeros => {}
                    None => {
                        return Err(KernelError::Value { what: format!("{x} is none of the categories") });
                    }
                }
            }
            Ok(())
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ints, read};
    use crate::graph::Tensor;
    use crate::kernel::{NativeArg, NativeArgs};
    use crate::ops::test_util::{assert_near, attrs, facts, run_cpu};
    use crate::ops::{AttrValue, OpError};

    #[test]
    fn categories_have_columns() {
        let mut map = attrs(&[("cats_int64s", ints(&[3, -1]))]);
        let op = read("OneHotEncoder", &map).unwrap();
        let x = || Some(Tensor::new([3, 1], &[-1.5f32, 3.9, 7.0]).unwrap());
        let y = run_cpu(&*op, &[x()], 1).unwrap();
        assert_eq!(y[0].shape().dims(), [3, 1, 2]);
        assert_near(&y[0], &[0.0, 1.0, 1.0, 0.0, 0.0, 0.0], 0.0);
        let y = run_cpu(&*op, &[Some(Tensor::new([2], &[3i64, i64::MAX]).unwrap())], 1).unwrap();
        assert_near(&y[0], &[1.0, 0.0, 0.0, 0.0], 0.0);

        map.insert("zeros".into(), AttrValue::Int(0));
        let op = read("OneHotEncoder", &map).unwrap();
        let x = x().unwrap();
        let kernel = op.cpu(&facts(&*op, &[Some(x.clone())], 1).unwrap()).unwrap();
        let mut y = [0f32; 6];
        let args = &mut [NativeArg::Read(x.bytes()), NativeArg::Write(bytemuck::cast_slice_mut(&mut y))];
        assert!(kernel.call(&mut NativeArgs::new(args, &[])).is_err());

        map.insert("cats_int64s".into(), ints(&[]));
        assert!(read("OneHotEncoder", &map).is_err());
        map.insert("cats_strings".into(), AttrValue::Strs(vec![b"a".to_vec()]));
        assert!(matches!(read("OneHotEncoder", &map), Err(OpError::Unsupported { .. })));
    }
}
