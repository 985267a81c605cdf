//! The service's end of a sandbox's network connection.
//!
//! Opened by the providers and used by `lifecycle`, which attaches it to an egress proxy.

use std::io;

use futures::stream::BoxStream;
use tokio::io::{AsyncRead, AsyncWrite};

/// Name of the file with the certificates that the sandbox's commands trust, as in their variables.
pub(crate) const CERTIFICATES_FILE: &str = "certificates.pem";

/// A sandbox's outgoing connections as they arrive. The socket closes when this is dropped. After an error the next
/// connection may be accepted.
pub type EgressSocket = BoxStream<'static, io::Result<Box<dyn EgressConnection>>>;

/// An outgoing connection of a sandbox.
pub trait EgressConnection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> EgressConnection for C {}
