//! Files of the history: their bytes for a model call, and those that a model refuses.
//!
//! A file that the model refuses would end every turn of the session from then on, so it is left out and the model
//! gets its path instead.

use super::{Halt, turn::Run};
use crate::{
    domain::{
        Actor, Message,
        compaction::Pruned,
        content::{Content, SentAs},
        conversation::ModelRequest,
        event::{Body, Draft, Failure},
        log_fold::FILES_REFUSED,
        shown_files,
    },
    model::Fault,
};

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

    /// Returns the files that a request was refused for, if it may have been for one: those that the model has not seen
    /// before, or else all of them.
    pub(super) fn refused_files(&self, request: &ModelRequest, fault: &Fault) -> Option<Pruned> {
        // A file may be longer than the model reads.
        let is_about_files = matches!(fault, Fault::FilesRefused { .. } | Fault::ContextTooLong { .. });
        let is_answer = |message: &Message| matches!(message, Message::Assistant { .. });
        let newest = request.history.iter().rposition(is_answer).map_or(0, |at| at + 1);
        let shown = |history: &[Message]| -> Vec<_> {
            let parts = shown_files::parts(history).filter(|part| is_shown(part));
            let files = parts.filter_map(Content::file).map(|file| file.file_id);
            files.filter(|file| request.files.contains_key(file)).collect()
        };
        let mut file_ids = shown(&request.history[newest..]);
        if file_ids.is_empty() {
            file_ids = shown(&request.history);
        }
        if !is_about_files || file_ids.is_empty() {
            return None;
        }
        file_ids.sort_unstable();
        file_ids.dedup();
        let mut history = request.history.clone();
        let parts = history.iter_mut().flat_map(Message::content_mut);
        let tokens = shown_files::drop_files(parts, &file_ids);
        Some(Pruned { call_ids: Vec::new(), file_ids, input_seqs: Vec::new(), to_seq: self.head, tokens })
    }

    /// Records that the model refused files. The turn continues without them.
    pub(super) async fn files_refused(
        &mut self,
        message: String,
        pruned: Pruned,
        cut: Option<Draft>,
    ) -> Result<bool, Halt> {
        let retry_at = Some(self.ports.origin.now());
        let model = Some(self.model().full_name());
        let failure = Failure { code: FILES_REFUSED.to_owned(), message, model, retry_at };
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
