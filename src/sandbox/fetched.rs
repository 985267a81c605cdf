//! Reader of the files that a fetch sends.
//!
//! The parts are untrusted input: what was announced is bounded before it is allocated, and a stream that does not
//! have the form of `sojourn_init::scan` is a fault.

use bytes::Bytes;
use sojourn_init::scan::{CHANGED, CONTENT, GONE, UNCHANGED};
use tokio::sync::mpsc;

use super::Fault;
use crate::base::limit::FETCHED_WHOLE_BYTES_MAX;

/// The files of a fetch, in the order of its paths.
///
/// Read while the fetch runs, in the same task or another: the fetch waits for its parts to be taken. Dropping this
/// ends it. If the fetch fails, its fault is the one to return, not that of this reader.
#[derive(Debug)]
pub struct Fetched {
    parts: mpsc::Receiver<Bytes>,
    /// The rest of the last part.
    part: Bytes,
    /// Files that follow.
    files: usize,
    /// Bytes that are left of a large file, which its reader may have dropped.
    large_left: Option<u64>,
}

/// A file of a fetch.
#[derive(Debug)]
pub enum FetchedFile<'a> {
    /// There is no regular file at the path any more, or the sandbox's user cannot read it.
    Gone,
    /// The content of a file up to [`FETCHED_WHOLE_BYTES_MAX`].
    Whole {
        content: Vec<u8>,
        /// Whether size and times of the file were the same before and after it was read. If not, the content may be of
        /// two versions.
        is_stable: bool,
    },
    /// A larger file, which is read in parts.
    Large(LargeFile<'a>),
}

/// A file that is read in parts. Dropping it skips the rest.
#[derive(Debug)]
pub struct LargeFile<'a> {
    fetched: &'a mut Fetched,
    size: u64,
}

impl Fetched {
    /// Reads the files of a fetch of `paths` paths, which sends its parts to the other end of this channel.
    pub fn new(parts: mpsc::Receiver<Bytes>, paths: usize) -> Self {
        Self { parts, part: Bytes::new(), files: paths, large_left: None }
    }

    /// The file at the next path; `None` after the last one, once the fetch has sent everything. A future that is
    /// dropped loses its bytes: nothing can be read after it.
    ///
    /// # Errors
    /// `Unavailable` when the fetch ended before, or the sandbox sent something else.
    pub async fn next(&mut self) -> Result<Option<FetchedFile<'_>>, Fault> {
        if let Some(size) = self.large_left {
            LargeFile { fetched: &mut *self, size }.finish().await?;
        }
        let Some(files) = self.files.checked_sub(1) else {
            return if self.is_at_end().await { Ok(None) } else { Err(unexpected()) };
        };
        self.files = files;
        match self.byte().await? {
            GONE => return Ok(Some(FetchedFile::Gone)),
            CONTENT => {}
            _ => return Err(unexpected()),
        }
        let mut size = [0; 8];
        for byte in &mut size {
            *byte = self.byte().await?;
        }
        let size = u64::from_le_bytes(size);
        let Some(length) = usize::try_from(size).ok().filter(|_| size <= FETCHED_WHOLE_BYTES_MAX) else {
            self.large_left = Some(size);
            return Ok(Some(FetchedFile::Large(LargeFile { fetched: self, size })));
        };
        let mut content = Vec::with_capacity(length);
        while content.len() < length {
            content.extend_from_slice(&self.take(size - content.len() as u64).await?);
        }
        let is_stable = self.is_stable().await?;
        Ok(Some(FetchedFile::Whole { content, is_stable }))
    }

    async fn is_stable(&mut self) -> Result<bool, Fault> {
        match self.byte().await? {
            UNCHANGED => Ok(true),
            CHANGED => Ok(false),
            _ => Err(unexpected()),
        }
    }

    async fn byte(&mut self) -> Result<u8, Fault> {
        self.take(1).await.map(|byte| byte[0])
    }

    /// Takes at least one byte and at most this many, which are more than 0.
    async fn take(&mut self, bytes_max: u64) -> Result<Bytes, Fault> {
        if self.is_at_end().await {
            return Err(Fault::Unavailable("its files were not sent to their end".to_owned()));
        }
        let length = usize::try_from(bytes_max).unwrap_or(usize::MAX).min(self.part.len());
        Ok(self.part.split_to(length))
    }

    /// Waits for the next part with bytes.
    async fn is_at_end(&mut self) -> bool {
        while self.part.is_empty() {
            match self.parts.recv().await {
                Some(part) => self.part = part,
                None => return true,
            }
        }
        false
    }
}

impl LargeFile<'_> {
    /// Size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The next bytes of the content; `None` at its end.
    ///
    /// # Errors
    /// As of [`Fetched::next`].
    pub async fn next_part(&mut self) -> Result<Option<Bytes>, Fault> {
        let left = self.fetched.large_left.unwrap_or(0);
        if left == 0 {
            return Ok(None);
        }
        let part = self.fetched.take(left).await?;
        self.fetched.large_left = Some(left - part.len() as u64);
        Ok(Some(part))
    }

    /// Skips the rest of the content. Returns whether size and times of the file were the same before and after it was
    /// read.
    ///
    /// # Errors
    /// As of [`Fetched::next`].
    pub async fn finish(mut self) -> Result<bool, Fault> {
        while self.next_part().await?.is_some() {}
        let is_stable = self.fetched.is_stable().await?;
        self.fetched.large_left = None;
        Ok(is_stable)
    }
}

fn unexpected() -> Fault {
    Fault::Unavailable("its init sent files that cannot be read".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of this many files, in parts of `part_bytes`.
    fn fetched(stream: &[u8], files: usize, part_bytes: usize) -> Fetched {
        let (sender, parts) = mpsc::channel(2 * stream.len() + 1);
        for part in stream.chunks(part_bytes) {
            sender.try_send(Bytes::copy_from_slice(part)).unwrap();
            sender.try_send(Bytes::new()).unwrap();
        }
        Fetched::new(parts, files)
    }

    fn file(content: &[u8], change: u8) -> Vec<u8> {
        [[CONTENT].as_slice(), &(content.len() as u64).to_le_bytes(), content, &[change]].concat()
    }

    #[tokio::test]
    async fn files_come_in_order_however_they_are_cut() {
        let stream =
            [file(b"one", UNCHANGED), vec![GONE], file(b"", UNCHANGED), file(b"two", CHANGED)].concat();
        for part_bytes in 1..=stream.len() {
            let mut fetched = fetched(&stream, 4, part_bytes);
            let mut found = Vec::new();
            while let Some(file) = fetched.next().await.unwrap() {
                found.push(match file {
                    FetchedFile::Gone => None,
                    FetchedFile::Whole { content, is_stable } => Some((content, is_stable)),
                    FetchedFile::Large(file) => panic!("{file:?}"),
                });
            }
            let expected = [
                Some((b"one".to_vec(), true)),
                None,
                Some((Vec::new(), true)),
                Some((b"two".to_vec(), false)),
            ];
            assert_eq!(found, expected, "parts of {part_bytes} bytes");
        }
    }

    #[tokio::test]
    async fn a_large_file_is_read_in_parts_or_skipped() {
        let content = vec![7; FETCHED_WHOLE_BYTES_MAX as usize + 1];
        let stream = [file(&content, CHANGED), file(&content, UNCHANGED), file(b"end", UNCHANGED)].concat();
        let mut fetched = fetched(&stream, 3, 1 << 20);
        let Some(FetchedFile::Large(mut first)) = fetched.next().await.unwrap() else { panic!() };
        assert_eq!(first.size(), content.len() as u64);
        let mut read = 0;
        while let Some(part) = first.next_part().await.unwrap() {
            assert!(part.len() <= 1 << 20 && part.iter().all(|&byte| byte == 7));
            read += part.len();
        }
        assert_eq!(read, content.len());
        assert!(!first.finish().await.unwrap());
        // Dropped after its first part.
        let Some(FetchedFile::Large(mut second)) = fetched.next().await.unwrap() else { panic!() };
        second.next_part().await.unwrap();
        let Some(FetchedFile::Whole { content, is_stable: true }) = fetched.next().await.unwrap() else {
            panic!()
        };
        assert_eq!(content, b"end");
        assert!(fetched.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_stream_that_is_cut_or_of_another_form_is_a_fault() {
        let whole = file(b"one", UNCHANGED);
        for end in 0..whole.len() {
            let fault = fetched(&whole[..end], 1, 100).next().await.map(|_| ()).unwrap_err();
            assert!(matches!(fault, Fault::Unavailable(_)), "{end} bytes gave {fault:?}");
        }
        for bad in [vec![2], file(b"one", 2)] {
            assert!(fetched(&bad, 1, 100).next().await.is_err(), "{bad:?} was accepted");
        }
        // More than was asked for.
        let mut more = fetched(&whole, 0, 100);
        assert!(more.next().await.is_err());
        // An exabyte that never comes is not allocated.
        let announced = [[CONTENT].as_slice(), &(1u64 << 60).to_le_bytes()].concat();
        let mut huge = fetched(&announced, 1, 100);
        let Some(FetchedFile::Large(huge)) = huge.next().await.unwrap() else { panic!() };
        assert!(huge.finish().await.is_err());
    }
}
