//! The `/metrics` endpoint.
//!
//! It has its own listener, needs no key and names no organization.

use axum::{Router, extract::State, http::header::CONTENT_TYPE, response::IntoResponse, routing::get};
use metrics::gauge;
use metrics_exporter_prometheus::PrometheusHandle;

use crate::store::{self, Store};

/// Version of the Prometheus text format.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Clone)]
struct Watched {
    store: Option<Store>,
    move_events_after_days: Option<i32>,
    own: &'static PrometheusHandle,
}

/// Builds the router with `/metrics`: metrics of this process, and gauges of the whole deployment, which
/// every process with a database reports with the same values.
pub(crate) fn router(
    store: Option<Store>,
    move_events_after_days: Option<i32>,
    own: &'static PrometheusHandle,
) -> Router {
    describe();
    Router::new().route("/metrics", get(metrics)).with_state(Watched { store, move_events_after_days, own })
}

async fn metrics(State(watched): State<Watched>) -> impl IntoResponse {
    if let Some(store) = &watched.store {
        let counted = count(store, watched.move_events_after_days).await;
        // While the database is unavailable, the metrics of this process are still reported.
        gauge!("sojourn_database_up").set(f64::from(u8::from(counted.is_ok())));
        if let Err(error) = counted {
            tracing::warn!(%error, "could not query the deployment's metrics");
        }
    }
    watched.own.run_upkeep();
    ([(CONTENT_TYPE, TEXT_FORMAT)], watched.own.render())
}

async fn count(store: &Store, move_events_after_days: Option<i32>) -> store::Result<()> {
    let now = store.gauges().await?;
    let overdue = store.sessions_overdue().await?;
    gauge!("sojourn_sessions_overdue").set(overdue as f64);
    gauge!("sojourn_turns", "state" => "queued").set(now.turns_queued as f64);
    gauge!("sojourn_turns", "state" => "running").set(now.turns_running as f64);
    gauge!("sojourn_turns", "state" => "waiting").set(now.turns_waiting as f64);
    gauge!("sojourn_actions_open").set(now.actions_open as f64);
    gauge!("sojourn_jobs_ready").set(now.jobs_ready as f64);
    gauge!("sojourn_jobs_ready_age_seconds").set(now.jobs_ready_age_seconds);
    gauge!("sojourn_maintenance_jobs_ready").set(now.maintenance_ready as f64);
    gauge!("sojourn_maintenance_jobs_ready_age_seconds").set(now.maintenance_ready_age_seconds);
    gauge!("sojourn_jobs_held").set(now.jobs_held as f64);
    gauge!("sojourn_sandboxes", "state" => "live").set(now.sandboxes_live as f64);
    gauge!("sojourn_sandboxes", "state" => "frozen").set(now.sandboxes_frozen as f64);
    gauge!("sojourn_sandboxes", "state" => "ending").set(now.sandboxes_ending as f64);
    gauge!("sojourn_deliveries_pending").set(now.deliveries_pending as f64);
    gauge!("sojourn_deliveries_due_age_seconds").set(now.deliveries_due_age_seconds);
    gauge!("sojourn_event_content_pending").set(now.event_content_pending as f64);
    gauge!("sojourn_event_content_age_seconds").set(now.event_content_age_seconds);
    let capacity = store.capacity_gauges().await?;
    gauge!("sojourn_sandboxes_waiting").set(capacity.sandboxes_waiting as f64);
    gauge!("sojourn_sandboxes_waiting_age_seconds").set(capacity.sandboxes_waiting_age_seconds);
    gauge!("sojourn_image_bytes").set(capacity.image_bytes as f64);
    gauge!("sojourn_nodes_disk_low").set(capacity.nodes_disk_low as f64);
    gauge!("sojourn_node_reserved_ratio", "resource" => "memory").set(capacity.node_memory_reserved_ratio);
    gauge!("sojourn_node_reserved_ratio", "resource" => "cpu").set(capacity.node_cpu_reserved_ratio);
    gauge!("sojourn_node_reserved_ratio", "resource" => "pids").set(capacity.node_pids_reserved_ratio);
    gauge!("sojourn_node_reserved_ratio", "resource" => "disk").set(capacity.node_disk_reserved_ratio);
    if let Some(days) = move_events_after_days {
        gauge!("sojourn_events_to_move_age_seconds").set(store.events_to_move_age(days).await?);
    }
    for (kind, age) in store.retention_ages().await? {
        gauge!("sojourn_retention_age_seconds", "kind" => kind).set(age);
    }
    Ok(())
}

fn describe() {
    for (name, text) in GAUGES {
        metrics::describe_gauge!(*name, *text);
    }
    metrics::describe_gauge!("sojourn_streams", "Open streams of this process.");
    let text = "How far the clock of the machine is ahead of that of the database.";
    metrics::describe_gauge!("sojourn_clock_difference_seconds", text);
    for (name, text) in HISTOGRAMS {
        metrics::describe_histogram!(*name, *text);
    }
    for (name, text) in [
        ("sojourn_node_calls_total", "Calls of workers to this node agent, by outcome."),
        ("sojourn_connections_refused_total", "Connections closed because their peer has too many."),
        ("sojourn_unauthenticated_refused_total", "Requests refused after unknown keys from their peer."),
        ("sojourn_model_faults_total", "Failed model calls, by code; most are retried."),
        ("sojourn_runtime_faults_total", "Internal errors during a turn, by code."),
        ("sojourn_model_tokens_total", "Input and output tokens of models."),
        (
            "sojourn_cost_micros_total",
            "Cost of turns in micro-USD, by part; steps without a known price are not included.",
        ),
        ("sojourn_steps_unpriced_total", "Model calls without a known price."),
        ("sojourn_tool_calls_total", "Tool calls, by outcome."),
        ("sojourn_loops_total", "Loops of calls of agents, by outcome: `continued`, or `ended` the turn."),
        (
            "sojourn_outputs_total",
            "Outputs for a schema, by outcome: `accepted`, or `rejected`, also where none was submitted.",
        ),
        ("sojourn_model_fallbacks_total", "Calls of fallback models."),
        ("sojourn_mcp_lists_total", "Lists of the tools of MCP servers, by outcome: `listed` or `failed`."),
        (
            "sojourn_mcp_servers_suspended_total",
            "Times that an MCP server was suspended after repeated failures.",
        ),
        (
            "sojourn_credential_refreshes_total",
            "Refreshes of access tokens, by outcome: `refreshed`, `refused` or `unavailable`.",
        ),
        (
            "sojourn_compactions_total",
            "Summaries of histories, by trigger and outcome: `compacted` or `failed`.",
        ),
        ("sojourn_files_total", "Stored files, by media type."),
        ("sojourn_file_bytes_total", "Size of the files that were stored."),
        ("sojourn_files_refused_total", "Files in requests to models that the provider refused."),
        ("sojourn_messages_steered_total", "Messages that a running turn read."),
        ("sojourn_actions_total", "Actions that ended, by kind and outcome."),
        ("sojourn_sandboxes_lost_total", "Sandboxes that failed."),
        ("sojourn_turns_ended_total", "Ended turns, by reason."),
        ("sojourn_turns_taken_over_total", "Turns taken over from a crashed worker."),
        ("sojourn_turns_retried_total", "Turns that started again because a caller retried them."),
        (
            "sojourn_retention_deleted_total",
            "Rows and sessions deleted because their time was over, by kind.",
        ),
        ("sojourn_segments_stored_total", "Segments of logs that were stored in the blob store."),
        ("sojourn_segment_bytes_total", "Size of the segments that were stored."),
        ("sojourn_events_moved_total", "Events whose rows were deleted because they are in a segment."),
        ("sojourn_segment_failures_total", "Sessions whose events could not be moved; they are retried."),
        ("sojourn_blobs_lost_total", "Blobs that were needed and the blob store did not have, by kind."),
        ("sojourn_claims_total", "Claims of jobs by a worker, successful or not."),
        ("sojourn_notifications_sent_total", "Notifications sent to other processes."),
        ("sojourn_notifications_received_total", "Notifications that the database sent to this process."),
        ("sojourn_delivery_attempts_total", "Webhook delivery attempts, by outcome."),
    ] {
        metrics::describe_counter!(name, text);
    }
}

/// Histograms of times, and what they show.
const HISTOGRAMS: &[(&str, &str)] = &[
    ("sojourn_append_seconds", "Duration of a turn's append until it was durable."),
    ("sojourn_stream_lag_seconds", "Age of an event when an up-to-date stream sent it."),
    ("sojourn_http_seconds", "Time from a request until its response began, by route."),
    ("sojourn_model_seconds", "Duration of a model call."),
    ("sojourn_tool_seconds", "Duration of a tool call."),
    ("sojourn_sandbox_start_seconds", "Time to start a sandbox."),
    ("sojourn_sandbox_wait_seconds", "Time that sessions waited for capacity for a sandbox."),
    ("sojourn_turn_seconds", "Duration of turns."),
    ("sojourn_turn_wait_seconds", "Time that turns waited for callers."),
];

/// Gauges, and what they show.
const GAUGES: &[(&str, &str)] = &[
    ("sojourn_database_up", "Whether the database responded to this scrape."),
    ("sojourn_sessions_overdue", "Sessions that should make progress and do not; 0 when healthy."),
    ("sojourn_turns", "Turns that are not finished, by state."),
    ("sojourn_actions_open", "Actions that no caller has answered yet."),
    ("sojourn_jobs_ready", "Turns and operations that a worker could claim now."),
    ("sojourn_jobs_ready_age_seconds", "Age of the oldest turn or operation that could be claimed."),
    ("sojourn_maintenance_jobs_ready", "Sandboxes that a worker could freeze, hibernate or remove now."),
    ("sojourn_maintenance_jobs_ready_age_seconds", "How long the first of them has been due."),
    ("sojourn_jobs_held", "Jobs that are leased to a worker."),
    ("sojourn_sandboxes", "Existing sandboxes, by state."),
    ("sojourn_sandboxes_waiting", "Sessions that wait for capacity for a sandbox."),
    ("sojourn_sandboxes_waiting_age_seconds", "How long the first of them has waited."),
    ("sojourn_node_up", "Whether a node of this worker answered last; 0 or 1. By node."),
    ("sojourn_node_connections", "Connections of workers to this node agent."),
    ("sojourn_image_bytes", "Size of the root file systems with packages on all live nodes."),
    ("sojourn_nodes_disk_low", "Nodes with less free disk than they keep."),
    ("sojourn_node_reserved_ratio", "Largest reserved part of a node, by resource."),
    ("sojourn_deliveries_pending", "Deliveries that are not settled."),
    ("sojourn_deliveries_due_age_seconds", "Age of the oldest delivery that is due."),
    ("sojourn_event_content_pending", "Large event bodies that wait for the blob store."),
    ("sojourn_retention_age_seconds", "How long the oldest row has been past its time, by kind."),
    (
        "sojourn_events_to_move_age_seconds",
        "How long the oldest events that should be in the blob store have been past their time.",
    ),
    ("sojourn_event_content_age_seconds", "Age of the oldest event body that waits for the blob store."),
];
