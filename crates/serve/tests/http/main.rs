//! The server over loopback on the embedded model: what clients send, and what they are owed.
//!
//! Every answer is compared with what the engine says by itself for the same seed.

#![expect(clippy::unwrap_used, reason = "what fails to run fails the test")]

mod access;
mod answers;
mod chat;
mod completions;
mod gateway;
mod limits;
mod models;
mod overload;
mod responses;
mod support;
mod tokens;
mod traces;
mod web_ui;
