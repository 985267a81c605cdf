//! The integration tests: one binary, a database per test.

mod embedded;
mod support;
