//! Labelled thoughts on disk: what a judge learns from, without the reasoner that thought them.
//!
//! ```text
//! engine::rollout -> Shard (collects) -> Store (writes) -> Annotations (reads) -> the LatentRM's training
//! ```
//!
//! A directory holds `index.json`, which says how everything was made, and shards
//! `00007-of-00064.safetensors`. Shard s holds questions `s * per_shard ..` of the data, less those
//! that are all right or all wrong. A shard is a function of the index and of its own questions,
//! written beside and renamed: one that is there is complete, so that an interrupted run goes on
//! with those that are missing, and several machines make some shards each and put their files
//! together.
//!
//! Tensors of a shard with P problems of N trajectories, R thoughts in all. An `_ends` tensor says
//! where the part of each problem or trajectory ends in the list of its name; it begins where the
//! one before ends.
//!
//! | tensor | shape | of |
//! |---|---|---|
//! | `thoughts` | (R, width), f32 or bf16 | the vectors that were fed, trajectory after trajectory |
//! | `labels` | (R), f32 | each thought's label, in 0 ..= 1 |
//! | `thought_ends` | (P, N), u64 | trajectories in both |
//! | `correct` | (P, N), u8 | whether the trajectory's own answer is right |
//! | `answers`, `answer_ends` | (any), u32; (P, N), u64 | the trajectory's answer tokens |
//! | `prompts`, `prompt_ends` | (any), u32; (P), u64 | the tokens that the reasoner saw |
//! | `steps`, `step_ends` | (any), i64; (P), u64 | results of the worked steps, where the data has them and all are whole |
//! | `ids` | (P), u32 | the question's place in the data |
//! | `counts` | (4), u64 | questions, all right, all wrong, rollouts computed |

mod error;
mod index;
mod ragged;
mod reader;
mod shard;
mod steps;
#[cfg(test)]
mod tests;

pub use error::AnnotationError;
pub use index::{AnnotationIndex, AnnotationStore, ThoughtsDtype};
pub use reader::{AnnotatedProblem, AnnotatedTrajectory, Annotations};
pub use shard::{AnnotationCounts, AnnotationShard};
pub use steps::step_results;
