//! Sessions below the one of a turn, for its tools: starts, waits, reads, messages and cancels.
//!
//! Each effect exists once per call: a worker that takes the call over finds the row of the first try, by the id of
//! the call.

use super::services::{SessionServices, unavailable};
use crate::{
    base::{
        Timestamp,
        limit::{SESSION_READ_BYTES_MAX, SESSION_READ_EVENTS_MAX, SESSION_REPORTS_BYTES_MAX},
        seal::sha256,
        text::{hex, truncate},
    },
    domain::{
        Actor, ActorKind, AgentId, Body, Event, Level, Session, SessionId,
        decide::{Command, Input, InputMode, Stamp},
        schedule::SessionTemplate,
        session::{Created, Source},
        turn::{Turn, TurnError},
    },
    journal::{self, Unit},
    store::{
        self,
        child_session::ChildState,
        idempotency::{Slot, SlotState},
        log::Range,
    },
    tool::{Child, Fault, SessionEvent, SessionEvents, SessionMessage, SessionReport, SessionWait},
    trigger::{self, Inherited, Opening},
};

impl SessionServices {
    /// Starts a child session.
    pub(super) async fn start_child(&self, call_id: &str, child: Child<'_>) -> Result<SessionId, Fault> {
        let (fence, journal) = (self.writer.fence(), &self.sandboxes.journal);
        let mut unit = journal.begin(fence.org).await.map_err(unavailable)?;
        let parent = self.own_session(&mut unit).await?;
        let key = format!("start_session/{}/{}", fence.session, hash(call_id));
        if let Some(known) = unit.tx().session_by_key(&key).await.map_err(unavailable)? {
            return Ok(known.id);
        }
        let stamp = self.stamp(&parent);
        let Some(agent) = agent_named(&mut unit, child.agent).await.map_err(unavailable)? else {
            return Err(Fault::TellModel(format!("There is no agent `{}`.", child.agent)));
        };
        let opening = Opening {
            agent,
            session_template: SessionTemplate {
                title: child.title.map(str::to_owned),
                ..SessionTemplate::default()
            },
            inherited: inherited(parent.created, child.inherits),
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

    /// Returns the states of children, or for how long to wait for them.
    pub(super) async fn wait_for_children(
        &self,
        call_id: &str,
        wait: SessionWait<'_>,
    ) -> Result<(Vec<SessionReport>, bool), Fault> {
        let (states, gone) = self.known_children(wait.ids).await?;
        if let (true, Some(gone)) = (states.is_empty(), gone.first()) {
            return Err(unknown(&gone.to_string()));
        }
        let is_done = match wait.any {
            true => !gone.is_empty() || states.iter().any(|child| child.is_settled),
            false => {
                states.iter().all(|child| child.is_settled) || states.iter().any(|child| child.is_asking)
            }
        };
        if !is_done {
            let until = self
                .called_at(call_id)
                .await?
                .saturating_add(time::Duration::try_from(wait.timeout).unwrap_or(time::Duration::MAX));
            if self.sandboxes.journal.origin().now() < until {
                let working = states.iter().filter(|child| !child.is_settled).map(|child| child.id);
                return Err(Fault::Waits { sessions: working.collect(), until });
            }
        }
        let mut reports = Vec::with_capacity(states.len());
        for child in &states {
            reports.push(self.report(child.id, SESSION_REPORTS_BYTES_MAX / states.len()).await?);
        }
        reports.extend(gone.into_iter().map(SessionReport::gone));
        Ok((reports, !is_done))
    }

    /// Returns the states of sessions below this one, each once, and the ids of those that do not exist.
    async fn known_children(&self, ids: &[String]) -> Result<(Vec<ChildState>, Vec<SessionId>), Fault> {
        let mut wanted: Vec<SessionId> = Vec::with_capacity(ids.len());
        for id in ids {
            let Ok(id) = id.parse() else { return Err(unknown(id)) };
            if !wanted.contains(&id) {
                wanted.push(id);
            }
        }
        let fence = self.writer.fence();
        let mut tx = self.sandboxes.store.begin(fence.org).await.map_err(unavailable)?;
        let states = tx.children_of(fence.session, &wanted).await.map_err(unavailable)?;
        wanted.retain(|id| states.iter().all(|child| child.id != *id));
        Ok((states, wanted))
    }

    async fn child(&self, id: &str) -> Result<ChildState, Fault> {
        let (children, _) = self.known_children(&[id.to_owned()]).await?;
        children.first().copied().ok_or_else(|| unknown(id))
    }

    /// Returns the time of a call of this turn.
    async fn called_at(&self, call_id: &str) -> Result<Timestamp, Fault> {
        let is_it = |event: &Event| match &event.draft.body {
            Body::ToolCall { call_id: called, .. } if called == call_id => Some(event.ts),
            _ => None,
        };
        let found = self.writer.newest(&["tool.call"], is_it).await.map_err(unavailable)?;
        Ok(found.unwrap_or_else(|| self.sandboxes.journal.origin().now()))
    }

    async fn report(&self, id: SessionId, bytes_max: usize) -> Result<SessionReport, Fault> {
        let org = self.writer.fence().org;
        let mut unit = self.sandboxes.journal.begin(org).await.map_err(unavailable)?;
        let session = unit.tx().session(id).await.map_err(unavailable)?;
        let mut questions: Vec<_> = match session.is_waiting() {
            true => unit.open_questions(id, false).await.map_err(unavailable)?,
            false => Vec::new(),
        }
        .into_iter()
        .filter(|action| action.server.is_none())
        .flat_map(|action| action.questions)
        .collect();
        drop(unit);
        while serde_json::to_vec(&questions).is_ok_and(|json| json.len() > bytes_max) {
            questions.pop();
        }
        let said = |event: &Event| match &event.draft.body {
            Body::AgentMessage { text, .. } if event.draft.level == Level::User => Some(text.clone()),
            _ => None,
        };
        let text =
            self.sandboxes.journal.newest(org, id, &["agent.message"], said).await.map_err(unavailable)?;
        let has_turn = session.running.is_some() || session.queued.is_some();
        let ended: Option<&Turn> = session.ended.as_ref().filter(|_| !has_turn);
        Ok(SessionReport {
            session_id: id,
            status: Some(session.status),
            yield_reason: ended.and_then(|turn| turn.yield_reason),
            error: ended
                .and_then(|turn| turn.error.clone())
                .map(|error| TurnError { message: shortened(&error.message, bytes_max), ..error }),
            text: text.map(|text| shortened(&text, bytes_max)),
            questions,
        })
    }

    /// Reads the messages of a child.
    pub(super) async fn read_child(&self, id: &str, after: i64) -> Result<SessionEvents, Fault> {
        let child = self.child(id).await?;
        let org = self.writer.fence().org;
        let limit = SESSION_READ_EVENTS_MAX + 1;
        let range = Range { after, level: Level::User, kind: None, turn: None, limit };
        let store = &self.sandboxes.store;
        let entries = store.read_events(org, child.id, &range).await.map_err(unavailable)?;
        let mut read =
            SessionEvents { status: child.status, events: Vec::new(), next_after: after, has_more: false };
        let mut bytes = 0;
        for entry in entries {
            let event = entry.event(None).map_err(unavailable)?;
            let mut text =
                text_of(&event.draft.body).map(|text| shortened(&text, SESSION_READ_BYTES_MAX / 4));
            if let (Some(text), true) = (&mut text, entry.content_ref.is_some()) {
                text.push_str(" [… the rest is left out]");
            }
            bytes += text.as_ref().map_or(0, String::len);
            let is_full = read.events.len() as i64 == SESSION_READ_EVENTS_MAX;
            if is_full || (bytes > SESSION_READ_BYTES_MAX && !read.events.is_empty()) {
                read.has_more = true;
                break;
            }
            read.next_after = event.seq;
            read.events.push(SessionEvent { seq: event.seq, kind: entry.kind, text });
        }
        Ok(read)
    }

    /// Sends a message to a child, or answers its question.
    pub(super) async fn message_child(
        &self,
        call_id: &str,
        message: SessionMessage<'_>,
    ) -> Result<String, Fault> {
        let id = self.child(message.id).await?.id;
        let mode = message.mode.unwrap_or(InputMode::Queue);
        let input = Input { text: message.text.to_owned(), mode, ..Input::default() };
        self.once(call_id, "message", async |unit, stamp| {
            if message.mode.is_none()
                && unit.answer_by_message(id, message.text, false, stamp).await?.is_some()
            {
                return Ok("The message answers the question of the session.");
            }
            unit.execute(id, Command::Steer(input), stamp).await.map(|_| "The message was sent.")
        })
        .await
    }

    /// Cancels the turns of a child and of those below it.
    pub(super) async fn cancel_child(&self, call_id: &str, id: &str) -> Result<String, Fault> {
        let id = self.child(id).await?.id;
        let cancel = async |unit: &mut Unit, stamp: &Stamp| {
            unit.cancel_all(id, stamp).await.map(|_| "The session was canceled.")
        };
        self.once(call_id, "cancel", cancel).await
    }

    /// Does `work` once for a call, in the name of this session's agent. Returns its words for the model, also when the
    /// call is repeated.
    async fn once(
        &self,
        call_id: &str,
        what: &str,
        work: impl AsyncFnOnce(&mut Unit, &Stamp) -> Result<&'static str, journal::Error>,
    ) -> Result<String, Fault> {
        let (fence, journal) = (self.writer.fence(), &self.sandboxes.journal);
        let mut unit = journal.begin(fence.org).await.map_err(unavailable)?;
        let session = self.own_session(&mut unit).await?;
        let slot = Slot {
            scope: format!("child/{}", fence.session),
            key: format!("{what}/{}", hash(call_id)),
            fingerprint: sha256(call_id.as_bytes()),
            earlier: None,
        };
        match unit.claim_slot(slot).await.map_err(unavailable)? {
            None => {}
            Some(SlotState::Replay { body, .. }) => return Ok(String::from_utf8_lossy(&body).into_owned()),
            // The key has the hash of the call, too.
            Some(SlotState::Mismatch | SlotState::Fresh(_)) => {
                return Err(Fault::LogUnavailable("a call has the key of another one".to_owned()));
            }
        }
        let words = match work(&mut unit, &self.stamp(&session)).await {
            Ok(words) => words,
            Err(journal::Error::Rejected(rejection)) => {
                return Err(Fault::TellModel(format!("The session did not take it: {rejection}.")));
            }
            Err(error) => return Err(unavailable(error)),
        };
        unit.keep(|| (200, words.as_bytes().to_vec())).await.map_err(unavailable)?;
        unit.commit().await.map_err(unavailable)?;
        Ok(words.to_owned())
    }

    /// Locks this session until the commit, so that nothing begins below it after a caller has ended its turn. Sessions
    /// are locked from the top.
    async fn own_session(&self, unit: &mut Unit) -> Result<Session, Fault> {
        let fence = self.writer.fence();
        if !unit.tx().is_held(fence).await.map_err(unavailable)? {
            return Err(Fault::Stale);
        }
        let session = unit.tx().session(fence.session).await.map_err(unavailable)?;
        if session.cancel_turn_id.is_some() && session.cancel_turn_id == self.writer.turn() {
            return Err(Fault::TellModel("A caller has canceled the turn.".to_owned()));
        }
        Ok(session)
    }

    /// The agent of this session as an actor.
    fn stamp(&self, session: &Session) -> Stamp {
        let name = session.created.agent_snapshot.as_ref().map(|agent| agent.name.clone());
        let actor = Actor { id: Some(session.id.to_string()), display: name, kind: ActorKind::Agent };
        Stamp { actor, origin: self.sandboxes.journal.origin().clone() }
    }
}

async fn agent_named(unit: &mut Unit, name_or_id: &str) -> Result<Option<AgentId>, store::Error> {
    match name_or_id.parse::<AgentId>() {
        Ok(id) => Ok(Some(id)),
        Err(_) => Ok(unit.tx().agent_by_name(name_or_id).await?.map(|agent| agent.id)),
    }
}

/// Returns the parts of a session that its child has, too. The environment is not the model's choice: it limits the network and the secrets.
fn inherited(parent: Created, has_all: bool) -> Inherited {
    let mut inherited = Inherited { environment: parent.environment, ..Inherited::default() };
    if has_all {
        inherited.sources = parent.sources;
        inherited.skills = parent.agent_snapshot.map(|agent| agent.pinned_skills).unwrap_or_default();
    }
    inherited
}

fn hash(call_id: &str) -> String {
    hex(&sha256(call_id.as_bytes()))
}

fn unknown(id: &str) -> Fault {
    Fault::TellModel(format!("There is no session `{id}` below this one."))
}

/// Returns the text of an event for another agent.
fn text_of(body: &Body) -> Option<String> {
    match body {
        Body::UserMessage { text, .. } | Body::AgentMessage { text, .. } => Some(text.clone()),
        Body::ActionRequired(action) => {
            let questions: Vec<_> = action.questions.iter().map(|one| one.question.as_str()).collect();
            Some(if questions.is_empty() { format!("tool `{}`", action.tool) } else { questions.join("\n") })
        }
        Body::TurnCompleted(end) => {
            let reason = store::column::word(&end.yield_reason);
            let error = end.error.as_ref().map(|error| format!(": {}: {}", error.code, error.message));
            Some(format!("{reason}{}", error.unwrap_or_default()))
        }
        _ => None,
    }
}

fn shortened(text: &str, bytes_max: usize) -> String {
    match text.len() > bytes_max {
        true => format!("{} [… {} bytes in all]", truncate(text, bytes_max), text.len()),
        false => text.to_owned(),
    }
}
