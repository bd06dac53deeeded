//! Tensors in system shared memory.

use onepool_serve::Config;
use onepool_serve::proto::*;
use tonic::Code;

use crate::client::{
    Client, Object, as_floats, config, floats, in_region, metric, number, start, tensor, verdict, wanted,
};
use crate::models;

/// A request to `rows` whose input lies at `from` and whose output goes to `to`.
fn in_place(region: &str, rows: usize, width: usize, from: i64, to: i64) -> ModelInferRequest {
    let bytes = (rows * width * 4) as i64;
    let mut x = tensor("x", "FP32", &[rows as i64, width as i64]);
    x.parameters = in_region(region, from, bytes);
    let mut y = wanted("y");
    y.parameters = in_region(region, to, bytes);
    ModelInferRequest {
        model_name: "rows".to_owned(),
        inputs: vec![x],
        outputs: vec![y],
        ..Default::default()
    }
}

async fn unregister(client: &mut Client, name: &str) -> Result<(), tonic::Status> {
    let request = SystemSharedMemoryUnregisterRequest { name: name.to_owned() };
    client.system_shared_memory_unregister(request).await.map(drop)
}

/// Runs on ranges of a region on a device that takes pages of files, or copies them.
async fn on_device(device: &str, takes: bool) {
    const WIDTH: usize = 4096;
    const BYTES: u64 = 2 * 4 * WIDTH as u64;
    let folder = tempfile::tempdir().unwrap();
    models::rows(folder.path(), WIDTH);
    let (server, mut client) =
        start(Config { devices: vec![device.to_owned()], max_batch: 16, ..config(folder.path()) }).await;
    let object = Object::new(&format!("device-{}", device.replace(':', "-")), 4 * BYTES);
    object.register(&mut client, "frames").await;
    for n in 0..10u64 {
        // Two pairs of ranges, in turn.
        let pair = n % 2 * 2 * BYTES;
        let values: Vec<f32> = (0..2 * WIDTH).map(|at| (at as u64 + n) as f32).collect();
        object.write(pair, &floats(&values));
        let sent = in_place("frames", 2, WIDTH, pair as i64, (pair + BYTES) as i64);
        let response = client.model_infer(sent).await.unwrap().into_inner();
        let doubled: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
        assert_eq!(as_floats(&object.read(pair + BYTES, BYTES as usize)), doubled, "{device} {n}");
        assert!(response.raw_output_contents[0].is_empty());
        let moved = [number(&response, "in_place_bytes"), number(&response, "copied_bytes")];
        let all = 2 * BYTES as i64;
        assert_eq!(moved, if takes { [all, 0] } else { [0, all] }, "{device}: {}", verdict(&response, "x"));
        assert_eq!(verdict(&response, "y").contains("copied by the CPU"), !takes);
    }
    // One binding for each pair, however often it is asked for.
    assert_eq!(metric(&server, "onepool_bindings_total{model=\"rows\"}").await, 2.0);
    assert_eq!(metric(&server, "onepool_idle_bindings{model=\"rows\"}").await, 2.0);
    unregister(&mut client, "frames").await.unwrap();
    assert_eq!(metric(&server, "onepool_idle_bindings{model=\"rows\"}").await, 0.0);
    drop(client);
    assert!(server.shut_down().await);
}

#[tokio::test]
async fn nothing_is_copied_on_the_cpu() {
    on_device("cpu", true).await;
}

#[tokio::test]
async fn pages_of_the_region_are_imported_by_a_device() {
    on_device("sim:anv-lunarlake", true).await;
    if std::env::var("REQUIRE_BACKENDS").is_ok_and(|all| all.contains("vulkan")) {
        on_device("vulkan", true).await;
    }
}

#[tokio::test]
async fn a_device_that_takes_no_pages_of_files_gets_copies() {
    on_device("sim:radv-phoenix-780m", false).await;
}

#[tokio::test]
async fn messages_and_regions_mix() {
    let folder = tempfile::tempdir().unwrap();
    models::two(folder.path());
    models::positions(folder.path());
    let (_server, mut client) = start(config(folder.path())).await;
    let object = Object::new("mix", 4096);
    object.register(&mut client, "a").await;
    object.write(128, &floats(&[1.0, 2.0, 3.0]));
    let mut a = tensor("a", "FP32", &[1, 3]);
    a.parameters = in_region("a", 128, 12);
    let (mut c, d) = (wanted("c"), wanted("d"));
    c.parameters = in_region("a", 256, 64);
    let sent = ModelInferRequest {
        model_name: "two".to_owned(),
        inputs: vec![a, tensor("b", "INT64", &[1])],
        outputs: vec![c, d],
        raw_input_contents: vec![7i64.to_le_bytes().to_vec().into()],
        ..Default::default()
    };
    let response = client.model_infer(sent).await.unwrap().into_inner();
    assert_eq!(as_floats(&object.read(256, 12)), [2.0, 4.0, 6.0]);
    assert_eq!(response.outputs[0].shape, [1, 3]);
    assert_eq!(
        (response.raw_output_contents[0].len(), &response.raw_output_contents[1][..]),
        (0, &14i64.to_le_bytes()[..])
    );
    assert_eq!((number(&response, "in_place_bytes"), number(&response, "copied_bytes")), (24, 16));
    // Only the run tells how much is written.
    object.write(512, &floats(&[0.0, 5.0, 6.0]));
    let mut x = tensor("x", "FP32", &[3]);
    x.parameters = in_region("a", 512, 12);
    let mut y = wanted("y");
    y.parameters = in_region("a", 1024, 64);
    let mut sent = ModelInferRequest {
        model_name: "positions".to_owned(),
        inputs: vec![x],
        outputs: vec![y],
        ..Default::default()
    };
    let response = client.model_infer(sent.clone()).await.unwrap().into_inner();
    assert_eq!(response.outputs[0].shape, [1, 2]);
    assert_eq!(object.read(1024, 16), [1i64.to_le_bytes(), 2i64.to_le_bytes()].concat());
    sent.outputs[0].parameters = in_region("a", 1024, 8);
    let small = client.model_infer(sent).await.unwrap_err();
    assert!(
        small.code() == Code::InvalidArgument && small.message().contains("\"y\" needs 16 bytes"),
        "{small}"
    );
}

#[tokio::test]
async fn regions_are_listed_and_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    models::rows(folder.path(), 4);
    let (server, mut client) = start(config(folder.path())).await;
    let [first, second] = ["one", "two"].map(|name| Object::new(&format!("list-{name}"), 4096));
    first.register(&mut client, "one").await;
    second.register(&mut client, "two").await;
    let named = |name: &str| SystemSharedMemoryStatusRequest { name: name.to_owned() };
    let all = client.system_shared_memory_status(named("")).await.unwrap().into_inner().regions;
    assert_eq!((all.len(), all["one"].byte_size, all["two"].key.as_str()), (2, 4096, second.key.as_str()));
    assert_eq!(metric(&server, "onepool_regions").await, 2.0);
    client.model_infer(in_place("one", 1, 4, 0, 64)).await.unwrap();
    unregister(&mut client, "one").await.unwrap();
    assert_eq!(unregister(&mut client, "one").await.unwrap_err().code(), Code::NotFound);
    let gone = client.model_infer(in_place("one", 1, 4, 0, 64)).await.unwrap_err();
    assert!(gone.code() == Code::NotFound && gone.message().contains("input \"x\""), "{gone}");
    assert_eq!(client.system_shared_memory_status(named("one")).await.unwrap_err().code(), Code::NotFound);
    // The name is free again, for other memory: nothing of the former is used.
    second.register(&mut client, "one").await;
    second.write(0, &floats(&[9.0; 4]));
    client.model_infer(in_place("one", 1, 4, 0, 64)).await.unwrap();
    assert_eq!(as_floats(&second.read(64, 16)), [18.0; 4]);
    unregister(&mut client, "").await.unwrap();
    assert_eq!(metric(&server, "onepool_regions").await, 0.0);
}

#[tokio::test]
async fn a_region_that_is_in_use_may_be_unregistered() {
    let folder = tempfile::tempdir().unwrap();
    models::slow(folder.path());
    let (server, mut client) = start(config(folder.path())).await;
    let n = 384usize;
    let bytes = (n * n * 4) as i64;
    let object = Object::new("in-use", 2 * bytes as u64);
    object.register(&mut client, "matrix").await;
    let mut diagonal = vec![0.0f32; n * n];
    (0..n).for_each(|at| diagonal[at * n + at] = 1.0);
    object.write(0, &floats(&diagonal));
    let mut x = tensor("x", "FP32", &[n as i64, n as i64]);
    x.parameters = in_region("matrix", 0, bytes);
    let mut y = wanted("y");
    y.parameters = in_region("matrix", bytes, bytes);
    let sent = ModelInferRequest {
        model_name: "slow".to_owned(),
        inputs: vec![x],
        outputs: vec![y],
        ..Default::default()
    };
    let mut other = client.clone();
    let running = tokio::spawn({
        let sent = sent.clone();
        async move { other.model_infer(sent).await }
    });
    while metric(&server, "onepool_wait_time_seconds_count{model=\"slow\"}").await == 0.0 {
        assert!(!running.is_finished());
    }
    // The ranges are taken while it runs.
    let second = client.model_infer(sent.clone()).await;
    if let Err(busy) = &second {
        assert!(busy.code() == Code::Unavailable && busy.message().contains("in use"), "{busy}");
    }
    unregister(&mut client, "matrix").await.unwrap();
    running.await.unwrap().unwrap();
    assert_eq!(as_floats(&object.read(bytes as u64, 4)), [-1.0]);
    assert_eq!(client.model_infer(sent).await.unwrap_err().code(), Code::NotFound);
}
