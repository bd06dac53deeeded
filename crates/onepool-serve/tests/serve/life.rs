//! Encrypted connections; shutdown, kill and restart while clients send requests.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use onepool_serve::proto::ServerReadyRequest;
use onepool_serve::{Config, ServeError, Server, Tls};
use rustix::process::{Pid, Signal, kill_process};
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::client::{Client, Object, as_floats, config, floats, in_region, of_rows, start, tensor, wanted};
use crate::models;

#[tokio::test]
async fn connections_are_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    models::rows(folder.path(), 2);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let tls = Some(Tls { certificate: certificate.clone().into(), key: key.into() });
    let server = Server::start(Config { tls, ..config(folder.path()) }).await.unwrap();
    let port = server.address().port();
    let trusting =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&certificate)).domain_name("localhost");
    let endpoint = |scheme: &str| Channel::from_shared(format!("{scheme}://127.0.0.1:{port}")).unwrap();
    let channel = endpoint("https").tls_config(trusting).unwrap().connect().await.unwrap();
    let response = Client::new(channel).model_infer(of_rows(1, &[1.0, 2.0])).await.unwrap().into_inner();
    assert_eq!(as_floats(&response.raw_output_contents[0]), [2.0, 4.0]);
    let strange = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
    let strict =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(strange)).domain_name("localhost");
    assert!(endpoint("https").tls_config(strict).unwrap().connect().await.is_err());
    // Without encryption there is no answer.
    if let Ok(channel) = endpoint("http").connect().await {
        assert!(Client::new(channel).server_ready(ServerReadyRequest {}).await.is_err());
    }
    let broken = Some(Tls { certificate: b"none".to_vec(), key: b"none".to_vec() });
    let refused = Server::start(Config { tls: broken, ..config(folder.path()) }).await;
    assert!(matches!(refused, Err(ServeError::Tls(_))), "{refused:?}");
}

#[tokio::test]
async fn what_cannot_be_served_is_told_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    models::rows(folder.path(), 2);
    let (server, _client) = start(config(folder.path())).await;
    let taken = Server::start(Config { listen: server.address(), ..config(folder.path()) }).await;
    assert!(matches!(taken, Err(ServeError::Listen { .. })), "{taken:?}");
    let device = Server::start(Config { devices: vec!["none".to_owned()], ..config(folder.path()) }).await;
    assert!(matches!(device, Err(ServeError::Device(_))), "{device:?}");
    std::fs::write(folder.path().join("broken.onnx"), b"no model").unwrap();
    let broken = Server::start(config(folder.path())).await;
    assert!(matches!(&broken, Err(ServeError::Load { name, .. }) if name == "broken"), "{broken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_answers_what_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    models::rows(folder.path(), 256);
    let (server, client) = start(config(folder.path())).await;
    let (answered, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..16)
        .map(|who| {
            let (mut client, answered, stop) = (client.clone(), Arc::clone(&answered), Arc::clone(&stop));
            tokio::spawn(async move {
                loop {
                    let values = [who as f32; 256];
                    match client.model_infer(of_rows(1, &values)).await {
                        Ok(response) => {
                            let got = as_floats(&response.into_inner().raw_output_contents[0]);
                            assert_eq!(got, [2.0 * who as f32; 256]);
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        // Refused, never lost: nothing but an end of the server may be the reason.
                        Err(status) => {
                            let ends = [Code::Unavailable, Code::Unknown, Code::Cancelled, Code::Internal];
                            assert!(
                                stop.load(Ordering::Acquire) && ends.contains(&status.code()),
                                "{status}"
                            );
                            return;
                        }
                    }
                }
            })
        })
        .collect();
    while answered.load(Ordering::Relaxed) < 200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stop.store(true, Ordering::Release);
    assert!(server.shut_down().await, "requests were left");
    for client in clients {
        client.await.unwrap();
    }
}

/// Several servers: which of a server's tasks hears of the shutdown first differs from one to the next.
#[tokio::test]
async fn a_client_that_watches_the_health_does_not_hold_up_a_shutdown() {
    let watch = || async {
        let folder = tempfile::tempdir().unwrap();
        models::rows(folder.path(), 2);
        let (server, client) =
            start(Config { grace: Duration::from_secs(3600), ..config(folder.path()) }).await;
        let channel =
            Channel::from_shared(format!("http://{}", server.address())).unwrap().connect().await.unwrap();
        let asked = HealthCheckRequest { service: "rows".to_owned() };
        let mut watched = HealthClient::new(channel).watch(asked).await.unwrap().into_inner();
        assert_eq!(watched.message().await.unwrap().unwrap().status, 1);
        assert!(server.shut_down().await);
        // It hears of the end first.
        let told = tokio::time::timeout(Duration::from_secs(60), watched.message());
        assert_eq!(told.await.expect("the client is told").unwrap().unwrap().status, 2);
        drop(client);
    };
    let watching: Vec<_> = (0..16).map(|_| tokio::spawn(watch())).collect();
    for watching in watching {
        watching.await.unwrap();
    }
}

/// The program in a process of its own.
struct Program {
    child: Child,
    address: SocketAddr,
}

impl Program {
    fn start(models: &Path, listen: SocketAddr) -> Program {
        let mut child = Command::new(env!("CARGO_BIN_EXE_onepool-serve"))
            .args([
                models.to_str().unwrap(),
                "--device",
                "cpu",
                "--max-batch",
                "16",
                "--listen",
                &listen.to_string(),
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{line:?}"));
        Program { child, address }
    }

    fn signal(&mut self, signal: Signal) -> std::process::ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may be over.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_try_again_lose_nothing_when_the_server_is_killed() {
    const WIDTH: usize = 64;
    let folder = tempfile::tempdir().unwrap();
    models::rows(folder.path(), WIDTH);
    let mut program = Program::start(folder.path(), ([127, 0, 0, 1], 0).into());
    let address = program.address;
    let object = Arc::new(Object::new("restart", 16 * 4096));
    let (done, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..16usize)
        .map(|who| {
            let (object, done, stop) = (Arc::clone(&object), Arc::clone(&done), Arc::clone(&stop));
            tokio::spawn(async move {
                let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
                let mut client = Client::new(channel);
                let (mut count, mut again) = (0usize, 0usize);
                while !stop.load(Ordering::Acquire) {
                    let values: Vec<f32> = (0..WIDTH).map(|n| (who * 1000 + count * 7 + n) as f32).collect();
                    let expected: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
                    let at = who * 4096;
                    let bytes = (WIDTH * 4) as i64;
                    object.write(at as u64, &floats(&values));
                    let got = loop {
                        let mut sent = of_rows(1, &values);
                        if who % 2 == 1 {
                            let mut x = tensor("x", "FP32", &[1, WIDTH as i64]);
                            x.parameters = in_region("shared", at as i64, bytes);
                            let mut y = wanted("y");
                            y.parameters = in_region("shared", at as i64 + 2048, bytes);
                            (sent.inputs, sent.outputs) = (vec![x], vec![y]);
                            sent.raw_input_contents.clear();
                        }
                        match client.model_infer(sent).await {
                            Ok(answer) if who % 2 == 0 => {
                                break answer.into_inner().raw_output_contents[0].to_vec();
                            }
                            Ok(_) => break object.read(at as u64 + 2048, bytes as usize),
                            Err(status) => {
                                // A new server does not know the region.
                                if status.code() == Code::NotFound {
                                    let (name, key) = ("shared".to_owned(), object.key.clone());
                                    let byte_size = 16 * 4096;
                                    let region = onepool_serve::proto::SystemSharedMemoryRegisterRequest {
                                        name,
                                        key,
                                        offset: 0,
                                        byte_size,
                                    };
                                    // Another client may have been faster, or the server gone.
                                    drop(client.system_shared_memory_register(region).await);
                                }
                                again += 1;
                                tokio::time::sleep(Duration::from_millis(10)).await;
                            }
                        }
                    };
                    assert_eq!(as_floats(&got), expected, "client {who}, request {count}");
                    // What the client wrote is as it was.
                    assert_eq!(object.read(at as u64, bytes as usize), floats(&values));
                    count += 1;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                (count, again)
            })
        })
        .collect();
    for round in 0..3 {
        let seen = done.load(Ordering::Relaxed);
        while done.load(Ordering::Relaxed) < seen + 200 {
            assert!(!clients.iter().any(|client| client.is_finished()));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let ended = program.signal(if round == 1 { Signal::TERM } else { Signal::KILL });
        assert_eq!(ended.success(), round == 1, "{ended}");
        program = Program::start(folder.path(), address);
    }
    let seen = done.load(Ordering::Relaxed);
    while done.load(Ordering::Relaxed) < seen + 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.store(true, Ordering::Release);
    let (mut total, mut again) = (0, 0);
    for client in clients {
        let (count, tried) = client.await.unwrap();
        (total, again) = (total + count, again + tried);
    }
    assert!(total >= 800 && again > 0, "{total} requests, {again} tried again");
    assert!(program.signal(Signal::TERM).success());
}
