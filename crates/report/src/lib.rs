//! Computes metrics with confidence intervals, tables, figures and an HTML page from run
//! directories and from the records of trainings.
//!
//! Everything is computed from the recorded samples, for any k, without a model.
//!
//! ```text
//! samples -> metrics (one value per question) -> interval (mean and bounds) -> results -> table
//!         -> run_data (a run in memory) -> figures (data) -> draw (SVG, PNG)
//!                                                         -> page (one HTML file)
//! steps, evaluations -> training_data -> figures/learning_curves -> draw, page
//! ```

pub mod ablation;
pub mod comparison;
pub mod draw;
mod error;
pub mod figures;
pub mod interval;
mod latents;
pub mod metrics;
mod page;
mod question_summary;
pub mod rules;
pub mod run_data;
mod subsets;
pub mod table;
pub mod training_data;
mod tsne;
mod write;

pub use error::ReportError;
pub use page::assets;
pub use tsne::{Embedding, embed, pca};
pub use write::{
    BestRun, ReportFiles, ReportOptions, load_runs, page_of_runs, page_of_trainings, write,
    write_loaded, write_trainings,
};
