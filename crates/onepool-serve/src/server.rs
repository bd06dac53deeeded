//! A running server.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use onepool::backend::ContextDesc;
use onepool::device::Context;
use onepool::registry::{Registry, default_selector};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Identity, ServerTlsConfig};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::admission::Admission;
use crate::bound::Bindings;
use crate::config::Config;
use crate::connections;
use crate::error::ServeError;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::proto::grpc_inference_service_server::GrpcInferenceServiceServer;
use crate::queue::Queue;
use crate::run::{self, Served};
use crate::service::Service;
use crate::shm::Regions;

/// The service's name for health checks.
const SERVICE: &str = "inference.GRPCInferenceService";
/// Silent connections are asked whether they live, and closed where no answer comes.
const ALIVE_ASKED: Duration = Duration::from_secs(60);
const ALIVE_ANSWERED: Duration = Duration::from_secs(20);
/// How often a server that shuts down looks for requests under way, and how often it finds none before it ends.
const LOOK: Duration = Duration::from_millis(100);
const QUIET: u32 = 10;
/// Connections to `/metrics` at once, and how long the head of a request may take.
const READERS: usize = 32;
const HEAD: Duration = Duration::from_secs(10);

/// A server that answers requests until it is shut down.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    close: watch::Sender<bool>,
    serving: task::JoinHandle<Result<(), tonic::transport::Error>>,
    service: Arc<Service>,
    workers: Vec<JoinHandle<()>>,
    admission: Admission,
    grace: Duration,
}

impl Server {
    /// Loads the models, listens, and begins to answer. Must be called in a Tokio runtime.
    ///
    /// # Errors
    /// [`ServeError`], with what is wrong in the settings or on the machine.
    pub async fn start(config: Config) -> Result<Server, ServeError> {
        config.check()?;
        let (close, closing) = watch::channel(false);
        let metrics = Metrics::new();
        let (listener, address) = listen(config.listen).await?;
        let metrics_listener = match config.metrics {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let mut transport = tonic::transport::Server::builder();
        if let Some(tls) = &config.tls {
            let identity = Identity::from_pem(&tls.certificate, &tls.key);
            transport =
                transport.tls_config(ServerTlsConfig::new().identity(identity)).map_err(ServeError::Tls)?;
        }
        let service = Arc::new(load(&config, &metrics, closing.clone())?);
        let workers = work(&service, config.workers)?;
        let (reporter, health) = tonic_health::server::health_reporter();
        report(&reporter, &service, ServingStatus::Serving).await;
        let (to, connections) = mpsc::channel(1);
        drop(task::spawn(connections::accept(
            listener,
            config.connections,
            Arc::clone(&metrics),
            to,
            closing.clone(),
        )));
        let metrics_address = metrics_listener.as_ref().map(|(_, address)| *address);
        if let Some((listener, _)) = metrics_listener {
            drop(task::spawn(answer_metrics(listener, Arc::clone(&metrics), closing.clone())));
        }
        let inference = GrpcInferenceServiceServer::new(Arc::clone(&service))
            .max_decoding_message_size(config.max_message)
            .max_encoding_message_size(usize::MAX);
        let admission = Admission::new(&config, &metrics);
        let router = transport
            .tcp_nodelay(true)
            .max_concurrent_streams(config.streams)
            .http2_keepalive_interval(Some(ALIVE_ASKED))
            .http2_keepalive_timeout(Some(ALIVE_ANSWERED))
            // A message of 1 MiB goes in one window.
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .layer(admission.clone())
            .add_service(health)
            .add_service(inference);
        let mut end = closing;
        let closed = Arc::clone(&service);
        let end = async move {
            // An error means that the server is dropped.
            drop(end.wait_for(|closing| *closing).await);
            report(&reporter, &closed, ServingStatus::NotServing).await;
        };
        let serving = task::spawn(router.serve_with_incoming_shutdown(ReceiverStream::new(connections), end));
        Ok(Server {
            address,
            metrics_address,
            close,
            serving,
            service,
            workers,
            admission,
            grace: config.grace,
        })
    }

    /// Where requests are answered.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where `/metrics` is answered.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The names of the models.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.service.models.keys().map(String::as_str)
    }

    /// Waits until the server ends by itself, which is an error. May be dropped and called again.
    ///
    /// # Errors
    /// [`ServeError::Ended`].
    pub async fn ended(&mut self) -> Result<(), ServeError> {
        match (&mut self.serving).await {
            Ok(result) => result.map_err(ServeError::Ended),
            Err(_) => Ok(()),
        }
    }

    /// Takes no further connections and requests, answers those under way, and ends. Waits no longer than
    /// [`Config::grace`]; returns whether every request was answered.
    pub async fn shut_down(mut self) -> bool {
        self.close.send_replace(true);
        // A client that watches the health keeps its connection, so that the transport does not end by itself.
        let whole = tokio::select! {
            _ = &mut self.serving => true,
            () = idle(&self.admission) => true,
            () = sleep(self.grace) => false,
        };
        self.service.models.values().for_each(|served| served.queue.close());
        if whole {
            let workers = std::mem::take(&mut self.workers);
            let joined =
                task::spawn_blocking(move || workers.into_iter().all(|worker| worker.join().is_ok()));
            return joined.await.unwrap_or(false);
        }
        false
    }
}

/// Waits until no request has been under way for a while.
async fn idle(admission: &Admission) {
    let mut quiet = 0;
    while quiet < QUIET {
        sleep(LOOK).await;
        quiet = if admission.under_way() == 0 { quiet + 1 } else { 0 };
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close.send_replace(true);
        self.serving.abort();
        self.service.models.values().for_each(|served| served.queue.close());
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServeError> {
    let failed = |source| ServeError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Opens the devices and loads the models on them, in the order of the settings.
fn load(
    config: &Config,
    metrics: &Arc<Metrics>,
    closing: watch::Receiver<bool>,
) -> Result<Service, ServeError> {
    let registry = Registry::with_defaults();
    let default = [default_selector()];
    let names = if config.devices.is_empty() { &default[..] } else { &config.devices };
    let open = |name: &String| registry.open(name, &ContextDesc::default());
    let devices = names.iter().map(open).collect::<Result<Vec<Context>, _>>()?;
    let mut service = Service {
        models: Default::default(),
        devices,
        regions: Regions::new(config.regions),
        metrics: Arc::clone(metrics),
        timeout: config.timeout,
        closing,
    };
    for file in &config.models {
        let model = Model::load(file, &service.devices, config, metrics.model(&file.name))?;
        let served =
            Arc::new(Served { model, queue: Queue::new(config.queue), bindings: Bindings::default() });
        let [waiting, kept] = [(); 2].map(|()| Arc::downgrade(&served));
        let queued = move || waiting.upgrade().map_or(0, |served| served.queue.len());
        metrics.watch("waiting", "Requests that wait for a run", &file.name, queued);
        let bound = move || kept.upgrade().map_or(0, |served| served.bindings.count());
        metrics.watch("idle_bindings", "Bindings that are kept for later requests", &file.name, bound);
        service.models.insert(file.name.clone(), served);
    }
    Ok(service)
}

/// Starts the threads that run models.
fn work(service: &Service, workers: usize) -> Result<Vec<JoinHandle<()>>, ServeError> {
    let mut threads = Vec::new();
    for served in service.models.values() {
        for n in 0..workers {
            let served = Arc::clone(served);
            let thread = std::thread::Builder::new().name(format!("run-{n}"));
            threads.push(thread.spawn(move || run::work(&served)).map_err(ServeError::Thread)?);
        }
    }
    Ok(threads)
}

/// Tells health checks of the server, its service and its models.
async fn report(reporter: &HealthReporter, service: &Service, status: ServingStatus) {
    for name in ["", SERVICE].into_iter().chain(service.models.keys().map(String::as_str)) {
        reporter.set_service_status(name, status).await;
    }
}

/// Answers `GET /metrics` over HTTP.
async fn answer_metrics(listener: TcpListener, metrics: Arc<Metrics>, mut closing: watch::Receiver<bool>) {
    let readers = Arc::new(Semaphore::new(READERS));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = closing.wait_for(|closing| *closing) => return,
        };
        let (Ok((stream, _)), Ok(reader)) = (accepted, Arc::clone(&readers).acquire_owned().await) else {
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        let metrics = Arc::clone(&metrics);
        drop(task::spawn(async move {
            let answer = service_fn(move |request| {
                let response = metrics_response(&metrics, &request);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD).keep_alive(false);
            let served = http.serve_connection(TokioIo::new(stream), answer);
            if let Ok(Err(error)) = tokio::time::timeout(HEAD, served).await {
                tracing::debug!(%error, "metrics");
            }
            drop(reader);
        }));
    }
}

fn metrics_response(metrics: &Metrics, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.uri().path() != "/metrics" {
        let mut response = Response::new(Full::new(Bytes::from_static(b"there is /metrics\n")));
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    }
    let mut response = Response::new(Full::new(metrics.text().into()));
    let kind = http::HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
