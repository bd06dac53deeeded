//! What the server tells of itself and its models, and requests whose tensors are in messages.

use onepool_serve::proto::*;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::client::{as_floats, config, floats, metric, number, of_rows, request, start, tensor, wanted};
use crate::models::{self, TYPES};

#[tokio::test]
async fn the_server_tells_of_itself_and_its_models() {
    let folder = tempfile::tempdir().unwrap();
    models::two(folder.path());
    models::rows(folder.path(), 4);
    let (server, mut client) = start(onepool_serve::Config { max_batch: 8, ..config(folder.path()) }).await;
    assert_eq!(server.models().collect::<Vec<_>>(), ["rows", "two"]);
    assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
    assert!(client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    let about = client.server_metadata(ServerMetadataRequest {}).await.unwrap().into_inner();
    assert!(about.name == "onepool" && about.extensions.iter().any(|name| name == "system_shared_memory"));
    let named = |name: &str, version: &str| (name.to_owned(), version.to_owned());
    let (name, version) = named("two", "1");
    let ready = client.model_ready(ModelReadyRequest { name, version }).await.unwrap().into_inner();
    assert!(ready.ready);
    let (name, version) = named("two", "");
    let model = client.model_metadata(ModelMetadataRequest { name, version }).await.unwrap().into_inner();
    let said = |all: &[model_metadata_response::TensorMetadata]| {
        all.iter().map(|t| (t.name.clone(), t.datatype.clone(), t.shape.clone())).collect::<Vec<_>>()
    };
    let expected = |names: [&str; 2]| {
        vec![
            (names[0].to_owned(), "FP32".to_owned(), vec![-1, 3]),
            (names[1].to_owned(), "INT64".to_owned(), vec![-1]),
        ]
    };
    assert_eq!((said(&model.inputs), said(&model.outputs)), (expected(["a", "b"]), expected(["c", "d"])));
    let (name, version) = named("rows", "");
    let config = client.model_config(ModelConfigRequest { name, version }).await.unwrap().into_inner();
    let config = config.config.unwrap();
    assert_eq!((config.max_batch_size, config.input[0].dims.clone()), (8, vec![4]));
    let index = client.repository_index(RepositoryIndexRequest::default()).await.unwrap().into_inner();
    assert_eq!(
        index.models.iter().map(|m| (&*m.name, &*m.state)).collect::<Vec<_>>(),
        [("rows", "READY"), ("two", "READY")]
    );
    let channel = tonic::transport::Channel::from_shared(format!("http://{}", server.address())).unwrap();
    let mut health = HealthClient::new(channel.connect().await.unwrap());
    for service in ["", "inference.GRPCInferenceService", "rows"] {
        let asked = HealthCheckRequest { service: service.to_owned() };
        assert_eq!(health.check(asked).await.unwrap().into_inner().status, 1, "{service}");
    }
    assert!(health.check(HealthCheckRequest { service: "none".to_owned() }).await.is_err());
    drop((health, client));
    assert!(server.shut_down().await);
}

#[tokio::test]
async fn every_type_goes_through_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    models::identities(folder.path());
    let (server, mut client) = start(config(folder.path())).await;
    for (name, _, size) in TYPES {
        let bytes: Vec<u8> = (0..6 * size)
            .map(|n| if name == "BOOL" { n as u8 & 1 } else { (n as u8).wrapping_mul(7) })
            .collect();
        let sent = ModelInferRequest {
            id: format!("number {size}"),
            ..request(name, vec![(tensor("x", name, &[6]), bytes.clone())])
        };
        let response = client.model_infer(sent).await.unwrap().into_inner();
        assert_eq!((response.model_name.as_str(), response.id), (name, format!("number {size}")));
        assert_eq!(
            (response.outputs[0].datatype.as_str(), &response.outputs[0].shape[..]),
            (name, &[6i64][..])
        );
        assert_eq!(response.raw_output_contents[0], bytes, "{name}");
    }
    // An empty tensor has no bytes.
    let empty = request("FP32", vec![(tensor("x", "FP32", &[0]), Vec::new())]);
    let response = client.model_infer(empty).await.unwrap().into_inner();
    assert_eq!((&response.outputs[0].shape[..], response.raw_output_contents[0].len()), (&[0i64][..], 0));
    assert_eq!(metric(&server, "onepool_requests_total{method=\"ModelInfer\",code=\"0\"}").await, 14.0);
    drop(client);
    assert!(server.shut_down().await);
}

#[tokio::test]
async fn typed_contents_and_chosen_outputs() {
    let folder = tempfile::tempdir().unwrap();
    models::two(folder.path());
    models::positions(folder.path());
    let (_server, mut client) = start(config(folder.path())).await;
    let mut a = tensor("a", "FP32", &[1, 3]);
    a.contents = Some(InferTensorContents { fp32_contents: vec![1.0, 2.0, 3.0], ..Default::default() });
    let mut b = tensor("b", "INT64", &[2]);
    b.contents = Some(InferTensorContents { int64_contents: vec![5, -6], ..Default::default() });
    // Inputs come in any order, outputs in the model's.
    let all = ModelInferRequest { model_name: "two".to_owned(), inputs: vec![b, a], ..Default::default() };
    let response = client.model_infer(all.clone()).await.unwrap().into_inner();
    assert_eq!(response.outputs.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["c", "d"]);
    assert_eq!(as_floats(&response.raw_output_contents[0]), [2.0, 4.0, 6.0]);
    assert_eq!(response.raw_output_contents[1][..8], 10i64.to_le_bytes());
    let one = ModelInferRequest { outputs: vec![wanted("d")], ..all };
    let response = client.model_infer(one).await.unwrap().into_inner();
    assert_eq!((response.outputs.len(), response.raw_output_contents.len()), (1, 1));
    assert_eq!(response.raw_output_contents[0][8..], (-12i64).to_le_bytes());
    for values in [vec![0.0, 3.0, 0.0, 4.0], vec![1.0; 3], vec![0.0; 2]] {
        let expected: Vec<u8> = (0..values.len() as i64)
            .filter(|n| values[*n as usize] != 0.0)
            .flat_map(i64::to_le_bytes)
            .collect();
        let sent = request("positions", vec![(tensor("x", "FP32", &[values.len() as i64]), floats(&values))]);
        let response = client.model_infer(sent).await.unwrap().into_inner();
        assert_eq!(response.raw_output_contents[0], expected);
    }
}

#[tokio::test]
async fn a_request_that_was_seen_before_makes_no_plan() {
    let folder = tempfile::tempdir().unwrap();
    models::rows(folder.path(), 4);
    let (server, mut client) = start(config(folder.path())).await;
    for n in 0..20 {
        let rows = 1 + n % 2;
        let values: Vec<f32> = (0..rows * 4).map(|at| (at + n) as f32).collect();
        let response = client.model_infer(of_rows(rows, &values)).await.unwrap().into_inner();
        let doubled: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
        assert_eq!(as_floats(&response.raw_output_contents[0]), doubled);
        // Both tensors are copied with their messages.
        assert_eq!(number(&response, "copied_bytes"), 2 * 16 * rows as i64);
    }
    assert_eq!(metric(&server, "onepool_bindings_total{model=\"rows\"}").await, 2.0);
    assert_eq!(metric(&server, "onepool_runs_total{model=\"rows\"}").await, 20.0);
}
