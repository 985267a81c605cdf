//! Faults of the database and of the links to it: crash restarts, silent links, and a dump beside the load.

use std::{process::Stdio, sync::atomic::Ordering, time::Duration};

use anyhow::{Context, ensure};
use sojourn::base::limit::STATEMENT_ANSWER_TIMEOUT;
use tokio::{
    io::AsyncReadExt,
    process::Command,
    time::{Instant, sleep},
};

use crate::{faults::Faults, plan::SeededRng, processes::Role};

/// Time for which a dump is read, so that it holds its locks beside many appends.
const DUMP: Duration = Duration::from_secs(4);

impl Faults {
    pub async fn restart_postgres(&self, dice: &SeededRng) -> anyhow::Result<bool> {
        sleep(dice.millis(4_000, 12_000)).await;
        // A dump does not survive a crash of its server.
        let _calm = self.server.write().await;
        let fault = self.fleet.begin(0);
        let outage = self.cluster.crash().await;
        self.fleet.end(fault);
        let outage_ms = u32::try_from(outage?.as_millis()).unwrap_or(u32::MAX);
        self.counts.longest_outage_ms.fetch_max(outage_ms, Ordering::Relaxed);
        Ok(true)
    }

    /// One process hears nothing of the database for longer than a lease, and no connection is closed.
    pub async fn silence(&self, dice: &SeededRng) -> anyhow::Result<bool> {
        sleep(dice.millis(2_000, 10_000)).await;
        let role = if dice.once_in(3) { Role::Api } else { Role::Worker };
        let Some(mut slot) = self.pick(role, dice) else { return Ok(false) };
        let fault = self.fleet.begin_silence(slot.process);
        slot.silence();
        sleep(self.plan.lease() + dice.millis(300, 4_000)).await;
        slot.unsilence();
        // Its connections stay dead until it gives them up. Other faults wait, so that each is explained.
        sleep(STATEMENT_ANSWER_TIMEOUT + Duration::from_secs(2)).await;
        self.fleet.end(fault);
        if slot.has_ended() {
            self.violations.note(format!("a process ended by itself: {}", slot.last_log_lines()));
            self.bring_up(&mut slot).await;
        }
        Ok(true)
    }

    /// A dump of the whole database that is read slowly, while the load must go on.
    pub async fn dump(&self, dice: &SeededRng) -> anyhow::Result<bool> {
        sleep(dice.millis(3_000, 9_000)).await;
        let _calm = self.server.read().await;
        let (dir, port, database) = self.cluster.socket()?;
        let program = self.cluster.programs().await?.join("pg_dump");
        let mut command = Command::new(&program);
        command.args(["--host", &dir, "--port", &port, "--username", "postgres", &database]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let before = self.cluster.written().await?;
        let mut child = command.spawn().with_context(|| program.display().to_string())?;
        let mut output = child.stdout.take().context("its output")?;
        let began = Instant::now();
        let (mut buffer, mut bytes) = (vec![0; 16 << 10], 0);
        loop {
            let count = output.read(&mut buffer).await?;
            if count == 0 {
                break;
            }
            bytes += count;
            // The pipe is full meanwhile, so its transaction stays open.
            if began.elapsed() < DUMP {
                sleep(Duration::from_millis(200)).await;
            }
        }
        let ended = child.wait_with_output().await?;
        let events = self.cluster.written().await? - before;
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            self.violations.note(format!("pg_dump ended with {}: {said}", ended.status));
        }
        ensure!(bytes > 0, "the dump was empty");
        if began.elapsed() >= DUMP && events == 0 {
            self.violations.note(format!("no event was written beside a dump of {:?}", began.elapsed()));
        }
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        self.counts.events_beside_dumps.fetch_add(events, Ordering::Relaxed);
        Ok(true)
    }
}
