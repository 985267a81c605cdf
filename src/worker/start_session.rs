//! Sessions that an agent starts: children of the leased one, one for each call.
//!
//! The call's id makes the session's key, so that whoever takes the call over finds the
//! session of the first time.

use async_trait::async_trait;

use super::leased_sandbox::LeasedSandbox;
use crate::{
    base::{seal::sha256, text::hex},
    domain::{
        Actor, ActorKind, AgentId, SessionId,
        decide::{Input, Stamp},
        schedule::SessionTemplate,
        session::Source,
    },
    journal::Unit,
    store,
    tool::{Child, Sessions, ToolFault},
    trigger::{self, Opening},
};

#[async_trait]
impl Sessions for LeasedSandbox {
    async fn start(&self, call_id: &str, child: Child<'_>) -> Result<Result<SessionId, String>, ToolFault> {
        let (fence, journal) = (self.session.fence, &self.session.worker.journal);
        let mut unit = journal.begin(fence.org).await.map_err(away)?;
        if !unit.tx().is_held(fence).await.map_err(away)? {
            return Err(ToolFault::Stale);
        }
        let key = format!("start_session/{}/{}", fence.session, hex(&sha256(call_id.as_bytes())));
        if let Some(known) = unit.tx().session_by_key(&key).await.map_err(away)? {
            return Ok(Ok(known.id));
        }
        let parent = unit.tx().session(fence.session).await.map_err(away)?;
        let name = parent.created.agent_snapshot.map(|agent| agent.name);
        let actor = Actor { id: Some(fence.session.to_string()), display: name, kind: ActorKind::Agent };
        let stamp = Stamp { actor, origin: journal.origin().clone() };
        let Some(agent) = agent_of(&mut unit, child.agent).await.map_err(away)? else {
            return Ok(Err(format!("There is no agent `{}`.", child.agent)));
        };
        let opening = Opening {
            agent,
            session_template: SessionTemplate {
                title: child.title.map(str::to_owned),
                ..SessionTemplate::default()
            },
            sources: Vec::new(),
            input: Input { text: child.input.to_owned(), ..Input::default() },
            source: Source::Agent,
            // Whether its model may be used here is looked at when its turn starts.
            scripted: true,
            parent: Some((fence.session, key)),
        };
        match trigger::open(&mut unit, opening, &stamp).await {
            Ok(opened) => {
                unit.commit().await.map_err(away)?;
                Ok(Ok(opened.session.id))
            }
            Err(refused) => match refused.code() {
                Some(_) => Ok(Err(format!("No session was started: {refused}."))),
                None => Err(away(refused)),
            },
        }
    }
}

async fn agent_of(unit: &mut Unit, named: &str) -> Result<Option<AgentId>, store::Error> {
    match named.parse::<AgentId>() {
        Ok(id) => Ok(Some(id)),
        Err(_) => Ok(unit.tx().agent_by_name(named).await?.map(|agent| agent.id)),
    }
}

fn away(error: impl std::fmt::Display) -> ToolFault {
    ToolFault::Away(error.to_string())
}
