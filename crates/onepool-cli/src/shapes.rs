//! `--shape` and `--dim`: sizes that a model leaves open.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::assign;
use super::error::CliError;
use onepool::dtype::DType;
use onepool::graph::TensorInfo;
use onepool::session::{IoInfo, SessionError};
use onepool::shape::{Dim, Shape, SymShape};

/// The arguments of a model whose inputs may be of any size.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ModelArgs {
    /// The model: an ONNX file, a GGUF file, the graph JSON of TVM, or a folder with one of them.
    pub(super) model: PathBuf,
    /// The parameters of a TVM graph, where they are not in its folder.
    #[arg(long, value_name = "FILE")]
    pub(super) params: Option<PathBuf>,
    /// The shape of an input that the model leaves open: NAME=1,3,224,224, or only the sizes where there
    /// is one input.
    #[arg(long, value_name = "NAME=SIZES")]
    shape: Vec<String>,
    /// The size of a dimension that the model only names: batch=1.
    #[arg(long, value_name = "SYMBOL=SIZE")]
    dim: Vec<String>,
}

impl ModelArgs {
    /// Whether arguments give sizes.
    pub(super) fn has_sizes(&self) -> bool {
        !self.shape.is_empty() || !self.dim.is_empty()
    }

    /// The shape of each of the inputs `ios`, as far as arguments and model say.
    pub(super) fn shapes(&self, ios: &[IoInfo]) -> Result<Vec<Option<SymShape>>, CliError> {
        let given = assign::by_name("--shape", "input", &self.shape, ios)?;
        let sizes = dims(&self.dim, ios)?;
        let shape = |(i, io): (usize, &IoInfo)| match given.get(&i) {
            Some(text) => Ok(Some(SymShape::from(&fitting(io, assign::shape(text)?)?))),
            None => Ok(io.shape.as_ref().map(|shape| named(shape, &sizes))),
        };
        ios.iter().enumerate().map(shape).collect()
    }

    /// Types and shapes of the inputs `ios`, and descriptions of those whose shapes are open.
    pub(super) fn infos(&self, ios: &[IoInfo]) -> Result<(Vec<TensorInfo>, Vec<String>), CliError> {
        let (mut infos, mut open) = (Vec::with_capacity(ios.len()), Vec::new());
        for (io, shape) in ios.iter().zip(self.shapes(ios)?) {
            match shape.and_then(|shape| shape.concrete()) {
                Some(shape) => infos.push(TensorInfo::new(io.dtype.unwrap_or(DType::F32), shape)),
                None => open.push(assign::described(io)),
            }
        }
        Ok((infos, open))
    }
}

/// Sizes of symbols of the inputs `ios`, as arguments give them.
fn dims(texts: &[String], ios: &[IoInfo]) -> Result<BTreeMap<String, usize>, CliError> {
    let dims = ios.iter().flat_map(|io| io.shape.iter().flat_map(|shape| &shape.0));
    let symbols = dims.filter_map(|dim| if let Dim::Symbol(s) = dim { Some(&**s) } else { None });
    let known: BTreeSet<&str> = symbols.collect();
    let mut sizes = BTreeMap::new();
    for text in texts {
        let bad = |problem: String| CliError::usage(format!("--dim {text:?}: {problem}"));
        let pair = text.split_once('=').and_then(|(name, size)| Some((name, size.trim().parse().ok()?)));
        let (name, size) = pair.ok_or_else(|| bad("expected SYMBOL=SIZE".to_owned()))?;
        if !known.contains(name) {
            return Err(bad(format!("no input has such a dimension; there are {known:?}")));
        }
        if sizes.insert(name.to_owned(), size).is_some() {
            return Err(bad("it is given twice".to_owned()));
        }
    }
    Ok(sizes)
}

/// A declared shape with the sizes of its symbols.
pub(super) fn named(shape: &SymShape, sizes: &BTreeMap<String, usize>) -> SymShape {
    let size = |d: &Dim| match d {
        Dim::Symbol(s) => sizes.get(&**s).map_or_else(|| d.clone(), |n| Dim::Known(*n)),
        d => d.clone(),
    };
    SymShape(shape.0.iter().map(size).collect())
}

/// `shape`, if it fits what the model declares.
fn fitting(io: &IoInfo, shape: Shape) -> Result<Shape, CliError> {
    if let Some(declared) = &io.shape {
        declared
            .unify(&shape, &mut BTreeMap::new())
            .map_err(|source| SessionError::Shape { name: io.name.clone(), source })?;
    }
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_get_sizes() {
        let shape = SymShape(vec!["n".into(), "m".into(), 3.into()]);
        let ios = [IoInfo { name: "x".into(), dtype: None, shape: Some(shape.clone()) }];
        let dims = |texts: &[&str]| dims(&texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>(), &ios);
        assert!(dims(&["n=4", "m= 2"]).is_ok());
        let sizes = dims(&["n=4"]).unwrap();
        assert_eq!(named(&shape, &sizes).to_string(), "[4, m, 3]");
        let e = dims(&["h=4"]).unwrap_err().to_string();
        assert!(e.contains("there are {\"m\", \"n\"}"), "{e}");
        for bad in [&["n"][..], &["n=-1"], &["n=99999999999999999999"], &["n=1", "n=1"]] {
            assert!(dims(bad).is_err(), "{bad:?}");
        }
    }
}
