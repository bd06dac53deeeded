//! Device kernels against native functions, at sizes that are no multiple of anything.

use super::*;
use crate::graph::Tensor;
use crate::ops::test_util::{tensor, tensor_of};
use crate::ops::testing::{Check, as_is, check_op, no_texels};
use crate::ops::{Fact, OpCx, OpError, Operator};
use half::f16;

/// Indices of an axis of `size`, in no order and from both ends.
fn indices(shape: &[usize], size: i64) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<i64> = (0..n as i64).map(|i| (i * 7919 + i / 3) % (2 * size) - size).collect();
    Tensor::new(shape, &values).unwrap()
}

fn narrow(t: &Tensor) -> Tensor {
    let values: Vec<i32> = t.to_i64s().unwrap().iter().map(|v| *v as i32).collect();
    Tensor::new(t.shape().to_vec(), &values).unwrap()
}

/// The same tensor in types of every width.
fn widths(t: &Tensor) -> Vec<Tensor> {
    let (shape, v) = (t.shape().to_vec(), t.to_f32s().unwrap());
    vec![
        t.clone(),
        tensor_of(&shape, &v, f16::from_f32),
        tensor_of(&shape, &v, |v| (v * 100.0) as i64),
        tensor_of(&shape, &v, |v| (v * 100.0) as i8),
    ]
}

#[test]
fn elements_are_gathered() {
    for x in widths(&tensor(&[3, 7, 5], 1)) {
        for (axis, shape) in [(0, [4, 7, 5]), (1, [2, 9, 5]), (-1, [3, 6, 3])] {
            let size = x.shape()[if axis < 0 { 2 } else { axis as usize }] as i64;
            let at = indices(&shape, size);
            check_op(&GatherElements { axis }, &[Some(x.clone()), Some(at.clone())], 0.0);
            check_op(&GatherElements { axis }, &[Some(x.clone()), Some(narrow(&at))], 0.0);
        }
    }
}

#[test]
fn slices_are_gathered_by_tuples() {
    for x in widths(&tensor(&[3, 4, 5, 6], 2)) {
        for (batch_dims, shape) in [(0, vec![7, 1]), (0, vec![2, 3, 3]), (0, vec![4]), (1, vec![3, 5, 2])] {
            let at = indices(&shape, 3);
            let op = GatherNd { batch_dims };
            check_op(&op, &[Some(x.clone()), Some(at.clone())], 0.0);
            check_op(&op, &[Some(x.clone()), Some(narrow(&at))], 0.0);
        }
    }
}

#[test]
fn updates_replace_elements() {
    // Every index names another element: which of several updates stays is not defined on devices.
    let order: Vec<i64> = (0..7).map(|i| i * 3 % 7 - 7).collect();
    for x in widths(&tensor(&[7, 6], 3)) {
        let elements = Scatter { naming: Naming::Elements(0), reduction: Reduction::None };
        let at: Vec<i64> = order.iter().flat_map(|i| [*i; 5]).collect();
        let part = |shape: &[usize], from: usize| {
            let bytes = x.dtype().bytes();
            let n: usize = shape.iter().product();
            let info = crate::graph::TensorInfo::new(x.dtype(), crate::shape::Shape::new(shape).unwrap());
            Tensor::from_bytes(info, &x.bytes()[from * bytes..(from + n) * bytes]).unwrap()
        };
        let at = Tensor::new([7, 5], &at).unwrap();
        check_op(&elements, &[Some(x.clone()), Some(at), Some(part(&[7, 5], 2))], 0.0);
        let tuples = Scatter { naming: Naming::Tuples, reduction: Reduction::None };
        let at = Tensor::new([3, 1], &order[..3]).unwrap();
        check_op(&tuples, &[Some(x.clone()), Some(at), Some(part(&[3, 6], 5))], 0.0);
        let at = Tensor::new([2, 2], &[0i64, -1, 3, 2]).unwrap();
        check_op(&tuples, &[Some(x.clone()), Some(narrow(&at)), Some(part(&[2], 5))], 0.0);
    }
}

#[test]
fn updates_are_reduced_in_their_order() {
    let reductions = [Reduction::Add, Reduction::Mul, Reduction::Min, Reduction::Max];
    for (reduction, change) in reductions.iter().flat_map(|r| [(*r, as_is as fn(&mut _)), (*r, no_texels)]) {
        for (x, u) in widths(&tensor(&[5, 9], 4)).into_iter().zip(widths(&tensor(&[4, 9], 5))).take(3) {
            let op = Scatter { naming: Naming::Elements(1), reduction };
            let inputs = [Some(x.clone()), Some(indices(&[4, 9], 9)), Some(u.clone())];
            Check::new(&op, &inputs).pretend(change).tolerance(1e-3).run();
            let op = Scatter { naming: Naming::Tuples, reduction };
            let inputs = [Some(x), Some(indices(&[4, 1], 2)), Some(u)];
            Check::new(&op, &inputs).pretend(change).tolerance(1e-3).run();
        }
    }
}

#[test]
fn long_lines_are_reduced_by_each_element() {
    let op = Scatter { naming: Naming::Tuples, reduction: Reduction::Add };
    let updates = Tensor::new([3000], &(0..3000i32).collect::<Vec<_>>()).unwrap();
    let x = Tensor::new([129], &[1i32; 129]).unwrap();
    let inputs = [Some(x), Some(indices(&[3000, 1], 129)), Some(updates)];
    Check::new(&op, &inputs).pretend(no_texels).run();
}

#[test]
fn indices_become_vectors() {
    let at = Tensor::new([3, 5], &(0..15i64).map(|i| i - 8).collect::<Vec<_>>()).unwrap();
    let floats = tensor_of(&[3, 5], &(0..15).map(|i| i as f32 - 7.5).collect::<Vec<_>>(), |v| v);
    for values in widths(&Tensor::new([2], &[-1f32, 0.5]).unwrap()) {
        for (at, axis) in [(at.clone(), -1), (narrow(&at), 0), (floats.clone(), 1)] {
            let inputs = [Some(at), Some(Tensor::scalar(7i64)), Some(values.clone())];
            check_op(&OneHot { axis }, &inputs, 0.0);
        }
    }
}

#[test]
fn slices_are_kept_where_a_condition_holds() {
    let info = crate::graph::TensorInfo::new(DType::Bool, crate::shape::Shape::new([5]).unwrap());
    let condition = Tensor::from_bytes(info, &[0, 1, 1, 0, 1]).unwrap();
    for x in widths(&tensor(&[5, 7, 6], 6)) {
        for axis in [None, Some(0), Some(-2), Some(2)] {
            let op = Compress { axis };
            let y = check_op(&op, &[Some(x.clone()), Some(condition.clone())], 0.0);
            // The host computes the same once the data is known too.
            let [x, c] = [&x, &condition].map(|t| Some(Fact::known(t.clone())));
            let of = |x, c| op.host(&OpCx::for_infer(vec![x, c], 1));
            let (data, flags) =
                (Some(Fact::of(x.clone().unwrap().info)), Some(Fact::of(condition.info().clone())));
            assert_eq!(of(x.clone(), c.clone()).unwrap().unwrap()[0].bytes(), y[0].bytes());
            assert!(of(data, c).is_none());
            assert!(matches!(of(x, flags), Some(Err(OpError::NeedsValue { input: 1 }))));
        }
    }
}

#[test]
fn sequences_are_reversed() {
    for x in widths(&tensor(&[5, 7, 6], 7)) {
        let lens = |n| Tensor::new([n], &(0..n as i64).map(|i| i % 6).collect::<Vec<_>>()).unwrap();
        check_op(&ReverseSequence { batch_first: true }, &[Some(x.clone()), Some(lens(5))], 0.0);
        check_op(&ReverseSequence { batch_first: false }, &[Some(x), Some(narrow(&lens(7)))], 0.0);
    }
}

#[test]
fn largest_and_smallest_elements_are_in_order() {
    // Many equal elements, whose positions must be in order, and some that are none.
    let coarse = |shape: &[usize]| {
        let v = tensor(shape, 8).to_f32s().unwrap();
        let v: Vec<f32> = v
            .iter()
            .enumerate()
            .map(|(i, v)| if i % 97 == 5 { f32::NAN } else { (v * 20.0).round() })
            .collect();
        Tensor::new(shape, &v).unwrap()
    };
    for (shape, axis) in [(vec![3, 7, 5], 1), (vec![9, 130], -1), (vec![2, 1500], 1), (vec![2500, 2], 0)] {
        let len = shape[if axis < 0 { 1 } else { axis as usize }];
        for k in [1, 4, len / 2 + 3, len] {
            for (x, largest) in widths(&coarse(&shape)).into_iter().take(3).zip([true, false, true]) {
                let op = TopK { k: None, axis, largest };
                Check::new(&op, &[Some(x), Some(Tensor::from_i64s(&[k as i64]))]).outputs(2).run();
            }
        }
    }
    let long = tensor_of(&[3000], &crate::ops::test_util::values(3000, 9), |v| (v * 1e6) as i32);
    let op = TopK { k: Some(1700), axis: 0, largest: false };
    Check::new(&op, &[Some(long)]).outputs(2).run();
}

#[test]
fn columns_are_extracted() {
    for x in widths(&tensor(&[3, 5, 7], 9)) {
        let y = check_op(&ArrayFeatureExtractor, &[Some(x), Some(indices(&[1, 4], 7))], 0.0);
        assert_eq!(y[0].shape().dims(), [3, 5, 4]);
    }
    let y = check_op(&ArrayFeatureExtractor, &[Some(tensor(&[9], 1)), Some(indices(&[3], 9))], 0.0);
    assert_eq!(y[0].shape().dims(), [1, 3]);
}
