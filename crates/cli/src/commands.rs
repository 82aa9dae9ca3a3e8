//! One module per command. Its `run` takes the parsed arguments and a printer and returns the exit
//! code.

pub mod annotate;
pub mod augment;
pub mod bench;
pub mod calibrate;
pub mod convert;
pub mod corpus;
pub mod doctor;
pub mod eval;
pub mod inspect;
pub mod report;
#[cfg(feature = "serve")]
pub mod serve;
pub mod solve;
pub mod sweep;
pub mod train;
pub mod verify;
