//! `latent-tts solve`: one question, N thoughts.

use std::io::Read;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::process::ExitCode;

use aggregate::{Aggregator, AnswerVotes, RewardReduction, StopReason};
use anyhow::{Context, Result, bail};
use engine::Question;
use engine::question::AnswerKind;
use record::{BeamResult, Sample, Seconds, TrajectoryRecord};
use serde_json::{Value, json};

use crate::aggregation::AggregationSettings;
use crate::args::SolveArgs;
use crate::load::ModelSelection;
use crate::printer::{Printer, format_duration};
use crate::settings::SamplingSettings;

/// Trajectories.
const DEFAULT_SAMPLES: NonZeroUsize = NonZeroUsize::new(16).unwrap();
/// No model has room for a longer question.
const MAX_QUESTION_BYTES: u64 = 1 << 20;

/// Runs the command.
pub fn run(args: &SolveArgs, printer: &Printer) -> Result<ExitCode> {
    let sampling = SamplingSettings::from_args(&args.sampling, DEFAULT_SAMPLES)?;
    let models = ModelSelection::from_args(&args.model)?;
    let aggregation = AggregationSettings::from_args(
        &args.aggregation,
        sampling.samples,
        models.reward_model.is_some(),
    )?;
    let text = read_question(&args.text)?;
    let device = args.machine.device.open()?;
    let loaded = models.load(&device, printer)?;
    let settings = sampling.resolve(&loaded.reasoner.method, args.machine.kv_cache_bytes(&device)?);
    let engine = loaded.engine(aggregation.apply(settings));

    let unknown = loaded.reasoner.tokenizer.unknown_words(&text)?;
    if !unknown.is_empty() {
        printer.note(&unknown_words_note(&unknown));
    }
    // Nobody knows the right answer, so nothing is ever marked as correct.
    let question =
        Question { id: 0, text, gold: String::new(), kind: AnswerKind::Number, steps: Vec::new() };
    let mut outcome = None;
    engine.run(&[question], &mut |done| {
        outcome = Some(done);
        ControlFlow::Continue(())
    })?;
    let Some(outcome) = outcome else { bail!("the engine gave no outcome for the question") };
    let report = SolveReport {
        sample: &outcome.sample,
        seconds: outcome.seconds,
        aggregation: &aggregation,
        unknown: &unknown,
    };
    printer.result(&report.to_json(), || report.text())?;
    Ok(ExitCode::SUCCESS)
}

fn unknown_words_note(unknown: &[String]) -> String {
    let words: Vec<String> = unknown.iter().map(|word| format!("{word:?}")).collect();
    format!(
        "note: the model does not know {} and reads a blank there; its answer may be wrong for that reason \
         (`latent-tts corpus --count 5` shows questions in its own words)",
        words.join(", ")
    )
}

fn read_question(text: &str) -> Result<String> {
    let text = if text == "-" { read_stdin()? } else { text.to_owned() };
    let text = text.trim();
    if text.is_empty() {
        bail!("the question is empty; give it as an argument, or on standard input with `-`");
    }
    Ok(text.to_owned())
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .take(MAX_QUESTION_BYTES + 1)
        .read_to_string(&mut text)
        .context("cannot read the question from standard input")?;
    if text.len() as u64 > MAX_QUESTION_BYTES {
        bail!("standard input holds more than {MAX_QUESTION_BYTES} bytes; give one question");
    }
    Ok(text)
}

/// What came of the question.
struct SolveReport<'a> {
    sample: &'a Sample,
    seconds: Seconds,
    aggregation: &'a AggregationSettings,
    /// Words that the model does not know.
    unknown: &'a [String],
}

/// What a rule chooses.
struct RuleAnswer<'a> {
    rule: &'static str,
    answer: Option<&'a str>,
}

/// Wide enough for the names of the rules.
const LABEL: usize = 12;

impl SolveReport<'_> {
    fn trajectories(&self) -> &[TrajectoryRecord] {
        &self.sample.trajectories
    }

    fn has_rewards(&self) -> bool {
        self.trajectories().iter().all(|t| t.process_rewards.is_some())
    }

    /// What each rule chooses, as far as the trajectories allow it; the first is the answer.
    fn rule_answers(&self) -> Vec<RuleAnswer<'_>> {
        let all = self.trajectories();
        let AggregationSettings { rules: requested, tuning, .. } = self.aggregation;
        let mut rules = requested.as_deref().unwrap_or(Aggregator::DEFAULT).to_vec();
        rules.retain(|rule| rule.applies(all));
        if requested.is_none() && self.has_rewards() {
            // The best of them comes first (docs/latent-rm.md): verdicts have a scale that means
            // something, step rewards have none.
            let has_outcome_rewards = all.iter().all(|t| t.outcome_reward.is_some());
            let best =
                if has_outcome_rewards { Aggregator::Weighted } else { Aggregator::Normalized };
            rules.sort_by_key(|rule| *rule != best);
        }
        let answer = |chosen: Option<usize>| chosen.and_then(|i| all[i].answer.as_deref());
        let rule_answer = |rule: &Aggregator| RuleAnswer {
            rule: rule_name(*rule),
            answer: answer(rule.choose(all, tuning)),
        };
        let mut rule_answers: Vec<RuleAnswer<'_>> = rules.iter().map(rule_answer).collect();
        rule_answers.extend(
            self.sample
                .beam
                .as_ref()
                .map(|beam| RuleAnswer { rule: "beam", answer: beam.answer.as_deref() }),
        );
        rule_answers
    }

    fn greedy(&self) -> Option<&str> {
        self.sample.greedy.as_ref().and_then(|t| t.answer.as_deref())
    }

    /// Answers by votes; equal ones in the order of their first supporters.
    fn votes(&self) -> Vec<AnswerVotes<'_>> {
        let mut votes = aggregate::votes(self.trajectories());
        votes.sort_by_key(|candidate| std::cmp::Reverse(candidate.votes));
        votes
    }

    fn without_answer(&self) -> usize {
        self.trajectories().iter().filter(|t| t.answer.is_none()).count()
    }

    fn trajectories_per_s(&self) -> f64 {
        let Seconds { prefill, thoughts, scores, answers, .. } = self.seconds;
        self.trajectories().len() as f64 / (prefill + thoughts + scores + answers).max(1e-9)
    }

    /// The largest mean reward among the supporters of an answer.
    fn best_reward(&self, answer: &str) -> Option<f64> {
        let supporters = self.trajectories().iter().filter(|t| t.answer.as_deref() == Some(answer));
        let rewards = supporters.map(|t| aggregate::reward(t, RewardReduction::OutcomeOrMean));
        rewards.reduce(f64::max).filter(|reward| reward.is_finite())
    }

    fn to_json(&self) -> Value {
        let rule_answers = self.rule_answers();
        let votes = self.votes();
        let total: f64 = votes.iter().map(|c| c.weight).sum();
        let vote = |c: &AnswerVotes<'_>| {
            let (mean, best) = (mean_reward(c), self.best_reward(c.answer));
            json!({ "answer": c.answer, "votes": c.votes, "weight": c.weight / total, "reward": mean, "best_reward": best })
        };
        let trajectory = |t: &TrajectoryRecord| {
            let (k, thoughts, text, answer) = (t.k, t.thoughts, &t.text, &t.answer);
            json!({ "k": k, "thoughts": thoughts, "text": text, "answer": answer, "scores": t.process_rewards, "logprob": t.logprob })
        };
        let mut document = json!({ "question": self.sample.question, "answer": rule_answers.first().and_then(|v| v.answer) });
        rule_answers.iter().for_each(|chosen| document[chosen.rule] = json!(chosen.answer));
        document["greedy"] = json!(self.greedy());
        document["votes"] = votes.iter().map(vote).collect();
        document["without_answer"] = json!(self.without_answer());
        document["trajectories"] = self.trajectories().iter().map(trajectory).collect();
        if let Some(BeamResult {
            width,
            candidates,
            thoughts,
            text,
            answer,
            process_rewards: scores,
            ..
        }) = &self.sample.beam
        {
            let size = json!({ "width": width, "candidates": candidates, "thoughts": thoughts, "text": text });
            document["search"] = size;
            document["search"]["answer"] = json!(answer);
            document["search"]["scores"] = json!(scores);
        }
        document["unknown_words"] = json!(self.unknown);
        document["stopped"] = json!(self.sample.stopped);
        document["seconds"] = json!(self.seconds);
        document["trajectories_per_s"] = json!(self.trajectories_per_s());
        document
    }

    fn text(&self) -> String {
        let rule_answers = self.rule_answers();
        let mut text = labelled("answer", &self.explain_answer(rule_answers.first()));
        for RuleAnswer { rule, answer } in &rule_answers {
            text.push_str(&labelled(rule, answer.unwrap_or("none")));
        }
        text.push_str(&labelled("greedy", self.greedy().unwrap_or("none")));
        text.push_str(&self.table());
        text.push_str(&self.details());
        text
    }

    /// The answer, and what speaks for it.
    fn explain_answer(&self, chosen: Option<&RuleAnswer<'_>>) -> String {
        let Some((rule, answer)) = chosen.and_then(|v| Some((v.rule, v.answer?))) else {
            return "none".to_owned();
        };
        let votes = self.votes();
        let Some(candidate) = votes.iter().find(|c| c.answer == answer) else {
            return format!("{answer} (by {rule})");
        };
        let (total, all) = (votes.iter().map(|c| c.weight).sum::<f64>(), self.trajectories().len());
        let weight = 100.0 * candidate.weight / total;
        let weight = if self.has_rewards() {
            format!(" with {weight:.0}% of the rewards' weight")
        } else {
            String::new()
        };
        format!("{answer} (by {rule}: {} of {all} trajectories{weight})", candidate.votes)
    }

    fn table(&self) -> String {
        let votes = self.votes();
        let total: f64 = votes.iter().map(|c| c.weight).sum();
        let width =
            votes.iter().map(|c| c.answer.chars().count()).max().unwrap_or(0).clamp(LABEL, 40);
        let mut text = format!("\n{:<width$}  votes", "candidate");
        text.push_str(if self.has_rewards() {
            "  weight  mean reward  best reward\n"
        } else {
            "\n"
        });
        for candidate in &votes {
            text.push_str(&format!("{:<width$}  {:>5}", candidate.answer, candidate.votes));
            if self.has_rewards() {
                let number = |reward: Option<f64>| {
                    reward.map_or("-".to_owned(), |reward| format!("{reward:.3}"))
                };
                let (mean, best) =
                    (number(mean_reward(candidate)), number(self.best_reward(candidate.answer)));
                text.push_str(&format!(
                    "  {:>5.1}%  {mean:>11}  {best:>11}",
                    100.0 * candidate.weight / total
                ));
            }
            text.push('\n');
        }
        if self.without_answer() > 0 {
            text.push_str(&format!("{:<width$}  {:>5}\n", "none", self.without_answer()));
        }
        text.push('\n');
        text
    }

    /// The best trajectory, how the search went, why sampling stopped, and where the time went.
    fn details(&self) -> String {
        let mut text = String::new();
        let best = aggregate::best_of(self.trajectories(), RewardReduction::OutcomeOrMean)
            .map(|i| &self.trajectories()[i]);
        if let Some((best, scores)) =
            best.and_then(|best| Some((best, best.process_rewards.as_ref()?)))
        {
            text.push_str(&labelled(
                "best one",
                &format!("trajectory {}{}", best.k, format_process_rewards(scores)),
            ));
        }
        if let Some(BeamResult { width, candidates, process_rewards: scores, .. }) =
            &self.sample.beam
        {
            text.push_str(&labelled(
                "search",
                &format!("{width} beams x {candidates}{}", format_process_rewards(scores)),
            ));
        }
        if let Some(stopped) = self.sample.stopped {
            let why = match stopped.reason {
                StopReason::Certain => "no further one can change the vote",
                StopReason::Confident => "the lead is large enough",
            };
            let content = format!(
                "after {} of {} trajectories: {why}",
                self.trajectories().len(),
                stopped.requested
            );
            text.push_str(&labelled("stopped", &content));
        }
        let Seconds { prefill, thoughts, scores, answers, beam, total } = self.seconds;
        let parts = [
            ("prefill", prefill),
            ("thoughts", thoughts),
            ("scores", scores),
            ("answers", answers),
            ("beam", beam),
        ];
        let ran = parts.into_iter().filter(|(stage, s)| *stage != "beam" || *s > 0.0);
        let parts: Vec<String> = ran.map(|(stage, s)| format!("{stage} {s:.3}")).collect();
        text.push_str(&labelled(
            "time",
            &format!("{}: {}", format_duration(total), parts.join(", ")),
        ));
        text.push_str(&labelled(
            "speed",
            &format!("{:.1} trajectories/s", self.trajectories_per_s()),
        ));
        text
    }
}

fn format_process_rewards(scores: &[f32]) -> String {
    scores.iter().enumerate().fold(String::new(), |text, (t, score)| {
        let before = if t == 0 { ", step rewards" } else { "" };
        format!("{text}{before} {score:.3}")
    })
}

fn labelled(label: &str, content: &str) -> String {
    format!("{label:<LABEL$} {content}\n")
}

/// The plain vote goes by its full name here.
fn rule_name(rule: Aggregator) -> &'static str {
    if rule == Aggregator::Majority { "majority" } else { rule.name() }
}

/// Trajectories without thoughts have no reward.
fn mean_reward(candidate: &AnswerVotes<'_>) -> Option<f64> {
    candidate.reward.map(|sum| sum / candidate.votes as f64).filter(|mean| mean.is_finite())
}
