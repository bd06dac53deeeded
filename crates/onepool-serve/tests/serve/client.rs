//! A server of a test, and requests to it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use onepool_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use onepool_serve::proto::infer_parameter::ParameterChoice;
use onepool_serve::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use onepool_serve::proto::*;
use onepool_serve::{Config, Server, models_at};
use rustix::shm::{Mode, OFlags};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::transport::Channel;

pub(crate) type Client = GrpcInferenceServiceClient<Channel>;

/// Settings for the models in `folder`, on a free port.
pub(crate) fn config(folder: &Path) -> Config {
    Config {
        listen: ([127, 0, 0, 1], 0).into(),
        metrics: Some(([127, 0, 0, 1], 0).into()),
        models: models_at(folder).unwrap(),
        devices: vec!["cpu".to_owned()],
        ..Config::default()
    }
}

pub(crate) async fn connect(server: &Server) -> Client {
    let channel = Channel::from_shared(format!("http://{}", server.address())).unwrap();
    Client::new(channel.connect().await.unwrap()).max_decoding_message_size(256 << 20)
}

/// A server for the models in `folder`, and a client.
pub(crate) async fn start(config: Config) -> (Server, Client) {
    let server = Server::start(config).await.unwrap();
    let client = connect(&server).await;
    (server, client)
}

/// The value of a metric.
pub(crate) async fn metric(server: &Server, name: &str) -> f64 {
    let mut stream = tokio::net::TcpStream::connect(server.metrics_address().unwrap()).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
}

pub(crate) fn bytes_of<const N: usize>(values: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    values.into_iter().flatten().collect()
}

pub(crate) fn floats(values: &[f32]) -> Vec<u8> {
    bytes_of(values.iter().map(|value| value.to_le_bytes()))
}

pub(crate) fn as_floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

pub(crate) fn tensor(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    let (name, datatype, shape) = (name.to_owned(), datatype.to_owned(), shape.to_vec());
    InferInputTensor { name, datatype, shape, ..Default::default() }
}

pub(crate) fn wanted(name: &str) -> InferRequestedOutputTensor {
    InferRequestedOutputTensor { name: name.to_owned(), ..Default::default() }
}

/// A request to `model` with tensors in raw contents.
pub(crate) fn request(model: &str, inputs: Vec<(InferInputTensor, Vec<u8>)>) -> ModelInferRequest {
    let (inputs, raw): (Vec<_>, Vec<Vec<u8>>) = inputs.into_iter().unzip();
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs,
        raw_input_contents: raw.into_iter().map(Into::into).collect(),
        ..Default::default()
    }
}

/// A request to the model `rows`.
pub(crate) fn of_rows(rows: usize, values: &[f32]) -> ModelInferRequest {
    let shape = [rows as i64, (values.len() / rows.max(1)) as i64];
    request("rows", vec![(tensor("x", "FP32", &shape), floats(values))])
}

fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

pub(crate) fn text(value: &str) -> InferParameter {
    parameter(ParameterChoice::StringParam(value.to_owned()))
}

pub(crate) fn integer(value: i64) -> InferParameter {
    parameter(ParameterChoice::Int64Param(value))
}

/// The parameters of a tensor in a region.
pub(crate) fn in_region(
    region: &str,
    offset: i64,
    bytes: i64,
) -> std::collections::HashMap<String, InferParameter> {
    [
        ("shared_memory_region".to_owned(), text(region)),
        ("shared_memory_offset".to_owned(), integer(offset)),
        ("shared_memory_byte_size".to_owned(), integer(bytes)),
    ]
    .into()
}

/// An integer parameter of an answer.
pub(crate) fn number(response: &ModelInferResponse, name: &str) -> i64 {
    match response.parameters[name].parameter_choice {
        Some(ParameterChoice::Int64Param(value)) => value,
        ref other => panic!("{name} is {other:?}"),
    }
}

/// The verdict on a tensor, in words.
pub(crate) fn verdict(response: &ModelInferResponse, tensor: &str) -> String {
    match &response.parameters[&format!("verdict.{tensor}")].parameter_choice {
        Some(ParameterChoice::StringParam(said)) => said.clone(),
        other => panic!("{tensor}: {other:?}"),
    }
}

/// A shared memory object, removed at the end.
pub(crate) struct Object {
    pub(crate) key: String,
    pub(crate) file: File,
}

impl Object {
    pub(crate) fn new(name: &str, bytes: u64) -> Object {
        let key = format!("/onepool-serve-test-{name}-{}", std::process::id());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = File::from(rustix::shm::open(&key, flags, Mode::RUSR | Mode::WUSR).unwrap());
        file.set_len(bytes).unwrap();
        Object { key, file }
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).unwrap();
    }

    pub(crate) fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.file.read_exact_at(&mut read, offset).unwrap();
        read
    }

    pub(crate) async fn register(&self, client: &mut Client, name: &str) {
        let byte_size = self.file.metadata().unwrap().len();
        let (name, key) = (name.to_owned(), self.key.clone());
        let request = SystemSharedMemoryRegisterRequest { name, key, offset: 0, byte_size };
        client.system_shared_memory_register(request).await.unwrap();
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        rustix::shm::unlink(&self.key).unwrap();
    }
}
