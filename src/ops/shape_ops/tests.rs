//! Shapes by their rules, and every device against the native functions.

use std::sync::Arc;

use super::Range;
use crate::dtype::DType;
use crate::graph::{Tensor, TensorInfo};
use crate::ops::test_util::{attrs, facts, read_op, run_cpu, tensor};
use crate::ops::{AttrMap, AttrValue, Fact, OpCx, OpError, Operator};
use crate::shape::Shape;

fn op(name: &str, opset: i64, list: &[(&str, AttrValue)]) -> Arc<dyn Operator> {
    read_op(name, opset, &attrs(list)).unwrap()
}

fn int(v: i64) -> AttrValue {
    AttrValue::Int(v)
}

fn known(dims: &[i64]) -> Option<Tensor> {
    Some(Tensor::from_i64s(dims))
}

/// The output on every device and by the native function.
#[track_caller]
fn everywhere(op: &dyn Operator, inputs: &[Option<Tensor>]) -> Tensor {
    #[cfg(feature = "vulkan")]
    return crate::ops::testing::check_op(op, inputs, 0.0).remove(0);
    #[cfg(not(feature = "vulkan"))]
    return run_cpu(op, inputs, 1).unwrap().remove(0);
}

/// Checks the shape that `op` gives a tensor of `shape`, and that the elements stay.
#[track_caller]
fn reshapes(op: &dyn Operator, shape: &[usize], second: Option<Tensor>, want: &[usize]) {
    let x = tensor(shape, 5);
    let inputs = match second {
        Some(second) => vec![Some(x.clone()), Some(second)],
        None => vec![Some(x.clone())],
    };
    let y = everywhere(op, &inputs);
    assert_eq!((y.shape().dims(), y.bytes()), (want, x.bytes()));
    assert_eq!(op.alias(&facts(op, &inputs, 1).unwrap()), Some(0));
}

#[track_caller]
fn refused(op: &dyn Operator, shape: &[usize], second: Option<Tensor>) -> OpError {
    facts(op, &[Some(tensor(shape, 1)), second], 1).unwrap_err()
}

#[test]
fn reshape_keeps_sizes_and_fills_in_the_rest() {
    let plain = op("Reshape", 13, &[]);
    reshapes(plain.as_ref(), &[2, 3, 4], known(&[4, 6]), &[4, 6]);
    reshapes(plain.as_ref(), &[2, 3, 4], known(&[0, -1]), &[2, 12]);
    reshapes(plain.as_ref(), &[2, 3, 4], known(&[-1, 0, 2, 2]), &[2, 3, 2, 2]);
    reshapes(plain.as_ref(), &[1, 1], known(&[]), &[]);
    reshapes(plain.as_ref(), &[0, 3], known(&[0, -1]), &[0, 0]);
    reshapes(plain.as_ref(), &[0, 3], known(&[3, -1]), &[3, 0]);
    let old = op("Reshape", 1, &[("shape", AttrValue::Ints(vec![0, -1]))]);
    reshapes(old.as_ref(), &[2, 3, 4], None, &[2, 12]);
    let zero = op("Reshape", 14, &[("allowzero", int(1))]);
    reshapes(zero.as_ref(), &[3, 0], known(&[0, 5]), &[0, 5]);
    for bad in [&[-1, -1][..], &[5], &[-2], &[7, -1], &[1, 2, 3, 4, 0], &[i64::MAX, i64::MAX]] {
        refused(plain.as_ref(), &[2, 3, 4], known(bad));
    }
    let unknown = [
        Some(Fact::of(TensorInfo::new(DType::F32, Shape::new([4]).unwrap()))),
        Some(Fact::of(TensorInfo::new(DType::I64, Shape::new([1]).unwrap()))),
    ];
    let need = plain.infer(&OpCx::for_infer(unknown.to_vec(), 1));
    assert!(matches!(need, Err(OpError::NeedsValue { input: 1 })));
}

#[test]
fn flatten_cuts_at_any_axis() {
    for (axis, want) in [(0, [1, 24]), (1, [2, 12]), (2, [6, 4]), (3, [24, 1]), (-1, [6, 4]), (-3, [1, 24])] {
        reshapes(op("Flatten", 13, &[("axis", int(axis))]).as_ref(), &[2, 3, 4], None, &want);
    }
    reshapes(op("Flatten", 9, &[]).as_ref(), &[5], None, &[5, 1]);
    refused(op("Flatten", 13, &[("axis", int(4))]).as_ref(), &[2, 3, 4], None);
}

#[test]
fn squeeze_and_unsqueeze_take_axes_from_both_places() {
    let squeeze = op("Squeeze", 13, &[]);
    reshapes(squeeze.as_ref(), &[1, 3, 1, 4], None, &[3, 4]);
    reshapes(squeeze.as_ref(), &[1, 3, 1, 4], known(&[-2]), &[1, 3, 4]);
    reshapes(squeeze.as_ref(), &[1, 3], known(&[]), &[1, 3]);
    reshapes(op("Squeeze", 11, &[("axes", AttrValue::Ints(vec![0]))]).as_ref(), &[1, 3, 1], None, &[3, 1]);
    assert!(matches!(refused(squeeze.as_ref(), &[1, 3], known(&[1])), OpError::InputShape { .. }));
    refused(squeeze.as_ref(), &[1, 3], known(&[2]));
    let unsqueeze = op("Unsqueeze", 13, &[]);
    reshapes(unsqueeze.as_ref(), &[3, 4], known(&[0, -1]), &[1, 3, 4, 1]);
    reshapes(unsqueeze.as_ref(), &[3, 4], known(&[2, 1]), &[3, 1, 1, 4]);
    let old = op("Unsqueeze", 11, &[("axes", AttrValue::Ints(vec![1]))]);
    reshapes(old.as_ref(), &[3], None, &[3, 1]);
    refused(unsqueeze.as_ref(), &[3], known(&[0, 0]));
    refused(unsqueeze.as_ref(), &[3], known(&[3]));
    refused(unsqueeze.as_ref(), &[3], known(&[0; 40]));
    assert!(matches!(refused(unsqueeze.as_ref(), &[3], None), OpError::MissingInput { input: 1 }));
    assert!(read_op("Unsqueeze", 11, &AttrMap::new()).is_err());
}

#[test]
fn shape_and_size_describe_the_input() {
    let sizes = |list: &[(&str, AttrValue)]| {
        let op = op("Shape", 15, list);
        assert!(op.shape_only());
        everywhere(op.as_ref(), &[Some(tensor(&[2, 3, 4], 1))]).to_i64s().unwrap()
    };
    assert_eq!(sizes(&[]), [2, 3, 4]);
    assert_eq!(sizes(&[("start", int(1))]), [3, 4]);
    assert_eq!(sizes(&[("start", int(-2)), ("end", int(-1))]), [3]);
    assert_eq!(sizes(&[("start", int(-9)), ("end", int(9))]), [2, 3, 4]);
    assert!(sizes(&[("start", int(2)), ("end", int(1))]).is_empty());
    let size = everywhere(op("Size", 13, &[]).as_ref(), &[Some(tensor(&[2, 3, 4], 1))]);
    assert_eq!((size.shape().rank(), size.to_i64s().unwrap()), (0, vec![24]));
}

#[test]
fn expand_broadcasts_both_ways() {
    let expand = op("Expand", 13, &[]);
    let x = Tensor::new([3, 1], &[1f32, 2.0, 3.0]).unwrap();
    let y = everywhere(expand.as_ref(), &[Some(x.clone()), known(&[2, 1, 2])]);
    assert_eq!(y.shape().dims(), [2, 3, 2]);
    assert_eq!(y.as_slice::<f32>().unwrap(), [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
    let smaller = everywhere(expand.as_ref(), &[Some(x.clone()), known(&[1])]);
    assert_eq!((smaller.shape().dims(), smaller.bytes()), (&[3, 1][..], x.bytes()));
    let bytes = Tensor::new([2, 1], &[7u8, 9]).unwrap();
    assert_eq!(everywhere(expand.as_ref(), &[Some(bytes), known(&[2, 3])]).bytes(), [7, 7, 7, 9, 9, 9]);
    refused(expand.as_ref(), &[3], known(&[2]));
    refused(expand.as_ref(), &[1], known(&[-1]));
}

#[test]
fn constants_of_a_shape() {
    let seven = AttrValue::Tensor(Tensor::new([1], &[7i64]).unwrap());
    let y = everywhere(op("ConstantOfShape", 9, &[("value", seven)]).as_ref(), &[known(&[2, 3])]);
    assert_eq!((y.shape().dims(), y.to_i64s().unwrap()), (&[2, 3][..], vec![7; 6]));
    let zeros = op("ConstantOfShape", 9, &[]);
    assert_eq!(everywhere(zeros.as_ref(), &[known(&[5])]).as_slice::<f32>().unwrap(), [0.0; 5]);
    assert_eq!(everywhere(zeros.as_ref(), &[known(&[])]).shape().rank(), 0);
    assert_eq!(everywhere(zeros.as_ref(), &[known(&[0, 4])]).info().elements(), 0);
    assert!(facts(zeros.as_ref(), &[known(&[-1])], 1).is_err());
    assert!(facts(zeros.as_ref(), &[known(&[i64::MAX, 9])], 1).is_err());
    let two = AttrValue::Tensor(Tensor::new([2], &[1f32, 2.0]).unwrap());
    assert!(read_op("ConstantOfShape", 9, &attrs(&[("value", two)])).is_err());
}

#[test]
fn ones_on_any_diagonal() {
    for k in [0, 1, -2, 9, -9, i64::MAX, i64::MIN] {
        let eye = op("EyeLike", 9, &[("k", int(k))]);
        let y = everywhere(eye.as_ref(), &[Some(tensor(&[3, 5], 1))]);
        for (i, v) in y.as_slice::<f32>().unwrap().iter().enumerate() {
            let (row, column) = ((i / 5) as i64, (i % 5) as i64);
            assert_eq!(*v == 1.0, column - row == k, "k {k}, element {i}");
            assert!(*v == 1.0 || *v == 0.0);
        }
    }
    for dtype in [6, 9, 10] {
        let eye = op("EyeLike", 9, &[("dtype", int(dtype))]);
        let y = everywhere(eye.as_ref(), &[Some(tensor(&[2, 2], 1))]);
        let one = if dtype == 10 { 0x3C00 } else { 1 };
        let first = y.bytes()[..y.dtype().bytes()].iter().rev().fold(0u32, |n, b| n << 8 | u32::from(*b));
        assert_eq!(first, one, "{}", y.dtype());
    }
    refused(op("EyeLike", 9, &[]).as_ref(), &[2, 2, 2], None);
}

#[test]
fn ranges_end_before_their_limit() {
    let ints = |start: i64, limit: i64, delta: i64| {
        let inputs = [start, limit, delta].map(|v| Some(Tensor::scalar(v)));
        everywhere(&Range, &inputs).to_i64s().unwrap()
    };
    assert_eq!(ints(1, 8, 3), [1, 4, 7]);
    assert_eq!(ints(1, 7, 3), [1, 4]);
    assert_eq!(ints(10, 4, -2), [10, 8, 6]);
    assert!(ints(4, 10, -2).is_empty());
    assert_eq!(ints(i64::MAX - 1, i64::MAX, 5), [i64::MAX - 1]);
    let floats = [1.0f32, 2.0, 0.3].map(|v| Some(Tensor::scalar(v)));
    let y = everywhere(&Range, &floats);
    for (i, v) in y.as_slice::<f32>().unwrap().iter().enumerate() {
        assert!((f64::from(*v) - (1.0 + 0.3 * i as f64)).abs() < 1e-6);
    }
    assert_eq!(y.info().elements(), 4);
    let short = [0i16, 5, 2].map(|v| Some(Tensor::scalar(v)));
    assert_eq!(everywhere(&Range, &short).to_i64s().unwrap(), [0, 2, 4]);
    let refused = |v: [f32; 3]| facts(&Range, &v.map(|v| Some(Tensor::scalar(v))), 1).is_err();
    assert!(refused([0.0, 1.0, 0.0]) && refused([0.0, 1.0, 1e-38]) && refused([0.0, f32::NAN, 1.0]));
    assert!(facts(&Range, &[i64::MIN, i64::MAX, 1].map(|v| Some(Tensor::scalar(v))), 1).is_err());
    let long = run_cpu(&Range, &[0i64, 100_000, 1].map(|v| Some(Tensor::scalar(v))), 1).unwrap();
    assert!(long[0].to_i64s().unwrap().into_iter().eq(0..100_000));
}

#[test]
fn a_constant_element_keeps_no_memory_of_the_models() {
    use crate::memory::host::HostRegion;
    let region = Arc::new(HostRegion::from_bytes(bytemuck::cast_slice(&[2.5f32; 64])).unwrap());
    let info = TensorInfo::new(DType::F32, Shape::new([1]).unwrap());
    let value = Tensor::in_region(info, Arc::clone(&region), 128).unwrap();
    let op = op("ConstantOfShape", 9, &[("value", AttrValue::Tensor(value))]);
    assert_eq!(Arc::strong_count(&region), 1);
    let y = everywhere(&*op, &[Some(Tensor::from_i64s(&[3]))]);
    assert_eq!(y.as_slice::<f32>().unwrap(), [2.5; 3]);
}
