//! Opens the devices that arguments name.

use std::env;

use super::error::CliError;
use crate::backend::ContextDesc;
use crate::device::Context;
use crate::plan::Precision;
use crate::registry::{DEVICE_VARIABLE, Registry};

/// What `--precision` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum PrecisionArg {
    /// What the model says.
    F32,
    /// Half precision with sums in float32, where the device has kernels for it.
    F16,
}

impl From<PrecisionArg> for Precision {
    fn from(arg: PrecisionArg) -> Precision {
        match arg {
            PrecisionArg::F32 => Precision::F32,
            PrecisionArg::F16 => Precision::F16,
        }
    }
}

/// What is opened where no device is named: what the environment says, else `auto`.
pub(super) fn default_selector() -> String {
    let named = env::var(DEVICE_VARIABLE).ok().filter(|name| !name.trim().is_empty());
    named.unwrap_or_else(|| "auto".to_owned())
}

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

/// Opens the devices of a session's table, one where none is named, and behind them the CPU where no
/// native device is among them: operators without a device kernel run there.
///
/// # Errors
/// As [`open`].
pub(super) fn open_table(
    selectors: &[String],
    fallback: bool,
    desc: &ContextDesc,
) -> Result<Vec<Context>, CliError> {
    let mut table = Vec::new();
    for selector in selectors {
        table.push(open(Some(selector), desc)?);
    }
    if table.is_empty() {
        table.push(open(None, desc)?);
    }
    if fallback && !table.iter().any(|c| c.info().native) {
        table.push(open(Some("cpu"), desc)?);
    }
    Ok(table)
}
