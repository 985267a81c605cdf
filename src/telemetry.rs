//! What a process says of itself: logs, one line a fact, for people on a terminal or
//! as JSON for programs; metrics, for whoever scrapes them.

use std::{
    io::{IsTerminal, stderr},
    sync::LazyLock,
};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::config::Log;

/// The metrics of this process, gathered from the first call on.
pub fn metrics() -> &'static PrometheusHandle {
    static METRICS: LazyLock<PrometheusHandle> = LazyLock::new(|| {
        PrometheusBuilder::new().install_recorder().expect("nothing else of this process records metrics")
    });
    &METRICS
}

/// Starts logging to standard error.
///
/// # Errors
/// When the filter cannot be read; the text says where.
pub fn start(log: &Log) -> Result<(), String> {
    let filter = EnvFilter::try_new(&log.filter).map_err(|error| format!("SOJOURN_LOG: {error}"))?;
    let registry = tracing_subscriber::registry().with(filter);
    if log.json {
        registry.with(fmt::layer().json().flatten_event(true).with_writer(stderr)).init();
    } else {
        registry
            .with(fmt::layer().with_ansi(stderr().is_terminal()).with_target(false).with_writer(stderr))
            .init();
    }
    Ok(())
}
