//! What is counted, in the text format of Prometheus.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use onepool_core::sync::lock;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    models: Models,
    pub(crate) connections: Gauge,
    pub(crate) refused_connections: Counter,
    pub(crate) regions: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    code: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model: String,
}

/// The metrics of all models.
#[derive(Debug)]
struct Models {
    runs: Family<ModelLabel, Counter>,
    rows: Family<ModelLabel, Counter>,
    copied: Family<ModelLabel, Counter>,
    in_place: Family<ModelLabel, Counter>,
    bindings: Family<ModelLabel, Counter>,
    run_time: Family<ModelLabel, Histogram, fn() -> Histogram>,
    wait_time: Family<ModelLabel, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug)]
pub(crate) struct ModelMetrics {
    runs: Counter,
    rows: Counter,
    copied: Counter,
    in_place: Counter,
    /// Bindings that were made.
    pub(crate) bindings: Counter,
    run_time: Histogram,
    wait_time: Histogram,
}

/// 100 us to 13 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-4, 2.0, 18))
}

impl Default for Models {
    fn default() -> Self {
        Models {
            runs: Family::default(),
            rows: Family::default(),
            copied: Family::default(),
            in_place: Family::default(),
            bindings: Family::default(),
            run_time: Family::new_with_constructor(seconds),
            wait_time: Family::new_with_constructor(seconds),
        }
    }
}

impl Metrics {
    pub(crate) fn new() -> Arc<Self> {
        let metrics = Metrics {
            registry: Mutex::new(Registry::with_prefix("onepool")),
            requests: Family::default(),
            models: Models::default(),
            connections: Gauge::default(),
            refused_connections: Counter::default(),
            regions: Gauge::default(),
        };
        let models = &metrics.models;
        let mut registry = lock(&metrics.registry);
        registry.register("requests", "Requests by method and gRPC status code", metrics.requests.clone());
        registry.register("runs", "Runs of the model", models.runs.clone());
        registry.register("rows", "Rows of all runs, where requests are gathered", models.rows.clone());
        registry.register("copied_bytes", "Bytes of tensors that the CPU copied", models.copied.clone());
        registry.register("in_place_bytes", "Bytes of tensors used where they lay", models.in_place.clone());
        registry.register("bindings", "Bindings made: plans and imports", models.bindings.clone());
        let (run, wait) = (models.run_time.clone(), models.wait_time.clone());
        registry.register_with_unit("run_time", "Time of a run", Unit::Seconds, run);
        registry.register_with_unit("wait_time", "Time of a request before its run", Unit::Seconds, wait);
        registry.register("connections", "Open connections", metrics.connections.clone());
        let refused = metrics.refused_connections.clone();
        registry.register("refused_connections", "Connections above the limit", refused);
        registry.register("regions", "Registered shared memory regions", metrics.regions.clone());
        drop(registry);
        Arc::new(metrics)
    }

    /// Counts an answered request.
    pub(crate) fn answered(&self, method: &str, code: i64) {
        self.requests.get_or_create(&RequestLabels { method: method.to_owned(), code }).inc();
    }

    /// Those of model `name`, whose waiting requests `queue` counts.
    pub(crate) fn model(&self, name: &str) -> ModelMetrics {
        let label = ModelLabel { model: name.to_owned() };
        let models = &self.models;
        ModelMetrics {
            runs: models.runs.get_or_create_owned(&label),
            rows: models.rows.get_or_create_owned(&label),
            copied: models.copied.get_or_create_owned(&label),
            in_place: models.in_place.get_or_create_owned(&label),
            bindings: models.bindings.get_or_create_owned(&label),
            run_time: models.run_time.get_or_create_owned(&label),
            wait_time: models.wait_time.get_or_create_owned(&label),
        }
    }

    /// Has `count` asked when the metrics are read.
    pub(crate) fn watch(
        &self,
        name: &str,
        help: &str,
        model: &str,
        count: impl Fn() -> usize + Send + Sync + 'static,
    ) {
        let mut registry = lock(&self.registry);
        let labels = [("model".into(), model.to_owned().into())];
        registry.sub_registry_with_labels(labels.into_iter()).register(name, help, Watched(Box::new(count)));
    }

    /// All of it as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let registry = lock(&self.registry);
        // Writing to a string does not fail.
        let _written = encode(&mut text, &registry);
        text
    }
}

impl ModelMetrics {
    /// Counts a run that began at `began`.
    pub(crate) fn ran(&self, began: Instant, rows: usize, copied: u64, in_place: u64) {
        self.run_time.observe(began.elapsed().as_secs_f64());
        self.runs.inc();
        self.rows.inc_by(rows as u64);
        self.copied.inc_by(copied);
        self.in_place.inc_by(in_place);
    }

    /// Counts how long requests that arrived then have waited.
    pub(crate) fn waited(&self, arrived: impl Iterator<Item = Instant>) {
        arrived.for_each(|at| self.wait_time.observe(at.elapsed().as_secs_f64()));
    }
}

/// A number that is asked for when it is read.
struct Watched(Box<dyn Fn() -> usize + Send + Sync>);

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

impl EncodeMetric for Watched {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.encode_gauge(&i64::try_from((self.0)()).unwrap_or(i64::MAX))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

impl TypedMetric for Watched {
    const TYPE: MetricType = MetricType::Gauge;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_what_was_counted() {
        let metrics = Metrics::new();
        metrics.answered("ModelInfer", 0);
        metrics.model("m").ran(Instant::now(), 3, 8, 24);
        metrics.watch("waiting", "Requests that wait", "m", || 7);
        let text = metrics.text();
        for line in [
            "onepool_requests_total{method=\"ModelInfer\",code=\"0\"} 1",
            "onepool_rows_total{model=\"m\"} 3",
            "onepool_in_place_bytes_total{model=\"m\"} 24",
            "onepool_waiting{model=\"m\"} 7",
            "onepool_run_time_seconds_count{model=\"m\"} 1",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
        }
    }
}
