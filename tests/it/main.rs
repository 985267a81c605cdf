//! The service as its users see it: one binary of tests, a module per room.

mod sandbox;
