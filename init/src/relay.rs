//! Egress relay: connects a port of the sandbox's loopback to the egress socket.
//!
//! Started by the server as `sojourn-init relay` at the first connection to the port, with the listener as
//! standard input. It does not interpret the data; the proxy outside decides. One thread with poll and
//! bounded buffers, because it must work even if the sandbox's processes are used up.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use rustix::event::{PollFd, PollFlags, poll};
use sojourn_init::protocol::{EGRESS_DIR, PROXY_SOCKET};

use crate::privilege;

/// Maximum concurrent connections; others wait in the port's backlog.
const PAIRS_MAX: usize = 128;
/// Buffer size per direction of a connection.
const BUFFER_BYTES: usize = 16 << 10;
/// Response to the program while no worker holds the session.
const IDLE_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 53\r\n\
    Connection: close\r\n\r\nthis sandbox has no network while its session is idle";

/// Serves for the lifetime of the sandbox.
pub(crate) fn serve() -> io::Result<()> {
    privilege::keep_nothing()?;
    let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    listener.set_nonblocking(true)?;
    let mut pairs: Vec<Pair> = Vec::new();
    loop {
        let ready = wait(&listener, &pairs)?;
        let mut kept = Vec::with_capacity(pairs.len());
        for (mut pair, ready) in pairs.into_iter().zip(&ready[1..]) {
            if !ready || pair.progress().is_ok_and(|open| open) {
                kept.push(pair);
            }
        }
        pairs = kept;
        if ready[0] && pairs.len() < PAIRS_MAX {
            pairs.extend(accept(&listener));
        }
    }
}

/// Whether the listener, and each connection, is ready.
fn wait(listener: &TcpListener, pairs: &[Pair]) -> io::Result<Vec<bool>> {
    let listening = if pairs.len() < PAIRS_MAX { PollFlags::IN } else { PollFlags::empty() };
    let mut slots = vec![PollFd::from_borrowed_fd(listener.as_fd(), listening)];
    let mut whose = vec![0];
    for (at, pair) in (1..).zip(pairs) {
        // Poll reports a hang-up even for an empty set of events and would return immediately again and
        // again.
        for (fd, flags) in pair.interest().into_iter().filter(|(_, flags)| !flags.is_empty()) {
            slots.push(PollFd::from_borrowed_fd(fd, flags));
            whose.push(at);
        }
    }
    match poll(&mut slots, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready = vec![false; pairs.len() + 1];
    for (at, slot) in whose.into_iter().zip(&slots) {
        ready[at] |= !slot.revents().is_empty();
    }
    Ok(ready)
}

fn accept(listener: &TcpListener) -> Option<Pair> {
    let (mut inside, _) = listener.accept().ok()?;
    let Ok(outside) = UnixStream::connect(Path::new(EGRESS_DIR).join(PROXY_SOCKET)) else {
        // The message fits into an empty socket buffer; a program that does not read it only sees the close.
        let _ = inside.write_all(IDLE_RESPONSE);
        return None;
    };
    inside.set_nonblocking(true).ok()?;
    outside.set_nonblocking(true).ok()?;
    Some(Pair { inside, outside, out: Pipe::default(), back: Pipe::default() })
}

/// A connection of the sandbox and its connection to the egress socket.
struct Pair {
    inside: TcpStream,
    outside: UnixStream,
    out: Pipe,
    back: Pipe,
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    bytes: Vec<u8>,
    sent: usize,
    /// End of input was read.
    ended: bool,
    /// End of input was passed on.
    closed: bool,
}

impl Pair {
    fn interest(&self) -> [(BorrowedFd<'_>, PollFlags); 2] {
        let flags = |reads: &Pipe, writes: &Pipe| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, reads.wants_more());
            flags.set(PollFlags::OUT, writes.has_some());
            flags
        };
        [
            (self.inside.as_fd(), flags(&self.out, &self.back)),
            (self.outside.as_fd(), flags(&self.back, &self.out)),
        ]
    }

    /// Transfers available data. Returns whether more may come.
    fn progress(&mut self) -> io::Result<bool> {
        if self.out.carry(&mut &self.inside, &mut &self.outside)? {
            self.outside.shutdown(Shutdown::Write)?;
        }
        if self.back.carry(&mut &self.outside, &mut &self.inside)? {
            self.inside.shutdown(Shutdown::Write)?;
        }
        Ok(!(self.out.closed && self.back.closed))
    }
}

impl Pipe {
    fn wants_more(&self) -> bool {
        !self.ended && self.bytes.is_empty()
    }

    fn has_some(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Transfers data. Returns true once: when the writer must be shut down.
    fn carry(&mut self, from: &mut impl Read, to: &mut impl Write) -> io::Result<bool> {
        if self.wants_more() {
            self.bytes.resize(BUFFER_BYTES, 0);
            let read = if_ready(from.read(&mut self.bytes));
            self.bytes.truncate(*read.as_ref().unwrap_or(&None).as_ref().unwrap_or(&0));
            self.ended = read? == Some(0);
        }
        while self.sent < self.bytes.len() {
            match if_ready(to.write(&self.bytes[self.sent..]))? {
                Some(0) => return Err(io::ErrorKind::WriteZero.into()),
                Some(length) => self.sent += length,
                None => return Ok(false),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        let closes = self.ended && !self.closed;
        self.closed |= self.ended;
        Ok(closes)
    }
}

/// Maps `WouldBlock` to `None`.
fn if_ready(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(length) => Ok(Some(length)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_the_end_of_input_are_passed_on() {
        let mut pipe = Pipe::default();
        let long = vec![7u8; BUFFER_BYTES + 1];
        let (mut from, mut to) = (long.as_slice(), Vec::new());
        let mut turns = 0;
        while !pipe.carry(&mut from, &mut to).unwrap() {
            turns += 1;
            assert!(turns < 10, "it ends");
        }
        assert_eq!(to, long);
        assert!(pipe.closed && !pipe.carry(&mut from, &mut to).unwrap(), "the end is told once");
    }

    #[test]
    fn the_idle_response_has_its_content_length() {
        let text = std::str::from_utf8(IDLE_RESPONSE).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{}", body.len());
    }
}
