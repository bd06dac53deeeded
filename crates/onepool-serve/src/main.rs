//! The program `onepool-serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use onepool_core::error::chain;
use onepool_serve::{Config, ServeError, Server, Tls, models_at};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::LevelFilter;

/// Serves ONNX models by the Open Inference Protocol, version 2, over gRPC.
///
/// SIGTERM and Ctrl-C end it once the requests under way are answered.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// A model file, or a folder with `.onnx` files
    model: PathBuf,
    /// The model's name, by default the file's without its ending; not for a folder
    #[arg(long)]
    name: Option<String>,
    /// Devices, the first of which runs what it can: auto, cpu, vulkan, vulkan:1, opencl, sim
    #[arg(long, value_delimiter = ',')]
    device: Vec<String>,
    /// Where requests are answered
    #[arg(long, default_value = "127.0.0.1:8001")]
    listen: SocketAddr,
    /// Where Prometheus reads /metrics over HTTP
    #[arg(long)]
    metrics: Option<SocketAddr>,
    /// Rows of one run at most, where requests are gathered along the first axis
    #[arg(long, default_value_t = 1)]
    max_batch: usize,
    /// Microseconds that a request waits for others to be gathered with
    #[arg(long, default_value_t = 500)]
    max_delay_us: u64,
    /// Largest message in MiB
    #[arg(long, default_value_t = 64)]
    max_message_mb: usize,
    /// Requests of one model that may wait
    #[arg(long, default_value_t = 256)]
    queue: usize,
    /// Requests of all models that may be under way
    #[arg(long, default_value_t = 1024)]
    requests: usize,
    /// Milliseconds until a request fails
    #[arg(long, default_value_t = 60_000)]
    timeout_ms: u64,
    /// Connections that are served
    #[arg(long, default_value_t = 16_384)]
    connections: usize,
    /// Runs of one model at once
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Milliseconds that a shutdown waits for requests under way
    #[arg(long, default_value_t = 30_000)]
    grace_ms: u64,
    /// Certificate of the server, in PEM
    #[arg(long, requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(long, requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl Args {
    fn config(self) -> Result<Config, ServeError> {
        let mut models = models_at(&self.model)?;
        if let (Some(name), [model]) = (self.name, &mut models[..]) {
            model.name = name;
        }
        let read = |path: PathBuf| std::fs::read(&path).map_err(|source| ServeError::Read { path, source });
        let tls = match (self.tls_cert, self.tls_key) {
            (Some(certificate), Some(key)) => Some(Tls { certificate: read(certificate)?, key: read(key)? }),
            _ => None,
        };
        Ok(Config {
            listen: self.listen,
            metrics: self.metrics,
            models,
            devices: self.device,
            max_batch: self.max_batch,
            max_delay: Duration::from_micros(self.max_delay_us),
            max_message: self.max_message_mb.saturating_mul(1 << 20),
            queue: self.queue,
            requests: self.requests,
            timeout: Duration::from_millis(self.timeout_ms),
            connections: self.connections,
            workers: self.workers,
            tls,
            grace: Duration::from_millis(self.grace_ms),
            ..Config::default()
        })
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).with_writer(std::io::stderr).init();
    match serve(Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("onepool-serve: requests were under way when the time for a shutdown was up");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("onepool-serve: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Serves until a signal comes. Returns whether every request was answered.
async fn serve(args: Args) -> Result<bool, ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signal)?;
    let mut server = Server::start(args.config()?).await?;
    let names: Vec<&str> = server.models().collect();
    println!("onepool-serve: {} on {}", names.join(", "), server.address());
    if let Some(address) = server.metrics_address() {
        println!("onepool-serve: metrics on http://{address}/metrics");
    }
    tokio::select! {
        ended = server.ended() => ended.map(|()| false),
        _ = terminate.recv() => Ok(server.shut_down().await),
        _ = interrupt.recv() => Ok(server.shut_down().await),
    }
}
