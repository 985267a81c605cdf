//! Postgres: the only room with SQL.

pub mod embedded;
