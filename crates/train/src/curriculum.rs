//! Which of a solution's steps are thoughts and which are words, as training goes on.

use serde::{Deserialize, Serialize};

/// What a model learns to do before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "mode")]
pub enum Curriculum {
    /// Say every step (the explicit chain of thought, and stage 0 of the others).
    Cot,
    /// Say nothing.
    NoCot,
    /// Think: steps are taken away from the front, thoughts take their place.
    Latent {
        /// Thoughts of a finished model.
        thoughts: usize,
        /// How steps go.
        removal: Removal,
    },
}

/// How steps are taken away while training goes on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "removal")]
pub enum Removal {
    /// As many thoughts as in the end from the beginning on; the number of removed steps rises
    /// evenly from none to all during the first `rise` of training. Some examples are ahead:
    /// `all` of them lose every step, `random` of them any number.
    Smooth {
        /// The share of training after which every step is gone.
        rise: f64,
        /// The share of examples without any step.
        all: f64,
        /// The share of examples with any number of steps.
        random: f64,
    },
    /// COCONUT's: stage k removes k steps and adds `per_step` thoughts for each; the last stage
    /// removes all. Stages are equally long, but that the last takes what is left from `until`
    /// on.
    Stages {
        /// Stages with a fixed number of removed steps.
        stages: usize,
        /// Thoughts for each removed step.
        per_step: usize,
        /// The share of training after which the last stage begins.
        until: f64,
        /// The share of examples from any stage.
        uniform: f64,
    },
}

/// What becomes of one example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurriculumSample {
    /// Thoughts.
    pub thoughts: usize,
    /// Steps that are not said.
    pub removed_steps: usize,
}

impl Curriculum {
    /// The lot of an example of `steps` steps when `progress` of training (from 0 to 1) is over, by
    /// two even draws from [0, 1).
    pub fn sample(&self, progress: f64, steps: usize, draws: [f64; 2]) -> CurriculumSample {
        match *self {
            Self::Cot => CurriculumSample { thoughts: 0, removed_steps: 0 },
            Self::NoCot => CurriculumSample { thoughts: 0, removed_steps: steps },
            Self::Latent { thoughts, removal: Removal::Smooth { rise, all, random } } => {
                let [which, how_many] = draws;
                let any = |most: usize| (how_many * (most + 1) as f64) as usize;
                let due = (thoughts + 1) as f64 * (progress / rise.max(1e-9)).min(1.0);
                let removed = if progress >= rise || which < all {
                    steps
                } else if which < all + random {
                    any(steps)
                } else {
                    (due + how_many) as usize
                };
                CurriculumSample { thoughts, removed_steps: removed.min(steps) }
            }
            Self::Latent {
                thoughts,
                removal: Removal::Stages { stages, per_step, until, uniform },
            } => {
                let [which, how_many] = draws;
                // A stage begins at its share of training, even where that share was rounded down.
                let stage_now = (progress / until * (stages + 1) as f64 + 1e-9) as usize;
                let due = if progress >= until { stages + 1 } else { stage_now };
                let stage =
                    if which < uniform { (how_many * (stages + 2) as f64) as usize } else { due };
                let removed = if stage > stages { steps } else { stage.min(steps) };
                CurriculumSample {
                    thoughts: (stage.min(stages) * per_step).min(thoughts),
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
        removal: Removal::Smooth { rise: 0.4, all: 0.15, random: 0.1 },
    };
    const STAGES: Curriculum = Curriculum::Latent {
        thoughts: 6,
        removal: Removal::Stages { stages: 3, per_step: 2, until: 0.8, uniform: 0.0 },
    };

    #[test]
    fn the_smooth_removal_goes_from_none_to_all() {
        let lot = |progress, draws| SMOOTH.sample(progress, 4, draws);
        assert_eq!(lot(0.0, [0.9, 0.5]), CurriculumSample { thoughts: 6, removed_steps: 0 });
        assert_eq!(
            lot(0.0, [0.1, 0.5]),
            CurriculumSample { thoughts: 6, removed_steps: 4 },
            "some are ahead"
        );
        assert_eq!(lot(0.0, [0.2, 0.99]).removed_steps, 4, "some have any number");
        assert_eq!(lot(0.2, [0.9, 0.4]).removed_steps, 3, "half of seven and a draw");
        assert_eq!(lot(0.4, [0.9, 0.0]).removed_steps, 4);
        assert_eq!(lot(1.0, [0.9, 0.0]).removed_steps, 4);
    }

    #[test]
    fn stages_add_thoughts_as_they_remove_steps() {
        let lot = |progress| STAGES.sample(progress, 5, [0.9, 0.0]);
        assert_eq!(lot(0.0), CurriculumSample { thoughts: 0, removed_steps: 0 });
        assert_eq!(lot(0.2), CurriculumSample { thoughts: 2, removed_steps: 1 });
        assert_eq!(lot(0.4), CurriculumSample { thoughts: 4, removed_steps: 2 });
        assert_eq!(lot(0.6), CurriculumSample { thoughts: 6, removed_steps: 3 });
        assert_eq!(
            lot(0.8),
            CurriculumSample { thoughts: 6, removed_steps: 5 },
            "the last stage says nothing but the answer"
        );
    }

    #[test]
    fn baselines_say_all_or_nothing() {
        assert_eq!(
            Curriculum::Cot.sample(1.0, 5, [0.0; 2]),
            CurriculumSample { thoughts: 0, removed_steps: 0 }
        );
        assert_eq!(
            Curriculum::NoCot.sample(0.0, 5, [0.0; 2]),
            CurriculumSample { thoughts: 0, removed_steps: 5 }
        );
    }
}
