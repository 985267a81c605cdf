//! A session as its log leaves it: the state that commands are decided on.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    conversation::ModelOptions,
    ids::*,
    turn::{LastTurn, Turn},
    usage::Usage,
};
use crate::base::Timestamp;

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// A turn waits for a worker.
    Queued,
    /// A turn is executing.
    Running,
    /// The last turn ended with a question; steerable.
    AwaitingInput,
    /// Done for now; steerable.
    Idle,
    /// The last turn ended before it could do anything; steerable.
    Failed,
    /// Closed; read-only.
    Archived,
}

/// Who or what started a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Api,
    Cli,
    Manual,
    Cron,
    Mention,
    React,
}

/// Caps of a session; an absent one does not bind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Tokens of the whole session: input, cache and output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Wall clock of one turn, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_seconds: Option<u64>,
    /// Turns that the session may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<u64>,
    /// Model calls within one turn (default 200).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
}

impl Limits {
    /// These limits with those of `over` in front.
    pub fn overridden_by(self, over: Self) -> Self {
        Self {
            tokens: over.tokens.or(self.tokens),
            turn_seconds: over.turn_seconds.or(self.turn_seconds),
            turns: over.turns.or(self.turns),
            steps: over.steps.or(self.steps),
        }
    }
}

/// The sandbox that a session asks for; an absent field has the service's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Environment {
    /// Processors, as in 0.5: 0.1 to 16 (default 2).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.1, maximum = 16)]
    pub cpus: Option<f64>,
    /// Memory in MiB, 64 to 65536 (default 2048).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 64, maximum = 65536)]
    pub memory: Option<u64>,
    /// How long one sandbox lives before another with the same files takes its place:
    /// 30 to 2592000 (default: for ever).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 30, maximum = 2592000)]
    pub timeout_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
}

/// How a sandbox is replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rotation {
    /// How long before the end of its time it may be replaced, in seconds: a command that
    /// runs then is waited for, at most until that end (default 60, at most half of
    /// `timeout_seconds`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_rotate_buffer_seconds: Option<u64>,
}

impl Environment {
    /// What is wrong with it: the field, and what it must be.
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        let outside = |value: Option<u64>, least: u64, most: u64| {
            value.is_some_and(|value| !(least..=most).contains(&value))
        };
        let buffer = self.rotation.unwrap_or_default().pre_rotate_buffer_seconds;
        if self.cpus.is_some_and(|cpus| !(0.1..=16.0).contains(&cpus)) {
            return Some(("cpus", "must be 0.1 to 16"));
        }
        if outside(self.memory, 64, 65_536) {
            return Some(("memory", "must be 64 to 65536 MiB"));
        }
        if outside(self.timeout_seconds, 30, 2_592_000) {
            return Some(("timeout_seconds", "must be 30 to 2592000"));
        }
        match (buffer, self.timeout_seconds) {
            (Some(_), None) => Some(("rotation", "needs `timeout_seconds`")),
            (Some(buffer), Some(timeout)) if buffer > timeout / 2 => {
                Some(("rotation.pre_rotate_buffer_seconds", "must be at most half of `timeout_seconds`"))
            }
            (Some(_) | None, Some(_) | None) => None,
        }
    }

    /// How long a sandbox lives, and how long before it is to be replaced.
    pub fn life(&self) -> Option<(Duration, Duration)> {
        let timeout = self.timeout_seconds?;
        let buffer =
            self.rotation.unwrap_or_default().pre_rotate_buffer_seconds.unwrap_or(60).min(timeout / 2);
        Some((Duration::from_secs(timeout), Duration::from_secs(timeout - buffer)))
    }
}

/// The agent as it was when the session was made; never changes after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentSnapshot {
    #[schema(value_type = String)]
    pub revision_id: RevisionId,
    /// From 1 within the agent.
    pub revision: i32,
    pub name: String,
    /// SHA-256 of the prompt, in hexadecimal; the prompt is in the revision.
    pub prompt_hash: String,
    /// `provider/model`.
    pub model: String,
    pub model_options: ModelOptions,
    pub runtime: String,
    /// Names of the tools that the agent may use; `None` for all.
    pub tools: Option<Vec<String>>,
}

/// What a session starts with; the body of `session.created`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Created {
    pub agent_id: Option<AgentId>,
    pub credential_id: Option<CredentialId>,
    pub agent_snapshot: Option<AgentSnapshot>,
    pub title: Option<String>,
    pub key: Option<String>,
    pub client_id: Option<String>,
    pub metadata: Map<String, Value>,
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub environment: Option<Environment>,
    pub source: Source,
}

/// The state of a session: the fold of its log.
///
/// Outside the fold, and so outside this type: lease, epoch, heartbeat and the
/// state of the box.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    pub id: SessionId,
    pub created: Created,
    pub status: Status,
    /// `seq` of the newest event.
    pub head: i64,
    /// `seq` of the newest input that a turn has taken.
    pub input_cursor: i64,
    /// `seq` of the newest input; beyond `input_cursor` while some is pending.
    pub input_head: i64,
    /// The turn that runs.
    pub running: Option<Turn>,
    /// The turn that waits, with the input that has joined it.
    pub queued: Option<Turn>,
    /// The turn that a caller asked to end.
    pub cancel_turn_id: Option<TurnId>,
    /// The newest turn that has ended.
    pub ended: Option<LastTurn>,
    /// Turns that have started.
    pub turns: i64,
    pub usage: Usage,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Session {
    /// Whether input waits for a turn.
    pub fn is_pending(&self) -> bool {
        self.input_head > self.input_cursor
    }

    /// The turn to show: the running one, else the queued one, else the last.
    pub fn last_turn(&self) -> Option<LastTurn> {
        let live = self.running.as_ref().or(self.queued.as_ref());
        live.map(|turn| LastTurn {
            id: turn.id,
            state: turn.state,
            yield_reason: None,
            result_event_id: None,
        })
        .or_else(|| self.ended.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_says_what_is_wrong_with_it() {
        let of =
            |json: &str| serde_json::from_str::<Environment>(json).map(|environment| environment.problem());
        let bad = [
            (r#"{"cpus":0}"#, "cpus"),
            (r#"{"memory":1}"#, "memory"),
            (r#"{"timeout_seconds":1}"#, "timeout_seconds"),
            (r#"{"rotation":{"pre_rotate_buffer_seconds":1}}"#, "rotation"),
            (
                r#"{"timeout_seconds":30,"rotation":{"pre_rotate_buffer_seconds":16}}"#,
                "rotation.pre_rotate_buffer_seconds",
            ),
        ];
        for (json, field) in bad {
            assert_eq!(of(json).unwrap().map(|(field, _)| field), Some(field), "{json}");
        }
        assert_eq!(of(r#"{"cpus":0.5,"memory":512,"timeout_seconds":30,"rotation":{}}"#).unwrap(), None);
        assert!(of(r#"{"image":"x"}"#).is_err());
    }

    #[test]
    fn a_sandbox_is_replaced_before_its_time_is_over() {
        let life = |timeout, buffer| {
            let rotation = Some(Rotation { pre_rotate_buffer_seconds: buffer });
            let environment = Environment { timeout_seconds: timeout, rotation, ..Environment::default() };
            environment.life().map(|(end, rotation)| (end.as_secs(), rotation.as_secs()))
        };
        assert_eq!(life(None, None), None);
        assert_eq!(life(Some(3_600), None), Some((3_600, 3_540)));
        assert_eq!(life(Some(3_600), Some(600)), Some((3_600, 3_000)));
        assert_eq!(life(Some(60), None), Some((60, 30)));
    }
}
