//! Frames of a pack: their bounds, and expanding one.

use std::fmt;

use crate::{base::seal::sha256, domain::tree::Chunk, snapshot::Error};

/// Magic and version that a pack begins with.
pub(super) const HEADER: [u8; 8] = *b"SJNPACK\x01";
/// zstd compression level: level 1 gives most of the reduction at the lowest CPU cost.
pub(super) const LEVEL: i32 = 1;
/// Max size of a chunk, in bytes. A file up to this size is one chunk.
pub const CHUNK_BYTES_MAX: usize = 8 << 20;
/// Max size of a stored frame, in bytes: that of the largest node, which does not shrink.
pub(super) const FRAME_BYTES_MAX: u32 = 65 << 20;

/// Expands frames of packs. Reuse one for many frames: it has the memory of the decompressor.
pub struct Expander {
    decompressor: zstd::bulk::Decompressor<'static>,
}

impl Expander {
    /// Creates one.
    ///
    /// # Errors
    /// `Unavailable` without memory.
    pub fn new() -> Result<Self, Error> {
        let decompressor = zstd::bulk::Decompressor::new();
        let decompressor = decompressor.map_err(|error| Error::Unavailable(error.to_string()))?;
        Ok(Self { decompressor })
    }

    /// Returns the bytes of a chunk from those that are stored at its place.
    ///
    /// # Errors
    /// `Damaged` if they are not those of the chunk.
    pub fn chunk(&mut self, chunk: &Chunk, stored: &[u8]) -> Result<Vec<u8>, Error> {
        let size = usize::try_from(chunk.size).map_err(damaged)?;
        let content = self.expand(stored, size.min(CHUNK_BYTES_MAX))?;
        if content.len() != size || sha256(&content) != chunk.digest {
            return Err(damaged("a chunk does not match its digest"));
        }
        Ok(content)
    }

    /// Expands a frame to at most `bytes_max` bytes.
    pub(super) fn expand(&mut self, stored: &[u8], bytes_max: usize) -> Result<Vec<u8>, Error> {
        // A frame that claims more than it has fails at its end; until then it takes no more memory than it may.
        let claimed = zstd::zstd_safe::get_frame_content_size(stored).ok().flatten();
        let size = claimed.and_then(|size| usize::try_from(size).ok());
        let size = size.ok_or_else(|| damaged("a frame without a size"))?;
        if size > bytes_max {
            return Err(damaged("a frame is larger than it may be"));
        }
        // Frames that a decompressor skips may follow. Without them, what is read is bounded by what it expands to.
        if stored.len() > zstd::zstd_safe::compress_bound(size) {
            return Err(damaged("a frame has more bytes than its content can need"));
        }
        let expanded = self.decompressor.decompress(stored, size).map_err(damaged)?;
        if expanded.len() != size {
            return Err(damaged("a frame is shorter than its size"));
        }
        Ok(expanded)
    }
}

/// An error about stored bytes.
pub(super) fn damaged(reason: impl fmt::Display) -> Error {
    Error::Damaged(reason.to_string())
}
