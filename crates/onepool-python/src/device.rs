//! The devices that sessions may name.

use onepool::registry::Registry;
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::errors::Class;
use crate::log::detached;

/// Every API with its devices, as JSON.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<String> {
    let listed = detached(py, || {
        let mut rows = Vec::new();
        for api in Registry::with_defaults().list() {
            match api.devices {
                Ok(devices) => rows.extend(devices.into_iter().map(|info| {
                    let selector = format!("{}:{}", api.api, info.index);
                    let info = serde_json::to_value(&info).unwrap_or(Value::Null);
                    json!({ "selector": selector, "info": info })
                })),
                Err(error) => rows.push(json!({ "selector": api.api, "error": error.to_string() })),
            }
        }
        serde_json::to_string(&rows)
    });
    listed.map_err(|e| Class::Error.says(py, e))
}
