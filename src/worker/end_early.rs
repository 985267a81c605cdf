//! Turns that end before they could run: for want of a model, or of luck.
//!
//! Called by `slot`; writes through the turn's own pen, so that a worker that lost the
//! session ends nothing.

use std::sync::Arc;

use serde_json::Map;

use super::{
    Worker,
    egress_attachment::{Allowed, EgressAttachment},
    leased_sandbox::LeasedSandbox,
    ports::{LeasedJournal, LeasedTools},
    preflight::Refusal,
    sandbox_spec::SandboxSpec,
};
use crate::{
    domain::{
        Actor, Body, TurnId,
        event::{Draft, Outcome, TurnCompleted},
        turn::{TurnError, YieldReason},
    },
    harness::{self, Halt, Journal as _},
    journal::Writer,
};

/// The code of a turn that was given up after too many crashes.
pub(super) const RECOVERY_EXHAUSTED: &str = "recovery_exhausted";

/// Ends a turn that cannot be run: what is open is settled, and the session is
/// steerable; failed, when nothing was done or trying again did not help.
pub(super) async fn end_early(
    worker: &Worker,
    writer: &Writer,
    turn: TurnId,
    refusal: Refusal,
) -> Result<(), Halt> {
    let Refusal { code, message, spend, rejects } = refusal;
    let journal = LeasedJournal::of(writer.clone());
    let log = journal.log().await?;
    let origin = worker.journal.origin();
    let draft = |body: Body| Draft {
        id: origin.id(),
        actor: Actor::system(),
        level: body.level(),
        turn_id: Some(turn),
        step_id: None,
        refs: Map::new(),
        body,
    };
    let open = harness::history::open_calls(&log, turn);
    // What an earlier attempt started would go on beside the next turn.
    let egress =
        Arc::new(EgressAttachment::new(worker.network.clone(), writer.clone(), origin, Allowed::default()));
    let sandbox = LeasedSandbox::new(worker.clone(), writer.clone(), egress, SandboxSpec::default());
    let tools = LeasedTools::new(worker.catalogue.clone(), Arc::new(sandbox), None);
    for call in &open {
        harness::Tools::cancel(&tools, call).await;
    }
    let mut drafts: Vec<_> = open
        .into_iter()
        .map(|call| {
            draft(Body::ToolResult {
                call_id: call.call_id,
                tool: call.tool,
                output: "The turn ended before this call could be settled; its outcome is unknown."
                    .to_owned(),
                is_error: true,
                outcome: Outcome::Unknown,
                duration_ms: 0,
            })
        })
        .collect();
    let own: Vec<_> = log.iter().filter(|event| event.draft.turn_id == Some(turn)).collect();
    let did_something = own.iter().any(|event| matches!(event.draft.body, Body::StepCompleted(_)));
    if rejects {
        drafts.push(draft(Body::SessionRejected { reason: code.to_owned(), message: message.clone() }));
    }
    if let Some(spend) = spend {
        drafts.push(draft(spend.exceeded()));
    }
    let error = spend.is_none().then(|| TurnError { code: code.to_owned(), message });
    drafts.push(draft(Body::TurnCompleted(Box::new(TurnCompleted {
        turn_id: turn,
        yield_reason: if error.is_some() { YieldReason::Error } else { YieldReason::BudgetExceeded },
        result_event_id: None,
        usage: crate::domain::delta::Delta::of(own.iter().map(|event| &event.draft)).usage,
        active_seconds: 0,
        failed: error.is_some() && (code == RECOVERY_EXHAUSTED || !did_something),
        error,
        limit: spend.map(|spend| spend.limit.to_owned()),
    }))));
    journal.record(drafts).await.map(drop)
}
