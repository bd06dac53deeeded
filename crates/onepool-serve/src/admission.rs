//! What every request passes first: limits of number and time, and the count of its answer.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{Request, Response};
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::transport::server::TlsConnectInfo;
use tonic::{Code, Status};
use tower::{Layer, Service};

use crate::connections::Peer;
use crate::metrics::Metrics;

/// The header with the time that a client allows.
const GRPC_TIMEOUT_HEADER: &str = "grpc-timeout";

/// Calls of health checks, which are answered whatever the load is.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// The calls that are counted by their name.
const METHODS: [&str; 11] = [
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "ModelInfer",
    "ModelConfig",
    "RepositoryIndex",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
];

/// The transport has a clock for the client's deadline too, whose status is another: this one ends before it.
const AHEAD: Duration = Duration::from_millis(2);

/// When a request must have its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(pub(crate) Instant);

/// Makes [`Admitted`] services.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    requests: Arc<Semaphore>,
    most: usize,
    connections: usize,
    timeout: Duration,
    max_message: usize,
    metrics: Arc<Metrics>,
}

impl Admission {
    pub(crate) fn new(config: &crate::Config, metrics: &Arc<Metrics>) -> Self {
        Admission {
            requests: Arc::new(Semaphore::new(config.requests)),
            most: config.requests,
            connections: config.connections,
            timeout: config.timeout,
            max_message: config.max_message,
            metrics: Arc::clone(metrics),
        }
    }

    /// How many requests are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.most.saturating_sub(self.requests.available_permits())
    }
}

impl<S> Layer<S> for Admission {
    type Service = Admitted<S>;

    fn layer(&self, inner: S) -> Admitted<S> {
        Admitted { inner, admission: self.clone() }
    }
}

/// A service that is reached under the limits.
#[derive(Clone, Debug)]
pub(crate) struct Admitted<S> {
    inner: S,
    admission: Admission,
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<S> Service<Request<Body>> for Admitted<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Answering {
        let admission = &self.admission;
        if request.uri().path().starts_with(HEALTH) {
            return Box::pin(self.inner.call(request));
        }
        let method = method(request.uri().path());
        let metrics = Arc::clone(&admission.metrics);
        let refuse = |status: Status| -> Answering {
            metrics.answered(method, status.code() as i64);
            Box::pin(std::future::ready(Ok(status.into_http())))
        };
        if is_refused(&request) {
            let most = admission.connections;
            return refuse(Status::resource_exhausted(format!("connections: {most} are open")));
        }
        let limit = match timeout(&request) {
            Ok(asked) => asked.map_or(admission.timeout, |asked| asked.min(admission.timeout)),
            Err(status) => return refuse(status),
        };
        let Ok(permit) = Arc::clone(&admission.requests).try_acquire_owned() else {
            let most = admission.most;
            return refuse(Status::resource_exhausted(format!("requests: {most} are under way")));
        };
        let deadline =
            Instant::now() + limit.checked_sub(AHEAD).filter(|left| *left > AHEAD).unwrap_or(limit);
        request.extensions_mut().insert(Deadline(deadline));
        let (inner, max_message) = (self.inner.call(request), admission.max_message);
        let mut count = Count { metrics, method, code: Code::Cancelled };
        Box::pin(async move {
            let answered = tokio::time::timeout_at(deadline.into(), inner).await;
            drop(permit);
            let response = match answered {
                Ok(response) => response?,
                Err(_) => {
                    let said = format!("timeout: no answer within {} ms", limit.as_millis());
                    Status::deadline_exceeded(said).into_http()
                }
            };
            let status = Status::from_header_map(response.headers());
            let code = status.as_ref().map_or(Code::Ok, Status::code);
            // The only limit whose status is made by the transport.
            let (code, response) = match code {
                Code::OutOfRange => {
                    let said = status.as_ref().map_or("", |status| status.message());
                    let said = format!("max_message: at most {max_message} bytes; {said}");
                    (Code::ResourceExhausted, Status::resource_exhausted(said).into_http())
                }
                code => (code, response),
            };
            count.is(code);
            Ok(response)
        })
    }
}

/// Counts a request when it is over. One whose client goes away has no answer: it is dropped.
#[derive(Debug)]
struct Count {
    metrics: Arc<Metrics>,
    method: &'static str,
    code: Code,
}

impl Count {
    fn is(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.metrics.answered(self.method, self.code as i64);
    }
}

/// The name under which a call is counted.
fn method(path: &str) -> &'static str {
    let name = path.rsplit('/').next().unwrap_or_default();
    METHODS.into_iter().find(|known| *known == name).unwrap_or("other")
}

fn is_refused(request: &Request<Body>) -> bool {
    let plain = request.extensions().get::<Peer>();
    let encrypted = request.extensions().get::<TlsConnectInfo<Peer>>();
    plain.or_else(|| encrypted.map(TlsConnectInfo::get_ref)).is_some_and(|peer| peer.refused)
}

/// The time that the client allows.
fn timeout(request: &Request<Body>) -> Result<Option<Duration>, Status> {
    let Some(header) = request.headers().get(GRPC_TIMEOUT_HEADER) else { return Ok(None) };
    let wrong = || {
        Status::invalid_argument("grpc-timeout is no number of at most 8 digits and one of H, M, S, m, u, n")
    };
    let (digits, unit) = header
        .to_str()
        .ok()
        .and_then(|text| text.split_at_checked(text.len().checked_sub(1)?))
        .ok_or_else(wrong)?;
    let number = match digits.len() {
        1..=8 if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
            digits.parse::<u64>().map_err(|_| wrong())?
        }
        _ => return Err(wrong()),
    };
    Ok(Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return Err(wrong()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_a_client_allows_is_read_or_refused() {
        let of = |text: &str| {
            let request = Request::builder().header(GRPC_TIMEOUT_HEADER, text).body(Body::empty()).unwrap();
            timeout(&request).map_err(|status| status.code())
        };
        assert_eq!(of("250m"), Ok(Some(Duration::from_millis(250))));
        assert_eq!(of("99999999H"), Ok(Some(Duration::from_secs(99_999_999 * 3600))));
        assert_eq!(of("7n"), Ok(Some(Duration::from_nanos(7))));
        for text in ["", "m", "5", "5x", "-5m", "123456789m", " 5m"] {
            assert_eq!(of(text), Err(Code::InvalidArgument), "{text:?}");
        }
        assert_eq!(timeout(&Request::new(Body::empty())).unwrap(), None);
    }

    #[test]
    fn calls_that_are_not_known_share_one_name() {
        assert_eq!(method("/inference.GRPCInferenceService/ModelInfer"), "ModelInfer");
        assert_eq!(method("/x/y"), "other");
    }
}
