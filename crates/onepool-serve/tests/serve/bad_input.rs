//! Requests that are wrong: each gets a status that names what is wrong, and the server goes on.

use std::time::Duration;

use bytes::{Buf, BufMut};
use http::uri::PathAndQuery;
use onepool_serve::proto::*;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status};

use crate::client::{
    Client, Object, as_floats, config, connect, floats, in_region, integer, of_rows, request, start, tensor,
    text, wanted,
};
use crate::models;

async fn refused(client: &mut Client, sent: ModelInferRequest, code: Code, named: &str) {
    let status = client.model_infer(sent).await.unwrap_err();
    assert!(status.code() == code && status.message().contains(named), "{named:?} is not in {status}");
}

/// A right request to `two`.
fn right() -> ModelInferRequest {
    let a = (tensor("a", "FP32", &[2, 3]), vec![0; 24]);
    let b = (tensor("b", "INT64", &[4]), vec![0; 32]);
    request("two", vec![a, b])
}

#[tokio::test]
async fn wrong_arguments_are_named() {
    use Code::{InvalidArgument, NotFound};
    let folder = tempfile::tempdir().unwrap();
    models::two(folder.path());
    models::identities(folder.path());
    let (server, mut client) = start(config(folder.path())).await;
    let object = Object::new("bad", 4096);
    object.register(&mut client, "region").await;
    type Change = fn(&mut ModelInferRequest);
    let shared = |name: &str, offset: i64, bytes: i64| in_region(name, offset, bytes);
    let cases: Vec<(Change, Code, &str)> = vec![
        (|r| r.model_name = "none".to_owned(), NotFound, "there is no model \"none\""),
        (|r| r.model_name = "x".repeat(1 << 20), NotFound, "there is no model"),
        (|r| r.model_version = "2".to_owned(), NotFound, "not \"2\""),
        (|r| r.inputs[0].name = "z".to_owned(), InvalidArgument, "there is no input \"z\""),
        (|r| r.inputs[1].name = "a".to_owned(), InvalidArgument, "input \"a\" is given twice"),
        (|r| drop(r.inputs.pop()), InvalidArgument, "raw_input_contents has 2 entries, the inputs take 1"),
        (
            |r| {
                r.inputs.pop();
                r.raw_input_contents.pop();
            },
            InvalidArgument,
            "input \"b\" is missing",
        ),
        (|r| r.inputs[0].datatype = "FP64".to_owned(), InvalidArgument, "input \"a\": datatype is FP64"),
        (|r| r.inputs[0].datatype = "BYTES".to_owned(), InvalidArgument, "strings"),
        (|r| r.inputs[0].datatype = "\u{7f}".repeat(9999), InvalidArgument, "datatype"),
        (|r| r.inputs[0].shape = vec![-1, 3], InvalidArgument, "input \"a\": shape"),
        (|r| r.inputs[0].shape = vec![i64::MIN, 3], InvalidArgument, "input \"a\": shape"),
        (|r| r.inputs[0].shape = vec![i64::MAX, 3], InvalidArgument, "input \"a\": shape"),
        (|r| r.inputs[0].shape = vec![1 << 40, 3], InvalidArgument, "raw_input_contents has 24 bytes"),
        (|r| r.inputs[0].shape = vec![2, 4], InvalidArgument, "input \"a\": shape"),
        (|r| r.inputs[0].shape = vec![6], InvalidArgument, "input \"a\": shape"),
        (|r| r.inputs[0].shape = vec![1; 100_000], InvalidArgument, "input \"a\": shape"),
        (|r| r.inputs[0].shape = Vec::new(), InvalidArgument, "input \"a\": shape"),
        (
            |r| r.raw_input_contents[0] = vec![0; 23].into(),
            InvalidArgument,
            "\"a\": raw_input_contents has 23 bytes, the shape has 24",
        ),
        (|r| r.raw_input_contents[1].clear(), InvalidArgument, "input \"b\": raw_input_contents has 0 bytes"),
        (
            |r| drop(r.raw_input_contents.pop()),
            InvalidArgument,
            "input \"b\": raw_input_contents has no entry",
        ),
        (|r| r.raw_input_contents.clear(), InvalidArgument, "input \"a\": fp32_contents has 0 values"),
        (
            |r| r.inputs[0].contents = Some(Default::default()),
            InvalidArgument,
            "contents and raw_input_contents",
        ),
        (|r| r.outputs = vec![wanted("e")], InvalidArgument, "there is no output \"e\""),
        (|r| r.outputs = vec![wanted("c"), wanted("c")], InvalidArgument, "output \"c\" is asked for twice"),
    ];
    for (change, code, named) in cases {
        let mut sent = right();
        change(&mut sent);
        refused(&mut client, sent, code, named).await;
    }
    // Ranges of regions.
    let region = |parameters: std::collections::HashMap<String, InferParameter>| {
        let mut sent = right();
        sent.inputs[0].parameters = parameters;
        sent.raw_input_contents.remove(0);
        sent
    };
    let mut without_size = shared("region", 0, 24);
    without_size.remove("shared_memory_byte_size");
    let mut without_region = shared("region", 0, 24);
    without_region.remove("shared_memory_region");
    let mut numbered = shared("region", 0, 24);
    numbered.insert("shared_memory_region".to_owned(), integer(1));
    let mut worded = shared("region", 0, 24);
    worded.insert("shared_memory_offset".to_owned(), text("0"));
    let ranges = [
        (shared("none", 0, 24), NotFound, "input \"a\": there is no shared memory region \"none\""),
        (shared("region", 4080, 24), InvalidArgument, "leave region \"region\", which has 4096"),
        (shared("region", i64::MAX, 24), InvalidArgument, "leave region"),
        (shared("region", -1, 24), InvalidArgument, "shared_memory_offset is -1"),
        (shared("region", 0, -24), InvalidArgument, "shared_memory_byte_size is -24"),
        (shared("region", 0, 20), InvalidArgument, "shared_memory_byte_size is 20, the shape has 24"),
        (shared("region", 0, 4096), InvalidArgument, "shared_memory_byte_size is 4096, the shape has 24"),
        (without_size, InvalidArgument, "shared_memory_byte_size is missing"),
        (without_region, InvalidArgument, "without shared_memory_region"),
        (numbered, InvalidArgument, "shared_memory_region is no string"),
        (worded, InvalidArgument, "shared_memory_offset is no integer"),
    ];
    for (parameters, code, named) in ranges {
        refused(&mut client, region(parameters), code, named).await;
    }
    let mut small = right();
    small.outputs = vec![wanted("c")];
    small.outputs[0].parameters = shared("region", 0, 23);
    refused(&mut client, small.clone(), InvalidArgument, "\"c\" needs 24 bytes, its memory has 23").await;
    small.outputs = vec![wanted("c"), wanted("d")];
    small.outputs[0].parameters = shared("region", 0, 24);
    small.outputs[1].parameters = shared("region", 16, 32);
    refused(&mut client, small.clone(), InvalidArgument, "two outputs overlap").await;
    small.outputs[1].parameters = [("classification".to_owned(), integer(3))].into();
    refused(&mut client, small, InvalidArgument, "classification").await;
    let bools = request("BOOL", vec![(tensor("x", "BOOL", &[2]), vec![1, 2])]);
    refused(&mut client, bools, InvalidArgument, "is no BOOL").await;
    // A half element at the start of the range is copied, and said to be.
    object.write(2, &floats(&[3.0; 6]));
    let odd = client.model_infer(region(shared("region", 2, 24))).await.unwrap().into_inner();
    assert_eq!(as_floats(&odd.raw_output_contents[0]), [6.0; 6]);
    assert!(crate::client::verdict(&odd, "a").contains("copied by the CPU"), "{odd:?}");
    client.model_infer(right()).await.unwrap();
    drop(client);
    assert!(server.shut_down().await);
}

/// Bytes as they are, in place of messages.
#[derive(Clone, Copy, Debug, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Plain;
    type Decoder = Plain;

    fn encoder(&mut self) -> Plain {
        Plain
    }

    fn decoder(&mut self) -> Plain {
        Plain
    }
}

impl Encoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        dst.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(src.copy_to_bytes(src.remaining()).to_vec()))
    }
}

/// Numbers that look random, and are the same each time.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[tokio::test]
async fn bytes_that_are_no_message_do_no_harm() {
    use prost::Message;
    let folder = tempfile::tempdir().unwrap();
    models::two(folder.path());
    let (server, mut client) = start(config(folder.path())).await;
    let channel = tonic::transport::Channel::from_shared(format!("http://{}", server.address())).unwrap();
    let mut plain = tonic::client::Grpc::new(channel.connect().await.unwrap());
    let whole = right().encode_to_vec();
    let (mut state, mut failed, mut answered) = (7u64, 0, 0);
    for n in 0..600 {
        let mut bytes = whole.clone();
        match n % 3 {
            0 => bytes = (0..random(&mut state) % 200).map(|_| random(&mut state) as u8).collect(),
            1 => bytes.truncate(random(&mut state) as usize % whole.len()),
            _ => (0..1 + n % 5).for_each(|_| {
                let at = random(&mut state) as usize % whole.len();
                bytes[at] ^= 1 << (random(&mut state) % 8);
            }),
        }
        let method = if n % 50 == 0 { "SystemSharedMemoryRegister" } else { "ModelInfer" };
        let path = PathAndQuery::try_from(format!("/inference.GRPCInferenceService/{method}")).unwrap();
        plain.ready().await.unwrap();
        match plain.unary(Request::new(bytes), path, Plain).await {
            Ok(_) => answered += 1,
            Err(status) => {
                let expected = [Code::InvalidArgument, Code::NotFound, Code::Internal, Code::AlreadyExists];
                // What cannot be decoded is an internal error of the transport's.
                assert!(expected.contains(&status.code()), "{status}");
                failed += 1;
            }
        }
    }
    assert!(failed > 300 && failed + answered == 600, "{failed} {answered}");
    plain.ready().await.unwrap();
    let nowhere = PathAndQuery::from_static("/inference.GRPCInferenceService/Nothing");
    let unknown = plain.unary(Request::new(Vec::new()), nowhere, Plain).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
    client.model_infer(right()).await.unwrap();
}

#[tokio::test]
async fn what_is_no_grpc_at_all_does_no_harm() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let folder = tempfile::tempdir().unwrap();
    models::rows(folder.path(), 2);
    let (server, _) = start(config(folder.path())).await;
    let mut state = 3u64;
    for n in 0..40 {
        let mut stream = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        let bytes: Vec<u8> = match n % 4 {
            0 => (0..1000).map(|_| random(&mut state) as u8).collect(),
            1 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            2 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(),
            _ => b"PRI * HTTP/2.0\r\n".to_vec(),
        };
        // The server may have closed it.
        drop(stream.write_all(&bytes).await);
        if n % 4 != 3 {
            let mut answer = Vec::new();
            let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer));
            drop(read.await.expect("the server closes it"));
        }
    }
    let mut client = connect(&server).await;
    let response = client.model_infer(of_rows(1, &[1.0, 2.0])).await.unwrap().into_inner();
    assert_eq!(as_floats(&response.raw_output_contents[0]), [2.0, 4.0]);
}
