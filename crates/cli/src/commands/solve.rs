//! `latent-tts solve`: answers one question from N trajectories.

use std::io::Read;
use std::num::NonZeroU32;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use latent_tts::aggregate::{AnswerVotes, Candidate, StopReason};
use latent_tts::report::table::count;
use latent_tts::{
    Lens, LensToken, Note, Output, Request, RewardReduction, Rule, SamplingOptions, SamplingParams,
    SearchMethod, StageSeconds, Trajectory, TrajectoryRecord, Vote, aggregate, apply_scorer,
    evaluation_params, notes,
};
use serde_json::{Value, json};

use crate::aggregation::{self, RewardOrigins};
use crate::args::SolveArgs;
use crate::load::{load_models, select_models};
use crate::printer::{Printer, format_duration};
use crate::{scorer, settings};

/// Default of `--samples`.
const DEFAULT_SAMPLES: NonZeroU32 = NonZeroU32::new(16).unwrap();
/// Maximum number of bytes read from standard input; more is most likely a mistake.
const MAX_STDIN_BYTES: u64 = 1 << 20;

/// Runs `solve`.
pub fn run(args: &SolveArgs, printer: &Printer) -> Result<ExitCode> {
    let models = select_models(&args.model)?;
    let options = settings::sampling(&args.sampling, SamplingOptions::new(DEFAULT_SAMPLES))?;
    let scorer = scorer::open(&args.scorer)?;
    let sources =
        RewardOrigins { reward_model: models.reward_model.is_some(), scorer: scorer.is_some() };
    let options = aggregation::apply(&args.aggregation, options, sources)?;
    let rules = aggregation::rules(&args.aggregation);
    aggregation::check_signals(rules.as_deref(), &options, models.probe.is_some())?;
    let questions = read_questions(&args.text)?;
    let device = args.machine.device.open(printer)?;
    let model = load_models(&models, &device, printer)?;
    let engine = args.machine.engine(&model)?;

    let params = evaluation_params(&options, &engine).map_err(settings::flag_error)?;
    let lens = args.lens.map(|tokens| Lens { tokens, sampled: true });
    let is_embedded = notes::is_embedded(&models.reasoner);
    for question in &questions {
        let notes = notes::of_question(model.reasoner(), is_embedded, question)?;
        notes.iter().for_each(|note| printer.note(&note_line(note)));
        let request = Request { lens, ..Request::new(question.clone(), params) };
        let mut reply = engine.solve(&request)?;
        if let Some(scorer) = &scorer {
            apply_scorer(scorer.as_ref(), question, &params, &mut reply)?;
        }
        let rules = aggregation::rules(&args.aggregation);
        let report = SolveReport { question, reply: &reply, params, rules, notes, show: args.show };
        let title = if questions.len() > 1 { format!("{question}\n") } else { String::new() };
        printer.result(&report.to_json(), || format!("{title}{}", report.text()))?;
        if questions.len() > 1 && !printer.is_json() {
            printer.line("")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The text of a note, with a command that helps.
fn note_line(note: &Note) -> String {
    let advice = match note {
        Note::UnknownWords(_) => {
            " (`latent-tts corpus --count 5` prints questions in its vocabulary)"
        }
        _ => "",
    };
    format!("note: {note}{advice}")
}

/// The question given as argument, or the lines of standard input.
fn read_questions(text: &str) -> Result<Vec<String>> {
    let questions: Vec<String> = match text {
        "-" => read_stdin()?.lines().map(|line| line.trim().to_owned()).collect(),
        text => vec![text.trim().to_owned()],
    };
    let questions: Vec<String> = questions.into_iter().filter(|text| !text.is_empty()).collect();
    if questions.is_empty() {
        bail!(
            "the question is empty; pass it as an argument, or pass `-` and one question per line \
             on standard input"
        );
    }
    Ok(questions)
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .take(MAX_STDIN_BYTES + 1)
        .read_to_string(&mut text)
        .context("cannot read questions from standard input")?;
    if text.len() as u64 > MAX_STDIN_BYTES {
        bail!("standard input exceeds {MAX_STDIN_BYTES} bytes; pass fewer questions");
    }
    Ok(text)
}

/// A reply with the context needed to print it.
struct SolveReport<'a> {
    question: &'a str,
    reply: &'a Output,
    params: SamplingParams,
    /// The rules in `--aggregate`.
    rules: Option<Vec<Rule>>,
    /// Why the question is outside the model's range, if it is.
    notes: Vec<Note>,
    /// Whether to print every trajectory.
    show: bool,
}

/// The answer that a rule selects.
struct RuleAnswer<'a> {
    rule: &'static str,
    answer: Option<&'a str>,
}

/// Width of the label column, which fits the longest rule name.
const LABEL: usize = 12;

impl SolveReport<'_> {
    fn trajectories(&self) -> &[Trajectory] {
        &self.reply.trajectories
    }

    fn has_rewards(&self) -> bool {
        self.trajectories().iter().all(|t| t.process_rewards.is_some())
    }

    /// The answer of each applicable rule; the first one is printed as the answer.
    fn rule_answers(&self) -> Vec<RuleAnswer<'_>> {
        let all = self.trajectories();
        let mut rules = self.rules.as_deref().unwrap_or(Rule::DEFAULT).to_vec();
        rules.retain(|rule| rule.applies(all, &self.params.vote));
        if self.rules.is_none() {
            rules.sort_by_key(|rule| *rule != self.reply.rule);
        }
        let rule_answer = |rule: &Rule| {
            let chosen = self.reply.choose(*rule, &self.params.vote);
            RuleAnswer { rule: rule.name(), answer: chosen.and_then(Candidate::answer) }
        };
        let mut rule_answers: Vec<RuleAnswer<'_>> = rules.iter().map(rule_answer).collect();
        let beam = self.reply.beam.as_ref();
        let search = self.params.search.map_or("beam", |search| search.method.name());
        rule_answers
            .extend(beam.map(|beam| RuleAnswer { rule: search, answer: beam.best.answer() }));
        rule_answers
    }

    fn greedy(&self) -> Option<&str> {
        self.reply.greedy.as_ref().and_then(Candidate::answer)
    }

    /// Answers in descending order of votes; ties in the order of their first vote.
    fn votes(&self) -> Vec<AnswerVotes<'_>> {
        let mut votes = self.reply.votes();
        votes.sort_by_key(|answer| std::cmp::Reverse(answer.votes));
        votes
    }

    /// The probability that the printed answer is correct, if there is a calibration.
    fn confidence(&self) -> Option<f64> {
        let rule = self.rules.as_ref().and_then(|rules| rules.first()).copied();
        let rule = rule.unwrap_or(self.reply.rule);
        let chosen = rule.choose(self.trajectories(), &self.params.vote);
        self.params.vote.confidence(self.trajectories(), chosen)
    }

    fn unknown_words(&self) -> Vec<String> {
        let words = self.notes.iter().filter_map(|note| match note {
            Note::UnknownWords(words) => Some(words.clone()),
            _ => None,
        });
        words.flatten().collect()
    }

    fn out_of_range(&self) -> Vec<String> {
        let reasons = self.notes.iter().filter_map(|note| match note {
            Note::OutOfRange(reasons) => Some(reasons),
            _ => None,
        });
        reasons.flatten().map(ToString::to_string).collect()
    }

    fn without_answer(&self) -> usize {
        self.trajectories().iter().filter(|t| t.answer.is_none()).count()
    }

    fn trajectories_per_s(&self) -> f64 {
        let StageSeconds { prefill, thoughts, scores, answers, .. } = self.reply.seconds;
        self.trajectories().len() as f64 / (prefill + thoughts + scores + answers).max(1e-9)
    }

    /// The largest reward among the trajectories with this answer.
    fn best_reward(&self, answer: &str) -> Option<f64> {
        let voters = self.trajectories().iter().filter(|t| t.answer() == Some(answer));
        let rewards = voters.map(|t| aggregate::reward(t, RewardReduction::OutcomeOrMean));
        rewards.reduce(f64::max).filter(|reward| reward.is_finite())
    }

    fn to_json(&self) -> Value {
        let rule_answers = self.rule_answers();
        let votes = self.votes();
        let vote = |votes: &AnswerVotes<'_>| {
            let mut vote = json!(Vote::from(votes));
            vote["best_reward"] = json!(self.best_reward(votes.answer));
            vote
        };
        let trajectory = |of: &Trajectory| json!(TrajectoryRecord::from(of));
        let answer = rule_answers.first().and_then(|chosen| chosen.answer);
        let mut document = json!({ "question": self.question, "answer": answer });
        if let Some(confidence) = self.confidence() {
            document["confidence"] = json!(confidence);
        }
        rule_answers.iter().for_each(|chosen| document[chosen.rule] = json!(chosen.answer));
        document["greedy"] = json!(self.greedy());
        if let Some(greedy) = self.reply.greedy.as_ref().filter(|greedy| !greedy.lens.is_empty()) {
            document["greedy_lens"] = json!(TrajectoryRecord::from(greedy).lens);
        }
        document["votes"] = votes.iter().map(vote).collect();
        document["without_answer"] = json!(self.without_answer());
        document["trajectories"] = self.trajectories().iter().map(trajectory).collect();
        if let (Some(beam), Some(size)) = (&self.reply.beam, self.params.search) {
            document["search"] = json!({
                "width": size.width,
                "candidates": size.candidates,
                "latent_steps": beam.best.thoughts,
                "text": beam.best.text,
                "answer": beam.best.answer(),
                "process_rewards": beam.best.process_rewards,
                "outcome_reward": beam.best.outcome_reward,
            });
        }
        document["unknown_words"] = self.unknown_words().into();
        document["out_of_range"] = self.out_of_range().into();
        document["stopped"] = json!(self.reply.stopped);
        document["seconds"] = json!(self.reply.seconds);
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
        if self.show {
            text.push_str(&self.trajectory_table());
        }
        text.push_str(&self.lens());
        text.push_str(&self.details());
        text
    }

    /// The text and rewards of every trajectory: the outcome reward, if the reward model reads
    /// answers, and the process rewards.
    fn trajectory_table(&self) -> String {
        let all = self.trajectories();
        let answer = |t: &Trajectory| t.answer().unwrap_or("none").to_owned();
        let width = all.iter().map(|t| answer(t).chars().count()).max().unwrap_or(0).max(6);
        let has_outcomes = all.iter().any(|t| t.outcome_reward.is_some());
        let mut text = format!("{:>4}  {:<width$}", "k", "answer");
        if has_outcomes {
            text.push_str(&format!("  {:>8}", "reward"));
        }
        text.push_str(if self.has_rewards() {
            "  rewards per thought, text\n"
        } else {
            "  text\n"
        });
        for t in all {
            text.push_str(&format!("{:>4}  {:<width$}", t.number, answer(t)));
            if has_outcomes {
                let reward = t.outcome_reward.map_or("-".to_owned(), |r| format!("{r:.3}"));
                text.push_str(&format!("  {reward:>8}"));
            }
            for reward in t.process_rewards.iter().flatten() {
                text.push_str(&format!("  {reward:>7.3}"));
            }
            text.push_str(&format!("  {:?}\n", t.text));
        }
        text.push('\n');
        text
    }

    /// The tokens of the selected and the greedy trajectory's thoughts, if requested.
    fn lens(&self) -> String {
        let chosen = self.reply.chosen.map(|i| &self.trajectories()[i]);
        let named = [
            chosen.map(|t| (format!("thoughts of trajectory {} (selected)", t.number), t)),
            self.reply.greedy.as_ref().map(|t| ("thoughts of the greedy run".to_owned(), t)),
        ];
        let mut text = String::new();
        for (title, trajectory) in named.into_iter().flatten().filter(|(_, t)| !t.lens.is_empty()) {
            let reading: String =
                trajectory.lens.iter().filter_map(|t| t.first()).map(|t| &*t.text).collect();
            let reading = reading.split_whitespace().collect::<Vec<_>>().join(" ");
            text.push_str(&format!("{title}, decoded: {reading}\n"));
            for (t, tokens) in trajectory.lens.iter().enumerate() {
                let cells: Vec<String> = tokens.iter().map(format_lens_token).collect();
                text.push_str(&format!("{:>4}  {}\n", t + 1, cells.join("  ")));
            }
            text.push('\n');
        }
        text
    }

    /// The answer with its rule and votes.
    fn explain_answer(&self, chosen: Option<&RuleAnswer<'_>>) -> String {
        let Some((rule, answer)) = chosen.and_then(|c| Some((c.rule, c.answer?))) else {
            return "none".to_owned();
        };
        let votes = self.votes();
        let Some(candidate) = votes.iter().find(|c| c.answer == answer) else {
            return format!("{answer} (by {rule})");
        };
        let all = self.trajectories().len();
        let doubt = if self.notes.is_empty() { "" } else { "; outside the model's range" };
        let confidence = self.confidence().map(|p| format!("; confidence {:.0}%", 100.0 * p));
        let confidence = confidence.unwrap_or_default();
        format!(
            "{answer} (by {rule}: {} of {all} trajectories{confidence}{doubt})",
            candidate.votes
        )
    }

    fn table(&self) -> String {
        let votes = self.votes();
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
                    (number(candidate.mean_reward()), number(self.best_reward(candidate.answer)));
                text.push_str(&format!(
                    "  {:>5.1}%  {mean:>11}  {best:>11}",
                    100.0 * candidate.weight
                ));
            }
            text.push('\n');
        }
        if self.without_answer() > 0 {
            text.push_str(&format!("{:<width$}  {:>5}\n", "none", self.without_answer()));
        }
        let silent = self.trajectories().iter().find(|t| t.answer.is_none());
        if let Some(silent) = silent.filter(|_| !self.show) {
            let said: String = silent.text.chars().take(60).collect();
            text.push_str(&format!(
                "none: no answer found, e.g. in {said:?}; --show prints all texts, \
                 --max-new-tokens allows longer ones\n"
            ));
        }
        if self.has_rewards() {
            text.push_str(
                "weight: share of the weighted vote, not the probability of being correct\n",
            );
        }
        text.push('\n');
        text
    }

    /// The best trajectory, the beam search, the reason for an early stop, and the stage times.
    fn details(&self) -> String {
        let mut text = String::new();
        let best = aggregate::best_of(self.trajectories(), RewardReduction::OutcomeOrMean)
            .map(|i| &self.trajectories()[i]);
        if let Some((best, scores)) =
            best.and_then(|best| Some((best, best.process_rewards.as_ref()?)))
        {
            let reward = aggregate::reward(best, RewardReduction::OutcomeOrMean);
            let of = if best.outcome_reward.is_some() { "outcome" } else { "mean over thoughts" };
            let content = format!(
                "trajectory {}: reward {reward:.3} ({of}){}",
                best.number,
                format_process_rewards(scores)
            );
            text.push_str(&labelled("best sample", &content));
        }
        if let (Some(beam), Some(size)) = (&self.reply.beam, self.params.search) {
            let rewards = beam.best.process_rewards.as_deref().unwrap_or_default();
            let rewards = format_process_rewards(rewards);
            let content = match size.method {
                SearchMethod::Beam => {
                    format!("{} x {}{rewards}", count(size.width.get(), "beam"), size.candidates)
                }
                SearchMethod::Particles => {
                    format!("{}{rewards}", count(size.width.get(), "particle"))
                }
                SearchMethod::Dvts => {
                    format!("{} x {}{rewards}", count(size.width.get(), "subtree"), size.candidates)
                }
            };
            text.push_str(&labelled("search", &content));
        }
        if let Some(stopped) = self.reply.stopped {
            let why = match stopped.reason {
                StopReason::Certain => "further ones cannot change the vote",
                StopReason::Confident => "the lead is large enough",
                StopReason::Deadline => "the deadline was reached",
            };
            let content = format!(
                "after {} of {} trajectories: {why}",
                self.trajectories().len(),
                stopped.requested
            );
            text.push_str(&labelled("stopped", &content));
        }
        let StageSeconds { prefill, thoughts, scores, answers, beam, total } = self.reply.seconds;
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
        let before = if t == 0 { ", per thought" } else { "" };
        format!("{text}{before} {score:.3}")
    })
}

/// The text of a token, quoted to make spaces visible, and its probability.
fn format_lens_token(LensToken { token, text, probability }: &LensToken) -> String {
    let text = if text.is_empty() { format!("#{token}") } else { format!("{text:?}") };
    format!("{text} {:.1}%", 100.0 * probability)
}

fn labelled(label: &str, content: &str) -> String {
    format!("{label:<LABEL$} {content}\n")
}
