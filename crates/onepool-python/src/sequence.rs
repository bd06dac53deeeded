//! Sequences, which a session takes as two tensors.

use onepool::DType;
use onepool::ops::OpError;
use onepool::ops::sequence;
use pyo3::prelude::*;

use crate::array::Array;
use crate::errors::Class;
use crate::tensor::Tensor;

fn refused(py: Python<'_>, error: &OpError) -> PyErr {
    Class::Argument.says(py, format!("sequence: {error}"))
}

/// The two tensors of a list of arrays; `dtype` is the elements' type where there are none.
#[pyfunction]
pub(crate) fn pack<'py>(
    py: Python<'py>,
    items: Vec<Bound<'py, PyAny>>,
    dtype: &str,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let mut tensors = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let argument = format!("item {i}");
        tensors.push(Array::of(item, &argument)?.copied(py, &argument)?);
    }
    let dtype = DType::from_name(dtype).unwrap_or(DType::F32);
    let [values, table] = sequence::pack(&tensors, dtype).map_err(|e| refused(py, &e))?;
    Ok((Tensor::of_value(py, &values)?.array(py)?, Tensor::of_value(py, &table)?.array(py)?))
}

/// The arrays of a list from its two tensors.
#[pyfunction]
pub(crate) fn unpack<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    table: &Bound<'py, PyAny>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let tensor = |given: &Bound<'py, PyAny>, name: &str| Array::of(given, name)?.copied(py, name);
    let items = sequence::unpack(&tensor(values, "values")?, &tensor(table, "table")?);
    let items = items.map_err(|e| refused(py, &e))?;
    items.iter().map(|item| Tensor::of_value(py, item)?.array(py)).collect()
}
