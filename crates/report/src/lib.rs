//! What a run directory says: metrics with their intervals, and a table to read them in.
//!
//! Reads records only: everything here can be computed again, for any k, from a finished run.
//!
//! ```text
//! samples -> metrics (one value per question) -> interval (one figure) -> results -> table
//! ```

mod error;
pub mod interval;
pub mod metrics;
pub mod table;

pub use error::Error;
