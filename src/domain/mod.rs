//! Domain rules of a session: types and pure functions.
//!
//! All modules above call this one; it calls none of them. No I/O, no async, no clock: the time and
//! new ids are arguments, so the same inputs always give the same events.

pub mod actor;
pub mod apply;
pub mod budget;
pub mod context;
pub mod conversation;
pub mod cost;
pub mod decide;
pub mod delta;
pub mod entry;
pub mod environment;
pub mod event;
pub mod exit;
pub mod github;
pub mod ids;
pub mod network;
pub mod notice;
pub mod operation;
pub mod piece;
pub mod price;
pub mod problem;
pub mod registry;
pub mod rootfs;
pub mod schedule;
pub mod scheduled_wake;
pub mod session;
pub mod source;
pub mod spend;
pub mod step;
pub mod tool;
pub mod transcript;
pub mod trigger;
pub mod turn;
pub mod usage;

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
