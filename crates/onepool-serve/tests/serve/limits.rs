//! Limits of size, number and time.

use std::time::{Duration, Instant};

use onepool_serve::Config;
use tonic::{Code, Request};

use crate::client::{Client, as_floats, config, connect, floats, metric, of_rows, request, start, tensor};
use crate::models;

fn matrix(n: usize) -> onepool_serve::proto::ModelInferRequest {
    let mut diagonal = vec![0.0f32; n * n];
    (0..n).for_each(|at| diagonal[at * n + at] = 1.0);
    request("slow", vec![(tensor("x", "FP32", &[n as i64, n as i64]), floats(&diagonal))])
}

#[tokio::test]
async fn messages_have_a_largest_size() {
    let folder = tempfile::tempdir().unwrap();
    models::rows(folder.path(), 1024);
    let (_server, mut client) = start(Config { max_message: 1 << 20, ..config(folder.path()) }).await;
    let values = vec![1.0f32; 1024 * 1024];
    let large = client.model_infer(of_rows(1024, &values)).await.unwrap_err();
    assert!(large.code() == Code::ResourceExhausted && large.message().contains("max_message"), "{large}");
    client.model_infer(of_rows(128, &values[..128 * 1024])).await.unwrap();
}

#[tokio::test]
async fn a_run_ends_at_its_deadline_and_the_next_one_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    models::slow(folder.path());
    let (server, mut client) =
        start(Config { workers: 1, timeout: Duration::from_secs(300), ..config(folder.path()) }).await;
    // Its plan, outside the time.
    client.model_infer(matrix(448)).await.unwrap();
    // The client has a clock of its own: it may give up before it has sent anything, and before the server does.
    let counts =
        ["4", "1"].map(|code| format!("onepool_requests_total{{method=\"ModelInfer\",code=\"{code}\"}}"));
    let began = Instant::now();
    loop {
        let mut short = Request::new(matrix(448));
        short.set_timeout(Duration::from_millis(40));
        let late = client.model_infer(short).await.unwrap_err();
        assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late}");
        if text_has(&server, &counts[0]).await || text_has(&server, &counts[1]).await {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    let whole = client.model_infer(matrix(256)).await.unwrap().into_inner();
    assert_eq!(as_floats(&whole.raw_output_contents[0][..8]), [-1.0, 0.0]);
}

async fn text_has(server: &onepool_serve::Server, name: &str) -> bool {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(server.metrics_address().unwrap()).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text.contains(name)
}

#[tokio::test]
async fn the_servers_own_time_limit_has_its_status() {
    let folder = tempfile::tempdir().unwrap();
    models::slow(folder.path());
    let (_server, mut client) =
        start(Config { timeout: Duration::from_millis(30), ..config(folder.path()) }).await;
    let late = client.model_infer(matrix(640)).await.unwrap_err();
    assert!(late.code() == Code::DeadlineExceeded && late.message().contains("timeout"), "{late}");
}

#[tokio::test]
async fn the_queue_and_the_requests_under_way_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    models::slow(folder.path());
    let few = Config { workers: 1, queue: 2, requests: 6, ..config(folder.path()) };
    let (server, client) = start(few).await;
    let sent: Vec<_> = (0..12)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.model_infer(matrix(224)).await.map(drop) })
        })
        .collect();
    let (mut queue, mut requests, mut served) = (0, 0, 0);
    for answer in sent {
        match answer.await.unwrap() {
            Ok(()) => served += 1,
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                queue += usize::from(status.message().starts_with("queue"));
                requests += usize::from(status.message().starts_with("requests"));
            }
        }
    }
    assert!(
        served >= 2 && queue + requests == 12 - served && queue + requests > 0,
        "{served} {queue} {requests}"
    );
    let mut client = client;
    client.model_infer(matrix(8)).await.unwrap();
    assert_eq!(metric(&server, "onepool_waiting{model=\"slow\"}").await, 0.0);
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_run() {
    let folder = tempfile::tempdir().unwrap();
    models::slow(folder.path());
    let (server, mut client) = start(Config { workers: 1, ..config(folder.path()) }).await;
    client.model_infer(matrix(16)).await.unwrap();
    let mut other: Client = connect(&server).await;
    let running = tokio::spawn(async move { other.model_infer(matrix(640)).await.map(drop) });
    while metric(&server, "onepool_wait_time_seconds_count{model=\"slow\"}").await < 2.0 {
        assert!(!running.is_finished());
    }
    running.abort();
    drop(running.await);
    client.model_infer(matrix(16)).await.unwrap();
    // The run that was given up is not counted: it did not end by itself.
    assert_eq!(metric(&server, "onepool_runs_total{model=\"slow\"}").await, 2.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_are_served_and_more_are_told() {
    let folder = tempfile::tempdir().unwrap();
    models::rows(folder.path(), 2);
    let most = 1200;
    let (server, mut client) = start(Config { connections: most, ..config(folder.path()) }).await;
    let mut open = Vec::new();
    for _ in 1..most {
        open.push(tokio::net::TcpStream::connect(server.address()).await.unwrap());
    }
    while metric(&server, "onepool_connections").await < most as f64 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client.model_infer(of_rows(1, &[1.0, 2.0])).await.unwrap();
    let mut above = connect(&server).await;
    let told = above.model_infer(of_rows(1, &[1.0, 2.0])).await.unwrap_err();
    assert!(told.code() == Code::ResourceExhausted && told.message().starts_with("connections"), "{told}");
    drop((open, above));
    while metric(&server, "onepool_connections").await > 1.0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut again = connect(&server).await;
    again.model_infer(of_rows(1, &[1.0, 2.0])).await.unwrap();
    assert_eq!(metric(&server, "onepool_refused_connections_total").await, 1.0);
}
