//! Progress of a training: losses, rates and the time that is left.
//!
//! Rates and times are of this process only: steps before a resume do not count, and neither does
//! the time of evaluations, which the time left includes by their own mean.

use record::StepRecord;
use serde_json::Value;
use train::trainer::{TrainConfig, TrainEvent};

use crate::printer::{Printer, Progress, format_duration};

/// Steps over which rates are averaged.
const HORIZON: f64 = 50.0;

/// Shows the events of a training.
pub(super) struct TrainProgress<'a> {
    printer: &'a Printer,
    /// Steps between evaluations; 0 for the last only.
    eval_every: u32,
    progress: Option<Progress>,
    /// Steps done before this process began.
    first: u32,
    rates: StepRates,
    /// The number of evaluations, and the seconds of all.
    evals: (u32, f64),
}

impl<'a> TrainProgress<'a> {
    pub(super) fn new(printer: &'a Printer, config: &TrainConfig) -> Self {
        Self {
            printer,
            eval_every: config.eval_every,
            progress: None,
            first: 0,
            rates: StepRates::default(),
            evals: (0, 0.0),
        }
    }

    pub(super) fn show(&mut self, event: &TrainEvent<'_>) {
        match *event {
            TrainEvent::Resumed { steps } => {
                self.first = steps;
                self.printer.note(&format!("resumes after {steps} steps"));
            }
            TrainEvent::Stepped { steps, total, record, seconds } => {
                self.rates.add(record, seconds);
                let left = format_duration(self.seconds_left(steps, total));
                let (printer, first) = (self.printer, self.first as usize);
                let progress =
                    self.progress.get_or_insert_with(|| printer.progress(first, total as usize));
                progress.advance();
                progress.report(&format!("{}, {}, {left} left", losses(record), self.rates));
            }
            TrainEvent::Evaluated { record, seconds } => {
                self.evals = (self.evals.0 + 1, self.evals.1 + seconds);
                let metrics = Value::Object(record.metrics.clone());
                let kept = if record.kept { "; kept" } else { "" };
                self.printer.note(&format!("after {} steps: {metrics}{kept}", record.step));
            }
        }
    }

    fn seconds_left(&self, steps: u32, total: u32) -> f64 {
        let left = f64::from(total - steps) * self.rates.seconds_per_step();
        let (evals, seconds) = self.evals;
        let evals_left = match self.eval_every {
            0 => u32::from(steps < total),
            every => total / every - steps / every + u32::from(!total.is_multiple_of(every)),
        };
        left + f64::from(evals_left) * seconds / f64::from(evals.max(1))
    }
}

/// Exponential moving sums over the last steps.
#[derive(Default)]
struct StepRates {
    steps: f64,
    seconds: f64,
    examples: f64,
    tokens: f64,
}

impl StepRates {
    fn add(&mut self, record: &StepRecord, seconds: f64) {
        let decay = 1.0 - 1.0 / HORIZON;
        let count = |count: Option<u64>| count.unwrap_or(0) as f64;
        self.steps = decay * self.steps + 1.0;
        self.seconds = decay * self.seconds + seconds;
        self.examples = decay * self.examples + count(record.examples);
        self.tokens = decay * self.tokens + count(record.tokens);
    }

    fn seconds_per_step(&self) -> f64 {
        self.seconds / self.steps
    }
}

impl std::fmt::Display for StepRates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} steps/s", self.steps / self.seconds)?;
        for (count, unit) in [(self.examples, "examples/s"), (self.tokens, "tokens/s")] {
            if count > 0.0 {
                write!(f, ", {:.0} {unit}", count / self.seconds)?;
            }
        }
        Ok(())
    }
}

/// All losses of a step, `loss` first, and the gradient norm.
fn losses(record: &StepRecord) -> String {
    let mut names: Vec<&str> = record.loss_names().collect();
    names.sort_by_key(|name| *name != "loss");
    let shown = |name| Some(format!("{name} {:.4}", record.loss(name)?));
    let mut parts: Vec<String> = names.into_iter().filter_map(shown).collect();
    parts.push(format!("norm {:.3}", record.grad_norm));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use record::EvalRecord;
    use serde_json::json;

    use super::*;
    use crate::args::OutputArgs;

    fn record(losses: Value) -> StepRecord {
        let Value::Object(losses) = losses else { panic!("no object") };
        StepRecord {
            losses,
            grad_norm: 0.25,
            examples: Some(8),
            tokens: Some(400),
            ..StepRecord::default()
        }
    }

    #[test]
    fn every_named_loss_is_shown() {
        let record = record(json!({ "student": 1.0, "distill": 0.125, "loss": 2.0 }));
        assert_eq!(losses(&record), "loss 2.0000, student 1.0000, distill 0.1250, norm 0.250");
    }

    #[test]
    fn rates_exclude_evaluations_and_the_time_left_includes_them() {
        let printer = Printer::new(&OutputArgs { json: false, quiet: true });
        let mut progress = TrainProgress {
            printer: &printer,
            eval_every: 10,
            progress: None,
            first: 0,
            rates: StepRates::default(),
            evals: (0, 0.0),
        };
        progress.show(&TrainEvent::Resumed { steps: 85 });
        let step = record(json!({ "loss": 1.0 }));
        for steps in 86..=90 {
            let seconds = 0.5;
            progress.show(&TrainEvent::Stepped { steps, total: 100, record: &step, seconds });
        }
        assert!((progress.seconds_left(90, 100) - 5.0).abs() < 1e-9);
        assert_eq!(progress.rates.to_string(), "2.0 steps/s, 16 examples/s, 800 tokens/s");
        let eval = EvalRecord { step: 90, kept: true, ..EvalRecord::default() };
        progress.show(&TrainEvent::Evaluated { record: &eval, seconds: 60.0 });
        assert!((progress.seconds_left(90, 100) - 65.0).abs() < 1e-9, "one more evaluation");
        assert!((progress.seconds_left(96, 100) - 62.0).abs() < 1e-9);
    }
}
