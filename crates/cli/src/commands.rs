//! One file per command: `run` takes what was typed and the printer, and gives the exit code.

pub mod annotate;
pub mod bench;
pub mod corpus;
pub mod doctor;
pub mod eval;
pub mod inspect;
pub mod report;
pub mod solve;
pub mod sweep;
pub mod train;
pub mod verify;
