//! The fields of a generation request become sampling parameters. What cannot be honoured is
//! refused by its name. Unknown fields of the body are accepted; those of `latent` are refused.

use std::num::NonZeroUsize;

use engine::scheduler::EventDetail;
use engine::{
    AdaptiveSampling, BeamSize, DropoutScope, Engine, MaskLifetime, Perturbation, Prompt,
    SamplingParams, TokenSampling,
};
use latent_tts::aggregate::Confidence;
use latent_tts::{Aggregator, AnswerRule, Probability, SamplingOptions};
use serde_json::Value;

use crate::answer_format::AnswerFormat;
use crate::budget::TargetBudget;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::inspection::Inspection;

/// Trajectories of each `reasoning_effort`; thoughts are the model's own at every rung, because a
/// model is trained for its number of thoughts. `none` is the clean run.
pub(crate) const EFFORTS: [(&str, usize); 7] = [
    ("none", 1),
    ("minimal", 4),
    ("low", 8),
    ("medium", 16),
    ("high", 32),
    ("xhigh", 64),
    ("max", 128),
];
/// Every field of `latent`; `timeout` is read with the deadline.
pub(crate) const LATENT_FIELDS: [&str; 16] = [
    "samples",
    "thoughts",
    "sampler",
    "p",
    "sigma",
    "rule",
    "adaptive",
    "beam",
    "seed",
    "timeout",
    "lens",
    "gold",
    "map",
    "return",
    TargetBudget::FIELDS[0],
    TargetBudget::FIELDS[1],
];
/// Stop sequences of a request, and bytes of each.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 256;
/// The confidence of `adaptive: true`, as on the command line.
const CONFIDENCE: f64 = 0.95;

/// What a request asks for, beside its prompts.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    pub(crate) params: SamplingParams,
    seed: SeedChoice,
    pub(crate) choices: Choices,
    pub(crate) stop: Vec<String>,
    pub(crate) stream: Option<StreamOptions>,
    pub(crate) returned: Returned,
    pub(crate) inspection: Inspection,
    /// Which answers are accepted, and how they are written.
    pub(crate) format: Option<AnswerFormat>,
    /// What chooses the number of trajectories, where the request does not.
    pub(crate) budget: Option<TargetBudget>,
    /// Removes the family's answer marker from returned texts; of chats.
    pub(crate) marker: Option<AnswerRule>,
    /// How the request was read where the client may not expect it; `latent.notes` of the reply.
    pub(crate) notes: Vec<String>,
    /// Notes of each prompt of a completion; may be shorter than the list of prompts.
    pub(crate) prompt_notes: Vec<Vec<String>>,
}

/// How trajectories become choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choices {
    /// One choice, which the vote makes.
    Vote,
    /// Each trajectory is a choice.
    Each,
}

/// Where random numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeedChoice {
    /// The client's `seed`: draws are named by it and by the prompt, so that one seed for all
    /// questions does not perturb them all alike.
    WithPrompt(u64),
    /// `latent.seed`: the engine's seed itself.
    Exact(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: bool,
}

/// Parts of a choice's `latent`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Returned {
    pub(crate) votes: bool,
    pub(crate) rewards: bool,
    pub(crate) trajectories: bool,
    pub(crate) thoughts: bool,
}

impl Generation {
    /// Reads the fields. A request has at most `max_samples` trajectories.
    pub(crate) fn read(
        engine: &Engine,
        body: Fields<'_>,
        max_samples: usize,
    ) -> Result<Self, ApiError> {
        refuse_unsupported(body)?;
        let latent = body.object("latent")?;
        if let Some(latent) = latent {
            latent.refuse_unknown(&LATENT_FIELDS)?;
        }
        let method = &engine.reasoner().method;
        let (samples, choices) = read_samples(body, latent, max_samples)?;
        let budget = latent.map(TargetBudget::read).transpose()?.flatten();
        let is_given = |name| latent.is_some_and(|latent| latent.get(name).is_some());
        let is_clean = samples.get() == 1 && !is_given("samples") && budget.is_none();
        let mut options = SamplingOptions::new(samples);
        if let Some(thoughts) = latent.map(read_thoughts).transpose()?.flatten() {
            options.length = Some(thoughts);
        }
        options.max_new_tokens = read_max_tokens(body)?;
        let mut params = SamplingParams { greedy: false, ..options.resolve(method) };
        let perturbation = read_perturbation(engine, body, latent)?;
        params.perturbation = match perturbation {
            Some(perturbation) => perturbation,
            None if is_clean => Perturbation::None,
            None => params.perturbation,
        };
        if let Some(latent) = latent {
            read_vote(engine, latent, &mut params)?;
        }
        if let Some(budget) = budget {
            if choices == Choices::Each {
                return Err(body.error("n", "a target needs a vote; leave n out"));
            }
            let is_bounded = samples.get() > 1 || is_given("samples");
            budget.apply(&mut params, is_bounded.then_some(samples), max_samples);
        }
        let inspection = latent.map(|latent| Inspection::read(latent, &params)).transpose()?;
        let inspection = inspection.unwrap_or_default();
        if choices == Choices::Each && inspection.map.is_some() {
            return Err(ApiError::field(
                "latent.map",
                "a map is of trajectories that vote; leave n out",
            ));
        }
        let seed = body.count("seed", 0..=u64::MAX)?.unwrap_or(0);
        let exact = latent.map(|latent| latent.count("seed", 0..=u64::MAX)).transpose()?.flatten();
        Ok(Self {
            params,
            seed: exact.map_or(SeedChoice::WithPrompt(seed), SeedChoice::Exact),
            choices,
            stop: read_stop(body)?,
            stream: read_stream(body)?,
            returned: latent.map_or(Ok(Returned::DEFAULT), Returned::read)?,
            inspection,
            format: AnswerFormat::read(body)?,
            budget,
            marker: None,
            notes: Vec::new(),
            prompt_notes: Vec::new(),
        })
    }

    /// The parameters for a prompt.
    pub(crate) fn params(&self, prompt: &Prompt) -> SamplingParams {
        let seed = match self.seed {
            SeedChoice::Exact(seed) => seed,
            SeedChoice::WithPrompt(seed) => prompt_seed(seed, &prompt.tokens),
        };
        SamplingParams { seed, ..self.params }
    }

    /// What the engine has to tell.
    pub(crate) fn event_detail(&self) -> EventDetail {
        EventDetail {
            progress: (self.stream.is_some() && self.choices == Choices::Vote)
                || self.budget.is_some_and(|budget| budget.deadline.is_some()),
            latents: self.returned.thoughts || self.inspection.map.is_some(),
        }
    }

    /// Choices of each prompt.
    pub(crate) fn num_choices(&self) -> usize {
        match self.choices {
            Choices::Vote => 1,
            Choices::Each => self.params.samples.get(),
        }
    }

    /// A text up to the first stop sequence, and whether there was one.
    pub(crate) fn cut<'t>(&self, text: &'t str) -> (&'t str, bool) {
        let end = self.stop.iter().filter_map(|stop| text.find(stop)).min();
        (&text[..end.unwrap_or(text.len())], end.is_some())
    }
}

/// The engine's seed for a client's seed and a prompt: 53 bits, which every JSON reader keeps.
pub(crate) fn prompt_seed(seed: u64, tokens: &[u32]) -> u64 {
    // FNV-1a, then the finalizer of SplitMix64: stable on every machine and in every version.
    let bytes = seed.to_le_bytes().into_iter().chain(tokens.iter().flat_map(|t| t.to_le_bytes()));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ (hash >> 31)) >> 11
}

fn refuse_unsupported(body: Fields<'_>) -> Result<(), ApiError> {
    let is_empty = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    for name in ["tools", "functions", "logit_bias"] {
        body.unsupported(name, is_empty)?;
    }
    for name in ["presence_penalty", "frequency_penalty", "top_logprobs", "min_p"] {
        body.unsupported(name, |value| value.as_f64() == Some(0.0))?;
    }
    body.unsupported("repetition_penalty", |value| value.as_f64() == Some(1.0))?;
    body.unsupported("best_of", |value| value.as_u64() == Some(1))?;
    body.unsupported("suffix", |value| value.as_str() == Some(""))?;
    body.unsupported("top_k", |value| matches!(value.as_i64(), Some(-1 | 0)))
}

/// The trajectories of a prompt and what becomes of them.
fn read_samples(
    body: Fields<'_>,
    latent: Option<Fields<'_>>,
    most: usize,
) -> Result<(NonZeroUsize, Choices), ApiError> {
    let range = 1..=most as u64;
    let n = body.count("n", range.clone())?.unwrap_or(1) as usize;
    let samples = latent.map(|latent| latent.count("samples", range)).transpose()?.flatten();
    let effort = body.text("reasoning_effort")?.map(|name| effort(body, name, most)).transpose()?;
    if n > 1 && (samples.is_some() || effort.is_some()) {
        let message = "with n above 1 every trajectory is a choice and nothing is voted on; \
                       leave out latent.samples and reasoning_effort, or n";
        return Err(body.error("n", message));
    }
    let samples = match (samples, effort) {
        (Some(samples), Some(effort)) if samples as usize != effort => {
            let message = "reasoning_effort and latent.samples both say how many trajectories; \
                           leave one out";
            return Err(body.error("reasoning_effort", message));
        }
        (Some(samples), _) => samples as usize,
        (None, effort) => effort.unwrap_or(n),
    };
    let choices = if n > 1 { Choices::Each } else { Choices::Vote };
    Ok((NonZeroUsize::new(samples).unwrap_or(NonZeroUsize::MIN), choices))
}

fn effort(body: Fields<'_>, name: &str, most: usize) -> Result<usize, ApiError> {
    let known = EFFORTS.iter().find(|(known, _)| *known == name);
    let names = || EFFORTS.map(|(name, _)| name).join(", ");
    let wrong = || body.error("reasoning_effort", format!("it is none of {}", names()));
    let (_, samples) = known.ok_or_else(wrong)?;
    if *samples > most {
        let message = format!("{name} is {samples} trajectories and this server allows {most}");
        return Err(body.error("reasoning_effort", message));
    }
    Ok(*samples)
}

fn read_thoughts(latent: Fields<'_>) -> Result<Option<engine::LatentLength>, ApiError> {
    let Some(value) = latent.get("thoughts") else { return Ok(None) };
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text.parse().map(Some).map_err(|why: String| latent.error("thoughts", why))
}

/// Answer tokens of a trajectory, at most; a limit of 0 is read where nothing is generated.
fn read_max_tokens(body: Fields<'_>) -> Result<Option<NonZeroUsize>, ApiError> {
    let most = 1_000_000;
    let of_chat = body.count("max_completion_tokens", 1..=most)?;
    let limit = of_chat.map_or_else(|| body.count("max_tokens", 0..=most), |n| Ok(Some(n)))?;
    Ok(limit.and_then(|limit| NonZeroUsize::new(limit as usize)))
}

/// What the request says about how trajectories differ; `None` where it says nothing.
fn read_perturbation(
    engine: &Engine,
    body: Fields<'_>,
    latent: Option<Fields<'_>>,
) -> Result<Option<Perturbation>, ApiError> {
    let method = &engine.reasoner().method;
    let (temperature, top_p) =
        (body.number("temperature", 0.0..=100.0)?, body.number("top_p", 0.0..=1.0)?);
    let sampler = latent.map(|latent| latent.text("sampler")).transpose()?.flatten();
    let strength = |name, range| {
        latent.map(|latent| latent.number(name, range)).transpose().map(Option::flatten)
    };
    let (p, sigma) = (strength("p", 0.0..=1.0)?, strength("sigma", 0.0..=1e6)?);
    let warm = temperature.filter(|&temperature| temperature > 0.0);
    let sampler = match (sampler, p, sigma, warm) {
        (Some(name), ..) => name,
        (None, Some(_), None, _) => "dropout",
        (None, None, Some(_), _) => "noise",
        (None, Some(_), Some(_), _) => {
            return Err(ApiError::field("latent.sigma", "p is for dropout and sigma for noise"));
        }
        (None, None, None, Some(_)) => "tokens",
        (None, None, None, None) => {
            if temperature.is_none() && top_p.is_some_and(|p| p < 1.0) {
                return Err(body.error("top_p", "top_p needs a temperature above 0"));
            }
            return Ok(None);
        }
    };
    if sampler != "tokens" && warm.is_some() {
        let message = "answers are decoded greedily while thoughts are perturbed; leave the \
                       temperature out, or set latent.sampler to tokens";
        return Err(body.error("temperature", message));
    }
    let misplaced = |name: &str, needs: &str| {
        ApiError::field(format!("latent.{name}"), format!("{name} is for the sampler {needs}"))
    };
    if p.is_some() && sampler != "dropout" {
        return Err(misplaced("p", "dropout"));
    }
    if sigma.is_some() && sampler != "noise" {
        return Err(misplaced("sigma", "noise"));
    }
    let perturbation = match sampler {
        "none" => Perturbation::None,
        "noise" => Perturbation::Gaussian { std: sigma.map_or(method.sigma, |s| s as f32) },
        "dropout" => {
            let p = Probability::new(p.map_or(method.p, |p| p as f32));
            let message = "a probability is at least 0 and below 1";
            let p = p.ok_or_else(|| ApiError::field("latent.p", message))?;
            let (sites, scope, mask) = (method.sites, DropoutScope::Thoughts, MaskLifetime::Step);
            Perturbation::Dropout { p, sites, scope, mask }
        }
        "tokens" => {
            let (warm, top_p) = (warm.unwrap_or(1.0) as f32, top_p.unwrap_or(1.0) as f32);
            let sampling = TokenSampling::new(warm, top_p);
            let message = "top_p is above 0 and at most 1";
            Perturbation::Tokens(sampling.ok_or_else(|| ApiError::field("top_p", message))?)
        }
        _ => {
            let message = "the sampler is one of dropout, noise, tokens and none";
            return Err(ApiError::field("latent.sampler", message));
        }
    };
    Ok(Some(perturbation))
}

/// Rule, early stopping and beam search.
fn read_vote(
    engine: &Engine,
    latent: Fields<'_>,
    params: &mut SamplingParams,
) -> Result<(), ApiError> {
    if let Some(name) = latent.text("rule")? {
        let names = || Aggregator::ALL.map(Aggregator::name).join(", ");
        let wrong = || latent.error("rule", format!("the rule is one of {}", names()));
        let rule = Aggregator::from_name(name).ok_or_else(wrong)?;
        if rule.needs_rewards() && engine.reward_model().is_none() {
            let message = format!("{name} needs a reward model, and there is none");
            return Err(latent.error("rule", message));
        }
        params.rule = Some(rule);
    }
    let confidence = match latent.get("adaptive") {
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(CONFIDENCE),
        Some(_) => latent.number("adaptive", 0.5..=1.0)?,
    };
    if let Some(confidence) = confidence {
        let message = "a confidence is above 0.5 and at most 1";
        let confidence =
            Confidence::new(confidence).ok_or_else(|| latent.error("adaptive", message))?;
        params.adaptive = Some(AdaptiveSampling { confidence });
    }
    params.beam = match latent.get("beam") {
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(BeamSize::for_samples(params.samples)),
        Some(_) => {
            let message = "beam is true, or an object of width and candidates";
            let beam = latent.object("beam").map_err(|_| latent.error("beam", message))?;
            if let Some(beam) = beam {
                beam.refuse_unknown(&["width", "candidates"])?;
            }
            let size = |name| -> Result<Option<NonZeroUsize>, ApiError> {
                let size = beam.map(|beam| beam.count(name, 1..=64)).transpose()?.flatten();
                Ok(size.and_then(|size| NonZeroUsize::new(size as usize)))
            };
            let default = BeamSize::for_samples(params.samples);
            Some(BeamSize {
                width: size("width")?.unwrap_or(default.width),
                candidates: size("candidates")?.unwrap_or(default.candidates),
            })
        }
    };
    Ok(())
}

fn read_stop(body: Fields<'_>) -> Result<Vec<String>, ApiError> {
    let message = || {
        let limits = format!("{MAX_STOPS} strings of 1 to {MAX_STOP_BYTES} bytes");
        body.error("stop", format!("stop is a string, or a list of at most {limits}"))
    };
    let stop: Vec<String> = match body.get("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(list)) => {
            let text = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(message);
            list.iter().map(text).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(message()),
    };
    let fits = |stop: &String| (1..=MAX_STOP_BYTES).contains(&stop.len());
    if stop.len() > MAX_STOPS || !stop.iter().all(fits) {
        return Err(message());
    }
    Ok(stop)
}

fn read_stream(body: Fields<'_>) -> Result<Option<StreamOptions>, ApiError> {
    let options = body.object("stream_options")?;
    let include_usage = options.map(|options| options.boolean("include_usage")).transpose()?;
    let streams = body.boolean("stream")?.unwrap_or(false);
    Ok(streams.then(|| StreamOptions { include_usage: include_usage.flatten().unwrap_or(false) }))
}

impl Returned {
    const DEFAULT: Self = Self { votes: true, rewards: true, trajectories: false, thoughts: false };

    fn read(latent: Fields<'_>) -> Result<Self, ApiError> {
        let Some(list) = latent.list("return")? else { return Ok(Self::DEFAULT) };
        let mut returned =
            Self { votes: false, rewards: false, trajectories: false, thoughts: false };
        for part in list {
            *match part.as_str() {
                Some("votes") => &mut returned.votes,
                Some("rewards") => &mut returned.rewards,
                Some("trajectories") => &mut returned.trajectories,
                Some("thoughts") => &mut returned.thoughts,
                _ => {
                    let message = "return lists votes, rewards, trajectories and thoughts";
                    return Err(latent.error("return", message));
                }
            } = true;
        }
        Ok(returned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_depends_on_the_prompt_and_stays_the_same() {
        assert_ne!(prompt_seed(1, &[5, 6]), prompt_seed(1, &[6, 5]));
        assert_ne!(prompt_seed(1, &[5, 6]), prompt_seed(2, &[5, 6]));
        assert!(prompt_seed(u64::MAX, &[1]) < 1 << 53);
        // Written down: a new version must not change the answers to old requests.
        assert_eq!(prompt_seed(1234, &[1, 2, 3]), 746_897_505_332_623);
    }
}
