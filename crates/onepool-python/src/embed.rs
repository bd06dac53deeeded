//! Vectors of texts.

use std::path::{Path, PathBuf};

use onepool::generate::EmbedOptions;
use pyo3::prelude::*;

use crate::generate::built;
use crate::log::detached;
use crate::options::Options;
use crate::tensor::Tensor;
use crate::text::failed;

/// A model that makes vectors of texts.
#[pyclass(frozen, module = "onepool._onepool")]
#[derive(Debug)]
pub(crate) struct Embedder(onepool::generate::Embedder);

#[pymethods]
impl Embedder {
    #[new]
    #[pyo3(signature = (path, options))]
    fn new(py: Python<'_>, path: PathBuf, options: Options) -> PyResult<Self> {
        let session = |builder, _: &Path| built(builder, &options);
        let opened = detached(py, || onepool::generate::Embedder::open(path, session));
        opened.map(Embedder).map_err(|e| failed(py, e))
    }

    #[getter]
    fn max_tokens(&self) -> usize {
        self.0.max_tokens()
    }

    #[getter]
    fn prompts(&self) -> Vec<String> {
        self.0.prompts().map(str::to_owned).collect()
    }

    #[getter]
    fn devices(&self) -> Vec<String> {
        self.0.session().devices().map(|info| info.name.clone()).collect()
    }

    /// The vectors, the number of tokens of each text, and which texts were cut.
    fn embed(
        &self,
        py: Python<'_>,
        texts: Vec<String>,
        prompt: Option<String>,
        dims: Option<usize>,
    ) -> PyResult<(Tensor, Vec<usize>, Vec<usize>)> {
        let mut options = EmbedOptions::default();
        (options.prompt, options.dims) = (prompt, dims);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let made = detached(py, || self.0.embed(&texts, &options)).map_err(|e| failed(py, e))?;
        Ok((Tensor::of_value(py, &made.vectors)?, made.tokens, made.cut))
    }
}
