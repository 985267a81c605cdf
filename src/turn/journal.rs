//! The harness's port `Journal` over the log writer of a lease.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use super::{
    halt::{halt, unavailable},
    kept_drafts::KeptDrafts,
};
use crate::{
    domain::{
        AgentId, Body, Event, FileId, Session,
        budget::{Budget, MaxUsage},
        content::Content,
        event::Draft,
        log_fold::{LogFold, ReadTo},
        piece::ResponseDelta,
        spend::Verdict,
    },
    file::Files,
    harness::{self, Halt},
    journal::{AppendError, Halted, Writer},
    lifecycle::LeasedSandbox,
    store::reservation::Ask,
};

/// The log of a session under a lease.
pub(super) struct LeasedJournal {
    pub(super) writer: Writer,
    /// Its counted egress decisions are appended with the turn's events.
    pub(super) sandbox: Arc<LeasedSandbox>,
    /// The agent whose spend caps apply; `None` when no model is called.
    pub(super) agent: Option<AgentId>,
    /// The turn's events of an append that failed.
    pub(super) kept: KeptDrafts,
    /// Set once `turn.started` is in the log.
    pub(super) started: watch::Sender<bool>,
    pub(super) files: Files,
}

impl LeasedJournal {
    /// Appends the events together with the egress decisions counted since. Egress is closed before
    /// the end of the turn or its wait is recorded: no decision can follow it.
    async fn record_with_egress(&self, drafts: Vec<Draft>, read_to: ReadTo) -> Result<Vec<Event>, Halted> {
        let egress = self.sandbox.egress();
        if drafts.iter().any(|draft| matches!(draft.body, Body::TurnCompleted(_) | Body::TurnWaiting { .. }))
        {
            egress.close().await;
        }
        let taken = egress.take();
        let mut all = egress.drafts(&taken, &self.writer);
        let own = all.len();
        all.extend(drafts);
        let appended = self.writer.append(all, read_to).await.map_err(|AppendError { halted, drafts }| {
            egress.restore(&taken);
            if matches!(halted, Halted::Failed(_)) {
                self.kept.keep(drafts.into_iter().skip(own), read_to);
            }
            halted
        })?;
        self.kept.appended(&appended);
        if appended.iter().any(|event| matches!(event.draft.body, Body::TurnStarted { .. })) {
            self.started.send_replace(true);
        }
        Ok(appended)
    }
}

#[async_trait]
impl harness::Journal for LeasedJournal {
    async fn record(&self, drafts: Vec<Draft>, read_to: ReadTo) -> Result<Vec<Event>, Halt> {
        self.record_with_egress(drafts, read_to).await.map_err(halt)
    }

    async fn files(&self, parts: Vec<Content>) -> Result<HashMap<FileId, Bytes>, Halt> {
        let read = self.files.for_model(self.writer.fence().org, parts).await;
        read.map_err(|error| Halt::Unavailable(error.to_string()))
    }

    async fn read_steers(&self, fold: &mut LogFold) -> Result<(), Halt> {
        self.writer.read_steers().await.map_err(halt)?;
        self.catch_up(fold).await
    }

    async fn actions_ended(&self, read_to_seq: i64) -> Result<bool, Halt> {
        self.writer.actions_ended(read_to_seq).await.map_err(unavailable)
    }

    async fn catch_up(&self, fold: &mut LogFold) -> Result<(), Halt> {
        self.writer.catch_up(fold).await.map_err(unavailable)
    }

    async fn session(&self) -> Result<Session, Halt> {
        self.writer.session().await.map_err(unavailable)
    }

    fn has_readers(&self) -> bool {
        self.writer.has_readers()
    }

    fn tell(&self, piece: ResponseDelta) {
        self.writer.tell(piece);
    }

    async fn budgets(&self, session: &Session) -> Result<Vec<Budget>, Halt> {
        let limits = session.created.limits;
        let is_limited = limits.tokens.or(limits.cost_micros).or(limits.tool_calls).is_some();
        if !is_limited && session.created.parent_session_id.is_none() {
            return Ok(Vec::new());
        }
        self.writer.budgets().await.map_err(unavailable)
    }

    async fn reserve(
        &self,
        most: &(dyn Fn() -> MaxUsage + Send + Sync),
        is_shared: bool,
        is_unbound: bool,
    ) -> Result<Verdict, Halt> {
        let granted = Verdict::Granted { close: Vec::new() };
        let Some(agent) = self.agent else { return Ok(granted) };
        let is_bound = !is_unbound && self.writer.spend_is_bound(agent).await.map_err(unavailable)?;
        if !is_bound && !is_shared {
            return Ok(granted);
        }
        let ask = Ask { agent: Some(agent), call: None, most: most(), is_bound, is_shared };
        self.writer.reserve(&ask).await.map_err(halt)
    }

    async fn reserve_exec(&self, call_id: &str, most: u64, is_shared: bool) -> Result<Verdict, Halt> {
        let granted = Verdict::Granted { close: Vec::new() };
        let Some(agent) = self.agent else { return Ok(granted) };
        let is_bound = self.writer.spend_is_bound(agent).await.map_err(unavailable)?;
        if !is_bound && !is_shared {
            return Ok(granted);
        }
        let most = MaxUsage { tokens: 0, cost_micros: Some(most) };
        let ask = Ask { agent: Some(agent), call: Some(call_id), most, is_bound, is_shared };
        self.writer.reserve(&ask).await.map_err(halt)
    }

    async fn bill_late(&self, drafts: Vec<Draft>) -> Result<(), Halt> {
        self.writer.bill_late(&drafts).await.map_err(unavailable)
    }

    async fn release_exec(&self, call_id: &str) -> Result<(), Halt> {
        self.writer.release_exec(call_id).await.map_err(unavailable)
    }
}
