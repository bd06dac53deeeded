//! LabelEncoder: numbers looked up in a table of other numbers.

use std::collections::HashMap;
use std::sync::Arc;

use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::ops::real::check_len;
use crate::ops::window::bad;
use crate::ops::{AttrReader, OpCx, OpError, Operator};

/// Types of keys and of values.
pub(super) const TYPES: &[DType] = &[DType::F32, DType::F64, DType::I64, DType::I32, DType::I16];

/// Each element, a key, becomes its value, or the default where the table does not have it.
#[derive(Clone, Debug)]
pub struct LabelEncoder {
    /// The type of keys.
    keys: DType,
    /// The type of values.
    values: DType,
    /// The position of each key's value; keys are what [`float_key`] makes of floats, else the integers.
    places: Arc<HashMap<i64, usize>>,
    /// Contiguous values; the last one is the default.
    bytes: Arc<[u8]>,
}

/// A number that equal floats, and all NaNs, have in common.
fn float_key(v: f64) -> i64 {
    let v = if v.is_nan() { f64::NAN } else { v + 0.0 };
    i64::from_ne_bytes(v.to_bits().to_ne_bytes())
}

/// The table's column `what`, "keys" or "values"; `newer` where it may be a tensor.
fn column(attrs: &AttrReader<'_>, what: &str, newer: bool) -> Result<Tensor, OpError> {
    let name = |kind: &str| format!("{what}_{kind}");
    if attrs.strs_opt(&name("strings"))?.is_some_and(|l| !l.is_empty()) {
        return Err(OpError::unsupported(format!("LabelEncoder whose {what} are texts")));
    }
    let mut found = Vec::new();
    if let Some(list) = attrs.ints_opt(&name("int64s"))?.filter(|l| !l.is_empty()) {
        found.push(Tensor::new([list.len()], &list)?);
    }
    if let Some(list) = attrs.floats_opt(&name("floats"))?.filter(|l| !l.is_empty()) {
        found.push(Tensor::new([list.len()], &list)?);
    }
    if newer && let Some(tensor) = attrs.tensor_opt(&name("tensor"))? {
        found.push(tensor.clone());
    }
    match (found.pop(), found.pop()) {
        (Some(column), None) if TYPES.contains(&column.dtype()) => Ok(column),
        (Some(column), None) => {
            Err(OpError::unsupported(format!("LabelEncoder whose {what} are {}", column.dtype())))
        }
        (None, _) => Err(bad(&name("int64s"), "is missing, and every other kind of them".into())),
        _ => Err(bad(&name("int64s"), "is given together with another kind of them".into())),
    }
}

pub(super) fn read(attrs: &mut AttrReader<'_>, opset: i64) -> Result<Arc<dyn Operator>, OpError> {
    if attrs.value("classes_strings").is_some() {
        return Err(OpError::unsupported("LabelEncoder whose classes are texts"));
    }
    let newer = opset >= 4;
    let (keys, values) = (column(attrs, "keys", newer)?, column(attrs, "values", newer)?);
    let (count, given) = (keys.info().elements(), values.info().elements());
    if count != given {
        return Err(bad("keys and values", format!("have {count} and {given} elements")));
    }
    // Defaults of other types are of no use, but no mistake.
    attrs.value("default_string");
    let (int, float) = (attrs.int("default_int64", -1)?, attrs.float("default_float", -0.0)?);
    let beyond = || bad("default_int64", format!("is {int}, beyond {}, the values' type", values.dtype()));
    let default = match attrs.tensor_opt("default_tensor")?.filter(|_| newer) {
        Some(t) if t.dtype() == values.dtype() && t.info().elements() == 1 => t.clone(),
        Some(t) => {
            return Err(bad("default_tensor", format!("is {}, expected one {}", t.info(), values.dtype())));
        }
        None => match values.dtype() {
            DType::I64 => Tensor::scalar(int),
            DType::I32 => Tensor::scalar(i32::try_from(int).map_err(|_| beyond())?),
            DType::I16 => Tensor::scalar(i16::try_from(int).map_err(|_| beyond())?),
            DType::F64 => Tensor::scalar(f64::from(float)),
            _ => Tensor::scalar(float),
        },
    };
    let numbers: Vec<i64> = match keys.dtype() {
        DType::F32 | DType::F64 => super::doubles(&keys)?.into_iter().map(float_key).collect(),
        _ => keys.to_i64s()?,
    };
    // The last of equal keys counts.
    let places = numbers.into_iter().zip(0..).collect();
    let bytes = [values.bytes(), default.bytes()].concat();
    Ok(Arc::new(LabelEncoder {
        keys: keys.dtype(),
        values: values.dtype(),
        places: Arc::new(places),
        bytes: bytes.into(),
    }))
}

impl LabelEncoder {
    fn look_up<T: bytemuck::Pod>(
        &self,
        args: &mut NativeArgs<'_, '_>,
        len: usize,
        key: impl Fn(T) -> i64,
    ) -> Result<(), KernelError> {
        let size = self.values.bytes();
        let x = args.read::<T>(0)?;
        let y = args.take_write::<u8>(1)?;
        check_len(0, x.len(), len)?;
        check_len(1, y.len(), len * size)?;
        let default = self.bytes.len() / size - 1;
        for (y, x) in y.chunks_exact_mut(size).zip(x) {
            let place = self.places.get(&key(*x)).copied().unwrap_or(default);
            y.copy_from_slice(&self.bytes[place * size..][..size]);
        }
        Ok(())
    }
}

impl Operator for LabelEncoder {
    fn name(&self) -> &'static str {
        "LabelEncoder"
    }

    fn infer(&self, cx: &OpCx) -> Result<Vec<TensorInfo>, OpError> {
        cx.expect_counts(1..=1, 1..=1)?;
        cx.expect_dtype(0, self.keys)?;
        Ok(vec![TensorInfo::new(self.values, cx.shape(0)?.clone())])
    }

    fn cpu(&self, cx: &OpCx) -> Result<NativeKernel, OpError> {
        let (len, op) = (cx.input(0)?.elements(), self.clone());
        Ok(NativeKernel::new("LabelEncoder", move |args| match op.keys {
            DType::F32 => op.look_up(args, len, |v: f32| float_key(f64::from(v))),
            DType::F64 => op.look_up(args, len, float_key),
            DType::I16 => op.look_up(args, len, |v: i16| i64::from(v)),
            DType::I32 => op.look_up(args, len, |v: i32| i64::from(v)),
            _ => op.look_up(args, len, |v: i64| v),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{floats, ints, read, text};
    use crate::graph::Tensor;
    use crate::ops::test_util::{assert_near, attrs, facts, run_cpu, tensor};
    use crate::ops::{AttrValue, OpError};

    #[test]
    fn keys_become_values() {
        let mut map = attrs(&[
            ("keys_int64s", ints(&[4, i64::MIN, 4])),
            ("values_floats", floats(&[0.5, -1.5, 2.5])),
            ("default_float", AttrValue::Float(9.0)),
            ("default_int64", AttrValue::Int(3)),
            ("default_string", text("none")),
        ]);
        let x = || Some(Tensor::new([2, 2], &[4i64, 5, i64::MIN, 0]).unwrap());
        let op = read("LabelEncoder", &map).unwrap();
        assert_near(&run_cpu(&*op, &[x()], 1).unwrap()[0], &[2.5, 9.0, -1.5, 9.0], 0.0);
        assert!(facts(&*op, &[Some(tensor(&[2], 1))], 1).is_err());
        map.insert("values_int64s".into(), ints(&[1, 2, 3]));
        assert!(read("LabelEncoder", &map).is_err());
        map.remove("values_floats");
        let y = run_cpu(&*read("LabelEncoder", &map).unwrap(), &[x()], 1).unwrap();
        assert_eq!(y[0].to_i64s().unwrap(), [3, 3, 2, 3]);
        map.insert("keys_int64s".into(), ints(&[4]));
        assert!(read("LabelEncoder", &map).is_err());
        map.remove("keys_int64s");
        assert!(read("LabelEncoder", &map).is_err());
        map.insert("keys_strings".into(), AttrValue::Strs(vec![b"a".to_vec()]));
        assert!(matches!(read("LabelEncoder", &map), Err(OpError::Unsupported { .. })));
    }

    #[test]
    fn tables_may_be_tensors_and_all_nans_are_one() {
        let mut map = attrs(&[
            ("keys_tensor", AttrValue::Tensor(Tensor::new([3], &[f64::NAN, 0.0, 1.5]).unwrap())),
            ("values_tensor", AttrValue::Tensor(Tensor::new([3], &[1i16, -2, 3]).unwrap())),
        ]);
        let x = Some(Tensor::new([4], &[-f64::NAN, -0.0, 1.5, 7.0]).unwrap());
        let y = run_cpu(&*read("LabelEncoder", &map).unwrap(), std::slice::from_ref(&x), 1).unwrap();
        assert_eq!(y[0].as_slice::<i16>().unwrap(), [1, -2, 3, -1]);
        map.insert("default_int64".into(), AttrValue::Int(1 << 20));
        assert!(read("LabelEncoder", &map).is_err());
        map.remove("default_int64");
        map.insert("default_tensor".into(), AttrValue::Tensor(Tensor::new([1], &[70i16]).unwrap()));
        let y = run_cpu(&*read("LabelEncoder", &map).unwrap(), &[x], 1).unwrap();
        assert_eq!(y[0].as_slice::<i16>().unwrap(), [1, -2, 3, 70]);
        map.insert("default_tensor".into(), AttrValue::Tensor(Tensor::scalar(1i64)));
        assert!(read("LabelEncoder", &map).is_err());
    }
}
