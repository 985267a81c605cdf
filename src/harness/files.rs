//! Files of the history: their bytes for a model call, and those that a model refuses.
//!
//! A file that the model refuses would end every turn of the session from then on, so it is left out and the model
//! gets its path instead.

use super::{Halt, turn::Run};
use crate::domain::{
    Actor, Message,
    compaction::Pruned,
    content::{Content, SentAs},
    conversation::ModelRequest,
    event::{Body, Draft, Failure},
    shown_files,
};

/// Code of the error of a model call whose files were refused.
const FILES_REFUSED: &str = "files_refused";

/// Words for files in the refusals of providers.
const FILE_WORDS: [&str; 6] = ["image", "document", "pdf", "file", "multimodal", "content type"];

impl Run<'_> {
    /// Reads the files that a request shows.
    pub(super) async fn read_files(&self, request: &mut ModelRequest) -> Result<(), Halt> {
        let shown: Vec<_> =
            shown_files::parts(&request.history).filter(|part| is_shown(part)).cloned().collect();
        if !shown.is_empty() {
            request.files = self.ports.journal.files(shown).await?;
        }
        Ok(())
    }

    /// Returns the files that a refused request was probably refused for: those that the model has not seen before, or
    /// all of them if the refusal is about files.
    pub(super) fn refused_files(&self, request: &ModelRequest, reason: &str) -> Option<Pruned> {
        let is_answer = |message: &Message| matches!(message, Message::Assistant { .. });
        let newest = request.history.iter().rposition(is_answer).map_or(0, |at| at + 1);
        let shown = |history: &[Message]| -> Vec<_> {
            let parts = shown_files::parts(history).filter(|part| is_shown(part));
            let files = parts.filter_map(Content::file).map(|file| file.file_id);
            files.filter(|file| request.files.contains_key(file)).collect()
        };
        let mut file_ids = shown(&request.history[newest..]);
        let reason = reason.to_ascii_lowercase();
        if file_ids.is_empty() && FILE_WORDS.iter().any(|word| reason.contains(word)) {
            file_ids = shown(&request.history);
        }
        if file_ids.is_empty() {
            return None;
        }
        let tokens = shown_files::drop_files(request.history.clone().iter_mut(), &file_ids);
        Some(Pruned { call_ids: Vec::new(), file_ids, to_seq: self.head, tokens })
    }

    /// Records that the model refused files. The turn continues without them.
    pub(super) async fn files_refused(
        &mut self,
        message: String,
        pruned: Pruned,
        cut: Option<Draft>,
    ) -> Result<bool, Halt> {
        let retry_at = Some(self.ports.origin.now());
        let failure = Failure { code: FILES_REFUSED.to_owned(), message, retry_at };
        let failed = self.draft(Body::ErrorModel(failure), Actor::system());
        let pruned = self.draft(Body::HistoryPruned(pruned), Actor::system());
        self.record(cut.into_iter().chain([failed, pruned]).collect()).await?;
        Ok(false)
    }
}

/// Whether a request has the bytes of a part.
fn is_shown(part: &Content) -> bool {
    part.sent_as().is_some_and(|(_, sent_as)| sent_as != SentAs::Path)
}
