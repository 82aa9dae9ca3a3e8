//! The latent curriculum: how many steps of a solution are replaced by latent thoughts as training
//! progresses.

use serde::{Deserialize, Serialize};

/// What a model generates before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "mode")]
pub enum Curriculum {
    /// All steps as text: explicit chain of thought.
    Cot,
    /// Nothing: the answer follows the question.
    NoCot,
    /// Latent thoughts: steps are removed from the front and replaced by thoughts.
    Latent {
        /// Number of thoughts at the end of training.
        thoughts: usize,
        /// Schedule of the removed steps.
        removal: Removal,
    },
}

/// How the number of removed steps grows during training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "removal")]
pub enum Removal {
    /// The number of thoughts is constant; the number of removed steps rises linearly from none to
    /// all during the first `end` of training. Some examples have more steps removed.
    Smooth {
        /// Fraction of training after which all steps are removed.
        end: f64,
        /// Fraction of examples with all steps removed from the start.
        no_cot_fraction: f64,
        /// Fraction of examples with a uniformly sampled number of removed steps.
        uniform_prob: f64,
    },
    /// COCONUT's stages: stage k removes k steps and adds `thoughts_per_step` thoughts for each;
    /// the last stage removes all steps. The stages before `end` have equal length; the last stage
    /// is the rest of training.
    Stages {
        /// Number of stages after stage 0 with a fixed number of removed steps.
        stages: usize,
        /// Thoughts per removed step.
        thoughts_per_step: usize,
        /// Fraction of training after which the last stage begins.
        end: f64,
        /// Fraction of examples with a uniformly sampled stage.
        uniform_prob: f64,
    },
}

/// The layout of one example at a point of the training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurriculumSample {
    /// Latent thoughts before the completion.
    pub thoughts: usize,
    /// Steps removed from the front.
    pub removed_steps: usize,
}

impl Curriculum {
    /// The layout of an example with `steps` steps at `progress` (0 to 1) of the training.
    /// `uniforms` are two uniform random numbers in [0, 1), the only source of randomness.
    pub fn sample(&self, progress: f64, steps: usize, uniforms: [f64; 2]) -> CurriculumSample {
        match *self {
            Self::Cot => CurriculumSample { thoughts: 0, removed_steps: 0 },
            Self::NoCot => CurriculumSample { thoughts: 0, removed_steps: steps },
            Self::Latent {
                thoughts,
                removal: Removal::Smooth { end, no_cot_fraction, uniform_prob },
            } => {
                let [choice, amount] = uniforms;
                let due = (thoughts + 1) as f64 * (progress / end.max(1e-9)).min(1.0);
                let removed = if progress >= end || choice < no_cot_fraction {
                    steps
                } else if choice < no_cot_fraction + uniform_prob {
                    (amount * (steps + 1) as f64) as usize
                } else {
                    (due + amount) as usize
                };
                CurriculumSample { thoughts, removed_steps: removed.min(steps) }
            }
            Self::Latent {
                thoughts,
                removal: Removal::Stages { stages, thoughts_per_step, end, uniform_prob },
            } => {
                let [choice, amount] = uniforms;
                // The epsilon compensates for a fraction of training that was rounded down.
                let scheduled = (progress / end * (stages + 1) as f64 + 1e-9) as usize;
                let due = if progress >= end { stages + 1 } else { scheduled };
                let stage = match choice < uniform_prob {
                    true => (amount * (stages + 2) as f64) as usize,
                    false => due,
                };
                let removed = if stage > stages { steps } else { stage.min(steps) };
                CurriculumSample {
                    thoughts: (stage.min(stages) * thoughts_per_step).min(thoughts),
                    removed_steps: removed,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMOOTH: Curriculum = Curriculum::Latent {
        thoughts: 6,
        removal: Removal::Smooth { end: 0.4, no_cot_fraction: 0.15, uniform_prob: 0.1 },
    };
    const STAGES: Curriculum = Curriculum::Latent {
        thoughts: 6,
        removal: Removal::Stages { stages: 3, thoughts_per_step: 2, end: 0.8, uniform_prob: 0.0 },
    };

    #[test]
    fn smooth_removal_goes_from_none_to_all() {
        let sample = |progress, uniforms| SMOOTH.sample(progress, 4, uniforms);
        assert_eq!(sample(0.0, [0.9, 0.5]), CurriculumSample { thoughts: 6, removed_steps: 0 });
        let ahead = CurriculumSample { thoughts: 6, removed_steps: 4 };
        assert_eq!(sample(0.0, [0.1, 0.5]), ahead, "examples without steps from the start");
        assert_eq!(sample(0.0, [0.2, 0.99]).removed_steps, 4, "uniform number of removed steps");
        assert_eq!(sample(0.2, [0.9, 0.4]).removed_steps, 3, "half of seven, rounded at random");
        assert_eq!(sample(0.4, [0.9, 0.0]).removed_steps, 4);
        assert_eq!(sample(1.0, [0.9, 0.0]).removed_steps, 4);
    }

    #[test]
    fn stages_add_thoughts_as_they_remove_steps() {
        for (progress, thoughts, removed_steps) in
            [(0.0, 0, 0), (0.2, 2, 1), (0.4, 4, 2), (0.6, 6, 3), (0.8, 6, 5)]
        {
            let sample = STAGES.sample(progress, 5, [0.9, 0.0]);
            assert_eq!(sample, CurriculumSample { thoughts, removed_steps }, "at {progress}");
        }
    }

    #[test]
    fn baselines_keep_all_steps_or_none() {
        let cot = Curriculum::Cot.sample(1.0, 5, [0.0; 2]);
        assert_eq!(cot, CurriculumSample { thoughts: 0, removed_steps: 0 });
        let no_cot = Curriculum::NoCot.sample(0.0, 5, [0.0; 2]);
        assert_eq!(no_cot, CurriculumSample { thoughts: 0, removed_steps: 5 });
    }
}
