//! One file per command: `run` takes what was typed and the printer, and gives the exit code.

pub mod bench;
pub mod doctor;
pub mod eval;
pub mod inspect;
pub mod report;
pub mod solve;
pub mod sweep;
pub mod verify;
