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
                        _ if has_encrypted_hello(&seen) => Err(Reason::EncryptedHello),
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

/// Type of the extension that carries an encrypted ClientHello with another server name (RFC 9849, section 5).
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

/// Whether a ClientHello, which rustls has parsed, has the extension of an encrypted one. Own code, because rustls
/// shows no extension that it does not know. Records, handshake and extensions are those of RFC 8446, sections 5.1,
/// 4 and 4.2. Text that cannot be read has it.
fn has_encrypted_hello(seen: &[u8]) -> bool {
    let types = || -> Option<bool> {
        let (mut records, mut handshake) = (Bytes(seen), Vec::new());
        while !records.0.is_empty() {
            records.take(3)?;
            let length = records.number(2)?;
            // The last record may be another one that has not arrived completely.
            let Some(fragment) = records.take(length) else { break };
            handshake.extend_from_slice(fragment);
        }
        let mut hello = Bytes(&handshake);
        hello.take(1)?;
        let length = hello.number(3)?;
        let mut hello = Bytes(hello.take(length)?);
        hello.take(2 + 32)?;
        for bytes_of_length in [1, 2, 1] {
            let length = hello.number(bytes_of_length)?;
            hello.take(length)?;
        }
        let length = hello.number(2)?;
        let mut extensions = Bytes(hello.take(length)?);
        while !extensions.0.is_empty() {
            if extensions.number(2)? == usize::from(ENCRYPTED_CLIENT_HELLO) {
                return Some(true);
            }
            let length = extensions.number(2)?;
            extensions.take(length)?;
        }
        Some(false)
    };
    types().unwrap_or(true)
}

/// Bytes that are read from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
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

    /// The ClientHello with one more extension, in records of at most `size` bytes.
    fn with_extension(hello: &[u8], kind: u16, size: usize) -> Vec<u8> {
        let mut message = hello[5..].to_vec();
        // An outer ClientHello: type, cipher suite, config id, encapsulated key and payload (RFC 9849, section 5).
        let extension = [&kind.to_be_bytes()[..], &[0, 11, 0, 0, 1, 0, 1, 7, 0, 0, 0, 1, 9]].concat();
        // After type, length, version and random: session id, cipher suites, compression methods.
        let mut at = 4 + 2 + 32;
        at += 1 + usize::from(message[at]);
        at += 2 + usize::from(u16::from_be_bytes([message[at], message[at + 1]]));
        at += 1 + usize::from(message[at]);
        let length = u16::try_from(message.len() - at - 2 + extension.len()).unwrap();
        message[at..at + 2].copy_from_slice(&length.to_be_bytes());
        message.extend_from_slice(&extension);
        let length = u32::try_from(message.len() - 4).unwrap();
        message[1..4].copy_from_slice(&length.to_be_bytes()[1..]);
        let record =
            |part: &[u8]| [&[22, 3, 1], &u16::try_from(part.len()).unwrap().to_be_bytes()[..], part].concat();
        message.chunks(size).flat_map(record).collect()
    }

    #[tokio::test]
    async fn a_handshake_that_hides_another_name_is_refused() {
        let plain = hello_to("a.example");
        for size in [16 << 10, 64, 7] {
            let known = with_extension(&plain, 0xff01 - 1, size);
            assert_eq!(hello(&mut known.as_slice(), "a.example").await.unwrap(), Ok(known.clone()), "{size}");
            let hidden = with_extension(&plain, ENCRYPTED_CLIENT_HELLO, size);
            let refused = hello(&mut hidden.as_slice(), "a.example").await.unwrap();
            assert_eq!(refused, Err(Reason::EncryptedHello), "{size}");
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
