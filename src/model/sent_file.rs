//! Files of a history, as the adapters of the providers send them.

use std::str;

use base64::{Engine, prelude::BASE64_STANDARD};

use super::Fault;
use crate::domain::{
    content::{Content, SentAs},
    conversation::ModelRequest,
};

/// The bytes of a file in the form that a model gets.
pub(super) enum SentFile<'a> {
    Image { media_type: &'a str, base64: String },
    Pdf { name: &'a str, base64: String },
    Text { text: &'a str },
}

impl<'a> SentFile<'a> {
    /// Returns the file of a part; `None` for a text, and where the model gets only the path of the file.
    pub(super) fn of(part: &'a Content, request: &'a ModelRequest) -> Option<Self> {
        let (file, sent_as) = part.sent_as()?;
        let bytes = request.files.get(&file.file_id)?;
        match (sent_as, &file.image) {
            (SentAs::Image, Some(image)) => {
                Some(Self::Image { media_type: &image.media_type, base64: BASE64_STANDARD.encode(bytes) })
            }
            (SentAs::Pdf, _) => Some(Self::Pdf { name: &file.name, base64: BASE64_STANDARD.encode(bytes) }),
            (SentAs::Text, _) => str::from_utf8(bytes)
                .ok()
                .filter(|text| !text.trim().is_empty())
                .map(|text| Self::Text { text }),
            (SentAs::Image | SentAs::Path, _) => None,
        }
    }
}

/// Words for files in the refusals of Anthropic, OpenAI, and servers of models that take only text.
const FILE_WORDS: [&str; 7] =
    ["image", "document", "pdf", "file", "multimodal", "content type", "must be a string"];

/// Returns the refusal of a request by a status that no other fault has.
pub(super) fn refused(status: u16, reason: String) -> Fault {
    let lower = reason.to_ascii_lowercase();
    let is_about_files =
        matches!(status, 400 | 413 | 422) && FILE_WORDS.iter().any(|word| lower.contains(word));
    if is_about_files { Fault::FilesRefused { reason } } else { Fault::Refused { reason } }
}
