//! The session's files as a whole: they are measured and packed, never both at once, and listed.

use std::{
    io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sojourn_init::protocol::{Answer, FaultKind};

use super::Server;
use crate::{
    connection::{Connection, Pending},
    kill,
    usage::Usage,
};

/// Interval of measurements, where the disk has no file system of its own.
pub(super) const USAGE_INTERVAL: Duration = Duration::from_secs(2);

impl Server {
    /// Measures disk usage periodically while files may change. While the limit is exceeded, measuring
    /// continues until files were removed.
    pub(super) fn measure_disk(&mut self) {
        let may_grow = self.was_written || self.is_over || self.execs.running() > 0;
        if self.disk_bytes.is_none() || self.usage.is_some() || !may_grow {
            return;
        }
        if self.packing.is_some() || self.last_measured.elapsed() < USAGE_INTERVAL {
            return;
        }
        self.last_measured = Instant::now();
        // If no process can be started, the next iteration retries.
        if let Ok(usage) = Usage::start() {
            self.helpers.insert(usage.pid);
            self.usage = Some(usage);
            self.was_written = false;
        }
    }

    /// Reads the result of a measurement that has ended.
    pub(super) fn read_usage(&mut self) {
        if let Some(bytes) = self.usage.take().and_then(Usage::bytes) {
            self.is_over = self.disk_bytes.is_some_and(|most| bytes > most);
            if self.is_over {
                self.execs.end_for_disk();
            }
        }
    }

    /// Stops all processes and starts a helper that sends the session's files.
    pub(super) fn pack(&mut self, token: u64) -> io::Result<()> {
        let (packing, said) = io::pipe()?;
        kill::stop_descendants(std::process::id());
        let before = self.helpers.len();
        let helped = self.help_saying(token, &["pack"], said.into());
        self.packing = Some(packing);
        if self.helpers.len() == before {
            self.end_packing();
        }
        helped
    }

    /// Starts a helper that lists the session's files, once no other one changes modes for a moment.
    pub(super) fn scan(&mut self, token: u64, entries_max: u64) -> io::Result<()> {
        let refused = match entries_max {
            // At once: that is how a worker finds out whether this init knows the call.
            0 => Answer::fault(FaultKind::Refused, "there are more than 0 files"),
            _ if self.is_packing() => busy_packing(),
            _ if self.usage.is_some() => return self.wait_for(token, Pending::Scan { entries_max }),
            _ => return self.help(token, &["scan", &entries_max.to_string()]),
        };
        self.answer(token, &refused, &[])
    }

    /// Packs or lists files for the connections that waited for the end of a measurement. Only one of them packs.
    pub(super) fn after_measurement(&mut self) {
        let pack = |(&token, connection): (&u64, &Connection)| match connection.pending {
            Some(Pending::Pack { epoch }) => Some((token, epoch)),
            _ => None,
        };
        let scan = |(&token, connection): (&u64, &Connection)| match connection.pending {
            Some(Pending::Scan { entries_max }) => Some((token, entries_max)),
            _ => None,
        };
        let packs: Vec<_> = self.connections.iter().filter_map(pack).collect();
        let scans: Vec<_> = self.connections.iter().filter_map(scan).collect();
        for (token, epoch) in packs {
            let answered = match self.fence(epoch) {
                Err(stale) => self.answer(token, &stale, &[]),
                Ok(()) if self.is_packing() => self.answer(token, &busy_packing(), &[]),
                Ok(()) => self.pack(token),
            };
            if answered.is_err() {
                self.connections.remove(&token);
            }
        }
        for (token, entries_max) in scans {
            if self.scan(token, entries_max).is_err() {
                self.connections.remove(&token);
            }
        }
    }

    /// Continues the processes that were stopped for an archive.
    pub(super) fn end_packing(&mut self) {
        if self.packing.take().is_some() && !self.is_quiesced {
            kill::continue_descendants(std::process::id());
        }
    }

    /// Stops all processes until [`Self::resume`].
    pub(super) fn quiesce(&mut self) -> Answer {
        self.is_quiesced = true;
        // While an archive is made, all others are stopped, and its helper must go on.
        if self.is_packing() {
            return Answer::Done {};
        }
        kill::stop_descendants(std::process::id());
        // An archive waits for the end of a measurement.
        if let Some(usage) = &self.usage {
            kill::continue_process(usage.pid);
        }
        Answer::Done {}
    }

    /// Continues the processes that were stopped by [`Self::quiesce`], unless an archive is made.
    pub(super) fn resume(&mut self) {
        if std::mem::take(&mut self.is_quiesced) && !self.is_packing() {
            kill::continue_descendants(std::process::id());
        }
    }

    /// Whether files are being read for an archive. Checks the pipe again, so that a caller that was told
    /// that they were read is not refused.
    pub(super) fn is_packing(&mut self) -> bool {
        if let Some(packing) = &self.packing {
            let mut slot = [PollFd::from_borrowed_fd(packing.as_fd(), PollFlags::IN)];
            if poll(&mut slot, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                self.end_packing();
            }
        }
        self.packing.is_some()
    }
}

pub(super) fn busy_packing() -> Answer {
    Answer::fault(FaultKind::Unavailable, "the sandbox's files are being checkpointed; try again in a moment")
}
