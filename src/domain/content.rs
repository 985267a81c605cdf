//! Content of messages and of tool results: texts, and stored files that a model gets.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ids::FileId;
use crate::base::limit::{FILE_TEXT_SENT_BYTES_MAX, FILES_SENT_BYTES_MAX, PDF_BYTES_PER_TOKEN, PDF_TOKENS};

/// Directory of a sandbox below which the files of its session's messages are.
pub const SANDBOX_FILES: &str = "/home/agent/files";

/// Media type of a PDF document.
pub const PDF: &str = "application/pdf";

/// A part of a message or of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Content {
    Text {
        text: String,
    },
    /// The model sees the image.
    Image(FileRef),
    /// The model reads the document, if it can: PDF and text. Otherwise it gets the path of the file in the sandbox.
    Document(FileRef),
}

/// A stored file, as an event names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileRef {
    pub file_id: FileId,
    pub name: String,
    /// Its path in the sandbox.
    pub path: String,
    /// Media type, as found in its bytes.
    pub media_type: String,
    pub bytes: u64,
    /// SHA-256 of its bytes in hex.
    pub sha256: String,
    /// The image that a model gets, if the file is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ModelImage>,
}

/// An image in the form in which a model gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = FileImage)]
pub struct ModelImage {
    /// `image/png`, `image/jpeg` or `image/webp`.
    pub media_type: String,
    pub bytes: u64,
    /// Pixels.
    pub width: u32,
    pub height: u32,
    /// Whether it was made from the file: scaled, turned upright, or in another format.
    pub converted: bool,
}

/// Form in which a model gets a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentAs {
    Image,
    Pdf,
    Text,
    /// Only its path in the sandbox.
    Path,
}

impl Content {
    /// Returns the file of the part.
    pub fn file(&self) -> Option<&FileRef> {
        match self {
            Self::Text { .. } => None,
            Self::Image(file) | Self::Document(file) => Some(file),
        }
    }

    /// Returns the form in which a model gets the file of the part.
    pub fn sent_as(&self) -> Option<(&FileRef, SentAs)> {
        let file = self.file()?;
        let sent_as = match self {
            Self::Image(FileRef { image: Some(_), .. }) => SentAs::Image,
            Self::Document(_) if file.media_type == PDF && file.bytes <= FILES_SENT_BYTES_MAX => SentAs::Pdf,
            Self::Document(_) if file.is_text() && file.bytes <= FILE_TEXT_SENT_BYTES_MAX => SentAs::Text,
            Self::Text { .. } | Self::Image(_) | Self::Document(_) => SentAs::Path,
        };
        Some((file, sent_as))
    }

    /// Returns the estimated tokens of the part for a model.
    pub fn tokens(&self) -> u64 {
        match (self, self.sent_as()) {
            (Self::Text { text }, _) => text.len().div_ceil(4) as u64,
            (Self::Image(_) | Self::Document(_), None) => 0,
            (Self::Image(_) | Self::Document(_), Some((file, sent_as))) => {
                let content = match sent_as {
                    SentAs::Image => file.image.as_ref().map_or(0, ModelImage::tokens),
                    SentAs::Pdf => (file.bytes / PDF_BYTES_PER_TOKEN).clamp(PDF_TOKENS.0, PDF_TOKENS.1),
                    SentAs::Text => file.bytes.div_ceil(4),
                    SentAs::Path => 0,
                };
                content + file.label().len().div_ceil(4) as u64
            }
        }
    }

    /// Replaces the file of the part by a line with its path.
    pub(super) fn drop_file(&mut self, reason: &str) {
        if let Some(file) = self.file() {
            *self = Self::Text { text: format!("[{} {reason}]", file.label()) };
        }
    }

    /// Bytes of its file in a request.
    pub(super) fn sent_bytes(&self) -> u64 {
        match self.sent_as() {
            Some((file, SentAs::Image)) => file.image.as_ref().map_or(0, |image| image.bytes),
            Some((file, SentAs::Pdf | SentAs::Text)) => file.bytes,
            Some((_, SentAs::Path)) | None => 0,
        }
    }
}

impl FileRef {
    /// Returns the words that name the file to a model.
    pub fn label(&self) -> String {
        let Self { path, media_type, bytes, .. } = self;
        format!("The file {path} ({media_type}, {bytes} bytes) is in the sandbox.")
    }

    /// Whether the file is text that a model can read as it is.
    pub fn is_text(&self) -> bool {
        self.media_type == "text/plain"
    }
}

impl ModelImage {
    /// Returns the tokens of the image: one for each 750 pixels (Anthropic's rule; others count less).
    fn tokens(&self) -> u64 {
        (u64::from(self.width) * u64::from(self.height)).div_ceil(750)
    }
}

/// Returns the path in the sandbox of a file that a caller sent.
pub fn sandbox_path(file: FileId, name: &str) -> String {
    format!("{SANDBOX_FILES}/{file}/{name}")
}

/// Returns the texts of the parts, a line each.
pub fn text_of(content: &[Content]) -> String {
    let texts = content.iter().filter_map(|part| match part {
        Content::Text { text } => Some(text.as_str()),
        Content::Image(_) | Content::Document(_) => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// Returns the files of parts.
pub fn files_of(content: &[Content]) -> impl Iterator<Item = &FileRef> {
    content.iter().filter_map(Content::file)
}
