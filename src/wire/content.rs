//! Parts of messages and of results, and stored files.

use garde::Validate;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::{
    base::limit::{FILE_NAME_BYTES_MAX, NET_URL_BYTES_MAX, TEXT_BYTES_MAX},
    domain::{FileId, content::ModelImage},
};

/// A part of a message or of a result.
#[derive(Clone, Debug, Deserialize, Validate, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ContentInput {
    Text {
        #[garde(length(bytes, min = 1, max = TEXT_BYTES_MAX))]
        text: String,
    },
    /// A PNG, JPEG, GIF or WebP image that the model sees.
    Image {
        #[garde(dive)]
        source: FileSource,
        /// Name of the file in the sandbox.
        #[garde(inner(length(bytes, min = 1, max = FILE_NAME_BYTES_MAX)))]
        name: Option<String>,
    },
    /// A file that the model reads if it is a PDF or a text. Of any other, the model gets the path in the sandbox.
    Document {
        #[garde(dive)]
        source: FileSource,
        /// Name of the file in the sandbox.
        #[garde(inner(length(bytes, min = 1, max = FILE_NAME_BYTES_MAX)))]
        name: Option<String>,
    },
}

/// Source of the bytes of a part.
#[derive(Clone, Debug, Deserialize, Validate, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FileSource {
    /// A stored file; needs an API key.
    File {
        #[garde(skip)]
        file_id: FileId,
    },
    /// The bytes themselves, in base64.
    Base64 {
        #[garde(length(bytes, min = 1))]
        data: String,
    },
    /// An address that the service fetches now; needs an API key.
    Url {
        #[garde(length(bytes, min = 1, max = NET_URL_BYTES_MAX))]
        url: String,
    },
}

/// A stored file.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileView {
    pub id: FileId,
    pub name: String,
    /// Media type, as found in its bytes.
    pub media_type: String,
    pub bytes: u64,
    /// SHA-256 of its bytes in hex.
    pub sha256: String,
    /// The image that a model gets, if the file is one.
    #[schema(required)]
    pub image: Option<ModelImage>,
    /// Whether it exists until it is deleted. Otherwise it is deleted with the last session that uses it.
    pub kept: bool,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}
