//! Connection wrapper that fails writes to a peer that does not read.
//!
//! Called by `serve`. A client that requests much and reads nothing would hold memory and a connection
//! permit forever: a write that makes no progress for `STREAM_WRITE_TIMEOUT` ends the connection.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep},
};

use crate::base::limit::STREAM_WRITE_TIMEOUT;

/// A TCP stream with a write timeout.
pub(super) struct WriteTimeout {
    stream: TcpStream,
    /// Deadline of the current write; runs only while a write is pending.
    limit: Pin<Box<Sleep>>,
    waits: bool,
}

impl WriteTimeout {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, limit: Box::pin(sleep(STREAM_WRITE_TIMEOUT)), waits: false }
    }

    fn bounded<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = false;
            return written;
        }
        if !std::mem::replace(&mut self.waits, true) {
            self.limit.as_mut().reset(Instant::now() + STREAM_WRITE_TIMEOUT);
        }
        ready!(self.limit.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WriteTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for WriteTimeout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.bounded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
