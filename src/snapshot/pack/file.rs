//! Contents of files as chunks.

use std::io::Write;

use fastcdc::v2020::FastCDC;
use sha2::{Digest, Sha256};

use super::{frame::CHUNK_BYTES_MAX, writer::Writer};
use crate::{
    base::seal::sha256,
    domain::tree::{Chunk, Kind},
    snapshot::Error,
};

/// Sizes of the chunks of a large file, in bytes: min, average, max. Other sizes would store large files again.
const CUT_BYTES: (usize, usize, usize) = (256 << 10, 1 << 20, 4 << 20);
/// Bytes that are taken at once, beyond those that wait for a cut.
const PART_BYTES: usize = 1 << 20;

/// Adds one file to a pack as its bytes arrive, in at most 16 MiB of memory.
///
/// A file of up to [`CHUNK_BYTES_MAX`] is one chunk. A larger one is cut where its content says so (FastCDC), so the chunks
/// before and after a change stay the same. How it arrives makes no difference.
#[derive(Default)]
pub struct FileWriter {
    /// Bytes that are in no chunk yet.
    waiting: Vec<u8>,
    large: Option<LargeFile>,
}

/// A file that is too large for one chunk.
#[derive(Default)]
struct LargeFile {
    hasher: Sha256,
    size: u64,
    chunks: Vec<Chunk>,
}

impl FileWriter {
    /// Begins a file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next bytes. The pack may be another one than before.
    ///
    /// # Errors
    /// `Unavailable` if the output of the pack fails.
    pub fn write<W: Write>(&mut self, pack: &mut Writer<W>, bytes: &[u8]) -> Result<(), Error> {
        for part in bytes.chunks(PART_BYTES) {
            self.waiting.extend_from_slice(part);
            if self.large.is_none() && self.waiting.len() <= CHUNK_BYTES_MAX {
                continue;
            }
            // The file is large from here on, and these are its first bytes; or they are some of the next.
            let new = if self.large.is_none() { self.waiting.as_slice() } else { part };
            let large = self.large.get_or_insert_default();
            large.hasher.update(new);
            large.size += new.len() as u64;
            let (.., max) = CUT_BYTES;
            large.cut(pack, &mut self.waiting, max)?;
        }
        Ok(())
    }

    /// Ends the file, and returns what a tree has of it.
    ///
    /// # Errors
    /// `Unavailable` if the output of the pack fails.
    pub fn finish<W: Write>(mut self, pack: &mut Writer<W>) -> Result<Kind, Error> {
        let Some(mut large) = self.large else { return pack.add_file(&self.waiting) };
        large.cut(pack, &mut self.waiting, 1)?;
        Ok(Kind::File { size: large.size, digest: large.hasher.finalize().into(), chunks: large.chunks })
    }
}

impl LargeFile {
    /// Adds chunks while at least this many bytes wait. With the max size of a chunk, later bytes would not change the cut.
    fn cut<W: Write>(
        &mut self,
        pack: &mut Writer<W>,
        waiting: &mut Vec<u8>,
        least: usize,
    ) -> Result<(), Error> {
        let (min, average, max) = CUT_BYTES;
        let mut start = 0;
        while waiting.len() - start >= least {
            let rest = &waiting[start..];
            let cut = FastCDC::new(rest, min, average, max).next();
            let length = cut.map_or(rest.len(), |cut| cut.length);
            self.chunks.push(pack.add_content(&rest[..length])?);
            start += length;
        }
        waiting.drain(..start);
        Ok(())
    }
}

impl<W: Write> Writer<W> {
    /// Adds a file that is in memory, and returns what a tree has of it.
    ///
    /// # Errors
    /// `Unavailable` if the output fails.
    pub fn add_file(&mut self, content: &[u8]) -> Result<Kind, Error> {
        if content.is_empty() {
            return Ok(Kind::File { size: 0, digest: sha256(content), chunks: Vec::new() });
        }
        if content.len() > CHUNK_BYTES_MAX {
            let mut file = FileWriter::new();
            file.write(self, content)?;
            return file.finish(self);
        }
        let chunk = self.add_content(content)?;
        Ok(Kind::File { size: chunk.size.into(), digest: chunk.digest, chunks: vec![chunk] })
    }
}
