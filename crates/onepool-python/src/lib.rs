//! The native part of the Python package `onepool`; `python/onepool` has its interface and documentation.
//!
//! Each function translates its arguments, calls the Rust interface without holding the interpreter, and translates the
//! result. Arrays of the caller's are lent to the session: what keeps them alive goes when the devices let go of them.

mod array;
mod batch;
mod binding;
mod device;
mod dlpack;
mod embed;
mod errors;
mod frame;
mod generate;
mod log;
mod options;
mod run;
mod sequence;
mod session;
mod shared;
mod tensor;
mod text;

use pyo3::prelude::*;

/// `onepool._onepool`.
#[pymodule]
mod _onepool {
    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::binding::Binding;
    #[pymodule_export]
    use super::device::devices;
    #[pymodule_export]
    use super::embed::Embedder;
    #[pymodule_export]
    use super::generate::{Generator, Stream};
    #[pymodule_export]
    use super::log::tell_log;
    #[pymodule_export]
    use super::run::{Cancel, Verdicts};
    #[pymodule_export]
    use super::sequence::{pack, unpack};
    #[pymodule_export]
    use super::session::Session;
    #[pymodule_export]
    use super::tensor::{Pages, Tensor};
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::log::keep();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
