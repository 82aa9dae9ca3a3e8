//! What run directories say: metrics with their intervals, tables, figures, and one page that tells the story.
//!
//! Reads records only: everything here can be computed again, for any k, from a finished run.
//!
//! ```text
//! samples -> metrics (one value per question) -> interval (one figure) -> results -> table
//!         -> study (a run in brief) -> figures (data) -> draw (SVG, PNG)
//!                                                     -> page (one HTML file)
//! ```

mod brief;
pub mod draw;
mod error;
pub mod figures;
pub mod interval;
mod latents;
pub mod metrics;
mod page;
mod rules;
pub mod study;
pub mod table;
mod tsne;
mod write;

pub use error::Error;
pub use write::{Options, Written, write};
