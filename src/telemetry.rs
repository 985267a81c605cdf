//! What a process says of itself: logs, one line a fact, for people on a terminal or
//! as JSON for programs; metrics, for whoever scrapes them; spans, for a collector.

use std::{
    io::{IsTerminal, stderr},
    sync::LazyLock,
    time::Duration,
};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracerProvider},
};
use tracing_subscriber::{
    EnvFilter, Layer, filter::filter_fn, fmt, layer::SubscriberExt, util::SubscriberInitExt,
};

use crate::{
    base::trace::EXPORTED,
    config::{Log, Traces},
};

/// How long a collector may take to accept a batch of spans.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bounds of the buckets of every duration, in seconds: an append takes one
/// millisecond, a turn an hour.
const SECONDS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0, 3_600.0];

/// The metrics of this process, gathered from the first call on.
pub fn metrics() -> &'static PrometheusHandle {
    static METRICS: LazyLock<PrometheusHandle> = LazyLock::new(|| {
        PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
            .expect("there are buckets")
            .install_recorder()
            .expect("nothing else of this process records metrics")
    });
    &METRICS
}

/// What has to be ended in its time.
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Sends the last spans; blocks, for no longer than the exporter's timeout.
    pub fn end(self) {
        if let Some(Err(error)) = self.traces.map(|traces| traces.shutdown()) {
            tracing::warn!(%error, "the last spans could not be sent");
        }
    }
}

/// Starts logging to standard error, and sending spans where a collector is named.
///
/// # Errors
/// When the filter cannot be read or the collector's address; the text says where.
pub fn start(log: &Log, traces: &Traces) -> Result<Telemetry, String> {
    let quiet = format!("{EXPORTED}=off").parse().expect("a directive");
    let filter = EnvFilter::try_new(&log.filter)
        .map_err(|error| format!("SOJOURN_LOG: {error}"))?
        .add_directive(quiet);
    let lines = if log.json {
        fmt::layer().json().flatten_event(true).with_writer(stderr).with_filter(filter).boxed()
    } else {
        let is_terminal = stderr().is_terminal();
        fmt::layer().with_ansi(is_terminal).with_target(false).with_writer(stderr).with_filter(filter).boxed()
    };
    let provider = exporter(traces)?;
    let spans = provider.as_ref().map(|provider| {
        let is_ours = |metadata: &tracing::Metadata<'_>| {
            metadata.is_span() && (metadata.target() == EXPORTED || metadata.name() == "request")
        };
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("sojourn"))
            .with_location(false)
            .with_threads(false)
            .with_filter(filter_fn(is_ours))
    });
    tracing_subscriber::registry().with(lines).with(spans).init();
    Ok(Telemetry { traces: provider })
}

/// Sends spans in batches, from a thread of its own.
fn exporter(traces: &Traces) -> Result<Option<SdkTracerProvider>, String> {
    let Some(collector) = &traces.otlp_endpoint else { return Ok(None) };
    let endpoint = format!("{}/v1/traces", collector.as_str().trim_end_matches('/'));
    // A client that blocks must not be made where tasks run.
    let client = std::thread::scope(|scope| {
        scope.spawn(|| reqwest::blocking::Client::builder().timeout(EXPORT_TIMEOUT).build()).join()
    });
    let client = match client {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => return Err(format!("SOJOURN_OTLP_ENDPOINT: {error}")),
        Err(_) => return Err("SOJOURN_OTLP_ENDPOINT: no client could be made".to_owned()),
    };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(endpoint)
        .build()
        .map_err(|error| format!("SOJOURN_OTLP_ENDPOINT: {error}"))?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(traces.trace_sample))))
        .with_resource(Resource::builder().with_service_name("sojourn").build())
        .build();
    Ok(Some(provider))
}
