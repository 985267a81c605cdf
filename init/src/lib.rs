//! What a worker and `sojourn-init` say to each other.
//!
//! Used by the binary beside it and by the client in the service's `sandbox`
//! room; calls nothing. Both sides share these types, so they cannot drift, and
//! both bound what they read, because each is hostile to the other.

pub mod frame;
pub mod protocol;
