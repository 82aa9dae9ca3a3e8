//! The run directory: what a run was, what it sampled, what came of it.
//!
//! The engine and the trainer write it, the report reads it, and this crate knows neither.
//!
//! ```text
//! runs/<name>/manifest.json    what was asked: settings, seeds, host, versions      (manifest)
//!             samples.jsonl    one line per question and seed, in the order of work (sample)
//!             timings.jsonl    seconds by stage, one line per flush                 (results)
//!             results.json     metrics and cost                                     (results)
//! ```
//!
//! Two invariants carry the rest. `samples.jsonl` is a function of the manifest alone: no clock, no
//! host, so that a killed and resumed run ends with the bytes of an uninterrupted one. And a reader
//! never holds more than one line, so a run may be larger than memory.
//!
//! What follows from the recorded trajectories (votes, early stopping, diversity) is in the crate
//! [`aggregate`], which works on live trajectories too.
//!
//! ```
//! use record::{Manifest, RunDir, Sample};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let scratch = tempfile::tempdir()?;
//! # let path = scratch.path().join("run");
//! let manifest = Manifest { seeds: vec![7], questions: 1, ..Manifest::default() };
//! let sample = Sample { id: 0, seed: 7, question: "1 + 1".into(), gold: "2".into(), ..Sample::default() };
//!
//! let mut run = RunDir::resume(&path, &manifest)?;
//! if !run.is_done(sample.seed, sample.id) {
//!     run.append(&sample)?;
//! }
//! let run = run.finish()?;
//! for line in run.samples()? {
//!     assert_eq!(line?, sample);
//! }
//! # Ok(())
//! # }
//! ```

mod document;
mod error;
mod fingerprint;
mod latents;
mod lines;
mod manifest;
mod results;
mod run_dir;
mod sample;
mod writer;

pub use document::{write_atomic, write_document};
pub use error::RecordError;
pub use fingerprint::Fingerprint;
pub use latents::LatentsWriter;
pub use lines::JsonLines;
pub use manifest::{FORMAT, FieldDifference, Manifest, first_difference};
pub use results::{BeamCost, Metric, MetricGain, MetricName, Results, RunCost, Seconds};
pub use run_dir::RunDir;
pub use sample::{BeamResult, Sample, TrajectoryRecord};
pub use writer::RunWriter;
