//! One connection of a worker: one call, one response, without blocking.
//!
//! Called by the server's loop. Reads exactly the header and the JSON of a call: the payload stays in the
//! socket for the helper that takes over the connection, so init never holds a file's content.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::Instant,
};

use rustix::event::PollFlags;
use sojourn_init::{
    frame::{self, HEADER_BYTES, Header},
    protocol::{Answer, Call},
};

/// A connection and the state of its call.
pub(crate) struct Connection {
    stream: UnixStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    sent: usize,
    /// Event that the response waits for.
    pub pending: Option<Pending>,
}

/// Event that a response waits for.
pub(crate) enum Pending {
    /// The end of the measurement of the disk; then the files are packed.
    Pack { epoch: i64 },
    /// The same; then the files are listed.
    Scan { entries_max: u64 },
    /// The end of the command, or this time.
    Exit { exec_id: String, until: Option<Instant> },
    /// The end of all processes that the command started.
    Gone { exec_id: String },
}

/// A call and the length of its payload, which is still in the socket.
pub(crate) type Arrived = (Call, usize);

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, inbox: Vec::new(), outbox: Vec::new(), sent: 0, pending: None })
    }

    /// Poll events of this connection. While a response waits, only a hang-up of the caller matters, which
    /// poll always reports.
    pub(crate) fn interest(&self) -> (BorrowedFd<'_>, PollFlags) {
        let flags = if !self.outbox.is_empty() {
            PollFlags::OUT
        } else if self.pending.is_some() {
            PollFlags::empty()
        } else {
            PollFlags::IN
        };
        (self.stream.as_fd(), flags)
    }

    /// Reads the call; `None` while it is incomplete.
    ///
    /// # Errors
    /// The caller hung up or sent an invalid call; the connection must be dropped.
    pub(crate) fn read_call(&mut self) -> io::Result<Option<Arrived>> {
        loop {
            let header = match self.inbox.first_chunk::<HEADER_BYTES>() {
                Some(head) => Some(Header::parse(*head)?),
                None => None,
            };
            let wanted = HEADER_BYTES + header.map_or(0, |header| header.json_bytes);
            let have = self.inbox.len();
            if let Some(header) = header
                && have == wanted
            {
                let call = serde_json::from_slice(&self.inbox[HEADER_BYTES..])?;
                self.inbox = Vec::new();
                return Ok(Some((call, header.payload_bytes)));
            }
            self.inbox.resize(wanted, 0);
            let read = self.stream.read(&mut self.inbox[have..]);
            self.inbox.truncate(have + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Queues the response.
    pub(crate) fn answer(&mut self, answer: &Answer, payload: &[u8]) -> io::Result<()> {
        self.pending = None;
        self.outbox = frame::encode(answer, payload.len())?;
        self.outbox.extend_from_slice(payload);
        Ok(())
    }

    /// Sends as much as the socket accepts. Returns whether everything was sent.
    pub(crate) fn send(&mut self) -> io::Result<bool> {
        while self.sent < self.outbox.len() {
            match self.stream.write(&self.outbox[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => self.sent += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Whether a response is queued.
    pub(crate) fn is_answering(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// The socket in blocking mode, for a helper that sends the response itself.
    pub(crate) fn hand_over(&self) -> io::Result<UnixStream> {
        self.stream.set_nonblocking(false)?;
        self.stream.try_clone()
    }
}
