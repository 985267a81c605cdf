//! Output of callers' commands: stored in chunks while a command runs, complete in its answer.
//!
//! Called by `operation`. The chunks are stored in the database, where every process can read them.

use tokio::time::sleep;

use crate::{
    base::{
        limit::{DIRECT_OUTPUT_BYTES_MAX, EXEC_OUTPUT_CHUNK_BYTES, EXEC_OUTPUT_INTERVAL, OPERATION_POLL},
        text,
    },
    domain::OperationId,
    lifecycle::Sandboxes,
    sandbox::{Fault, OutputRange, OutputStream, Sandbox, SandboxFence},
    store::{notification::Notification, output::Chunk, record::Fence},
};

/// Position up to which one output is stored.
#[derive(Clone, Copy, Default)]
struct Passed {
    /// Raw bytes of the command's output, and bytes of the text decoded from them.
    written: u64,
    text: u64,
}

/// Stores the output of a running command until it is dropped.
pub(crate) struct Pump<'a> {
    pub sandboxes: &'a Sandboxes,
    pub fence: Fence,
    pub operation: OperationId,
    pub sandbox: &'a dyn Sandbox,
    pub sandbox_fence: SandboxFence,
    pub exec_id: &'a str,
}

impl Pump<'_> {
    /// Stores output at an interval. Never returns; the caller drops it when the command ends. A failure is
    /// retried, because the answer does not depend on it.
    pub(super) async fn run(&self) {
        let mut passed = None;
        loop {
            // Most commands end before a reader could follow their output.
            sleep(EXEC_OUTPUT_INTERVAL).await;
            let mut ends = match passed {
                Some(ends) => ends,
                None => match self.begun().await {
                    Some(ends) => ends,
                    None => continue,
                },
            };
            if self.look(&mut ends).await.is_none() {
                sleep(OPERATION_POLL).await;
            }
            passed = Some(ends);
        }
    }

    /// Positions up to which the previous worker stored output.
    async fn begun(&self) -> Option<[Passed; 2]> {
        let mut ends = [Passed::default(); 2];
        for chunk in self.sandboxes.store.last_output(self.fence, self.operation).await.ok()? {
            let (end, place) = (chunk.end(), usize::from(chunk.stream == OutputStream::Stderr));
            ends[place] = Passed { written: chunk.raw_end, text: end };
        }
        Some(ends)
    }

    /// Stores new output; `None` on a failure.
    async fn look(&self, ends: &mut [Passed; 2]) -> Option<()> {
        loop {
            let (mut chunks, mut next) = (Vec::new(), *ends);
            for (stream, passed) in [OutputStream::Stdout, OutputStream::Stderr].into_iter().zip(&mut next) {
                chunks.extend(self.read(stream, passed).await.ok()?);
            }
            if chunks.is_empty() {
                return Some(());
            }
            let added = self.sandboxes.store.add_output(self.fence, self.operation, &chunks).await;
            if !added.ok()? {
                // Another worker holds the session and continues from here.
                return std::future::pending().await;
            }
            *ends = next;
            self.sandboxes.notifications.send(Notification::Output(self.operation));
        }
    }

    async fn read(&self, stream: OutputStream, passed: &mut Passed) -> Result<Option<Chunk>, Fault> {
        let left = DIRECT_OUTPUT_BYTES_MAX.saturating_sub(passed.written);
        let bytes_max = usize::try_from(left).unwrap_or(usize::MAX).min(EXEC_OUTPUT_CHUNK_BYTES);
        if bytes_max == 0 {
            return Ok(None);
        }
        let range = OutputRange { stream, offset: passed.written, bytes_max };
        let bytes = self.sandbox.output(self.sandbox_fence, self.exec_id, range).await?;
        let whole = &bytes[..whole(&bytes)];
        if whole.is_empty() {
            return Ok(None);
        }
        let content = text::printable(whole);
        let written = passed.written + whole.len() as u64;
        let chunk = Chunk { stream, position: passed.text, content, raw_end: written };
        *passed = Passed { written, text: chunk.end() };
        Ok(Some(chunk))
    }
}

/// Length of the prefix that ends on a character boundary: an incomplete character waits for its rest.
fn whole(bytes: &[u8]) -> usize {
    let length = |first: u8| match first {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 1,
    };
    let tail = bytes.len().saturating_sub(3)..bytes.len();
    let last = tail.rev().find(|&at| bytes[at] & 0xC0 != 0x80);
    match last {
        Some(at) if at + length(bytes[at]) > bytes.len() => at,
        Some(_) | None => bytes.len(),
    }
}

/// Reads the first `kept` bytes of an output, which the sandbox stores.
pub(crate) async fn read(
    sandbox: &dyn Sandbox,
    sandbox_fence: SandboxFence,
    exec_id: &str,
    stream: OutputStream,
    kept: u64,
) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < kept {
        let left = kept - bytes.len() as u64;
        let range = OutputRange { stream, offset: bytes.len() as u64, bytes_max: left as usize };
        let part = sandbox.output(sandbox_fence, exec_id, range).await?;
        if part.is_empty() {
            break;
        }
        bytes.extend_from_slice(&part);
    }
    bytes.truncate(kept as usize);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn pieces_make_the_text_that_the_whole_makes(
            bytes in proptest::collection::vec(proptest::prop_oneof![
                proptest::num::u8::ANY, proptest::sample::select("aäß€𝄞\0".as_bytes().to_vec()),
            ], 0..200),
            window in 4usize..20,
        ) {
            let (mut text, mut at) = (String::new(), 0);
            loop {
                let seen = &bytes[at..(at + window).min(bytes.len())];
                let length = whole(seen);
                if length == 0 {
                    break;
                }
                text += &text::printable(&seen[..length]);
                at += length;
            }
            // At most one incomplete character is left.
            proptest::prop_assert!(bytes.len() - at < 4);
            proptest::prop_assert_eq!(text + &text::printable(&bytes[at..]), text::printable(&bytes));
        }
    }
}
