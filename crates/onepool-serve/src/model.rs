//! A model: its session, and what its inputs and outputs are called.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onepool::device::Context;
use onepool::session::IoInfo;
use onepool::{DType, Dim, Session, SymShape};
use tonic::Status;

use crate::config::{Config, ModelFile};
use crate::datatype;
use crate::error::ServeError;
use crate::metrics::ModelMetrics;
use crate::proto::model_metadata_response::TensorMetadata;
use crate::proto::{ModelConfig, ModelDynamicBatching, ModelInput, ModelMetadataResponse, ModelOutput};

/// The only version of every model.
pub(crate) const VERSION: &str = "1";

/// What names the kind of model to clients.
const PLATFORM: &str = "onepool_onnx";

/// An input or output.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) name: String,
    /// An output's may be known only by its plan.
    pub(crate) dtype: Option<DType>,
    pub(crate) shape: Option<SymShape>,
}

/// A model that is served.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) session: Session,
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    /// Most rows of a run; 1 where requests are not gathered.
    pub(crate) max_batch: usize,
    pub(crate) max_delay: Duration,
    /// Most bytes of the outputs of a request.
    pub(crate) max_output: u64,
    pub(crate) metrics: ModelMetrics,
    lost: AtomicBool,
}

impl Port {
    fn of(io: IoInfo, is_input: bool) -> Result<Self, String> {
        let what = if is_input { "input" } else { "output" };
        let named = io.dtype.is_some_and(|dtype| datatype::name(dtype).is_none());
        match io.dtype {
            Some(dtype) if named => {
                Err(format!("{what} {:?} is {dtype}, which the protocol has no word for", io.name))
            }
            None if is_input => Err(format!("{what} {:?} has no element type", io.name)),
            dtype => Ok(Port { name: io.name, dtype, shape: io.shape }),
        }
    }

    fn first_symbol(&self) -> Option<&str> {
        match self.shape.as_ref()?.0.first()? {
            Dim::Symbol(name) => Some(name),
            _ => None,
        }
    }

    fn dims(&self) -> Vec<i64> {
        let size = |dim: &Dim| match dim {
            Dim::Known(size) => i64::try_from(*size).unwrap_or(-1),
            Dim::Symbol(_) | Dim::Unknown => -1,
        };
        self.shape.as_ref().map_or(vec![-1], |shape| shape.0.iter().map(size).collect())
    }

    fn metadata(&self) -> TensorMetadata {
        let datatype = self.dtype.and_then(datatype::name).unwrap_or_default().to_owned();
        TensorMetadata { name: self.name.clone(), datatype, shape: self.dims() }
    }
}

impl Model {
    /// Loads a model on opened devices.
    pub(crate) fn load(
        file: &ModelFile,
        devices: &[Context],
        config: &Config,
        metrics: ModelMetrics,
    ) -> Result<Model, ServeError> {
        let name = file.name.clone();
        // Imports of regions are made once, so that small tensors gain by them too.
        let builder = Session::builder().model(&file.path).copy_threshold(0);
        let builder = devices.iter().fold(builder, |builder, device| builder.context(device.clone()));
        let session = builder
            .build()
            .map_err(|source| ServeError::Load { name: name.clone(), source: Box::new(source) })?;
        let unserved = |what| ServeError::Unserved { name: name.clone(), what };
        let ports = |ios: Vec<IoInfo>, is_input| {
            ios.into_iter().map(|io| Port::of(io, is_input)).collect::<Result<Vec<_>, _>>()
        };
        let inputs = ports(session.inputs(), true).map_err(unserved)?;
        let outputs = ports(session.outputs(), false).map_err(unserved)?;
        let gathers = gathers(&inputs, &outputs);
        if config.max_batch > 1 && !gathers {
            tracing::warn!(model = name, "requests are not gathered: the first axes are not one symbol");
        }
        Ok(Model {
            session,
            inputs,
            outputs,
            max_batch: if gathers { config.max_batch } else { 1 },
            max_delay: config.max_delay,
            max_output: config.max_message as u64,
            metrics,
            lost: AtomicBool::new(false),
            name,
        })
    }

    /// Whether it can run.
    pub(crate) fn is_ready(&self) -> bool {
        !self.lost.load(Ordering::Acquire)
    }

    /// Its device was lost.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    pub(crate) fn check_version(&self, version: &str) -> Result<(), Status> {
        if version.is_empty() || version == VERSION {
            return Ok(());
        }
        let version = datatype::shown(version);
        Err(Status::not_found(format!("model {:?} has version {VERSION:?}, not {version:?}", self.name)))
    }

    pub(crate) fn metadata(&self) -> ModelMetadataResponse {
        ModelMetadataResponse {
            name: self.name.clone(),
            versions: vec![VERSION.to_owned()],
            platform: PLATFORM.to_owned(),
            inputs: self.inputs.iter().map(Port::metadata).collect(),
            outputs: self.outputs.iter().map(Port::metadata).collect(),
        }
    }

    pub(crate) fn config(&self) -> ModelConfig {
        let number = |port: &Port| port.dtype.map_or(0, |dtype| datatype::number(dtype) as i32);
        let gathers = self.max_batch > 1;
        // Where requests are gathered, the first axis is not among the sizes.
        let dims = |port: &Port| port.dims().split_off(usize::from(gathers));
        let input =
            |port: &Port| ModelInput { name: port.name.clone(), data_type: number(port), dims: dims(port) };
        let output =
            |port: &Port| ModelOutput { name: port.name.clone(), data_type: number(port), dims: dims(port) };
        let delay = u64::try_from(self.max_delay.as_micros()).unwrap_or(u64::MAX);
        ModelConfig {
            name: self.name.clone(),
            platform: PLATFORM.to_owned(),
            max_batch_size: if gathers { i32::try_from(self.max_batch).unwrap_or(i32::MAX) } else { 0 },
            input: self.inputs.iter().map(input).collect(),
            output: self.outputs.iter().map(output).collect(),
            dynamic_batching: gathers.then_some(ModelDynamicBatching { max_queue_delay_microseconds: delay }),
            backend: "onepool".to_owned(),
        }
    }
}

/// Whether rows of several requests can be one run: the first axis of every input and output is one symbol, which no
/// other axis has.
fn gathers(inputs: &[Port], outputs: &[Port]) -> bool {
    let ports = || inputs.iter().chain(outputs);
    let symbols: BTreeSet<Option<&str>> = ports().map(Port::first_symbol).collect();
    let [Some(rows)] = symbols.into_iter().collect::<Vec<_>>()[..] else { return false };
    let inner = |port: &Port| match &port.shape {
        Some(shape) => shape.0.iter().skip(1).any(|dim| matches!(dim, Dim::Symbol(name) if **name == *rows)),
        None => true,
    };
    !inputs.is_empty() && !ports().any(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(dims: &[&str]) -> Port {
        let dim = |text: &&str| text.parse::<usize>().map_or(Dim::from(*text), Dim::Known);
        let shape = Some(SymShape(dims.iter().map(dim).collect()));
        Port { name: "p".to_owned(), dtype: Some(DType::F32), shape }
    }

    #[test]
    fn rows_are_gathered_where_one_symbol_leads_everywhere_and_is_nowhere_else() {
        let gathers = |inputs: &[&[&str]], outputs: &[&[&str]]| {
            let ports = |all: &[&[&str]]| all.iter().map(|dims| port(dims)).collect::<Vec<_>>();
            super::gathers(&ports(inputs), &ports(outputs))
        };
        assert!(gathers(&[&["n", "3"], &["n"]], &[&["n", "5"]]));
        assert!(!gathers(&[&["n", "3"]], &[&["m", "5"]]));
        assert!(!gathers(&[&["n", "n"]], &[&["n"]]));
        assert!(!gathers(&[&["1", "3"]], &[&["1"]]));
        assert!(!gathers(&[&["n"], &["2"]], &[&["n"]]));
        assert!(!gathers(&[&["n"]], &[&[]]));
        assert!(!gathers(&[], &[&["n"]]));
        let open = Port { name: "p".to_owned(), dtype: None, shape: None };
        assert!(!super::gathers(&[port(&["n"])], &[open]));
    }
}
