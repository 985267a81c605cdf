//! `/metrics`, for a listener of its own: it needs no key and names no organization.

use axum::{Router, extract::State, http::header::CONTENT_TYPE, response::IntoResponse, routing::get};
use metrics::gauge;
use metrics_exporter_prometheus::PrometheusHandle;

use crate::store::{self, Store};

/// The version of Prometheus' text format that is spoken.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Clone)]
struct Watched {
    store: Store,
    own: &'static PrometheusHandle,
}

/// The route `/metrics`: what this process gathered, and what the deployment is doing,
/// which every process tells alike.
pub fn router(store: Store, own: &'static PrometheusHandle) -> Router {
    describe();
    Router::new().route("/metrics", get(metrics)).with_state(Watched { store, own })
}

async fn metrics(State(watched): State<Watched>) -> impl IntoResponse {
    let counted = count(&watched.store).await;
    // What this process gathered is worth reading most while the database is away.
    gauge!("sojourn_database_up").set(f64::from(u8::from(counted.is_ok())));
    if let Err(error) = counted {
        tracing::warn!(%error, "the metrics of the deployment could not be counted");
    }
    watched.own.run_upkeep();
    ([(CONTENT_TYPE, TEXT_FORMAT)], watched.own.render())
}

async fn count(store: &Store) -> store::Result<()> {
    let now = store.gauges().await?;
    let overdue = store.sessions_overdue().await?;
    gauge!("sojourn_sessions_overdue").set(overdue as f64);
    gauge!("sojourn_turns", "state" => "queued").set(now.turns_queued as f64);
    gauge!("sojourn_turns", "state" => "running").set(now.turns_running as f64);
    gauge!("sojourn_jobs_ready").set(now.jobs_ready as f64);
    gauge!("sojourn_jobs_ready_age_seconds").set(now.jobs_ready_age_seconds);
    gauge!("sojourn_jobs_held").set(now.jobs_held as f64);
    gauge!("sojourn_sandboxes", "state" => "live").set(now.sandboxes_live as f64);
    gauge!("sojourn_sandboxes", "state" => "frozen").set(now.sandboxes_frozen as f64);
    gauge!("sojourn_sandboxes", "state" => "ending").set(now.sandboxes_ending as f64);
    gauge!("sojourn_deliveries_pending").set(now.deliveries_pending as f64);
    gauge!("sojourn_deliveries_due_age_seconds").set(now.deliveries_due_age_seconds);
    Ok(())
}

fn describe() {
    for (name, text) in [
        ("sojourn_database_up", "Whether the database answered this scrape."),
        ("sojourn_sessions_overdue", "Sessions that should move and do not; 0 when healthy."),
        ("sojourn_turns", "Turns that are under way, by state."),
        ("sojourn_jobs_ready", "Jobs that a worker could take now."),
        ("sojourn_jobs_ready_age_seconds", "How long the oldest job that could be taken has been waiting."),
        ("sojourn_jobs_held", "Jobs that a worker holds."),
        ("sojourn_sandboxes", "Sandboxes that are there, by state."),
        ("sojourn_deliveries_pending", "Deliveries that will be tried, now or later."),
        ("sojourn_deliveries_due_age_seconds", "How long the oldest delivery that is due has been waiting."),
    ] {
        metrics::describe_gauge!(name, text);
    }
    metrics::describe_gauge!("sojourn_streams", "Streams that this process serves.");
    for (name, text) in [
        ("sojourn_append_seconds", "How long an append of a turn took, until it was durable."),
        ("sojourn_stream_lag_seconds", "How old an event was when a stream that was up to date had sent it."),
        ("sojourn_http_seconds", "How long a request took until its answer began, by route."),
        ("sojourn_model_seconds", "How long a model took to answer."),
        ("sojourn_tool_seconds", "How long a tool ran."),
        ("sojourn_sandbox_start_seconds", "How long a sandbox took to be there."),
        ("sojourn_turn_seconds", "How long turns took."),
    ] {
        metrics::describe_histogram!(name, text);
    }
    for (name, text) in [
        ("sojourn_model_faults_total", "Model calls that failed, by code; most are tried again."),
        ("sojourn_runtime_faults_total", "Faults of the service within a turn, by code."),
        ("sojourn_model_tokens_total", "Tokens that models read and wrote."),
        (
            "sojourn_cost_micros_total",
            "What turns cost, in micro-USD, by part; without steps of no known price.",
        ),
        ("sojourn_steps_unpriced_total", "Model calls that no price list knew."),
        ("sojourn_tool_calls_total", "Tool calls, by what became of them."),
        ("sojourn_sandboxes_lost_total", "Sandboxes that were found dead."),
        ("sojourn_turns_ended_total", "Turns that ended, by reason."),
        ("sojourn_turns_taken_over_total", "Turns that a worker took over from one that died."),
        ("sojourn_delivery_attempts_total", "Tries to deliver a webhook, by outcome."),
    ] {
        metrics::describe_counter!(name, text);
    }
}
