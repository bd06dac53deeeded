//! Trees and linear models from their attributes.

use std::sync::Arc;

use super::*;
use crate::ops::test_util::{assert_near, attrs, facts, run_cpu, tensor};
use crate::ops::{AttrMap, AttrValue, Operator, find};

pub(super) fn ints(v: &[i64]) -> AttrValue {
    AttrValue::Ints(v.to_vec())
}

pub(super) fn floats(v: &[f32]) -> AttrValue {
    AttrValue::Floats(v.to_vec())
}

pub(super) fn text(v: &str) -> AttrValue {
    AttrValue::Str(v.as_bytes().to_vec())
}

pub(super) fn read(name: &str, map: &AttrMap) -> Result<Arc<dyn Operator>, OpError> {
    let mut reader = AttrReader::new(map, 1, 2);
    let op = (find("ai.onnx.ml", name).unwrap().read)(&mut reader, 5)?;
    assert_eq!(reader.unread(), Vec::<&str>::new(), "{name}");
    Ok(op)
}

/// Two trees: feature 0 up to 1 or above, then feature 1 above 0; and a leaf alone.
fn trees(prefix: &str, ids: &[i64], weights: &[f32]) -> AttrMap {
    let modes = ["BRANCH_LEQ", "LEAF", "BRANCH_GT", "LEAF", "LEAF", "LEAF"];
    let mut map = attrs(&[
        ("nodes_treeids", ints(&[0, 0, 0, 0, 0, 7])),
        ("nodes_nodeids", ints(&[0, 1, 2, 3, 4, 0])),
        ("nodes_featureids", ints(&[0, 0, 1, 0, 0, 0])),
        ("nodes_modes", AttrValue::Strs(modes.iter().map(|m| m.as_bytes().to_vec()).collect())),
        ("nodes_values", floats(&[1.0, 0.0, 0.0, 0.0, 0.0, 0.0])),
        ("nodes_truenodeids", ints(&[1, 0, 3, 0, 0, 0])),
        ("nodes_falsenodeids", ints(&[2, 0, 4, 0, 0, 0])),
    ]);
    let leaves = [("treeids", ints(&[0, 0, 0, 7])), ("nodeids", ints(&[1, 3, 4, 0])), ("ids", ints(ids))];
    for (name, value) in leaves {
        map.insert(format!("{prefix}_{name}"), value);
    }
    map.insert(format!("{prefix}_weights"), floats(weights));
    map
}

fn rows_of_two() -> Option<Tensor> {
    Some(Tensor::new([3, 2], &[1.0f32, 5.0, 2.0, 3.0, 2.0, -1.0]).unwrap())
}

#[test]
fn a_regressor_adds_up_its_trees() {
    let mut map = trees("target", &[0, 0, 1, 1], &[1.0, 2.0, 3.0, 10.0]);
    map.insert("n_targets".into(), AttrValue::Int(2));
    map.insert("base_values".into(), floats(&[0.5, -1.0]));
    let op = read("TreeEnsembleRegressor", &map).unwrap();
    let y = run_cpu(&*op, &[rows_of_two()], 1).unwrap();
    assert_near(&y[0], &[1.5, 9.0, 2.5, 9.0, 0.5, 12.0], 1e-6);
    map.insert("aggregate_function".into(), text("AVERAGE"));
    let op = read("TreeEnsembleRegressor", &map).unwrap();
    let y = run_cpu(&*op, &[rows_of_two()], 1).unwrap();
    assert_near(&y[0], &[1.0, 4.0, 1.5, 4.0, 0.5, 5.5], 1e-6);
    assert!(facts(&*op, &[Some(tensor(&[3, 1], 1))], 1).is_err());
    map.insert("nodes_falsenodeids".into(), ints(&[0, 0, 4, 0, 0, 0]));
    assert!(read("TreeEnsembleRegressor", &map).is_err());
    map.insert("nodes_falsenodeids".into(), ints(&[9, 0, 4, 0, 0, 0]));
    assert!(read("TreeEnsembleRegressor", &map).is_err());
    map.insert("n_targets".into(), AttrValue::Int(i64::MAX));
    assert!(read("TreeEnsembleRegressor", &map).is_err());
}

#[test]
fn a_classifier_names_its_best_class() {
    let mut map = trees("class", &[0, 1, 2, 2], &[1.0, 2.0, 0.25, 0.5]);
    map.insert("classlabels_int64s".into(), ints(&[40, -7, 9]));
    let op = read("TreeEnsembleClassifier", &map).unwrap();
    let y = run_cpu(&*op, &[rows_of_two()], 2).unwrap();
    assert_eq!(y[0].to_i64s().unwrap(), [40, -7, 9]);
    assert_near(&y[1], &[1.0, 0.0, 0.5, 0.0, 2.0, 0.5, 0.0, 0.0, 0.75], 1e-6);
    map.insert("classlabels_strings".into(), AttrValue::Strs(vec![b"a".to_vec()]));
    assert!(matches!(read("TreeEnsembleClassifier", &map), Err(OpError::Unsupported { .. })));
}

#[test]
fn of_two_classes_one_may_be_left_out() {
    let mut map = trees("class", &[0, 0, 0, 0], &[0.5, 0.25, 0.0, 0.125]);
    map.insert("classlabels_int64s".into(), ints(&[3, 4]));
    let run = |map: &AttrMap| {
        let op = read("TreeEnsembleClassifier", map).unwrap();
        run_cpu(&*op, &[rows_of_two()], 2).unwrap()
    };
    let y = run(&map);
    assert_eq!(y[0].to_i64s().unwrap(), [4, 3, 3]);
    assert_near(&y[1], &[0.375, 0.625, 0.625, 0.375, 0.875, 0.125], 1e-6);
    // A function of a probability that is the only score is left out.
    map.insert("post_transform".into(), text("SOFTMAX"));
    assert_near(&run(&map)[1], &[0.375, 0.625, 0.625, 0.375, 0.875, 0.125], 1e-6);
    map.insert("class_weights".into(), floats(&[2.0, -2.0, 0.0, 0.0]));
    map.insert("post_transform".into(), text("LOGISTIC"));
    let y = run(&map);
    let s = 1.0 / (1.0 + (-2f64).exp());
    assert_eq!(y[0].to_i64s().unwrap(), [4, 3, 3]);
    assert_near(&y[1], &[1.0 - s, s, s, 1.0 - s, 0.5, 0.5], 1e-6);
    // Leaves that speak of the second class leave the first one its 0.
    let mut map = trees("class", &[1, 1, 1, 1], &[0.5, 0.25, 0.0, 0.125]);
    map.insert("classlabels_int64s".into(), ints(&[3, 4]));
    let y = run(&map);
    assert_eq!(y[0].to_i64s().unwrap(), [4, 3, 3]);
    assert_near(&y[1], &[0.0, 0.625, 0.0, 0.375, 0.0, 0.125], 1e-6);
}

#[test]
fn a_class_that_no_leaf_speaks_of_is_not_the_best() {
    // The last tree says -0.25 of class 2; what is reached of the first -1 of class 0, or of class 1.
    let mut map = trees("class", &[0, 1, 1, 2], &[-1.0, -2.0, -0.125, -0.25]);
    map.insert("classlabels_int64s".into(), ints(&[40, -7, 9]));
    let run = |map: &AttrMap| {
        let op = read("TreeEnsembleClassifier", map).unwrap();
        run_cpu(&*op, &[rows_of_two()], 2).unwrap()[0].to_i64s().unwrap()
    };
    assert_eq!(run(&map), [9, 9, -7]);
    // With a score to begin with all are.
    map.insert("base_values".into(), floats(&[0.0, 0.0, 0.0]));
    assert_eq!(run(&map), [-7, 40, 40]);
}

#[test]
fn linear_models_are_products() {
    let x = Some(Tensor::new([2, 2], &[1i32, 2, -3, 0]).unwrap());
    let mut map = attrs(&[
        ("coefficients", floats(&[1.0, 2.0, 0.5, -1.0])),
        ("intercepts", floats(&[0.25, 0.0])),
        ("targets", AttrValue::Int(2)),
    ]);
    let op = read("LinearRegressor", &map).unwrap();
    let y = run_cpu(&*op, std::slice::from_ref(&x), 1).unwrap();
    assert_near(&y[0], &[5.25, -1.5, -2.75, -1.5], 1e-6);
    assert!(facts(&*op, &[Some(tensor(&[2, 3], 1))], 1).is_err());
    map.remove("targets");
    map.insert("classlabels_ints".into(), ints(&[5, 6]));
    map.insert("post_transform".into(), text("SOFTMAX"));
    let op = read("LinearClassifier", &map).unwrap();
    let y = run_cpu(&*op, std::slice::from_ref(&x), 2).unwrap();
    assert_eq!(y[0].to_i64s().unwrap(), [5, 6]);
    let part = |d: f64| 1.0 / (1.0 + (-d).exp());
    assert_near(&y[1], &[part(6.75), part(-6.75), part(-1.25), part(1.25)], 1e-6);
    // Without intercepts there is a score for each class.
    let mut bare = map.clone();
    bare.remove("intercepts");
    let y = run_cpu(&*read("LinearClassifier", &bare).unwrap(), std::slice::from_ref(&x), 2).unwrap();
    assert_near(&y[1], &[part(6.5), part(-6.5), part(-1.5), part(1.5)], 1e-6);
    // One score of two classes, above 0 or not, and the class before scores become what is no number.
    let mut one = map.clone();
    one.insert("coefficients".into(), floats(&[1.0, 2.0]));
    one.insert("intercepts".into(), floats(&[0.25]));
    let y = run_cpu(&*read("LinearClassifier", &one).unwrap(), std::slice::from_ref(&x), 2).unwrap();
    assert_eq!(y[0].to_i64s().unwrap(), [6, 5]);
    assert_near(&y[1], &[-4.25, 5.25, 3.75, -2.75], 1e-6);
    one.insert("post_transform".into(), text("LOGISTIC"));
    let y = run_cpu(&*read("LinearClassifier", &one).unwrap(), std::slice::from_ref(&x), 2).unwrap();
    assert_near(&y[1], &[part(-5.25), part(5.25), part(2.75), part(-2.75)], 1e-6);
    let mut probit = map.clone();
    probit.insert("post_transform".into(), text("PROBIT"));
    let y = run_cpu(&*read("LinearClassifier", &probit).unwrap(), std::slice::from_ref(&x), 2).unwrap();
    assert_eq!(y[0].to_i64s().unwrap(), [5, 6]);
    map.insert("classlabels_ints".into(), ints(&[5, 6, 7]));
    assert!(read("LinearClassifier", &map).is_err());
    map.insert("coefficients".into(), floats(&[]));
    assert!(read("LinearClassifier", &map).is_err());
}

#[test]
fn a_numbered_ensemble_is_read() {
    let bytes = |v: &[u8]| AttrValue::Tensor(Tensor::new([v.len()], v).unwrap());
    let doubles = |v: &[f64]| AttrValue::Tensor(Tensor::new([v.len()], v).unwrap());
    let mut map = attrs(&[
        ("nodes_modes", bytes(&[0, 6])),
        ("nodes_splits", doubles(&[1.0, 0.0])),
        ("nodes_featureids", ints(&[0, 1])),
        ("nodes_truenodeids", ints(&[0, 1])),
        ("nodes_falsenodeids", ints(&[1, 2])),
        ("nodes_trueleafs", ints(&[1, 1])),
        ("nodes_falseleafs", ints(&[0, 1])),
        ("membership_values", doubles(&[3.0, 4.0, f64::NAN])),
        ("leaf_targetids", ints(&[0, 1, 0])),
        ("leaf_weights", doubles(&[1.0, 2.0, 3.0])),
        ("tree_roots", ints(&[0])),
        ("n_targets", AttrValue::Int(2)),
    ]);
    let op = read("TreeEnsemble", &map).unwrap();
    let y = run_cpu(&*op, &[rows_of_two()], 1).unwrap();
    assert_near(&y[0], &[1.0, 0.0, 0.0, 2.0, 3.0, 0.0], 0.0);
    map.insert("nodes_falseleafs".into(), ints(&[0, 0]));
    assert!(read("TreeEnsemble", &map).is_err());
    map.insert("nodes_falseleafs".into(), ints(&[0, 1, 1]));
    assert!(read("TreeEnsemble", &map).is_err());
    map.insert("nodes_falseleafs".into(), ints(&[0, 1]));
    map.insert("n_targets".into(), AttrValue::Int(1));
    assert!(read("TreeEnsemble", &map).is_err());
}
