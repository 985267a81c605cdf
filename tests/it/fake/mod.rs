//! Fakes of external systems.

pub mod anthropic;
pub mod bucket;
pub mod dialect;
pub mod file_parts;
pub mod git;
pub mod mcp;
pub mod openai;
pub mod provider;
pub mod published;
pub mod receiver;
pub mod registry;
pub mod resolver;
pub mod responses;
pub mod sandbox;
pub mod token_endpoint;

pub use provider::{Dialect, Fake, Fault, Request, Said, Step, Used};
