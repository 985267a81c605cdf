//! Behaviour through the doors of the house: one binary, so it links once.

mod fake;
mod net;
mod webhook;
