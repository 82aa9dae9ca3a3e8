//! What run directories say: metrics with their intervals, tables, figures, and one page that tells
//! the story.
//!
//! Reads records only: everything here can be computed again, for any k, from a finished run.
//!
//! ```text
//! samples -> metrics (one value per question) -> interval (one figure) -> results -> table
//!         -> study (a run in brief) -> figures (data) -> draw (SVG, PNG)
//!                                                     -> page (one HTML file)
//! ```

pub mod draw;
mod error;
pub mod figures;
pub mod interval;
mod latents;
pub mod metrics;
mod page;
mod question_summary;
mod rules;
pub mod run_data;
pub mod table;
mod tsne;
mod write;

pub use error::ReportError;
pub use write::{ReportFiles, ReportOptions, write};
