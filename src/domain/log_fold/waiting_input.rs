//! Messages that no turn has read yet, with a bound of their memory.

use std::{collections::BTreeMap, mem};

use serde::{Deserialize, Serialize};

use super::sizes::memory_bytes;
use crate::{
    base::{
        limit::{INPUT_LEFT_OUT_BEGIN_BYTES, WAITING_INPUT_BYTES_MAX},
        text::truncate,
    },
    domain::{Message, TurnId},
};

/// Input of a session that waits for the turns that read it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct WaitingInput {
    /// By the turn that it joined.
    waiting: BTreeMap<TurnId, Vec<Waiting>>,
    /// Input of turns that ended while another turn ran; placed after that turn.
    later: Vec<Message>,
    /// Memory of both, in bytes.
    bytes: usize,
}

/// A message that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Waiting {
    seq: i64,
    message: Message,
    steers: bool,
}

impl WaitingInput {
    /// Adds a message to the input of a turn, or only its beginning if too much waits already, or the conversation has
    /// fewer bytes free; returns its memory in bytes.
    pub(super) fn add(
        &mut self,
        turn: TurnId,
        (seq, steers): (i64, bool),
        message: Message,
        free_bytes: usize,
    ) -> usize {
        let bytes = memory_bytes(&message);
        let is_too_much = self.bytes + bytes > WAITING_INPUT_BYTES_MAX || bytes > free_bytes;
        let message = if is_too_much { Message::user(beginning_of(&message)) } else { message };
        let bytes = memory_bytes(&message);
        self.bytes += bytes;
        self.waiting.entry(turn).or_default().push(Waiting { seq, message, steers });
        bytes
    }

    /// Removes and returns the input of a turn that reads it.
    pub(super) fn take(&mut self, turn: TurnId) -> Vec<Message> {
        let taken = self.waiting.remove(&turn).into_iter().flatten();
        let taken: Vec<_> = taken.map(|waiting| waiting.message).collect();
        self.release(&taken);
        taken
    }

    /// Removes and returns these messages of a turn.
    pub(super) fn take_some(&mut self, turn: TurnId, seqs: &[i64]) -> Vec<Message> {
        let all = self.waiting.remove(&turn).unwrap_or_default();
        let (read, left): (Vec<_>, Vec<_>) = all.into_iter().partition(|waiting| seqs.contains(&waiting.seq));
        if !left.is_empty() {
            self.waiting.insert(turn, left);
        }
        let read: Vec<_> = read.into_iter().map(|waiting| waiting.message).collect();
        self.release(&read);
        read
    }

    /// Keeps the input of a turn that ended before it started until the running turn has ended.
    pub(super) fn postpone(&mut self, turn: TurnId) {
        let waiting = self.waiting.remove(&turn).into_iter().flatten();
        self.later.extend(waiting.map(|waiting| waiting.message));
    }

    /// Removes and returns what was postponed.
    pub(super) fn take_postponed(&mut self) -> Vec<Message> {
        let later = mem::take(&mut self.later);
        self.release(&later);
        later
    }

    /// Whether a message for another turn steers this one.
    pub(super) fn steers(&self, turn: TurnId) -> bool {
        let others = self.waiting.iter().filter(|(queued, _)| **queued != turn);
        others.flat_map(|(_, waiting)| waiting).any(|waiting| waiting.steers)
    }

    fn release(&mut self, taken: &[Message]) {
        let bytes: usize = taken.iter().map(memory_bytes).sum();
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Returns what the model reads instead of a message for which there is no space.
pub(super) fn beginning_of(message: &Message) -> String {
    let bytes = memory_bytes(message);
    let text = if let Message::User { text, .. } = message { text.as_str() } else { "" };
    let beginning = truncate(text, INPUT_LEFT_OUT_BEGIN_BYTES);
    format!(
        "[This message of {bytes} bytes was left out, because too much input came at once. It begins with: {beginning}]"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Origin;

    #[test]
    fn input_beyond_the_bound_is_left_out_until_a_turn_has_read_the_rest() {
        let mut input = WaitingInput::default();
        let [running, queued]: [TurnId; 2] = [Origin::system().id(), Origin::system().id()];
        let long = || Message::user("x".repeat(WAITING_INPUT_BYTES_MAX / 4));
        (1..=6).for_each(|seq| {
            input.add(queued, (seq, seq == 6), long(), usize::MAX);
        });
        assert!(input.steers(running) && !input.steers(queued));
        assert!(input.bytes < WAITING_INPUT_BYTES_MAX + 1_000, "{}", input.bytes);

        let steered = input.take_some(queued, &[6]);
        let Message::User { text, .. } = &steered[0] else { panic!("{steered:?}") };
        assert!(text.starts_with("[This message of 1048576 bytes was left out"), "{text}");

        input.postpone(queued);
        input.add(running, (7, false), long(), usize::MAX);
        assert!(memory_bytes(&input.take(running)[0]) < 1_000, "what is postponed still counts");
        let postponed = input.take_postponed();
        assert_eq!(postponed.iter().filter(|message| **message == long()).count(), 4);
        assert_eq!(input.bytes, 0);
        assert_eq!(input.add(running, (8, false), long(), usize::MAX), memory_bytes(&long()));
        assert!(input.add(running, (9, false), long(), 10) < 1_000, "there is no space");
    }
}
