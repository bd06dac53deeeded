//! Checks of requests, and their answers in the protocol's messages.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use onepool::{DType, Shape};
use tokio::sync::oneshot;
use tonic::Status;

use crate::datatype::{self, shown};
use crate::error::invalid;
use crate::model::{Model, Port, VERSION};
use crate::proto::infer_parameter::ParameterChoice;
use crate::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::proto::model_infer_response::InferOutputTensor;
use crate::proto::{InferParameter, ModelInferRequest, ModelInferResponse};
use crate::queue::{Done, Given, Job, Life, Wanted};
use crate::shm::{Range, Regions, Turn};

type Parameters = HashMap<String, InferParameter>;
type Reply = oneshot::Receiver<Result<Done, Status>>;

/// The job that a request asks for, and where its answer comes.
pub(crate) fn job(
    model: &Model,
    regions: &Regions,
    request: &ModelInferRequest,
    deadline: Instant,
) -> Result<(Job, Reply), Status> {
    let mut inputs: Vec<Option<(Shape, Given)>> = model.inputs.iter().map(|_| None).collect();
    let mut raw = request.raw_input_contents.iter();
    // Sizes of one symbol are equal in all inputs: rows are gathered by the first of them.
    let mut symbols = BTreeMap::new();
    for tensor in &request.inputs {
        let (at, port) = find(&model.inputs, "input", &tensor.name)?;
        if inputs[at].is_some() {
            return Err(invalid(format!("input {:?} is given twice", port.name)));
        }
        let raw = (!request.raw_input_contents.is_empty()).then_some(&mut raw);
        inputs[at] = Some(input(port, tensor, raw, regions, &mut symbols)?);
    }
    if raw.next().is_some() {
        let (got, used) =
            (request.raw_input_contents.len(), request.raw_input_contents.len() - raw.len() - 1);
        return Err(invalid(format!("raw_input_contents has {got} entries, the inputs take {used}")));
    }
    let mut given = Vec::with_capacity(inputs.len());
    for (input, port) in inputs.into_iter().zip(&model.inputs) {
        given.push(input.ok_or_else(|| invalid(format!("input {:?} is missing", port.name)))?);
    }
    let mut outputs: Vec<Wanted> = model.outputs.iter().map(|_| Wanted::Message).collect();
    if !request.outputs.is_empty() {
        outputs.fill_with(|| Wanted::Nowhere);
    }
    for wanted in &request.outputs {
        let (at, port) = find(&model.outputs, "output", &wanted.name)?;
        if !matches!(outputs[at], Wanted::Nowhere) {
            return Err(invalid(format!("output {:?} is asked for twice", port.name)));
        }
        outputs[at] = output(port, wanted, regions)?;
    }
    let turns = turns(&given, &outputs)?;
    let (reply, answer) = oneshot::channel();
    let life = Arc::new(Life::default());
    let job = Job { inputs: given, outputs, turns, arrived: Instant::now(), deadline, life, reply };
    Ok((job, answer))
}

fn find<'m>(ports: &'m [Port], what: &str, name: &str) -> Result<(usize, &'m Port), Status> {
    ports.iter().enumerate().find(|(_, port)| port.name == name).ok_or_else(|| {
        let known: Vec<&str> = ports.iter().map(|port| port.name.as_str()).take(16).collect();
        invalid(format!("there is no {what} {:?}; there are {known:?}", shown(name)))
    })
}

fn input<'r>(
    port: &Port,
    tensor: &InferInputTensor,
    raw: Option<&mut impl Iterator<Item = &'r Bytes>>,
    regions: &Regions,
    symbols: &mut BTreeMap<Arc<str>, usize>,
) -> Result<(Shape, Given), Status> {
    let wrong = |what: String| invalid(format!("input {:?}: {what}", port.name));
    let dtype = datatype::parse(&tensor.datatype).map_err(wrong)?;
    if let Some(expected) = port.dtype.filter(|expected| *expected != dtype) {
        let expected = datatype::name(expected).unwrap_or_default();
        return Err(wrong(format!("datatype is {}, the model takes {expected}", tensor.datatype)));
    }
    let shape = Shape::from_i64(&tensor.shape).map_err(|error| wrong(format!("shape: {error}")))?;
    if let Some(declared) = &port.shape {
        let fits = declared.unify(&shape, symbols);
        fits.map_err(|error| wrong(format!("shape: {error}")))?;
    }
    let bytes = (shape.elements() as u64).saturating_mul(dtype.bytes() as u64);
    let range = shared(&tensor.parameters, regions).map_err(|status| about(status, "input", &port.name))?;
    if let Some(range) = range {
        if tensor.contents.is_some() {
            return Err(wrong("contents and shared_memory_region are both given".to_owned()));
        }
        let size = range.range.bytes();
        if size != bytes {
            return Err(wrong(format!("shared_memory_byte_size is {size}, the shape has {bytes} bytes")));
        }
        return Ok((shape, Given::Shared(range)));
    }
    if let Some(raw) = raw {
        if tensor.contents.is_some() {
            return Err(wrong("contents and raw_input_contents are both given".to_owned()));
        }
        let data = raw.next().ok_or_else(|| wrong("raw_input_contents has no entry for it".to_owned()))?;
        if data.len() as u64 != bytes {
            let got = data.len();
            return Err(wrong(format!("raw_input_contents has {got} bytes, the shape has {bytes}")));
        }
        if dtype == DType::Bool && data.iter().any(|byte| *byte > 1) {
            return Err(wrong("a byte of raw_input_contents is no BOOL: neither 0 nor 1".to_owned()));
        }
        return Ok((shape, Given::Message(data.clone())));
    }
    let none = Default::default();
    let contents = tensor.contents.as_ref().unwrap_or(&none);
    let data = datatype::typed(contents, dtype, shape.elements()).map_err(wrong)?;
    Ok((shape, Given::Message(data)))
}

fn output(port: &Port, wanted: &InferRequestedOutputTensor, regions: &Regions) -> Result<Wanted, Status> {
    if integer(&wanted.parameters, "classification")?.unwrap_or(0) != 0 {
        return Err(invalid(format!("output {:?}: classification is not served", port.name)));
    }
    let range = shared(&wanted.parameters, regions).map_err(|status| about(status, "output", &port.name))?;
    Ok(range.map_or(Wanted::Message, Wanted::Shared))
}

/// Adds the tensor's name to a status.
fn about(status: Status, what: &str, name: &str) -> Status {
    Status::new(status.code(), format!("{what} {name:?}: {}", status.message()))
}

/// The range that a tensor's parameters name.
fn shared(parameters: &Parameters, regions: &Regions) -> Result<Option<Range>, Status> {
    const REGION: &str = "shared_memory_region";
    const SIZE: &str = "shared_memory_byte_size";
    const OFFSET: &str = "shared_memory_offset";
    let Some(region) = parameters.get(REGION) else {
        return match [SIZE, OFFSET].into_iter().find(|key| parameters.contains_key(*key)) {
            Some(key) => Err(invalid(format!("{key} is given without {REGION}"))),
            None => Ok(None),
        };
    };
    let Some(ParameterChoice::StringParam(name)) = &region.parameter_choice else {
        return Err(invalid(format!("{REGION} is no string")));
    };
    let bytes = integer(parameters, SIZE)?.ok_or_else(|| invalid(format!("{SIZE} is missing")))?;
    let offset = integer(parameters, OFFSET)?.unwrap_or(0);
    regions.range(name, offset, bytes).map(Some)
}

fn integer(parameters: &Parameters, key: &str) -> Result<Option<u64>, Status> {
    let Some(parameter) = parameters.get(key) else { return Ok(None) };
    match parameter.parameter_choice {
        Some(ParameterChoice::Int64Param(value)) => match u64::try_from(value) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(invalid(format!("{key} is {value}, below 0"))),
        },
        Some(ParameterChoice::Uint64Param(value)) => Ok(Some(value)),
        _ => Err(invalid(format!("{key} is no integer"))),
    }
}

/// Takes the shared memory of a request.
fn turns(inputs: &[(Shape, Given)], outputs: &[Wanted]) -> Result<Vec<Turn>, Status> {
    let reads = inputs.iter().filter_map(|(_, given)| match given {
        Given::Shared(range) => Some(range),
        Given::Message(_) => None,
    });
    let writes: Vec<&Range> = outputs
        .iter()
        .filter_map(|wanted| match wanted {
            Wanted::Shared(range) => Some(range),
            Wanted::Nowhere | Wanted::Message => None,
        })
        .collect();
    let overlap = |a: &Range, b: &Range| a.region.id == b.region.id && a.range.overlaps(b.range);
    // What a request writes it takes once, for inputs that lie there too.
    let apart = reads.filter(|input| !writes.iter().any(|output| overlap(input, output)));
    let mut taken = apart.map(|range| range.take(false)).collect::<Result<Vec<_>, _>>()?;
    for (at, range) in writes.iter().enumerate() {
        if writes[..at].iter().any(|other| overlap(range, other)) {
            return Err(invalid("two outputs overlap in one shared memory region"));
        }
        taken.push(range.take(true)?);
    }
    Ok(taken)
}

/// The answer to a request.
pub(crate) fn response(model: &Model, id: String, done: Done) -> ModelInferResponse {
    let text = |text: String| InferParameter { parameter_choice: Some(ParameterChoice::StringParam(text)) };
    let number = |number: u64| {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(number)) }
    };
    let mut response = ModelInferResponse {
        model_name: model.name.clone(),
        model_version: VERSION.to_owned(),
        id,
        ..Default::default()
    };
    response.parameters.insert("copied_bytes".to_owned(), number(done.copied));
    response.parameters.insert("in_place_bytes".to_owned(), number(done.in_place));
    response.parameters.insert("rows".to_owned(), number(done.rows as u64));
    for (name, verdict) in done.verdicts {
        response.parameters.insert(format!("verdict.{name}"), text(verdict));
    }
    for output in done.outputs {
        let sizes = output.dims.iter().map(|size| i64::try_from(*size).unwrap_or(i64::MAX));
        response.outputs.push(InferOutputTensor {
            name: model.outputs.get(output.at).map(|port| port.name.clone()).unwrap_or_default(),
            datatype: datatype::name(output.dtype).unwrap_or_default().to_owned(),
            shape: sizes.collect(),
            ..Default::default()
        });
        response.raw_output_contents.push(output.bytes);
    }
    response
}
