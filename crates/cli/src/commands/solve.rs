//! `latent-tts solve`: one question, N thoughts.

use std::io::Read;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use engine::Question;
use engine::question::GoldKind;
use record::aggregate::{self, Candidate, Reduction};
use record::{Sample, Seconds, Trajectory};
use serde_json::{Value, json};

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
    let text = question(&args.text)?;
    let device = args.device.open()?;
    let loaded = models.load(&device, printer)?;
    let engine = loaded.engine(sampling.settings(&loaded.reasoner.method, crate::load::memory(args.memory, &device)?));

    // Nobody knows the right answer, so nothing is ever marked as correct.
    let question = Question { id: 0, text, gold: String::new(), kind: GoldKind::Number, steps: Vec::new() };
    let mut outcome = None;
    engine.run(&[question], &mut |done| {
        outcome = Some(done);
        ControlFlow::Continue(())
    })?;
    let Some(outcome) = outcome else { bail!("the engine gave no outcome for the question") };
    let solved = Solved { sample: &outcome.sample, seconds: outcome.seconds };
    printer.result(&solved.document(), || solved.text())?;
    Ok(ExitCode::SUCCESS)
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
}

impl Solved<'_> {
    fn trajectories(&self) -> &[Trajectory] {
        &self.sample.trajectories
    }

    fn scored(&self) -> bool {
        self.trajectories().iter().all(|t| t.scores.is_some())
    }

    /// What each rule chooses; the first is the answer. Rules that need rewards are there only with rewards.
    fn verdicts(&self) -> Vec<(&'static str, Option<&str>)> {
        let all = self.trajectories();
        let answer = |chosen: Option<usize>| chosen.and_then(|i| all[i].answer.as_deref());
        let mut verdicts = vec![("majority", answer(aggregate::majority(all)))];
        if self.scored() {
            verdicts.insert(0, ("weighted", answer(aggregate::weighted(all))));
            verdicts.push(("best_of", answer(aggregate::best_of(all, Reduction::Mean))));
        }
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
        self.trajectories().len() as f64 / self.seconds.total.max(1e-9)
    }

    fn document(&self) -> Value {
        let verdicts = self.verdicts();
        let votes = self.votes();
        let votes: Vec<Value> =
            votes.iter().map(|c| json!({ "answer": c.answer, "votes": c.votes, "reward": mean_reward(c) })).collect();
        let trajectories: Vec<Value> = self
            .trajectories()
            .iter()
            .map(|t| json!({ "k": t.k, "thoughts": t.thoughts, "text": t.text, "answer": t.answer, "scores": t.scores }))
            .collect();
        let mut document = json!({ "question": self.sample.question, "answer": verdicts.first().and_then(|v| v.1) });
        verdicts.iter().for_each(|(rule, answer)| document[*rule] = json!(answer));
        document["greedy"] = json!(self.greedy());
        document["votes"] = json!(votes);
        document["without_answer"] = json!(self.silent());
        document["trajectories"] = json!(trajectories);
        document["seconds"] = json!(self.seconds);
        document["trajectories_per_s"] = json!(self.rate());
        document
    }

    fn text(&self) -> String {
        let verdicts = self.verdicts();
        let mut text = format!("answer     {}\n", verdicts.first().and_then(|v| v.1).unwrap_or("none"));
        let lines = verdicts.iter().copied().chain([("greedy", self.greedy())]);
        lines.for_each(|(rule, answer)| text.push_str(&format!("{rule:<10} {}\n", answer.unwrap_or("none"))));
        text.push_str(&self.table());
        let Seconds { prefill, thoughts, scores, answers, total } = self.seconds;
        let parts = [("prefill", prefill), ("thoughts", thoughts), ("scores", scores), ("answers", answers)];
        let parts: Vec<String> = parts.iter().map(|(stage, s)| format!("{stage} {s:.3}")).collect();
        text.push_str(&format!("\ntime       {}: {}\n", show_seconds(total), parts.join(", ")));
        text.push_str(&format!("speed      {:.1} trajectories/s\n", self.rate()));
        text
    }

    fn table(&self) -> String {
        let votes = self.votes();
        let width = votes.iter().map(|c| c.answer.chars().count()).max().unwrap_or(0).clamp(10, 40);
        let mut text = format!("\n{:<width$}  votes", "candidate");
        text.push_str(if self.scored() { "  mean reward\n" } else { "\n" });
        for candidate in &votes {
            let reward = mean_reward(candidate).map_or(String::new(), |reward| format!("  {reward:>11.3}"));
            text.push_str(&format!("{:<width$}  {:>5}{reward}\n", candidate.answer, candidate.votes));
        }
        if self.silent() > 0 {
            text.push_str(&format!("{:<width$}  {:>5}\n", "none", self.silent()));
        }
        text
    }
}

/// Trajectories without thoughts have no reward.
fn mean_reward(candidate: &Candidate<'_>) -> Option<f64> {
    candidate.reward.map(|sum| sum / candidate.votes as f64).filter(|mean| mean.is_finite())
}
