//! The training log: one record per optimizer step and one per evaluation.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// One line of `log.jsonl`: an optimizer step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step, counted from 0.
    pub step: u32,
    /// The losses, averaged over the micro-batches.
    #[serde(flatten)]
    pub losses: Losses,
    /// The learning rate (`rate` in logs of earlier versions).
    #[serde(alias = "rate")]
    pub lr: f64,
    /// The global gradient norm before clipping (`norm` in logs of earlier versions).
    #[serde(alias = "norm")]
    pub grad_norm: f64,
    /// The number of examples in all micro-batches.
    #[serde(rename = "n_examples", default, skip_serializing_if = "Option::is_none")]
    pub examples: Option<u64>,
    /// The number of positions fed to the decoder in all micro-batches.
    #[serde(rename = "n_tokens", default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// The unweighted mean losses of a batch by name, in log order. `loss` is the minimized loss; the
/// others are the auxiliary losses of the method.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Losses(Vec<(String, f64)>);

impl Losses {
    /// Only the minimized loss.
    pub fn new(loss: f64) -> Self {
        Self(vec![("loss".to_owned(), loss)])
    }

    /// Adds an auxiliary loss, if there is one.
    pub fn with(mut self, name: &str, loss: impl Into<Option<f64>>) -> Self {
        self.0.extend(loss.into().map(|loss| (name.to_owned(), loss)));
        self
    }

    /// The loss named `name`.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, loss)| *loss)
    }

    /// The names of the losses. Skips `seconds`, which logs written before `timings.jsonl` existed
    /// contain.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name).filter(|name| *name != "seconds")
    }

    /// The losses with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, loss)| (name.as_str(), *loss))
    }

    /// Whether every loss is a finite number.
    pub fn is_finite(&self) -> bool {
        self.iter().all(|(_, loss)| loss.is_finite())
    }

    /// Adds the losses of one of `count` micro-batches, each divided by `count`.
    pub fn add_mean_of(&mut self, part: &Self, count: f64) {
        for (name, loss) in part.iter() {
            match self.0.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += loss / count,
                None => self.0.push((name.to_owned(), loss / count)),
            }
        }
    }
}

impl Serialize for Losses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Losses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = Map::<String, Value>::deserialize(deserializer)?;
        let number = |(name, value): (String, Value)| match value.as_f64() {
            Some(loss) => Ok((name, loss)),
            None => Err(D::Error::custom(format!("{name} is not a number"))),
        };
        entries.into_iter().map(number).collect::<Result<_, _>>().map(Self)
    }
}

/// One line of `evals.jsonl`: an evaluation on held-out data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalRecord {
    /// The number of steps before the evaluation.
    pub step: u32,
    /// The metric that selects the saved model; higher is better.
    pub score: f64,
    /// Whether the model was saved. The directory holds the model of the last line with `true`.
    pub kept: bool,
    /// All metrics by name.
    pub metrics: Map<String, Value>,
}

/// One line of `timings.jsonl`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainTiming {
    /// The step, counted from 0.
    pub step: u32,
    /// Duration of the step in seconds, without the evaluation.
    pub seconds: f64,
    /// Duration of the evaluation after it in seconds, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_seconds: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_losses_makes_the_round_trip_in_their_order() {
        let line = r#"{"step":3,"loss":1.5,"student":1.25,"distill":0.25,"lr":0.001,"grad_norm":0.5,"n_tokens":96}"#;
        let record: StepRecord = serde_json::from_str(line).unwrap();
        assert_eq!((record.losses.get("distill"), record.tokens), (Some(0.25), Some(96)));
        assert_eq!(record.losses.names().collect::<Vec<_>>(), ["loss", "student", "distill"]);
        assert_eq!(serde_json::to_string(&record).unwrap(), line);
        let earlier = line.replace("\"lr\"", "\"rate\"").replace("\"grad_norm\"", "\"norm\"");
        assert_eq!(serde_json::from_str::<StepRecord>(&earlier).unwrap(), record);
    }

    #[test]
    fn losses_of_micro_batches_are_averaged() {
        let mut mean = Losses::default();
        mean.add_mean_of(&Losses::new(1.0).with("digits", 3.0), 2.0);
        mean.add_mean_of(&Losses::new(2.0).with("digits", None), 2.0);
        assert_eq!(mean, Losses::new(1.5).with("digits", 1.5));
        assert!(mean.is_finite() && !Losses::new(f64::NAN).is_finite());
    }
}
