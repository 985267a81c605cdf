//! What the tests stand on.

mod boxes;
pub mod database;
pub mod service;
