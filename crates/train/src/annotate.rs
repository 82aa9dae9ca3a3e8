//! Annotations on disk: trajectories with a label per thought. A reward model is trained on them
//! without the reasoner that generated them.
//!
//! ```text
//! engine::rollout -> AnnotationShard -> AnnotationStore -> files -> Annotations -> reward
//! ```
//!
//! A directory holds `index.json`, with all settings and shapes, and shards such as
//! `00007-of-00064.safetensors`. Shard s has questions `s * per_shard ..` of the data, except those
//! whose trajectories are all correct or all wrong.
//!
//! A shard is a deterministic function of the index and its questions, and is written atomically: a
//! shard file that exists is complete. A resumed run therefore computes only the missing shards,
//! and several machines can compute different shards and copy them into one directory.
//!
//! Tensors of a shard with P problems, N trajectories per problem and R thoughts in total. An
//! `_ends` tensor has the end offset of each problem or trajectory in the tensor it is named after;
//! each part starts at the end of the previous one.
//!
//! | tensor | shape | content |
//! |---|---|---|
//! | `thoughts` | (R, width), f32 or bf16 | thoughts, concatenated over trajectories |
//! | `labels` | (R), f32 | a label in 0..=1 per thought |
//! | `thought_ends` | (P, N), u64 | trajectories in `thoughts` and `labels` |
//! | `correct` | (P, N), u8 | whether the trajectory's answer is correct |
//! | `answers`, `answer_ends` | (any), u32; (P, N), u64 | answer tokens of the trajectories |
//! | `prompts`, `prompt_ends` | (any), u32; (P), u64 | prompt tokens of the problems |
//! | `steps`, `step_ends` | (any), i64; (P), u64 | step results; empty if one is not an integer |
//! | `ids` | (P), u32 | index of the question in the data |
//! | `counts` | (4), u64 | questions, all correct, all wrong, rollouts computed |

mod error;
mod index;
mod ragged;
mod reader;
mod shard;
#[cfg(test)]
mod tests;

pub use error::AnnotationError;
pub use index::{AnnotationIndex, AnnotationStore, ThoughtsDtype};
pub use reader::{AnnotatedProblem, AnnotatedTrajectory, Annotations};
pub use shard::{AnnotationCounts, AnnotationShard};
