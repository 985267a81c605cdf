//! Fixtures and helpers of the tests.

pub mod clock;
pub mod contract;
pub mod database;
pub mod folder;
pub mod gate;
pub mod images;
pub mod ordinary;
pub mod pages;
pub mod pooler;
pub mod program;
pub mod relay;
pub mod sandboxes;
pub mod service;
pub mod wait;
