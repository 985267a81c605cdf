//! Bounds of stored files, and of their images in requests to models.

use std::time::Duration;

/// Largest stored file, in bytes.
pub const FILE_BYTES_MAX: usize = 30 << 20;
/// Longest name of a file, in bytes; that of most file systems.
pub const FILE_NAME_BYTES_MAX: usize = 255;
/// Bytes of all files of an organization.
pub const ORG_FILES_BYTES_MAX: u64 = 10 << 30;
/// Files of one session's messages and results.
pub const SESSION_FILES_MAX: usize = 1_000;
/// Files of a session up to which its tools may add some; the rest is for its callers.
pub const SESSION_FILES_OF_TOOLS_MAX: usize = 500;
/// Parts of one message.
pub const MESSAGE_CONTENT_MAX: usize = 32;
/// Largest body of a request whose messages may have files in base64. Larger files are uploaded.
pub const CONTENT_BODY_BYTES_MAX: usize = 8 << 20;
/// Uploads of a process at the same time; each is in memory.
pub const FILE_UPLOADS_MAX: usize = 16;
/// Those of one organization; further ones wait.
pub const FILE_UPLOADS_PER_ORG: usize = 4;
/// Time for which an upload waits for others to end.
pub const FILE_UPLOAD_WAIT: Duration = Duration::from_secs(10);
/// Time in which a file of a message is fetched from its address.
pub const FILE_FETCH_TIMEOUT: Duration = Duration::from_secs(20);
/// Files that are read from the blob store at the same time for one request to a model.
pub const FILES_READ_AT_ONCE: usize = 8;
/// Time after which a file that was sent with a message is deleted, if the message was not accepted.
pub const FILE_UNUSED_AFTER: Duration = Duration::from_secs(24 * 3_600);

/// Pixels of the largest image that is decoded.
pub const IMAGE_PIXELS_MAX: u64 = 50_000_000;
/// Memory of the largest decoded image: that of `IMAGE_PIXELS_MAX` with 4 bytes each.
pub const IMAGE_DECODED_BYTES_MAX: u64 = 4 * IMAGE_PIXELS_MAX;
/// Images that a process decodes at the same time, and of those the ones of one organization.
pub const IMAGES_DECODED_AT_ONCE: (usize, usize) = (2, 1);
/// Longest side of an image in a request, in pixels: Anthropic's bound for requests with more than 20 images.
pub const IMAGE_SIDE_MAX: u32 = 2_000;
/// Largest image in a request, in bytes: 5 MB in base64 (Anthropic's bound).
pub const IMAGE_SENT_BYTES_MAX: usize = 3_750_000;
/// Images in one request, the newest.
pub const IMAGES_SENT_MAX: usize = 20;
/// Images that are left out of a request at once when there are too many.
pub const IMAGES_DROPPED_AT_ONCE: usize = 10;
/// Bytes of all files in one request: 28 MB in base64, of the 32 MB of a request (Anthropic's bound).
pub const FILES_SENT_BYTES_MAX: u64 = 20 << 20;
/// Bytes of files that are left out of a request at once when there are too many.
pub const FILE_BYTES_DROPPED_AT_ONCE: u64 = 8 << 20;
/// Largest text document in a request, in bytes.
pub const FILE_TEXT_SENT_BYTES_MAX: u64 = 100_000;
/// Bytes of a PDF document for each token, as an estimate.
pub const PDF_BYTES_PER_TOKEN: u64 = 12;
/// Least and most tokens of a PDF document in an estimate.
pub const PDF_TOKENS: (u64, u64) = (1_500, 300_000);
