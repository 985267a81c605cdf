//! Frames: 8 bytes of lengths, one JSON value, then raw bytes.
//!
//! Called by the server, the file helper and the worker's client. A frame whose header exceeds [`BYTES_MAX`]
//! is refused before anything is allocated.

use std::io::{self, Read, Write};

use serde::{Serialize, de::DeserializeOwned};

/// Maximum size of JSON and payload of one frame: enough for a 1 MiB file part.
pub const BYTES_MAX: usize = 4 << 20;
/// Two lengths, u32 big endian: of the JSON, then of the payload.
pub const HEADER_BYTES: usize = 8;

/// Lengths at the start of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub json_bytes: usize,
    pub payload_bytes: usize,
}

impl Header {
    /// Parses the lengths.
    ///
    /// # Errors
    /// `InvalidData` when their sum exceeds [`BYTES_MAX`].
    pub fn parse(bytes: [u8; HEADER_BYTES]) -> io::Result<Self> {
        let (json, payload) = bytes.split_at(4);
        let length = |part: &[u8]| part.iter().fold(0usize, |sum, &byte| (sum << 8) | usize::from(byte));
        let header = Self { json_bytes: length(json), payload_bytes: length(payload) };
        if header.json_bytes.saturating_add(header.payload_bytes) > BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the frame is larger than 4 MiB"));
        }
        Ok(header)
    }
}

/// Encodes header and JSON of a frame; the payload follows.
///
/// # Errors
/// `InvalidData` when JSON and payload exceed [`BYTES_MAX`].
pub fn encode(message: &impl Serialize, payload_bytes: usize) -> io::Result<Vec<u8>> {
    let mut out = vec![0; HEADER_BYTES];
    serde_json::to_writer(&mut out, message)?;
    let json_bytes = out.len() - HEADER_BYTES;
    if json_bytes.saturating_add(payload_bytes) > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the frame is larger than 4 MiB"));
    }
    out[..4].copy_from_slice(&(json_bytes as u32).to_be_bytes());
    out[4..HEADER_BYTES].copy_from_slice(&(payload_bytes as u32).to_be_bytes());
    Ok(out)
}

/// Writes one frame.
///
/// # Errors
/// Errors of the stream; `InvalidData` when the frame is too large.
pub fn write(stream: &mut impl Write, message: &impl Serialize, payload: &[u8]) -> io::Result<()> {
    stream.write_all(&encode(message, payload.len())?)?;
    stream.write_all(payload)
}

/// Reads one frame.
///
/// # Errors
/// Errors of the stream; `InvalidData` when the frame is too large or its JSON does not match.
pub fn read<M: DeserializeOwned>(stream: &mut impl Read) -> io::Result<(M, Vec<u8>)> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head)?;
    let header = Header::parse(head)?;
    let mut json = vec![0; header.json_bytes];
    stream.read_exact(&mut json)?;
    let mut payload = vec![0; header.payload_bytes];
    stream.read_exact(&mut payload)?;
    Ok((serde_json::from_slice(&json)?, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_survives_the_wire() {
        let mut wire = Vec::new();
        write(&mut wire, &"hello", b"\0\xff").unwrap();
        let (message, payload): (String, Vec<u8>) = read(&mut wire.as_slice()).unwrap();
        assert_eq!((message.as_str(), payload.as_slice()), ("hello", b"\0\xff".as_slice()));
    }

    #[test]
    fn a_frame_that_announces_too_much_is_refused_unread() {
        for lengths in [[0xff; 8], [0, 0x40, 0, 1, 0, 0, 0, 0], [0, 0x20, 0, 0, 0, 0x20, 0, 1]] {
            assert!(Header::parse(lengths).is_err(), "{lengths:?} was accepted");
        }
        assert!(encode(&"", BYTES_MAX).is_err());
    }

    #[test]
    fn a_cut_frame_is_an_error() {
        let mut wire = Vec::new();
        write(&mut wire, &"hello", b"payload").unwrap();
        for end in 0..wire.len() {
            assert!(read::<String>(&mut &wire[..end]).is_err());
        }
    }
}
