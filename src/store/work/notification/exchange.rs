//! Loops that exchange notifications with the other processes.

use std::{collections::HashSet, time::Duration};

use metrics::counter;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    Notifications,
    listener::{LISTEN_CHECK_INTERVAL, Received},
    word::{Channel, Outgoing, Payloads, Word},
};
use crate::{
    base::limit::{
        DELTA_ANNOUNCE_INTERVAL, DELTA_INTERVAL, NOTIFICATION_INTERVAL, PROCESS_HEARTBEAT_INTERVAL,
        PROCESS_HEARTBEAT_TTL, PROCESSES_REFRESH_INTERVAL,
    },
    store::{Error, Result, Store},
};

/// Delay before listening again after the connection was lost.
const RELISTEN_DELAY: Duration = Duration::from_millis(500);

impl Notifications {
    /// Sends this process's notifications to the others until `stop`.
    pub async fn publish(&self, store: &Store, stop: CancellationToken) {
        while stop.run_until_cancelled(self.0.has_outgoing.notified()).await.is_some() {
            let batch = Payloads::of(self.0.peers.own().id, &self.take_outgoing());
            if batch.len() > 0 {
                self.publish_now(store, &batch).await;
            }
            // Every notification costs the server a commit and wakes every backend that listens.
            sleep(NOTIFICATION_INTERVAL).await;
        }
    }

    /// Sends response deltas to followers in other processes until `stop`, and announces the followers
    /// of this process.
    pub async fn publish_deltas(&self, store: &Store, stop: CancellationToken) {
        let mut announced = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.0.deltas.waiting() => {
                    let payloads = self.0.deltas.payloads(self.0.peers.own().id);
                    if payloads.len() == 0 {
                        continue;
                    }
                    self.publish_now(store, &payloads).await;
                    // Every notification costs the server a commit and wakes every backend that listens.
                    sleep(DELTA_INTERVAL).await;
                }
                () = sleep_until(announced + DELTA_ANNOUNCE_INTERVAL) => {
                    announced = Instant::now();
                    for session in self.0.deltas.followed() {
                        self.publish_soon(Channel::Workers, Word::Followed(session));
                    }
                }
            }
        }
    }

    /// Receives notifications of other processes until `stop`; reconnects after an error.
    pub async fn listen(&self, store: &Store, stop: CancellationToken) {
        while !stop.is_cancelled() {
            if let Some(Err(error)) = stop.run_until_cancelled(self.receive_all(store)).await {
                tracing::debug!(%error, "notifications are not received; polling finds the work");
                stop.run_until_cancelled(sleep(RELISTEN_DELAY)).await;
            }
        }
    }

    /// Records this process among the live ones and reads the others, until `stop`. Then removes it.
    pub async fn keep_process(&self, store: &Store, stop: CancellationToken) {
        let own = self.0.peers.own();
        let mut beats = interval(PROCESS_HEARTBEAT_INTERVAL);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_announced = false;
        while !stop.is_cancelled() {
            tokio::select! {
                _ = beats.tick() => {}
                () = self.0.processes.notified() => {}
                () = stop.cancelled() => break,
            }
            match store.record_process(own, self.0.peers.free_slots(), PROCESS_HEARTBEAT_TTL).await {
                Ok(live) => {
                    self.0.peers.learn(&live);
                    if !is_announced {
                        is_announced = true;
                        self.publish_soon(Channel::Processes, Word::Processes);
                    }
                }
                Err(error @ Error::Unavailable { .. }) => {
                    tracing::debug!(%error, "the heartbeat of the process failed, retrying");
                }
                Err(error) => tracing::warn!(%error, "the heartbeat of the process failed, retrying"),
            }
            // A rollout starts and ends many processes at once.
            sleep(PROCESSES_REFRESH_INTERVAL).await;
        }
        let gone = Outgoing::from([(Channel::Processes, HashSet::from([Word::Processes]))]);
        match store.remove_process(own.id).await {
            Ok(()) => self.publish_now(store, &Payloads::of(own.id, &gone)).await,
            Err(error) => tracing::debug!(%error, "the process is considered dead only after a while"),
        }
    }

    async fn publish_now(&self, store: &Store, payloads: &Payloads) {
        counter!("sojourn_notifications_sent_total").increment(payloads.len() as u64);
        if let Err(error) = store.notify(payloads).await {
            tracing::debug!(%error, "notifications were not sent; polling finds the work");
        }
    }

    /// Receives notifications until the connection is lost.
    async fn receive_all(&self, store: &Store) -> Result<()> {
        let mut listener = store.listen(self.channels()).await?;
        // Notifications sent while nobody listened are lost, so wake every waiter once.
        self.wake_all();
        let mut checks = interval(LISTEN_CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                received = listener.next() => {
                    let received = received?;
                    counter!("sojourn_notifications_received_total").increment(1);
                    match received {
                        Received::Changes(payload) => self.receive(&payload),
                        Received::Deltas(payload) => self.0.deltas.receive(&payload),
                    }
                }
                () = self.0.watches.new_ones() => {
                    let new = listener.listen_to(self.0.watches.channels()).await?;
                    // What was committed since they subscribed was not received.
                    self.0.watches.wake_channels(&new);
                }
                _ = checks.tick() => {
                    listener.check().await?;
                    let new = listener.set(&self.channels()).await?;
                    self.0.watches.wake_channels(&new);
                }
            }
        }
    }

    /// The channels of this process.
    fn channels(&self) -> HashSet<Channel> {
        let own = self.0.peers.own();
        let mut channels = self.0.watches.channels();
        channels.extend([Channel::Processes, Channel::Process(own.id)]);
        channels.extend(own.nodes.as_ref().map(|_| Channel::Workers));
        channels.extend(own.is_api.then_some(Channel::Deltas(own.id)));
        channels
    }
}
