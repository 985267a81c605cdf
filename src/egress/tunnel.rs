//! A tunnel: TLS to the requested host that is not decrypted.
//!
//! Called by `proxy`. Only the first message of the handshake is parsed, before any of it is forwarded:
//! otherwise a tunnel to one host behind a shared front end could address another host there.

use std::io;

use rustls::server::Acceptor;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional},
    time::timeout,
};

use super::decision::Reason;
use crate::{
    base::limit::{EGRESS_CLIENT_HELLO_BYTES_MAX, EGRESS_CLIENT_HELLO_TIMEOUT},
    domain::network::canonical,
};

/// Reads a ClientHello; returns the bytes read if its server name is this host.
pub(super) async fn hello(
    inside: &mut (impl AsyncRead + Unpin),
    host: &str,
) -> io::Result<Result<Vec<u8>, Reason>> {
    timeout(EGRESS_CLIENT_HELLO_TIMEOUT, read_hello(inside, host)).await?
}

/// Forwards both directions until they end.
pub(super) async fn carry(
    inside: &mut (impl AsyncRead + AsyncWrite + Unpin),
    outside: &mut (impl AsyncRead + AsyncWrite + Unpin),
    hello: &[u8],
) -> io::Result<()> {
    outside.write_all(hello).await?;
    copy_bidirectional(inside, outside).await.map(|_| ())
}

async fn read_hello(
    inside: &mut (impl AsyncRead + Unpin),
    host: &str,
) -> io::Result<Result<Vec<u8>, Reason>> {
    let (mut acceptor, mut seen, mut piece) = (Acceptor::default(), Vec::new(), [0; 4 << 10]);
    loop {
        let length = inside.read(&mut piece).await?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        seen.extend_from_slice(&piece[..length]);
        let mut unread = &piece[..length];
        while !unread.is_empty() {
            if acceptor.read_tls(&mut unread)? == 0 {
                return Ok(Err(Reason::NotTls));
            }
            match acceptor.accept() {
                Err(_) => return Ok(Err(Reason::NotTls)),
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let named = accepted.client_hello().server_name().map(canonical);
                    return Ok(match named {
                        Some(Ok(name)) if name == host => Ok(seen),
                        Some(_) | None => Err(Reason::Sni),
                    });
                }
            }
        }
        if seen.len() > EGRESS_CLIENT_HELLO_BYTES_MAX {
            return Ok(Err(Reason::NotTls));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::ring};

    use super::*;

    fn hello_to(host: &'static str) -> Vec<u8> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(config), host.try_into().unwrap()).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[tokio::test]
    async fn a_handshake_must_name_the_host_of_its_tunnel() {
        let bytes = hello_to("a.example");
        assert_eq!(hello(&mut bytes.as_slice(), "a.example").await.unwrap(), Ok(bytes.clone()));
        assert_eq!(hello(&mut bytes.as_slice(), "b.example").await.unwrap(), Err(Reason::Sni));
        // A client sends no server name for an IP address.
        let nameless = hello_to("192.0.2.1");
        assert_eq!(hello(&mut nameless.as_slice(), "a.example").await.unwrap(), Err(Reason::Sni));
        for plain in [b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n".as_slice(), b"SSH-2.0-OpenSSH_9.2\r\n"] {
            assert_eq!(hello(&mut &*plain, "a.example").await.unwrap(), Err(Reason::NotTls));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes: Vec<u8>) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let _ = runtime.block_on(hello(&mut bytes.as_slice(), "a.example"));
        }
    }
}
