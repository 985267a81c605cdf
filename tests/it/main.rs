//! The service from outside: one test binary, so that it links once.

mod fake;
mod model;
mod tool;
