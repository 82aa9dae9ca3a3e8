//! `latent-tts solve`: one question, N thoughts.

use std::io::Read;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use engine::Question;
use engine::question::GoldKind;
use record::aggregate::{self, Aggregator, Candidate, Reduction};
use record::stopping::Settled;
use record::{Beam, Sample, Seconds, Trajectory};
use serde_json::{Value, json};

use crate::aggregation::Aggregation;
use crate::args::SolveArgs;
use crate::load::Models;
use crate::printer::{Printer, show_seconds};
use crate::settings::Sampling;

/// Trajectories.
const SAMPLES: NonZeroUsize = NonZeroUsize::new(16).unwrap();
/// No model has room for a longer question.
const LONGEST: u64 = 1 << 20;

/// Runs the command.
pub fn run(args: &SolveArgs, printer: &Printer) -> Result<ExitCode> {
    let sampling = Sampling::of(&args.sampling, SAMPLES)?;
    let models = Models::of(&args.model)?;
    let aggregation = Aggregation::of(&args.aggregation, sampling.samples, models.judge.is_some())?;
    let text = question(&args.text)?;
    let device = args.machine.device.open()?;
    let loaded = models.load(&device, printer)?;
    let settings = sampling.settings(&loaded.reasoner.method, args.machine.memory(&device)?);
    let engine = loaded.engine(aggregation.apply(settings));

    let unknown = loaded.reasoner.tokenizer.unknown(&text)?;
    if !unknown.is_empty() {
        printer.note(&lacking(&unknown));
    }
    // Nobody knows the right answer, so nothing is ever marked as correct.
    let question = Question { id: 0, text, gold: String::new(), kind: GoldKind::Number, steps: Vec::new() };
    let mut outcome = None;
    engine.run(&[question], &mut |done| {
        outcome = Some(done);
        ControlFlow::Continue(())
    })?;
    let Some(outcome) = outcome else { bail!("the engine gave no outcome for the question") };
    let solved = Solved { sample: &outcome.sample, seconds: outcome.seconds, aggregation: &aggregation, unknown: &unknown };
    printer.result(&solved.document(), || solved.text())?;
    Ok(ExitCode::SUCCESS)
}

fn lacking(unknown: &[String]) -> String {
    let words: Vec<String> = unknown.iter().map(|word| format!("{word:?}")).collect();
    format!(
        "note: the model does not know {} and reads a blank there; its answer may be wrong for that reason \
         (`latent-tts corpus --count 5` shows questions in its own words)",
        words.join(", ")
    )
}

fn question(text: &str) -> Result<String> {
    let text = if text == "-" { from_stdin()? } else { text.to_owned() };
    let text = text.trim();
    if text.is_empty() {
        bail!("the question is empty; give it as an argument, or on standard input with `-`");
    }
    Ok(text.to_owned())
}

fn from_stdin() -> Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .take(LONGEST + 1)
        .read_to_string(&mut text)
        .context("cannot read the question from standard input")?;
    if text.len() as u64 > LONGEST {
        bail!("standard input holds more than {LONGEST} bytes; give one question");
    }
    Ok(text)
}

/// What came of the question.
struct Solved<'a> {
    sample: &'a Sample,
    seconds: Seconds,
    aggregation: &'a Aggregation,
    /// Words that the model does not know.
    unknown: &'a [String],
}

/// What a rule chooses.
struct Verdict<'a> {
    rule: &'static str,
    answer: Option<&'a str>,
}

/// Wide enough for the names of the rules.
const LABEL: usize = 12;

impl Solved<'_> {
    fn trajectories(&self) -> &[Trajectory] {
        &self.sample.trajectories
    }

    fn scored(&self) -> bool {
        self.trajectories().iter().all(|t| t.scores.is_some())
    }

    /// What each rule chooses, as far as the trajectories allow it; the first is the answer.
    fn verdicts(&self) -> Vec<Verdict<'_>> {
        let all = self.trajectories();
        let Aggregation { rules: asked, tuning, .. } = self.aggregation;
        let mut rules = asked.as_deref().unwrap_or(Aggregator::USUAL).to_vec();
        rules.retain(|rule| rule.applies(all));
        if asked.is_none() && self.scored() {
            // The best of them comes first (docs/latent-rm.md): verdicts have a scale that means something, step rewards have none.
            let judged = all.iter().all(|t| t.verdict.is_some());
            let best = if judged { Aggregator::Weighted } else { Aggregator::Normalized };
            rules.sort_by_key(|rule| *rule != best);
        }
        let answer = |chosen: Option<usize>| chosen.and_then(|i| all[i].answer.as_deref());
        let verdict = |rule: &Aggregator| Verdict { rule: name(*rule), answer: answer(rule.choose(all, tuning)) };
        let mut verdicts: Vec<Verdict<'_>> = rules.iter().map(verdict).collect();
        verdicts.extend(self.sample.beam.as_ref().map(|beam| Verdict { rule: "beam", answer: beam.answer.as_deref() }));
        verdicts
    }

    fn greedy(&self) -> Option<&str> {
        self.sample.greedy.as_ref().and_then(|t| t.answer.as_deref())
    }

    /// Answers by votes; equal ones in the order of their first supporters.
    fn votes(&self) -> Vec<Candidate<'_>> {
        let mut votes = aggregate::candidates(self.trajectories());
        votes.sort_by_key(|candidate| std::cmp::Reverse(candidate.votes));
        votes
    }

    fn silent(&self) -> usize {
        self.trajectories().iter().filter(|t| t.answer.is_none()).count()
    }

    fn rate(&self) -> f64 {
        let Seconds { prefill, thoughts, scores, answers, .. } = self.seconds;
        self.trajectories().len() as f64 / (prefill + thoughts + scores + answers).max(1e-9)
    }

    /// The largest mean reward among the supporters of an answer.
    fn best_reward(&self, answer: &str) -> Option<f64> {
        let supporters = self.trajectories().iter().filter(|t| t.answer.as_deref() == Some(answer));
        let rewards = supporters.map(|t| aggregate::reward(t, Reduction::Overall));
        rewards.reduce(f64::max).filter(|reward| reward.is_finite())
    }

    fn document(&self) -> Value {
        let verdicts = self.verdicts();
        let votes = self.votes();
        let total: f64 = votes.iter().map(|c| c.weight).sum();
        let vote = |c: &Candidate<'_>| {
            let (mean, best) = (mean_reward(c), self.best_reward(c.answer));
            json!({ "answer": c.answer, "votes": c.votes, "weight": c.weight / total, "reward": mean, "best_reward": best })
        };
        let trajectory = |t: &Trajectory| {
            let (k, thoughts, text, answer) = (t.k, t.thoughts, &t.text, &t.answer);
            json!({ "k": k, "thoughts": thoughts, "text": text, "answer": answer, "scores": t.scores, "logprob": t.logprob })
        };
        let mut document = json!({ "question": self.sample.question, "answer": verdicts.first().and_then(|v| v.answer) });
        verdicts.iter().for_each(|verdict| document[verdict.rule] = json!(verdict.answer));
        document["greedy"] = json!(self.greedy());
        document["votes"] = votes.iter().map(vote).collect();
        document["without_answer"] = json!(self.silent());
        document["trajectories"] = self.trajectories().iter().map(trajectory).collect();
        if let Some(Beam { width, candidates, thoughts, text, answer, scores, .. }) = &self.sample.beam {
            let size = json!({ "width": width, "candidates": candidates, "thoughts": thoughts, "text": text });
            document["search"] = size;
            document["search"]["answer"] = json!(answer);
            document["search"]["scores"] = json!(scores);
        }
        document["unknown_words"] = json!(self.unknown);
        document["stopped"] = json!(self.sample.stopped);
        document["seconds"] = json!(self.seconds);
        document["trajectories_per_s"] = json!(self.rate());
        document
    }

    fn text(&self) -> String {
        let verdicts = self.verdicts();
        let mut text = labelled("answer", &self.reason(verdicts.first()));
        for Verdict { rule, answer } in &verdicts {
            text.push_str(&labelled(rule, answer.unwrap_or("none")));
        }
        text.push_str(&labelled("greedy", self.greedy().unwrap_or("none")));
        text.push_str(&self.table());
        text.push_str(&self.details());
        text
    }

    /// The answer, and what speaks for it.
    fn reason(&self, verdict: Option<&Verdict<'_>>) -> String {
        let Some((rule, answer)) = verdict.and_then(|v| Some((v.rule, v.answer?))) else { return "none".to_owned() };
        let votes = self.votes();
        let Some(candidate) = votes.iter().find(|c| c.answer == answer) else { return format!("{answer} (by {rule})") };
        let (total, all) = (votes.iter().map(|c| c.weight).sum::<f64>(), self.trajectories().len());
        let weight = 100.0 * candidate.weight / total;
        let weight = if self.scored() { format!(" with {weight:.0}% of the rewards' weight") } else { String::new() };
        format!("{answer} (by {rule}: {} of {all} trajectories{weight})", candidate.votes)
    }

    fn table(&self) -> String {
        let votes = self.votes();
        let total: f64 = votes.iter().map(|c| c.weight).sum();
        let width = votes.iter().map(|c| c.answer.chars().count()).max().unwrap_or(0).clamp(LABEL, 40);
        let mut text = format!("\n{:<width$}  votes", "candidate");
        text.push_str(if self.scored() { "  weight  mean reward  best reward\n" } else { "\n" });
        for candidate in &votes {
            text.push_str(&format!("{:<width$}  {:>5}", candidate.answer, candidate.votes));
            if self.scored() {
                let number = |reward: Option<f64>| reward.map_or("-".to_owned(), |reward| format!("{reward:.3}"));
                let (mean, best) = (number(mean_reward(candidate)), number(self.best_reward(candidate.answer)));
                text.push_str(&format!("  {:>5.1}%  {mean:>11}  {best:>11}", 100.0 * candidate.weight / total));
            }
            text.push('\n');
        }
        if self.silent() > 0 {
            text.push_str(&format!("{:<width$}  {:>5}\n", "none", self.silent()));
        }
        text.push('\n');
        text
    }

    /// The best trajectory, how the search went, why sampling stopped, and where the time went.
    fn details(&self) -> String {
        let mut text = String::new();
        let best = aggregate::best_of(self.trajectories(), Reduction::Overall).map(|i| &self.trajectories()[i]);
        if let Some((best, scores)) = best.and_then(|best| Some((best, best.scores.as_ref()?))) {
            text.push_str(&labelled("best one", &format!("trajectory {}{}", best.k, step_rewards(scores))));
        }
        if let Some(Beam { width, candidates, scores, .. }) = &self.sample.beam {
            text.push_str(&labelled("search", &format!("{width} beams x {candidates}{}", step_rewards(scores))));
        }
        if let Some(stopped) = self.sample.stopped {
            let why = match stopped.why {
                Settled::Certain => "no further one can change the vote",
                Settled::Confident => "the lead is large enough",
            };
            let content = format!("after {} of {} trajectories: {why}", self.trajectories().len(), stopped.asked);
            text.push_str(&labelled("stopped", &content));
        }
        let Seconds { prefill, thoughts, scores, answers, beam, total } = self.seconds;
        let parts = [("prefill", prefill), ("thoughts", thoughts), ("scores", scores), ("answers", answers), ("beam", beam)];
        let ran = parts.into_iter().filter(|(stage, s)| *stage != "beam" || *s > 0.0);
        let parts: Vec<String> = ran.map(|(stage, s)| format!("{stage} {s:.3}")).collect();
        text.push_str(&labelled("time", &format!("{}: {}", show_seconds(total), parts.join(", "))));
        text.push_str(&labelled("speed", &format!("{:.1} trajectories/s", self.rate())));
        text
    }
}

fn step_rewards(scores: &[f32]) -> String {
    scores.iter().enumerate().fold(String::new(), |text, (t, score)| {
        let before = if t == 0 { ", step rewards" } else { "" };
        format!("{text}{before} {score:.3}")
    })
}

fn labelled(label: &str, content: &str) -> String {
    format!("{label:<LABEL$} {content}\n")
}

/// The plain vote goes by its full name here.
fn name(rule: Aggregator) -> &'static str {
    if rule == Aggregator::Majority { "majority" } else { rule.name() }
}

/// Trajectories without thoughts have no reward.
fn mean_reward(candidate: &Candidate<'_>) -> Option<f64> {
    candidate.reward.map(|sum| sum / candidate.votes as f64).filter(|mean| mean.is_finite())
}
