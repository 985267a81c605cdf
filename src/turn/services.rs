//! The port `Services` of tools: web pages, images, scheduled wakes, child sessions.
//!
//! A wake exists once per call: a worker that takes the call over finds the row of the first try, by the id of the call.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    base::{
        Timestamp,
        limit::{SCHEDULED_WAKE_AHEAD_MAX, SCHEDULED_WAKES_PENDING_MAX},
    },
    domain::{Actor, Body, SessionId, content::FileRef, event::Draft, scheduled_wake::When},
    file,
    journal::{Halted, Writer},
    lifecycle::{EgressAttachment, LeasedSandbox, Sandboxes},
    store::scheduled_wake::{NewScheduledWake, Set},
    tool::{Child, Fault, Page, Services, SessionEvents, SessionMessage, SessionReport, SessionWait, shown},
};

/// Services outside the sandbox for the tools of one leased session.
pub(super) struct SessionServices {
    pub(super) sandboxes: Sandboxes,
    pub(super) writer: Writer,
    egress: Arc<EgressAttachment>,
}

impl SessionServices {
    pub(super) fn new(sandboxes: Sandboxes, writer: &Writer, sandbox: &LeasedSandbox) -> Self {
        Self { sandboxes, writer: writer.clone(), egress: Arc::clone(sandbox.egress()) }
    }

    /// Records the event of a wake, unless the worker before has: it may have died between row and event.
    async fn record_wake(&self, call_id: &str, at: Timestamp, note: &str) -> Result<(), Fault> {
        let is_it = |body: &Body| matches!(body, Body::WakeScheduled { call_id: recorded, .. } if recorded == call_id);
        let found = self.writer.newest(&["wake.scheduled"], |event| is_it(&event.draft.body).then_some(()));
        if found.await.map_err(unavailable)?.is_some() {
            return Ok(());
        }
        let body = Body::WakeScheduled { call_id: call_id.to_owned(), at, note: note.to_owned() };
        let draft = Draft {
            id: self.sandboxes.journal.origin().id(),
            actor: Actor::system(),
            level: body.level(),
            turn_id: self.writer.turn(),
            step_id: None,
            refs: serde_json::Map::new(),
            body,
        };
        match self.writer.record(vec![draft]).await {
            Ok(_) => Ok(()),
            Err(Halted::Stale | Halted::Moved) => Err(Fault::Stale),
            Err(Halted::Failed(error)) => Err(unavailable(error)),
        }
    }
}

#[async_trait]
impl Services for SessionServices {
    async fn fetch(&self, url: &str) -> Result<Page, String> {
        let fetched = self.egress.fetch(url).await.map_err(|fault| fault.to_string())?;
        Ok(Page {
            url: fetched.url,
            status: fetched.status,
            content_type: fetched.content_type,
            content: fetched.content,
            is_cut: fetched.is_cut,
        })
    }

    async fn store_image(&self, path: &str, content: Bytes) -> Result<FileRef, Fault> {
        let fence = self.writer.fence();
        match self.sandboxes.files.create_for_session(fence.org, fence.session, path, content).await {
            Ok(file) => Ok(FileRef { path: path.to_owned(), ..file.reference() }),
            Err(error @ (file::Error::Refused(_) | file::Error::Full)) => {
                Err(Fault::TellModel(format!("{path} cannot be shown: {error}.")))
            }
            Err(error) => Err(unavailable(error)),
        }
    }

    async fn schedule_wake(&self, call_id: &str, when: When, note: &str) -> Result<Timestamp, Fault> {
        let wake = NewScheduledWake {
            call_id,
            when,
            note,
            ahead_max: SCHEDULED_WAKE_AHEAD_MAX,
            pending_max: SCHEDULED_WAKES_PENDING_MAX,
        };
        let set = self.sandboxes.store.set_scheduled_wake(self.writer.fence(), wake).await;
        let at = match set.map_err(unavailable)? {
            Set::At(at) => at,
            Set::Stale => return Err(Fault::Stale),
            Set::Past(now) => {
                return Err(Fault::TellModel(format!("That time is in the past: it is {}.", shown(now))));
            }
            Set::TooFar(now) => {
                let days = SCHEDULED_WAKE_AHEAD_MAX.as_secs() / 86_400;
                let words = format!("It is {}; at most {days} days ahead are possible.", shown(now));
                return Err(Fault::TellModel(words));
            }
            Set::Full => {
                return Err(Fault::TellModel(format!(
                    "This session has {SCHEDULED_WAKES_PENDING_MAX} scheduled wakes already, the most that is allowed."
                )));
            }
        };
        self.record_wake(call_id, at, note).await?;
        Ok(at)
    }

    async fn start_session(&self, call_id: &str, child: Child<'_>) -> Result<SessionId, Fault> {
        self.start_child(call_id, child).await
    }

    async fn wait_for_sessions(
        &self,
        call_id: &str,
        wait: SessionWait<'_>,
    ) -> Result<(Vec<SessionReport>, bool), Fault> {
        self.wait_for_children(call_id, wait).await
    }

    async fn read_session(&self, id: &str, after: i64) -> Result<SessionEvents, Fault> {
        self.read_child(id, after).await
    }

    async fn message_session(&self, call_id: &str, message: SessionMessage<'_>) -> Result<String, Fault> {
        self.message_child(call_id, message).await
    }

    async fn cancel_session(&self, call_id: &str, id: &str) -> Result<String, Fault> {
        self.cancel_child(call_id, id).await
    }
}

pub(super) fn unavailable(error: impl std::fmt::Display) -> Fault {
    Fault::LogUnavailable(error.to_string())
}
