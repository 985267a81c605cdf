//! The party that caused an event.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The party that caused an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Actor {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub display: Option<String>,
    #[serde(rename = "type")]
    pub kind: ActorKind,
}

/// Type of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActorKind {
    /// A person or program with an API key or client token.
    Human,
    /// The agent of the session.
    Agent,
    /// The service itself.
    System,
    /// A schedule or an inbound trigger.
    Trigger,
}

impl Actor {
    /// Returns the agent of the session as an actor.
    pub fn agent() -> Self {
        Self { id: None, display: None, kind: ActorKind::Agent }
    }

    /// Returns the service itself as an actor.
    pub fn system() -> Self {
        Self { id: None, display: None, kind: ActorKind::System }
    }
}
