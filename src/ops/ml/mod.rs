//! Classical machine learning (domain `ai.onnx.ml`), on the host: tree ensembles, linear models, support
//! vectors, scaling, and tables of categories.

mod classifier;
mod forest;
mod imputer;
mod label_encoder;
mod linear;
mod one_hot;
mod post;
mod regressor;
mod scale;
mod svm;
mod svm_classifier;
mod svm_regressor;
#[cfg(test)]
mod tests;
mod tree_attrs;
mod tree_ensemble;
mod vectorizer;
mod zip_map;

pub use classifier::TreeEnsembleClassifier;
pub use forest::{Aggregate, Child, Compare, Forest, ForestNode};
pub use imputer::Imputer;
pub use label_encoder::LabelEncoder;
pub use linear::{LinearClassifier, LinearRegressor};
pub use one_hot::OneHotEncoder;
pub use post::PostTransform;
pub use regressor::TreeEnsembleRegressor;
pub use scale::{Norm, Normalizer, Scaler};
pub use svm::SvmKernel;
pub use svm_classifier::SvmClassifier;
pub use svm_regressor::SvmRegressor;
pub use tree_ensemble::TreeEnsemble;
pub use vectorizer::FeatureVectorizer;
pub use zip_map::ZipMap;

use super::pointwise::number::Number;
use super::{AttrReader, Cost, Family, OpCx, OpDef, OpError, ReadFn, par};
use crate::dtype::DType;
use crate::graph::{Tensor, TensorError, TensorInfo};
use crate::kernel::{KernelError, NativeArgs, NativeKernel};
use crate::shape::Shape;

/// Element types of features.
const FEATURES: &[DType] = &[DType::F32, DType::F64, DType::I64, DType::I32];

const fn row(name: &'static str, since: i64, types: &'static [DType], read: ReadFn) -> OpDef {
    OpDef { name, domain: "ai.onnx.ml", since, types, gpu: false, read }
}

/// The family's rows.
pub const FAMILY: Family = Family {
    name: "ml",
    ops: &[
        row("FeatureVectorizer", 1, FEATURES, vectorizer::read),
        row("Imputer", 1, FEATURES, imputer::read),
        row("LabelEncoder", 1, label_encoder::TYPES, label_encoder::read),
        row("LinearClassifier", 1, FEATURES, linear::read_classifier),
        row("LinearRegressor", 1, FEATURES, linear::read_regressor),
        row("Normalizer", 1, FEATURES, scale::read_normalizer),
        row("OneHotEncoder", 1, FEATURES, one_hot::read),
        row("SVMClassifier", 1, FEATURES, svm_classifier::read),
        row("SVMRegressor", 1, FEATURES, svm_regressor::read),
        row("Scaler", 1, FEATURES, scale::read_scaler),
        row("TreeEnsemble", 5, &[DType::F32, DType::F64, DType::F16], tree_ensemble::read),
        row("TreeEnsembleClassifier", 1, FEATURES, classifier::read),
        row("TreeEnsembleRegressor", 1, FEATURES, regressor::read),
        row("ZipMap", 1, &[DType::F32], zip_map::read),
    ],
};

/// Rows of features, and features of a row: `[n, features]`, or one row `[features]`.
fn rows(cx: &OpCx) -> Result<[usize; 2], OpError> {
    match *cx.shape(0)?.dims() {
        [features] => Ok([1, features]),
        [n, features] => Ok([n, features]),
        _ => Err(cx.shape_error(0, "[rows, features]")),
    }
}

/// Argument 0, features of type `dtype`, `len` of them.
fn features(args: &NativeArgs<'_, '_>, dtype: DType, len: usize) -> Result<Vec<f64>, KernelError> {
    let all: Vec<f64> = match dtype {
        DType::F32 => args.read::<f32>(0)?.iter().map(|v| f64::from(*v)).collect(),
        DType::F64 => args.read::<f64>(0)?.to_vec(),
        DType::F16 => args.read::<half::f16>(0)?.iter().map(|v| v.to_f64()).collect(),
        DType::I32 => args.read::<i32>(0)?.iter().map(|v| f64::from(*v)).collect(),
        _ => args.read::<i64>(0)?.iter().map(|v| *v as f64).collect(),
    };
    super::real::check_len(0, all.len(), len)?;
    Ok(all)
}

/// The cost of `each` operations for every row.
fn cost_of_rows(cx: &OpCx, each: usize) -> Cost {
    let rows = rows(cx).map_or(0, |[n, _]| n as u64);
    Cost { flops: rows.saturating_mul(each as u64), bytes: cx.bytes_touched() }
}

/// The outputs of a classifier: a label for each of `rows` rows, and `columns` scores.
fn classified(cx: &OpCx, rows: usize, columns: usize) -> Result<Vec<TensorInfo>, OpError> {
    let labels = TensorInfo::new(DType::I64, Shape::new([rows])?);
    let scores = TensorInfo::new(DType::F32, Shape::new([rows, columns])?);
    Ok([labels, scores].into_iter().take(cx.output_count()).collect())
}

/// The native function of a classifier: `row` writes the `columns` scores of a row of features, at least one, and
/// returns its label.
fn classify(
    name: &'static str,
    cx: &OpCx,
    columns: usize,
    cost: Cost,
    row: impl Fn(&[f64], &mut [f64]) -> i64 + Send + Sync + 'static,
) -> Result<NativeKernel, OpError> {
    let ([n, len], dtype) = (rows(cx)?, cx.dtype(0)?);
    Ok(NativeKernel::new(name, move |args| {
        let x = features(args, dtype, n * len)?;
        let mut scores = vec![0.0; n * columns];
        let mut labels = vec![0i64; n];
        par::rows_of_two(
            (&mut scores, columns),
            (&mut labels, 1),
            cost.flops as usize,
            |i, scores, label| {
                label.fill_with(|| row(&x[i * len..][..len], scores));
            },
        );
        if args.has(1) {
            args.take_write::<i64>(1)?.iter_mut().zip(labels).for_each(|(y, l)| *y = l);
        }
        if args.has(2) {
            args.take_write::<f32>(2)?.iter_mut().zip(scores).for_each(|(z, s)| *z = s as f32);
        }
        Ok(())
    }))
}

/// The native function of a regressor: `row` writes the `targets` numbers of a row of features.
fn regress<T: Number>(
    name: &'static str,
    cx: &OpCx,
    targets: usize,
    cost: Cost,
    row: impl Fn(&[f64], &mut [f64]) + Send + Sync + 'static,
) -> Result<NativeKernel, OpError> {
    let ([n, len], dtype) = (rows(cx)?, cx.dtype(0)?);
    Ok(NativeKernel::new(name, move |args| {
        let x = features(args, dtype, n * len)?;
        let y = args.take_write::<T>(1)?;
        par::rows(y, targets, cost.flops as usize, |i, y| {
            let mut scores = vec![0.0; targets];
            row(&x[i * len..][..len], &mut scores);
            y.iter_mut().zip(scores).for_each(|(y, s)| *y = T::from_f64(s));
        });
        Ok(())
    }))
}

/// The numbers of attribute `name`; none where it is missing.
fn numbers(attrs: &AttrReader<'_>, name: &str) -> Result<Vec<f64>, OpError> {
    Ok(attrs.floats_opt(name)?.unwrap_or_default().into_iter().map(f64::from).collect())
}

/// The elements of a float tensor.
fn doubles(t: &Tensor) -> Result<Vec<f64>, TensorError> {
    if t.dtype() == DType::F64 {
        return Ok(t.as_slice::<f64>()?.to_vec());
    }
    Ok(t.to_f32s()?.into_iter().map(f64::from).collect())
}

/// The labels of classes; those that are texts have no type here.
fn labels(attrs: &AttrReader<'_>, integers: &str) -> Result<Vec<i64>, OpError> {
    if attrs.strs_opt("classlabels_strings")?.is_some_and(|l| !l.is_empty()) {
        return Err(OpError::unsupported("classes whose labels are texts"));
    }
    match attrs.ints_opt(integers)? {
        Some(labels) if !labels.is_empty() => Ok(labels),
        _ => Err(attrs.error(integers, "is missing").into()),
    }
}

/// The place of the first largest score.
fn best(scores: &[f64]) -> usize {
    scores.iter().enumerate().fold(0, |best, (i, s)| if *s > scores[best] { i } else { best })
}
