//! Progress of a training: running means of losses, rates, the remaining time, and held-out
//! metrics.
//!
//! Rates and times cover only this process. Steps before a resume are not counted. Evaluations are
//! excluded from the step rate; the remaining time adds them at their own mean duration.

use latent_tts::Device;
use latent_tts::training::{ModelWarning, TrainEvent, TrainObserver, TrainingOptions};

use record::{EvalRecord, StepRecord};
use report::interval::Interval;
use report::table::count;
use report::training_data::score_interval;
use serde_json::Value;

use super::flags_for_options;
use crate::printer::{Printer, Progress, format_duration};

/// Horizon, in steps, of the running means of losses and rates.
const HORIZON: f64 = 50.0;
/// Number of steps before the total time is estimated; the first ones are slower.
const STEPS_BEFORE_ESTIMATE: u32 = 3;
/// Estimated seconds of a training on a CPU above which smaller settings are suggested.
const LONG_TRAINING: f64 = 3600.0;

/// Shows the events of a training.
pub(super) struct TrainProgress<'a> {
    printer: &'a Printer,
    /// Steps between evaluations; 0 evaluates only at the end.
    eval_every: u32,
    progress: Option<Progress>,
    /// Steps done before this process started.
    first: u32,
    rates: StepRates,
    losses: RunningLosses,
    /// The number of evaluations and their total seconds.
    evals: (u32, f64),
    /// Whether the device is a CPU.
    on_cpu: bool,
}

impl<'a> TrainProgress<'a> {
    pub(super) fn new(printer: &'a Printer, options: &TrainingOptions, device: &Device) -> Self {
        Self {
            printer,
            eval_every: options.eval_every,
            progress: None,
            first: 0,
            rates: StepRates::default(),
            losses: RunningLosses::default(),
            evals: (0, 0.0),
            on_cpu: device.isa().is_some(),
        }
    }

    fn show(&mut self, event: &TrainEvent<'_>) {
        match *event {
            TrainEvent::Resumed { steps } => {
                self.first = steps;
                self.printer.note(&format!("resuming after {}", count(steps as usize, "step")));
            }
            TrainEvent::Stepped { steps, total, record, seconds } => {
                self.rates.add(record, seconds);
                self.losses.add(record);
                if steps == self.first + STEPS_BEFORE_ESTIMATE {
                    self.printer.note(&self.estimate(total));
                }
                let left = format_duration(self.seconds_left(steps, total));
                let (printer, first) = (self.printer, self.first as usize);
                let progress =
                    self.progress.get_or_insert_with(|| printer.progress(first, total as usize));
                progress.advance();
                progress.report(&format!("{}, {}, {left} left", self.losses, self.rates));
            }
            TrainEvent::Evaluated { record, seconds } => {
                self.evals = (self.evals.0 + 1, self.evals.1 + seconds);
                self.printer.note(&eval_sentence(record));
            }
        }
    }

    /// The estimated time of all steps, with a suggestion of smaller settings if it is long.
    fn estimate(&self, total: u32) -> String {
        let (steps, seconds) = (total - self.first, self.seconds_left(self.first, total));
        let hint = match self.on_cpu && seconds > LONG_TRAINING {
            true => "; use --preset tiny for a CPU-sized training, or reduce --steps or --batch",
            false => "",
        };
        format!("estimated time for {steps} steps: {}{hint}", format_duration(seconds))
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

impl TrainObserver for TrainProgress<'_> {
    fn note(&mut self, text: &str) {
        self.printer.note(&flags_for_options(text));
    }

    fn warning(&mut self, warning: &ModelWarning) {
        self.printer.warnings([warning]);
    }

    fn event(&mut self, event: &TrainEvent<'_>) {
        self.show(event);
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
        match self.steps / self.seconds {
            rate if rate < 1.0 => write!(f, "{} per step", format_duration(1.0 / rate))?,
            rate => write!(f, "{rate:.1} steps/s")?,
        }
        for (count, unit) in [(self.examples, "examples/s"), (self.tokens, "tokens/s")] {
            match count / self.seconds {
                rate if rate <= 0.0 => {}
                rate if rate < 10.0 => write!(f, ", {rate:.2} {unit}")?,
                rate => write!(f, ", {rate:.0} {unit}")?,
            }
        }
        Ok(())
    }
}

/// Exponential moving averages of the gradient norm and of all losses, with `loss` first.
#[derive(Default)]
struct RunningLosses {
    /// Per loss: the name, the weighted sum, and the sum of the weights.
    means: Vec<(String, f64, f64)>,
    grad_norm: (f64, f64),
}

impl RunningLosses {
    fn add(&mut self, record: &StepRecord) {
        let decay = 1.0 - 1.0 / HORIZON;
        for (name, loss) in record.losses.iter() {
            if self.means.iter().all(|(known, ..)| known != name) {
                self.means.push((name.to_owned(), 0.0, 0.0));
                self.means.sort_by_key(|(name, ..)| name != "loss");
            }
            for (_, sum, weight) in self.means.iter_mut().filter(|(known, ..)| known == name) {
                (*sum, *weight) = (decay * *sum + loss, decay * *weight + 1.0);
            }
        }
        let (sum, weight) = self.grad_norm;
        self.grad_norm = (decay * sum + record.grad_norm, decay * weight + 1.0);
    }
}

impl std::fmt::Display for RunningLosses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, sum, weight) in &self.means {
            write!(f, "{name} {:.4}, ", sum / weight)?;
        }
        write!(f, "grad_norm {:.3}", self.grad_norm.0 / self.grad_norm.1)
    }
}

/// Describes an evaluation: accuracy with its confidence interval, otherwise the metrics by name.
pub(super) fn eval_sentence(record: &EvalRecord) -> String {
    let kept = if record.kept { "; saved" } else { "; an earlier model is better" };
    let what = match (score_interval(record), record.metrics.get("problems")) {
        (Some(Interval { value, low, high }), Some(problems)) if is_accuracy(record) => format!(
            "{:.1}% of {problems} held-out problems correct (95% CI {:.1}-{:.1})",
            100.0 * value,
            100.0 * low,
            100.0 * high
        ),
        _ => format!("held-out {}", metric_list(record)),
    };
    format!("after {}: {what}{kept}", count(record.step as usize, "step"))
}

/// Whether the score is the greedy accuracy.
fn is_accuracy(record: &EvalRecord) -> bool {
    record.metrics.get("greedy").and_then(Value::as_f64) == Some(record.score)
}

fn metric_list(record: &EvalRecord) -> String {
    let number = |value: &Value| value.as_f64().map_or(value.to_string(), |x| format!("{x:.4}"));
    let shown = |(name, value): (&String, &Value)| match value.as_array() {
        Some(values) => {
            let values: Vec<String> = values.iter().map(number).collect();
            format!("{name} {}", values.join(" "))
        }
        None => format!("{name} {}", number(value)),
    };
    record.metrics.iter().map(shown).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use record::Losses;
    use serde_json::json;

    use super::*;
    use crate::args::OutputArgs;

    fn record(losses: Losses) -> StepRecord {
        StepRecord {
            losses,
            grad_norm: 0.25,
            examples: Some(8),
            tokens: Some(400),
            ..StepRecord::default()
        }
    }

    #[test]
    fn every_named_loss_is_shown_as_a_running_mean() {
        let mut losses = RunningLosses::default();
        losses.add(&record(Losses::new(2.0).with("student", 1.0).with("distill", 0.125)));
        let first = "loss 2.0000, student 1.0000, distill 0.1250, grad_norm 0.250";
        assert_eq!(losses.to_string(), first);
        losses.add(&record(Losses::new(4.0).with("student", 1.0).with("distill", 0.125)));
        assert!(losses.to_string().starts_with("loss 3.0101, student 1.0000"), "{losses}");
    }

    #[test]
    fn evaluations_are_described() {
        let metrics = |value: Value| value.as_object().cloned().unwrap_or_default();
        let greedy = EvalRecord {
            step: 40,
            score: 0.5,
            kept: true,
            metrics: metrics(json!({ "greedy": 0.5, "problems": 100 })),
        };
        assert_eq!(
            eval_sentence(&greedy),
            "after 40 steps: 50.0% of 100 held-out problems correct (95% CI 40.4-59.6); saved"
        );
        let ranking = EvalRecord {
            step: 7,
            score: 0.75,
            kept: false,
            metrics: metrics(json!({ "auc_mean": 0.75, "auc": [0.5, 1.0] })),
        };
        assert_eq!(
            eval_sentence(&ranking),
            "after 7 steps: held-out auc_mean 0.7500, auc 0.5000 1.0000; an earlier model is better"
        );
    }

    #[test]
    fn long_trainings_on_a_cpu_suggest_smaller_settings() {
        let printer = Printer::new(&OutputArgs { json: false, quiet: true });
        let mut progress = progress(&printer);
        progress.show(&TrainEvent::Resumed { steps: 0 });
        progress.rates.add(&record(Losses::new(1.0)), 60.0);
        let estimate = progress.estimate(100);
        assert!(estimate.starts_with("estimated time for 100 steps: 100 min"), "{estimate}");
        assert!(estimate.contains("--preset tiny"), "{estimate}");
        progress.on_cpu = false;
        assert!(!progress.estimate(100).contains("--preset tiny"));
    }

    fn progress(printer: &Printer) -> TrainProgress<'_> {
        TrainProgress {
            printer,
            eval_every: 10,
            progress: None,
            first: 0,
            rates: StepRates::default(),
            losses: RunningLosses::default(),
            evals: (0, 0.0),
            on_cpu: true,
        }
    }

    #[test]
    fn rates_exclude_evaluations_and_the_time_left_includes_them() {
        let printer = Printer::new(&OutputArgs { json: false, quiet: true });
        let mut progress = progress(&printer);
        progress.show(&TrainEvent::Resumed { steps: 85 });
        let step = record(Losses::new(1.0));
        for steps in 86..=90 {
            let seconds = 0.5;
            progress.show(&TrainEvent::Stepped { steps, total: 100, record: &step, seconds });
        }
        assert!((progress.seconds_left(90, 100) - 5.0).abs() < 1e-9);
        assert_eq!(progress.rates.to_string(), "2.0 steps/s, 16 examples/s, 800 tokens/s");
        let slow = StepRates { steps: 2.0, seconds: 60.0, examples: 4.0, tokens: 900.0 };
        assert_eq!(slow.to_string(), "30 s per step, 0.07 examples/s, 15 tokens/s");
        let eval = EvalRecord { step: 90, kept: true, ..EvalRecord::default() };
        progress.show(&TrainEvent::Evaluated { record: &eval, seconds: 60.0 });
        assert!((progress.seconds_left(90, 100) - 65.0).abs() < 1e-9, "one more evaluation");
        assert!((progress.seconds_left(96, 100) - 62.0).abs() < 1e-9);
    }
}
