//! The port `Services` of tools: web pages, scheduled wakes, child sessions.
//!
//! A wake and a child session exist once per call: a worker that takes the call over finds the row
//! of the first try, by the id of the call.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    base::{
        Timestamp,
        limit::{SCHEDULED_WAKE_AHEAD_MAX, SCHEDULED_WAKES_PENDING_MAX},
        seal::sha256,
        text::hex,
    },
    domain::{
        Actor, ActorKind, AgentId, Body, SessionId,
        content::FileRef,
        decide::{Input, Stamp},
        event::Draft,
        schedule::SessionTemplate,
        scheduled_wake::When,
        session::Source,
    },
    file,
    journal::{Halted, Unit, Writer},
    lifecycle::{EgressAttachment, LeasedSandbox, Sandboxes},
    store::{
        self,
        scheduled_wake::{NewScheduledWake, Set},
    },
    tool::{Child, Fault, Page, Services, shown},
    trigger::{self, Opening},
};

/// Services outside the sandbox for the tools of one leased session.
pub(super) struct SessionServices {
    sandboxes: Sandboxes,
    writer: Writer,
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
        let (fence, journal) = (self.writer.fence(), &self.sandboxes.journal);
        let mut unit = journal.begin(fence.org).await.map_err(unavailable)?;
        if !unit.tx().is_held(fence).await.map_err(unavailable)? {
            return Err(Fault::Stale);
        }
        let key = format!("start_session/{}/{}", fence.session, hex(&sha256(call_id.as_bytes())));
        if let Some(known) = unit.tx().session_by_key(&key).await.map_err(unavailable)? {
            return Ok(known.id);
        }
        let parent = unit.tx().session(fence.session).await.map_err(unavailable)?;
        let name = parent.created.agent_snapshot.map(|agent| agent.name);
        let actor = Actor { id: Some(fence.session.to_string()), display: name, kind: ActorKind::Agent };
        let stamp = Stamp { actor, origin: journal.origin().clone() };
        let Some(agent) = agent_named(&mut unit, child.agent).await.map_err(unavailable)? else {
            return Err(Fault::TellModel(format!("There is no agent `{}`.", child.agent)));
        };
        let opening = Opening {
            agent,
            session_template: SessionTemplate {
                title: child.title.map(str::to_owned),
                ..SessionTemplate::default()
            },
            inherited: parent.created.environment,
            sources: Vec::new(),
            input: Input { text: child.input.to_owned(), ..Input::default() },
            source: Source::Agent,
            // Its model is checked when its turn starts.
            scripted: true,
            parent: Some((fence.session, key)),
        };
        match trigger::open(&mut unit, opening, &stamp).await {
            Ok(opened) => {
                unit.commit().await.map_err(unavailable)?;
                Ok(opened.id)
            }
            Err(refused) => match refused.code() {
                Some(_) => Err(Fault::TellModel(format!("No session was started: {refused}."))),
                None => Err(unavailable(refused)),
            },
        }
    }
}

async fn agent_named(unit: &mut Unit, name_or_id: &str) -> Result<Option<AgentId>, store::Error> {
    match name_or_id.parse::<AgentId>() {
        Ok(id) => Ok(Some(id)),
        Err(_) => Ok(unit.tx().agent_by_name(name_or_id).await?.map(|agent| agent.id)),
    }
}

fn unavailable(error: impl std::fmt::Display) -> Fault {
    Fault::LogUnavailable(error.to_string())
}
