//! Which events a webhook receives, as options of commands.

use clap::Args;
use serde::Serialize;

/// Filter of the events to send.
#[derive(Debug, Args, Serialize)]
pub(super) struct EventFilter {
    /// Event level: user, progress or internal
    #[arg(long)]
    level: Option<String>,
    /// Event types: exact names or prefix.*, comma-separated
    #[arg(long, value_delimiter = ',')]
    types: Option<Vec<String>>,
    /// Include the raw input of callers
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    include_raw: bool,
}
