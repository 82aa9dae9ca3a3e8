//! The run directory: settings, sampled trajectories, results; and the records of a training run.
//!
//! The command line writes it, the report reads it. This crate depends on neither models nor the
//! engine.
//!
//! ```text
//! runs/<name>/manifest.json    settings, seeds, host, versions                      (manifest)
//!             samples.jsonl    one line per question and seed, in processing order  (sample)
//!             timings.jsonl    seconds by stage, one line per flush                 (results)
//!             results.json     metrics and cost                                     (results)
//!             latents.safetensors    the thoughts, if they were kept                (latents)
//!             ablation.json    the greedy run with its thoughts replaced            (ablation)
//! ```
//!
//! There are two invariants. `samples.jsonl` is a deterministic function of the manifest
//! (independent of time and host), so a killed and resumed run produces the same bytes as an
//! uninterrupted one. And a reader never holds more than one line, so a run may be larger than
//! memory.
//!
//! The records of a training run are in [`TrainingDir`]. Recorded trajectories are aggregated by
//! the crate [`aggregate`].
//!
//! ```
//! use latent_tts_record::{Manifest, RunDir, Sample};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let scratch = tempfile::tempdir()?;
//! # let path = scratch.path().join("run");
//! let manifest = Manifest { seeds: vec![7], questions: 1, ..Manifest::default() };
//! let (question, gold) = ("1 + 1".into(), "2".into());
//! let sample = Sample { id: 0, seed: 7, question, gold, ..Sample::default() };
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

mod ablation;
mod document;
mod error;
pub mod files;
mod latents;
mod lines;
mod manifest;
mod question_record;
mod results;
mod run_dir;
mod sample;
mod training;
mod writer;

pub use ablation::{AblatedAnswer, AblatedQuestion, Ablation, AblationMean, AblationResult};
pub use document::{read_document, write_atomic, write_document};
pub use error::RecordError;
pub use files::{DirLock, Fingerprint};
pub use latents::{LATENTS_FILE, LatentsWriter, verify_latents};
pub use lines::JsonLines;
pub use manifest::{FORMAT, FieldDifference, Manifest, digest, first_difference};
pub use question_record::QuestionRecord;
pub use results::{BeamCost, Metric, MetricGain, MetricName, Results, RunCost, Unanswered};
pub use run_dir::RunDir;
pub use sample::{BeamResult, Sample};
pub use schema::{AblationKind, StageSeconds, TrajectoryRecord};
pub use training::{
    EvalRecord, Losses, STATE_FILE, StepRecord, TRAINING_DIR, TrainTiming, TrainingDir,
};
pub use writer::{RunWriter, create_dir, lock_dir, lock_part};
