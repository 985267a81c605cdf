//! Frames of `sojourn-init`'s protocol over an asynchronous stream: lengths, one JSON value, raw bytes.

use std::io;

use serde::{Serialize, de::DeserializeOwned};
use sojourn_init::frame::{self, HEADER_BYTES, Header};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Reads one frame. Lengths are bounded before anything is allocated.
pub(crate) async fn read<M: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<(M, Vec<u8>)> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).await?;
    let header = Header::parse(head)?;
    let mut json = vec![0; header.json_bytes];
    stream.read_exact(&mut json).await?;
    let mut payload = vec![0; header.payload_bytes];
    stream.read_exact(&mut payload).await?;
    Ok((serde_json::from_slice(&json)?, payload))
}

/// Writes one frame.
pub(crate) async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
    payload: &[u8],
) -> io::Result<()> {
    let mut encoded = frame::encode(message, payload.len())?;
    // One packet for a small frame.
    if payload.len() <= 16 << 10 {
        encoded.extend_from_slice(payload);
        stream.write_all(&encoded).await?;
    } else {
        stream.write_all(&encoded).await?;
        stream.write_all(payload).await?;
    }
    // A TLS stream buffers.
    stream.flush().await
}
