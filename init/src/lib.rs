//! Protocol between a worker and `sojourn-init`.
//!
//! Used by the binary of this crate and by the client in the service's `sandbox` module; calls nothing. Both
//! sides share these types, so they cannot diverge, and both bound what they read, because neither trusts the
//! other.

pub mod frame;
pub mod protocol;
pub mod scan;
