//! Opens the devices that arguments name.

use super::error::CliError;
use crate::backend::ContextDesc;
use crate::device::Context;
use crate::registry::Registry;

/// Opens the device of a selector; without one the device that the environment names, else `auto`.
///
/// # Errors
/// [`CliError::Library`] with what there is.
pub(super) fn open(selector: Option<&str>, desc: &ContextDesc) -> Result<Context, CliError> {
    let registry = Registry::with_defaults();
    Ok(match selector {
        Some(selector) => registry.open(selector, desc)?,
        None => registry.open_default(desc)?,
    })
}
