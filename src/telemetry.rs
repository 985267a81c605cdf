//! Telemetry of the process: logs, one line per fact, as text for terminals or as JSON; metrics for scrapers;
//! spans for a collector.

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

/// Timeout of an export of spans to a collector.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Histogram buckets of every duration, in seconds: an append takes 1 ms, a turn up to an hour.
const SECONDS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0, 3_600.0];

/// Metrics recorder of this process, installed by the first call.
pub(crate) fn metrics() -> &'static PrometheusHandle {
    static METRICS: LazyLock<PrometheusHandle> = LazyLock::new(|| {
        PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
            .expect("the list of buckets is not empty")
            .install_recorder()
            .expect("no other recorder is installed")
    });
    &METRICS
}

/// Telemetry that must be flushed before the process exits.
pub(crate) struct Telemetry {
    traces: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Exports the last spans; blocks at most for the exporter's timeout.
    pub(crate) fn end(self) {
        if let Some(Err(error)) = self.traces.map(|traces| traces.shutdown()) {
            tracing::warn!(%error, "could not export the last spans");
        }
    }
}

/// Starts logging to standard error, and exporting spans to a configured collector.
///
/// # Errors
/// The filter or the collector's address is invalid; the text names the setting.
pub(crate) fn start(log: &Log, traces: &Traces) -> Result<Telemetry, String> {
    let off = |target: &str| format!("{target}=off").parse().expect("a valid directive");
    let filter = EnvFilter::try_new(&log.filter)
        .map_err(|error| format!("SOJOURN_LOG: {error}"))?
        .add_directive(off(EXPORTED))
        // It logs what MCP servers send.
        .add_directive(off("rmcp"));
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

/// Creates an exporter that sends spans in batches from its own thread.
fn exporter(traces: &Traces) -> Result<Option<SdkTracerProvider>, String> {
    let Some(collector) = &traces.otlp_endpoint else { return Ok(None) };
    let endpoint = format!("{}/v1/traces", collector.as_str().trim_end_matches('/'));
    // A blocking client must not be created in an async context.
    let client = std::thread::scope(|scope| {
        scope.spawn(|| reqwest::blocking::Client::builder().timeout(EXPORT_TIMEOUT).build()).join()
    });
    let client = match client {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => return Err(format!("SOJOURN_OTLP_ENDPOINT: {error}")),
        Err(_) => return Err("SOJOURN_OTLP_ENDPOINT: the HTTP client could not be created".to_owned()),
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
