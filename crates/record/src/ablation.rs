//! Thought ablations of a run (`ablation.json`): the greedy run with its thoughts replaced.
//!
//! The file is written once, after all questions are done. It does not depend on the run's samples
//! or its sampler.

use schema::AblationKind;
use serde::{Deserialize, Serialize};

use crate::error::FieldError;
use crate::manifest::FORMAT;
use crate::sample::{Validate, check_answer, check_finite};

/// The content of `ablation.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ablation {
    /// The format version, [`FORMAT`].
    pub version: u32,
    /// The seed of the shuffled orders.
    pub seed: u64,
    /// Accuracy of the baseline: greedy, unperturbed, with its own thoughts.
    pub clean: AblationMean,
    /// The replacements, in the order of each question's `ablated`.
    pub ablations: Vec<AblationResult>,
    /// The answers, question by question.
    pub questions: Vec<AblatedQuestion>,
}

/// A mean over questions with a 95% bootstrap interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct AblationMean {
    /// The mean.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

/// One replacement over all questions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AblationResult {
    /// The replacement of the thoughts.
    pub kind: AblationKind,
    /// Accuracy with these thoughts.
    pub accuracy: AblationMean,
    /// Accuracy minus that of the baseline, with a paired-bootstrap interval.
    pub difference: AblationMean,
    /// The share of questions whose answer differs from the baseline's.
    pub changed: f64,
}

/// The answers to one question.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AblatedQuestion {
    /// The question's index in its data set.
    pub id: u32,
    /// Number of thoughts, in the baseline and with every replacement.
    #[serde(alias = "thoughts")]
    pub latent_steps: u32,
    /// The baseline's answer.
    pub clean: AblatedAnswer,
    /// The answer under each replacement.
    pub ablated: Vec<AblatedAnswer>,
}

/// An answer and its correctness.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AblatedAnswer {
    /// The canonical answer; `None` is never correct.
    pub answer: Option<String>,
    /// Whether it equals the gold answer.
    pub correct: bool,
}

impl Default for Ablation {
    fn default() -> Self {
        Self {
            version: FORMAT,
            seed: 0,
            clean: AblationMean::default(),
            ablations: Vec::new(),
            questions: Vec::new(),
        }
    }
}

impl Validate for Ablation {
    fn validate(&self) -> Result<(), FieldError> {
        let numbers = |mean: &AblationMean| [mean.value, mean.low, mean.high];
        check_finite("clean", numbers(&self.clean))?;
        for (i, result) in self.ablations.iter().enumerate() {
            check_finite(&format!("ablations[{i}].accuracy"), numbers(&result.accuracy))?;
            check_finite(&format!("ablations[{i}].difference"), numbers(&result.difference))?;
            check_finite(&format!("ablations[{i}].changed"), [result.changed])?;
        }
        for (i, question) in self.questions.iter().enumerate() {
            if question.ablated.len() != self.ablations.len() {
                let field = format!("questions[{i}].ablated");
                return Err(FieldError::new(field, "does not have one answer per replacement"));
            }
            for answer in question.ablated.iter().chain([&question.clean]) {
                check_answer(&format!("questions[{i}]"), &answer.answer, answer.correct)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_file() {
        for kind in AblationKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn every_question_has_every_replacement() {
        let mean = AblationMean::default();
        let result = AblationResult {
            kind: AblationKind::Zero,
            accuracy: mean,
            difference: mean,
            changed: 0.0,
        };
        let question =
            AblatedQuestion { ablated: vec![AblatedAnswer::default()], ..Default::default() };
        let whole =
            Ablation { ablations: vec![result], questions: vec![question], ..Ablation::default() };
        whole.validate().unwrap();
        let lacking = Ablation { ablations: Vec::new(), ..whole.clone() };
        assert_eq!(lacking.validate().unwrap_err().field, "questions[0].ablated");
        let mut nan = whole;
        nan.ablations[0].difference.low = f64::NAN;
        assert_eq!(nan.validate().unwrap_err().field, "ablations[0].difference");
    }
}
