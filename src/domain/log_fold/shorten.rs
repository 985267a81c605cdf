//! Shortening of a conversation: old results and long inputs that are left out, and a summary of its beginning.
//!
//! Cuts are chosen here and recorded as events, so the conversation stays a function of the log.

use std::{collections::HashSet, path::Path};

use serde_json::Value;

use super::{
    conversation::{Conversation, HistorySize, Placed},
    sizes::{memory_bytes, message_bytes, result_bytes, result_memory},
    waiting_input::beginning_of,
};
use crate::{
    base::{
        limit::{
            COMPACTION_BYTES, PRUNE_KEPT_TOKENS, PRUNE_SAVED_TOKENS_MIN, PRUNED_INPUT_BEGIN_BYTES,
            PRUNED_INPUT_BYTES_MIN, PRUNED_TURNS_KEPT,
        },
        text::truncate,
    },
    domain::{
        Message,
        compaction::{Compacted, Pruned},
        conversation::{Block, SUMMARY},
        shown_files::drop_files,
        skill::SKILLS_DIR,
        tool::{ToolCall, ToolResult},
    },
};

/// Stands for messages that are left out of a request.
const LEFT_OUT: &str = "[The beginning of the conversation is left out here.]";
/// Begins the line that stays of a result which is left out.
const PRUNED: &str = "[This result was left out of the conversation to save space.";

/// A cut between two steps: what is before it can be summarized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryCut {
    /// `seq` of the last event before it.
    pub to_seq: i64,
    /// Estimated tokens that a summary would replace.
    pub tokens: u64,
}

impl Conversation {
    /// Returns the tokens of the history, as far as they are known, with an estimate of the rest.
    pub fn tokens(&self) -> u64 {
        self.size.counted.saturating_add(tokens(self.size.bytes_since))
    }

    /// Returns where the history can be cut so that about `tail_tokens` stay, and at least the last step; `None` if no
    /// step is before that.
    pub fn cut(&self, tail_tokens: u64) -> Option<HistoryCut> {
        let first_step = self.messages.iter().position(is_assistant)?;
        let open = self.calls.iter().filter_map(|(_, result)| result.as_ref());
        let mut tail = open.map(result_bytes).sum();
        let mut place = None;
        for at in (first_step + 1..self.messages.len()).rev() {
            tail += message_bytes(&self.messages[at].message);
            if place.is_some() && tokens(tail) > tail_tokens {
                break;
            }
            if self.is_start_of_step(at) {
                place = Some(at);
            }
        }
        let to_seq = self.messages[place?].seq - 1;
        let before = self.messages.iter().filter(|placed| self.is_replaced(placed, to_seq));
        let bytes = before.map(|placed| message_bytes(&placed.message)).sum();
        Some(HistoryCut { to_seq, tokens: tokens(bytes) })
    }

    /// Returns the newest messages before a cut that have at most so many tokens, from the start of a step, behind a line
    /// for the rest; `None` if no step fits.
    pub fn before(&self, cut: HistoryCut, most_tokens: u64) -> Option<Vec<Message>> {
        let before: Vec<_> = self.messages.iter().filter(|placed| placed.seq <= cut.to_seq).collect();
        let mut bytes = 0;
        let fits = |at: &usize| {
            bytes += message_bytes(&before[*at].message);
            tokens(bytes) <= most_tokens
        };
        let fitting = (0..before.len()).rev().take_while(fits);
        let start = fitting.filter(|at| is_assistant(before[*at])).last()?;
        let line = Message::user(LEFT_OUT);
        Some([line].into_iter().chain(before[start..].iter().map(|placed| placed.message.clone())).collect())
    }

    /// Returns the old results that are worth leaving out: of those of earlier turns, what is beyond the newest ones.
    pub fn prunable(&self) -> Option<Pruned> {
        let boundary = self.oldest_kept_input()?;
        let skills = self.reads_of_skills();
        let (mut newer, mut saved) = (0, 0);
        let (mut call_ids, mut to_seq) = (Vec::new(), 0);
        for (at, placed) in self.messages.iter().enumerate().rev() {
            let Message::Results { results } = &placed.message else { continue };
            for result in results.iter().rev() {
                let line = pruned(&result.output).len();
                let is_old = at < boundary && newer > PRUNE_KEPT_TOKENS;
                newer += tokens(result_bytes(result));
                let is_kept = result.output.starts_with(PRUNED) || skills.contains(&result.call_id);
                if is_old && result_bytes(result) > 2 * line && !is_kept {
                    saved += tokens(result_bytes(result) - line);
                    to_seq = to_seq.max(placed.seq);
                    call_ids.push(result.call_id.clone());
                }
            }
        }
        (saved >= PRUNE_SAVED_TOKENS_MIN).then_some(Pruned {
            call_ids,
            file_ids: Vec::new(),
            input_seqs: Vec::new(),
            to_seq,
            tokens: saved,
        })
    }

    /// Returns the long inputs of earlier turns: with one that no model can read, no part of the history is short enough.
    pub fn prunable_inputs(&self) -> Option<Pruned> {
        let is_old =
            |placed: &&Placed| placed.seq > 0 && (!self.is_running() || placed.seq < self.running_from);
        let (mut input_seqs, mut saved) = (Vec::new(), 0);
        for placed in self.messages.iter().filter(is_old) {
            if let Some(line) = left_out_input(&placed.message) {
                saved += message_bytes(&placed.message).saturating_sub(line.len());
                input_seqs.push(placed.seq);
            }
        }
        input_seqs.dedup();
        let to_seq = *input_seqs.last()?;
        let (call_ids, file_ids, tokens) = (Vec::new(), Vec::new(), tokens(saved));
        Some(Pruned { call_ids, file_ids, input_seqs, to_seq, tokens })
    }

    /// Returns the calls that read a file of a skill: the agent goes on to follow it.
    fn reads_of_skills(&self) -> HashSet<String> {
        let is_read = |call: &ToolCall| {
            let path = call.input.get("path").and_then(Value::as_str);
            call.tool == "read" && path.is_some_and(|path| Path::new(path).starts_with(SKILLS_DIR))
        };
        let blocks = self.messages.iter().flat_map(|placed| match &placed.message {
            Message::Assistant { blocks, .. } => blocks.as_slice(),
            Message::User { .. } | Message::Results { .. } => &[],
        });
        let calls = blocks.filter_map(|block| match block {
            Block::ToolCall(call) if is_read(call) => Some(call.call_id.clone()),
            Block::ToolCall(_) | Block::Text { .. } | Block::Thinking { .. } => None,
        });
        calls.collect()
    }

    /// Returns the place of the oldest input whose results are never left out.
    fn oldest_kept_input(&self) -> Option<usize> {
        let (mut inputs, mut last_seq) = (0, None);
        for (at, placed) in
            self.messages.iter().enumerate().rev().filter(|(_, placed)| is_user(&placed.message))
        {
            // Messages that one turn reads together are one input.
            if last_seq.replace(placed.seq) != Some(placed.seq) {
                inputs += 1;
            }
            if inputs == PRUNED_TURNS_KEPT {
                return Some(at);
            }
        }
        None
    }

    /// Replaces the beginning by a summary. The input of the running turn stays.
    pub(super) fn compact(&mut self, compacted: &Compacted) {
        let Compacted { to_seq, after_tokens, summary, .. } = compacted;
        let words = format!("{SUMMARY}{to_seq}]\n\n{summary}");
        self.bytes += words.len();
        // It is no input of a turn.
        let first = Placed { seq: 0, message: Message::user(words) };
        let (old, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.messages)
            .into_iter()
            .partition(|placed| self.is_replaced(placed, *to_seq));
        let freed: usize = old.iter().map(|placed| memory_bytes(&placed.message)).sum();
        self.bytes = self.bytes.saturating_sub(freed);
        self.messages = [vec![first], left].concat();
        self.size = HistorySize { counted: *after_tokens, bytes_since: 0 };
    }

    /// Leaves out results, files and inputs.
    pub(super) fn prune(&mut self, event: &Pruned) {
        let before = self.history_bytes();
        let placed = self.messages.iter_mut().flat_map(|placed| placed.message.content_mut());
        let open = self.calls.iter_mut().filter_map(|(_, result)| result.as_mut());
        drop_files(placed.chain(open.flat_map(|result| &mut result.content)), &event.file_ids);
        for placed in self.messages.iter_mut().filter(|placed| placed.seq <= event.to_seq) {
            if event.input_seqs.contains(&placed.seq)
                && let Some(line) = left_out_input(&placed.message)
            {
                placed.message = Message::user(line);
            }
            let Message::Results { results } = &mut placed.message else { continue };
            results.iter_mut().filter(|result| event.call_ids.contains(&result.call_id)).for_each(leave_out);
        }
        self.release(before);
        self.size.counted = self.size.counted.saturating_sub(event.tokens);
    }

    /// Shortens inputs of earlier turns, the oldest first, while the conversation is too large: those whose turns ended
    /// without a response are in no summary.
    pub(super) fn bound_inputs(&mut self) {
        if self.bytes <= COMPACTION_BYTES {
            return;
        }
        let before = self.history_bytes();
        let mut surplus = self.bytes - COMPACTION_BYTES;
        let (runs, from) = (self.is_running(), self.running_from);
        let is_earlier = |placed: &&mut Placed| !(runs && placed.seq >= from) && is_user(&placed.message);
        for placed in self.messages.iter_mut().filter(is_earlier) {
            let bytes = memory_bytes(&placed.message);
            let line = beginning_of(&placed.message);
            if bytes > 2 * line.len() {
                surplus = surplus.saturating_sub(bytes - line.len());
                placed.message = Message::user(line);
            }
            if surplus == 0 {
                break;
            }
        }
        let saved = self.release(before);
        self.size.counted = self.size.counted.saturating_sub(tokens(saved));
    }

    /// Memory of the messages and results of the history, in bytes.
    fn history_bytes(&self) -> usize {
        let open = self.calls.iter().filter_map(|(_, result)| result.as_ref());
        self.messages.iter().map(|placed| memory_bytes(&placed.message)).sum::<usize>()
            + open.map(result_memory).sum::<usize>()
    }

    /// Subtracts what the history lost since it had so many bytes; returns it.
    fn release(&mut self, before: usize) -> usize {
        let saved = before.saturating_sub(self.history_bytes());
        self.bytes = self.bytes.saturating_sub(saved);
        saved
    }

    /// Whether a summary up to this event stands for a message.
    fn is_replaced(&self, placed: &Placed, to_seq: i64) -> bool {
        let is_input = self.is_running() && placed.seq >= self.running_from && is_user(&placed.message);
        placed.seq <= to_seq && !is_input
    }

    /// Whether the messages from here on can follow a summary: none is a result of an earlier call.
    fn is_start_of_step(&self, at: usize) -> bool {
        let (before, here) = (&self.messages[at - 1], &self.messages[at]);
        !matches!(here.message, Message::Results { .. }) && here.seq > before.seq
    }
}

fn is_assistant(placed: &Placed) -> bool {
    matches!(placed.message, Message::Assistant { .. })
}

fn is_user(message: &Message) -> bool {
    matches!(message, Message::User { .. })
}

/// Estimates 4 bytes per token.
fn tokens(bytes: usize) -> u64 {
    bytes.div_ceil(4) as u64
}

/// Returns what stays of a long input; `None` for another message.
fn left_out_input(message: &Message) -> Option<String> {
    let Message::User { text, .. } = message else { return None };
    let bytes = message_bytes(message);
    let beginning = truncate(text, PRUNED_INPUT_BEGIN_BYTES);
    (bytes > PRUNED_INPUT_BYTES_MIN)
        .then(|| format!("[This message was left out of the conversation: it has {bytes} bytes. It begins with: {beginning}]"))
}

fn leave_out(result: &mut ToolResult) {
    result.output = pruned(&result.output);
    result.content.clear();
}

/// Returns the line that stays of a result, with the place of the whole output if the result names one.
fn pruned(output: &str) -> String {
    let place = output.find("The whole output is in ").and_then(|start| {
        let rest = &output[start..];
        rest.find(": use").map(|end| format!(" {}.", &rest[..end]))
    });
    format!("{PRUNED}{}]", place.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::compaction::CompactionTrigger;

    fn step(seq: i64, call_id: &str, output_bytes: usize) -> [Placed; 2] {
        let call = ToolCall { call_id: call_id.to_owned(), tool: "bash".to_owned(), input: Value::Null };
        let blocks = vec![Block::ToolCall(call)];
        let answer = Message::Assistant { provider: "p".to_owned(), raw: Vec::new(), blocks };
        let output = "x".repeat(output_bytes);
        let (call_id, is_error) = (call_id.to_owned(), false);
        let results = vec![ToolResult { call_id, output, is_error, content: Vec::new() }];
        [Placed { seq, message: answer }, Placed { seq, message: Message::Results { results } }]
    }

    fn input(seq: i64) -> Placed {
        Placed { seq, message: Message::user(format!("Input {seq}.")) }
    }

    /// Turns of one step each, with results of this size; the last turn runs.
    fn turns(count: i64, output_bytes: usize) -> Conversation {
        let mut conversation = Conversation::new(false);
        for turn in 0..count {
            conversation.messages.push(input(turn * 10 + 1));
            conversation.messages.extend(step(turn * 10 + 2, &format!("c{turn}"), output_bytes));
        }
        conversation.run_for_test((count - 1) * 10 + 1);
        conversation
    }

    #[test]
    fn a_cut_is_between_steps_and_keeps_the_newest_and_the_input_of_the_turn() {
        let mut conversation = turns(5, 8_000);
        // The newest step has 2,000 tokens, so nothing more stays.
        let cut = conversation.cut(1_000).expect("a cut");
        assert_eq!(cut.to_seq, 41);
        assert!((8_000..8_100).contains(&cut.tokens), "{cut:?}");
        assert_eq!(conversation.cut(5_000).expect("a cut").to_seq, 30);
        assert_eq!(conversation.cut(1_000_000).expect("the first step").to_seq, 10);
        assert_eq!(turns(1, 8_000).cut(0), None, "a step that is not followed by another stays");

        let (trigger, summary) = (CompactionTrigger::Auto, "All is well.".to_owned());
        let HistoryCut { to_seq, .. } = cut;
        conversation.compact(&Compacted {
            trigger,
            before_tokens: 10_000,
            after_tokens: 2_100,
            to_seq,
            summary,
        });
        let seqs: Vec<_> = conversation.messages.iter().map(|placed| placed.seq).collect();
        assert_eq!(seqs, [0, 41, 42, 42], "the summary, the input of the turn, its step");
        assert_eq!(conversation.tokens(), 2_100);
        assert_eq!(conversation.cut(0), None, "a summary is not summarized alone");
    }

    #[test]
    fn inputs_of_turns_that_no_model_answered_do_not_fill_the_conversation() {
        let mut conversation = Conversation::new(false);
        let long = "x".repeat(256 << 10);
        for seq in 1..200 {
            conversation.messages.push(Placed { seq, message: Message::user(long.as_str()) });
            conversation.bytes += long.len();
            conversation.bound_inputs();
            assert!(conversation.bytes <= COMPACTION_BYTES, "{seq}: {}", conversation.bytes);
        }
        let shown = conversation.messages();
        assert_eq!(shown[198], Message::user(long.as_str()), "the newest is whole");
        assert!(
            matches!(&shown[0], Message::User { text, .. } if text.starts_with("[This message of 262144 bytes"))
        );
        assert_eq!(conversation.history_bytes(), conversation.bytes);
    }

    #[test]
    fn old_results_are_pruned_once_and_only_if_that_saves_much() {
        // Each has 10,000 tokens.
        let mut conversation = turns(9, 40_000);
        let pruned = conversation.prunable().expect("much to save");
        // The newest five are 50,000 tokens.
        assert_eq!(pruned.call_ids, ["c3", "c2", "c1", "c0"]);
        assert!((39_000..40_000).contains(&pruned.tokens), "{}", pruned.tokens);
        conversation.prune(&pruned);
        assert_eq!(conversation.prunable(), None);
        let shown = conversation.messages();
        let output = |at: usize| match &shown[at] {
            Message::Results { results } => results[0].output.clone(),
            message => panic!("{message:?}"),
        };
        assert_eq!((output(2), output(14).len()), (format!("{PRUNED}]"), 40_000));
        assert_eq!(turns(6, 40_000).prunable(), None, "it saves 10,000 tokens");
        assert_eq!(turns(1, 400_000).prunable(), None, "the newest inputs keep their results");
    }

    #[test]
    fn long_inputs_of_earlier_turns_are_left_out_once() {
        let mut conversation = turns(3, 8_000);
        assert_eq!(conversation.prunable_inputs(), None, "all are short");
        for turn in [0, 2] {
            conversation.messages[turn * 3].message = Message::user("é".repeat(5_000));
        }
        let pruned = conversation.prunable_inputs().expect("a long one");
        assert_eq!((&*pruned.input_seqs, pruned.to_seq), (&[1_i64][..], 1));
        assert!((2_200..2_250).contains(&pruned.tokens), "{}", pruned.tokens);
        conversation.prune(&pruned);
        assert_eq!(conversation.prunable_inputs(), None, "the input of the running turn stays");
        let shown = conversation.messages();
        let length = |at: usize| match &shown[at] {
            Message::User { text, .. } => text.len(),
            message => panic!("{message:?}"),
        };
        assert!(length(0) < 1_200 && length(6) == 10_000, "{} {}", length(0), length(6));
    }

    #[test]
    fn what_was_read_of_a_skill_stays() {
        let mut conversation = turns(9, 40_000);
        let Message::Assistant { blocks, .. } = &mut conversation.messages[1].message else {
            panic!("a step")
        };
        let Block::ToolCall(call) = &mut blocks[0] else { panic!("a call") };
        (call.tool, call.input) = ("read".to_owned(), json!({ "path": "/skills/pdf/SKILL.md" }));
        assert_eq!(conversation.prunable().expect("much to save").call_ids, ["c3", "c2", "c1"]);
    }

    #[test]
    fn the_part_to_summarize_begins_with_a_step() {
        let conversation = turns(5, 8_000);
        let cut = conversation.cut(1_000).expect("a cut");
        let newest = conversation.before(cut, 4_500).expect("two steps");
        assert_eq!(newest[0], Message::user(LEFT_OUT));
        // Two steps, and the inputs behind each.
        assert!(matches!(newest[1], Message::Assistant { .. }) && newest.len() == 7, "{}", newest.len());
        assert_eq!(conversation.before(cut, 1_000), None);
    }

    #[test]
    fn the_line_of_a_result_names_the_file_of_its_output() {
        let output = "a\n[… 5 of 9 bytes are left out here. The whole output is in /tmp/x.txt: use `read` on it. …]\nb";
        assert_eq!(pruned(output), format!("{PRUNED} The whole output is in /tmp/x.txt.]"));
        assert_eq!(pruned("short"), format!("{PRUNED}]"));
    }
}
