//! Result of validating what a caller sent.

/// The invalid field, and the message for the caller.
pub type Problem = (String, String);
