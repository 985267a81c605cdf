//! New sessions: decided from what a caller wants, then stored with their first events.

use super::{Error, Unit, spill::pack, unit::numbered};
use crate::{
    domain::{
        Session, SessionId, apply,
        decide::{self, NewSession, Stamp},
    },
    store::{command::Change, creation::Creation, event::Packed, notification::Notification},
};

impl Unit {
    /// Decides a new session: its row, its first queued turn and its first events.
    ///
    /// No row is stored yet.
    pub fn decide_session(&self, id: SessionId, new: NewSession, stamp: &Stamp) -> Result<Creation, Error> {
        let drafts = decide::create(new, stamp);
        let Some((session, _)) = apply::fold(id, &numbered(&drafts, 0, stamp.origin.now())) else {
            unreachable!("a new log begins with session.created");
        };
        let events = pack(self.tx.org(), id, drafts)?;
        Ok(Creation { session, events, token: None, kept: None })
    }

    /// Stores a new session and notifies workers.
    pub async fn create(&mut self, creation: Creation) -> Result<Session, Error> {
        let session = creation.session.clone();
        self.create_all(vec![creation]).await?;
        Ok(session)
    }

    /// Stores new sessions in one statement.
    ///
    /// Returns for each, in order, whether it was created. It is not created when its request
    /// already has a response.
    pub(super) async fn create_all(&mut self, creations: Vec<Creation>) -> Result<Vec<bool>, Error> {
        let inserted = self.tx.insert_sessions(&creations).await?;
        for (creation, inserted) in creations.into_iter().zip(&inserted).filter(|(_, made)| made.is_new) {
            self.began(&creation.session, creation.events, inserted.has_deliveries);
        }
        Ok(inserted.into_iter().map(|inserted| inserted.is_new).collect())
    }

    /// Stores a new session without its events, for rows that must exist before them, such as
    /// destinations. [`Unit::begin_log`] appends the events.
    pub async fn create_row(&mut self, creation: Creation) -> Result<Creation, Error> {
        let (events, row) = (creation.events, Creation { events: Vec::new(), ..creation });
        self.tx.insert_sessions(std::slice::from_ref(&row)).await?;
        Ok(Creation { events, ..row })
    }

    /// Appends the first events of a new session whose row is stored, and notifies workers.
    pub async fn begin_log(&mut self, creation: Creation) -> Result<(), Error> {
        let Creation { session, events, .. } = creation;
        let change = Change {
            session: &session,
            turns: &[],
            base: 0,
            events: &events,
            agent_snapshot: None,
            is_due: false,
        };
        let has_deliveries = self.tx.write_back(&change).await?.has_deliveries;
        self.began(&session, events, has_deliveries);
        Ok(())
    }

    fn began(&mut self, session: &Session, events: Vec<Packed>, has_deliveries: bool) {
        self.grew(session.id, 0, session.created_at, events, has_deliveries);
        if session.queued.is_some() {
            self.notification(Notification::Job { node: None });
        }
    }
}
