//! Domain rules of a session: types and pure functions.
//!
//! All modules above call this one; it calls none of them. No I/O, no async, no clock: the time and
//! new ids are arguments, so the same inputs always give the same events.

pub mod action;
pub(crate) mod actor;
pub mod apply;
pub mod budget;
pub mod compaction;
pub mod content;
pub mod context;
pub mod conversation;
pub(crate) mod cost;
pub mod custom_tool;
pub mod decide;
pub mod delta;
pub mod elicitation;
pub(crate) mod entry;
pub mod environment;
pub mod event;
pub(crate) mod exit;
pub mod fallback;
pub(crate) mod github;
pub(crate) mod ids;
pub mod log_fold;
pub mod mcp;
pub mod media_type;
pub mod network;
pub(crate) mod notice;
pub mod oauth;
pub mod open_work;
pub(crate) mod operation;
pub mod permission;
pub(crate) mod piece;
pub mod price;
pub(crate) mod problem;
pub mod provider_header;
pub mod question;
pub(crate) mod registry;
pub mod repetition;
pub mod rootfs;
pub(crate) mod schedule;
pub mod scheduled_wake;
pub(crate) mod secret;
pub mod session;
pub mod shown_files;
pub mod skill;
pub(crate) mod source;
pub mod spend;
pub(crate) mod step;
pub mod tool;
pub(crate) mod transcript;
pub mod tree;
pub(crate) mod trigger;
pub mod turn;
pub mod turn_settings;
pub(crate) mod usage;

pub use actor::{Actor, ActorKind};
pub use conversation::{Answer, Block, Message, StopReason};
pub use cost::Cost;
pub use entry::Entry;
pub use event::{Body, Event, Level};
pub use ids::*;
pub use notice::{Notice, NoticeBody};
pub use session::{Session, Status};
pub use turn::Turn;
pub use usage::Usage;
