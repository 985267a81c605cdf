//! Behaviour through the doors of the house: one binary, so it links once; a
//! database per test, so they share nothing.

mod embedded;
mod fake;
mod model;
mod net;
mod support;
mod tool;
mod webhook;
