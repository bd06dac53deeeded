//! Requests that are gathered, run together and split again.

use std::time::{Duration, Instant};

use onepool_serve::Config;
use onepool_serve::proto::*;

use crate::client::{
    Object, as_floats, config, connect, floats, in_region, metric, number, of_rows, request, start, tensor,
    wanted,
};
use crate::models;

/// How long clients send requests; 600 for the long test.
fn seconds() -> Duration {
    let text = std::env::var("ONEPOOL_SERVE_SECONDS").unwrap_or_default();
    Duration::from_secs(text.parse().unwrap_or(5))
}

#[tokio::test]
async fn requests_are_gathered_and_each_gets_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    models::rows(folder.path(), 3);
    let (server, client) =
        start(Config { max_batch: 4, max_delay: Duration::from_secs(600), ..config(folder.path()) }).await;
    // The delay is long: only a full batch is run.
    let sent = (0..4).map(|n| {
        let mut client = client.clone();
        tokio::spawn(
            async move { client.model_infer(of_rows(1, &[n as f32; 3])).await.unwrap().into_inner() },
        )
    });
    for (n, answer) in sent.collect::<Vec<_>>().into_iter().enumerate() {
        let answer = answer.await.unwrap();
        assert_eq!(as_floats(&answer.raw_output_contents[0]), [2.0 * n as f32; 3]);
        assert_eq!((answer.outputs[0].shape.as_slice(), number(&answer, "rows")), (&[1i64, 3][..], 4));
    }
    assert_eq!(metric(&server, "onepool_runs_total{model=\"rows\"}").await, 1.0);
    assert_eq!(metric(&server, "onepool_rows_total{model=\"rows\"}").await, 4.0);
    // More rows than a batch may have are a run of their own.
    let mut client = client;
    let many = client.model_infer(of_rows(9, &[1.0; 27])).await.unwrap().into_inner();
    assert_eq!(many.outputs[0].shape, [9, 3]);
}

#[tokio::test]
async fn a_request_whose_inputs_differ_in_rows_joins_no_other() {
    let folder = tempfile::tempdir().unwrap();
    models::sum(folder.path());
    let (_server, client) =
        start(Config { max_batch: 4, max_delay: Duration::from_secs(600), ..config(folder.path()) }).await;
    let of = |a: usize, b: usize, value: f32| {
        let side = |name: &str, rows: usize| {
            (tensor(name, "FP32", &[rows as i64, 2]), floats(&vec![value; rows * 2]))
        };
        request("sum", vec![side("a", a), side("b", b)])
    };
    let send = |sent: ModelInferRequest| {
        let mut client = client.clone();
        tokio::spawn(async move { client.model_infer(sent).await })
    };
    let (first, wrong, last) = (send(of(2, 2, 1.0)), send(of(2, 1, 5.0)), send(of(2, 2, 3.0)));
    let wrong = wrong.await.unwrap().unwrap_err();
    assert!(
        wrong.code() == tonic::Code::InvalidArgument && wrong.message().contains("\"b\": shape"),
        "{wrong}"
    );
    for (answer, value) in [(first, 2.0), (last, 6.0)] {
        let answer = answer.await.unwrap().unwrap().into_inner();
        assert_eq!((number(&answer, "rows"), as_floats(&answer.raw_output_contents[0])), (4, vec![value; 4]));
    }
}

/// 64 clients send what no other sends, half of them by shared memory, and check each answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_mixed_up_with_64_clients() {
    const WIDTH: usize = 16;
    const ROOM: usize = 4096;
    let folder = tempfile::tempdir().unwrap();
    models::rows(folder.path(), WIDTH);
    let (server, mut first) =
        start(Config { max_batch: 32, max_delay: Duration::from_millis(1), ..config(folder.path()) }).await;
    let object = std::sync::Arc::new(Object::new("clients", 64 * ROOM as u64));
    object.register(&mut first, "all").await;
    let until = Instant::now() + seconds();
    let mut clients = Vec::new();
    for who in 0..64usize {
        let (mut client, object) = (connect(&server).await, std::sync::Arc::clone(&object));
        clients.push(tokio::spawn(async move {
            let mut count = 0usize;
            while Instant::now() < until {
                let rows = 1 + (who + count) % 5;
                let at = |n: usize| (who * 1_000_003 + count * 131 + n) as f32 % 9973.0;
                let values: Vec<f32> = (0..rows * WIDTH).map(at).collect();
                let expected: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
                let bytes = rows * WIDTH * 4;
                let got = if who % 2 == 0 {
                    let answer = client.model_infer(of_rows(rows, &values)).await.unwrap().into_inner();
                    assert_eq!(answer.outputs[0].shape, [rows as i64, WIDTH as i64]);
                    answer.raw_output_contents[0].to_vec()
                } else {
                    let (from, to) = (who * ROOM, who * ROOM + ROOM / 2);
                    object.write(from as u64, &floats(&values));
                    let mut x = tensor("x", "FP32", &[rows as i64, WIDTH as i64]);
                    x.parameters = in_region("all", from as i64, bytes as i64);
                    let mut y = wanted("y");
                    y.parameters = in_region("all", to as i64, bytes as i64);
                    let (inputs, outputs) = (vec![x], vec![y]);
                    let sent = ModelInferRequest {
                        model_name: "rows".to_owned(),
                        inputs,
                        outputs,
                        ..Default::default()
                    };
                    client.model_infer(sent).await.unwrap();
                    object.read(to as u64, bytes)
                };
                assert_eq!(as_floats(&got), expected, "client {who}, request {count}");
                count += 1;
            }
            count
        }));
    }
    let mut total = 0;
    for client in clients {
        let count = client.await.unwrap();
        assert!(count > 0);
        total += count;
    }
    let served = metric(&server, "onepool_requests_total{method=\"ModelInfer\",code=\"0\"}").await;
    assert_eq!(served, total as f64);
    let runs = metric(&server, "onepool_runs_total{model=\"rows\"}").await;
    assert!(runs < total as f64, "{total} requests in {runs} runs: none were gathered");
    println!("64 clients: {total} requests in {runs} runs, {:?}", seconds());
    drop(first);
    assert!(server.shut_down().await);
}
