//! The server on the loopback interface with the embedded model, from a client's point of view.
//!
//! Every answer is compared with that of the engine for the same seed.

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
