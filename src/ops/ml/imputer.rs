//! Imputer: values put in place of missing ones.

use std::sync::Arc;

use super::FEATURES;
use crate::dtype::DType;
use crate::graph::TensorInfo;
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::real::check_len;
use crate::ops::window::bad;
use crate::ops::{AttrReader, OpCx, OpError, Operator};

/// Elements equal to `replaced` become the value of their place along the last axis; where `replaced` is NaN,
/// all that are NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct Imputer {
    /// For float types: the value that is replaced, and what replaces it: one value, or one for every feature.
    pub floats: (f32, Vec<f32>),
    /// For integer types.
    pub ints: (i64, Vec<i64>),
}

pub(super) fn read(attrs: &mut AttrReader<'_>, _: i64) -> Result<Arc<dyn Operator>, OpError> {
    let floats = attrs.floats_opt("imputed_value_floats")?.unwrap_or_default();
    let ints = attrs.ints_opt("imputed_value_int64s")?.unwrap_or_default();
    let replaced = (attrs.float("replaced_value_float", 0.0)?, attrs.int("replaced_value_int64", 0)?);
    Ok(Arc::new(Imputer { floats: (replaced.0, floats), ints: (replaced.1, ints) }))
}

/// The values for elements of 32 bits.
fn narrowed(values: &[i64]) -> Result<Vec<i32>, OpError> {
    let narrow: Result<Vec<i32>, _> = values.iter().map(|v| i32::try_from(*v)).collect();
    narrow.map_err(|_| bad("imputed_value_int64s", format!("is {values:?}, beyond int32, the input's type")))
}

/// Replaces the elements of argument 0 that `missing` tells; there are `len` of them.
fn fill<T: bytemuck::Pod>(
    args: &mut NativeArgs<'_, '_>,
    len: usize,
    features: usize,
    values: &[T],
    missing: impl Fn(T) -> bool,
) -> Result<(), KernelError> {
    let x = args.read::<T>(0)?;
    let y = args.take_write::<T>(1)?;
    check_len(0, x.len(), len)?;
    check_len(1, y.len(), len)?;
    for (y, x) in y.chunks_mut(features.max(1)).zip(x.chunks(features.max(1))) {
        // One value is repeated for all features.
        for ((y, x), value) in y.iter_mut().zip(x).zip(values.iter().cycle()) {
            *y = if missing(*x) { *value } else { *x };
        }
    }
    Ok(())
}

impl Operator for Imputer {
    fn name(&self) -> &'static str {
        "Imputer"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        let (name, given) = match cx.dtype_of(0, FEATURES)? {
            DType::F32 | DType::F64 => ("imputed_value_floats", self.floats.1.len()),
            _ => ("imputed_value_int64s", self.ints.1.len()),
        };
        let Some(&features) = cx.shape(0)?.dims().last() else {
            return Err(cx.shape_error(0, "at least one dimension"));
        };
        if given != 1 && (given != features || given == 0) {
            return Err(bad(name, format!("has {given} elements for {features} features")));
        }
        if cx.dtype(0)? == DType::I32 {
            narrowed(&self.ints.1)?;
        }
        Ok(vec![cx.input(0)?.clone()])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (len, dtype, op) = (cx.input(0)?.elements(), cx.dtype(0)?, self.clone());
        let features = cx.shape(0)?.dims().last().copied().unwrap_or(1);
        let narrow = if dtype == DType::I32 { narrowed(&op.ints.1)? } else { Vec::new() };
        Ok(NativeKernel::new("Imputer", move |args| {
            let (float, floats) = (op.floats.0, &op.floats.1);
            let (int, ints) = (op.ints.0, &op.ints.1);
            match dtype {
                DType::F32 => {
                    fill(args, len, features, floats, |v: f32| v == float || (v.is_nan() && float.is_nan()))
                }
                DType::F64 => {
                    let floats: Vec<f64> = floats.iter().map(|v| f64::from(*v)).collect();
                    let float = f64::from(float);
                    fill(args, len, features, &floats, |v: f64| v == float || (v.is_nan() && float.is_nan()))
                }
                DType::I32 => fill(args, len, features, &narrow, |v: i32| i64::from(v) == int),
                _ => fill(args, len, features, ints, |v: i64| v == int),
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{floats, ints, read};
    use crate::graph::Tensor;
    use crate::ops::AttrValue;
    use crate::ops::test_util::{assert_near, attrs, facts, run_cpu};

    #[test]
    fn missing_values_are_replaced() {
        let mut map = attrs(&[
            ("imputed_value_floats", floats(&[1.0, 2.0, 3.0])),
            ("replaced_value_float", AttrValue::Float(f32::NAN)),
            ("imputed_value_int64s", ints(&[-7])),
            ("replaced_value_int64", AttrValue::Int(4)),
        ]);
        let op = read("Imputer", &map).unwrap();
        let nan = f32::NAN;
        let x = Some(Tensor::new([2, 3], &[nan, 0.5, nan, 9.0, nan, 0.0]).unwrap());
        let y = run_cpu(&*op, &[x], 1).unwrap();
        assert_near(&y[0], &[1.0, 0.5, 3.0, 9.0, 2.0, 0.0], 0.0);
        let x = Some(Tensor::new([2, 1, 2], &[4i64, 5, -4, 4]).unwrap());
        assert_eq!(run_cpu(&*op, &[x], 1).unwrap()[0].to_i64s().unwrap(), [-7, 5, -4, -7]);
        let x = || Some(Tensor::new([2], &[4.0f64, 5.0]).unwrap());
        assert!(facts(&*op, &[x()], 1).is_err());
        map.insert("imputed_value_floats".into(), floats(&[6.0]));
        map.insert("replaced_value_float".into(), AttrValue::Float(5.0));
        let y = run_cpu(&*read("Imputer", &map).unwrap(), &[x()], 1).unwrap();
        assert_eq!(y[0].as_slice::<f64>().unwrap(), [4.0, 6.0]);
        let x32 = || Some(Tensor::new([1, 2], &[4i32, 5]).unwrap());
        assert_eq!(run_cpu(&*op, &[x32()], 1).unwrap()[0].to_i64s().unwrap(), [-7, 5]);
        map.insert("imputed_value_int64s".into(), ints(&[1 << 40]));
        assert!(facts(&*read("Imputer", &map).unwrap(), &[x32()], 1).is_err());
        map.insert("imputed_value_floats".into(), floats(&[]));
        assert!(facts(&*read("Imputer", &map).unwrap(), &[x()], 1).is_err());
    }
}
