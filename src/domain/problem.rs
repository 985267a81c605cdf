//! Result of validating what a caller sent.

/// The invalid field, and the message for the caller.
pub(crate) type Problem = (String, String);
