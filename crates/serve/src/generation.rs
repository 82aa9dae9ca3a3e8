//! Converts the fields of a generation request to sampling parameters. Unsupported values are
//! rejected with the name of the field. Unknown fields of the body are ignored; unknown fields of
//! `latent` are rejected.

use std::num::NonZeroU32;
use std::time::Duration;

use engine::scheduler::EventOptions;
use engine::{Engine, Prompt, SamplingParams};
use latent_tts::aggregate::Confidence;
use latent_tts::{AnswerRule, SamplerKind, SamplingError, SamplingOptions, Temperature, TopP};
use serde_json::Value;

use crate::answer_format::AnswerFormat;
use crate::budget;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::inspection::Inspection;

/// Number of trajectories for each `reasoning_effort`. The number of thoughts is always the model's
/// default, because a model is trained for it. `none` is the greedy run.
pub(crate) const EFFORTS: [(&str, usize); 7] = [
    ("none", 1),
    ("minimal", 4),
    ("low", 8),
    ("medium", 16),
    ("high", 32),
    ("xhigh", 64),
    ("max", 128),
];
/// The fields of `latent` besides the sampling options; `timeout` is read with the deadline.
pub(crate) const LATENT_FIELDS: [&str; 6] =
    ["timeout", "deadline_ms", "lens", "gold", "map", "return"];
/// Maximum number of trajectories if a target determines their number and the request sets no
/// bound.
const DEFAULT_BOUND: usize = 64;
/// Maximum number of stop sequences of a request, and maximum bytes of each.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 256;

/// A parsed request, without its prompts.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    pub(crate) params: SamplingParams,
    seed: SeedChoice,
    pub(crate) choices: Choices,
    pub(crate) stop: Vec<String>,
    pub(crate) stream: Option<StreamOptions>,
    pub(crate) returned: Returned,
    pub(crate) inspection: Inspection,
    /// Which answers are accepted, and how they are formatted.
    pub(crate) format: Option<AnswerFormat>,
    /// The time after the arrival of the request at which the completed trajectories vote.
    pub(crate) deadline: Option<Duration>,
    /// The answer marker to remove from the texts of chats.
    pub(crate) marker: Option<AnswerRule>,
    /// Notes on how the request was interpreted, returned in `latent.notes`.
    pub(crate) notes: Vec<String>,
    /// Notes for each prompt of a completion; may be shorter than the list of prompts.
    pub(crate) prompt_notes: Vec<Vec<String>>,
}

/// How trajectories are mapped to choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choices {
    /// One choice, determined by the vote.
    Vote,
    /// Each trajectory is a choice.
    Each,
}

/// The source of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeedChoice {
    /// The client's `seed`. It is combined with the prompt, so that one seed for all questions does
    /// not perturb all of them identically.
    WithPrompt(u64),
    /// `latent.seed`, which is used as the engine's seed directly.
    Exact(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: bool,
}

/// The parts to return in the `latent` of a choice.
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
        let options = latent.map(|latent| latent.sampling(&LATENT_FIELDS)).transpose()?;
        let options = with_body_fields(body, options.unwrap_or_default())?;
        let deadline = latent.map(budget::read_deadline).transpose()?.flatten();
        let options = match deadline {
            Some(_) => with_deadline(options)?,
            None => options,
        };
        let (samples, choices) = read_samples(body, &options, max_samples)?;
        if choices == Choices::Each && options.target_confidence.is_some() {
            return Err(body.error("n", "a target confidence requires a vote; omit n"));
        }
        let params = resolve(engine, &options, samples)?;
        let inspection = latent.map(|latent| Inspection::read(latent, &params)).transpose()?;
        let inspection = inspection.unwrap_or_default();
        if choices == Choices::Each && inspection.map.is_some() {
            return Err(ApiError::field(
                "latent.map",
                "map requires a vote over trajectories; omit n",
            ));
        }
        let seed = body.count("seed", 0..=u64::MAX)?.unwrap_or(0);
        Ok(Self {
            params,
            seed: options.seed.map_or(SeedChoice::WithPrompt(seed), SeedChoice::Exact),
            choices,
            stop: read_stop(body)?,
            stream: read_stream(body)?,
            returned: latent.map_or(Ok(Returned::DEFAULT), Returned::read)?,
            inspection,
            format: AnswerFormat::read(body)?,
            deadline,
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

    /// The events to request from the engine.
    pub(crate) fn event_options(&self) -> EventOptions {
        EventOptions {
            progress: (self.stream.is_some() && self.choices == Choices::Vote)
                || self.deadline.is_some(),
            latents: self.returned.thoughts || self.inspection.map.is_some(),
            tokens: self.streams_tokens(),
        }
    }

    /// Whether answers are streamed token by token. If the answer is selected among several, or
    /// written in a requested format, no text is known before the end.
    fn streams_tokens(&self) -> bool {
        let is_alone = self.choices == Choices::Each || self.params.samples.get() == 1;
        let is_plain =
            self.params.search.is_none() && self.format.is_none() && self.deadline.is_none();
        self.stream.is_some() && is_alone && is_plain
    }

    /// The number of choices per prompt.
    pub(crate) fn num_choices(&self) -> usize {
        match self.choices {
            Choices::Vote => 1,
            Choices::Each => self.params.samples.get(),
        }
    }

    /// The text up to the first stop sequence, and whether there was one.
    pub(crate) fn cut<'t>(&self, text: &'t str) -> (&'t str, bool) {
        let end = self.stop.iter().filter_map(|stop| text.find(stop)).min();
        (&text[..end.unwrap_or(text.len())], end.is_some())
    }
}

/// The engine's seed for a client's seed and a prompt; 53 bits, which every JSON parser preserves.
pub(crate) fn prompt_seed(seed: u64, tokens: &[u32]) -> u64 {
    // FNV-1a, followed by the finalizer of SplitMix64: stable across machines and versions.
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

/// The sampling options of `latent`, merged with those of the API itself: `max_tokens`,
/// `temperature` and `top_p`.
fn with_body_fields(
    body: Fields<'_>,
    latent: SamplingOptions,
) -> Result<SamplingOptions, ApiError> {
    let temperature = body.number("temperature", 0.0..=100.0)?;
    let top_p = body.number("top_p", 0.0..=1.0)?;
    let contradiction = |error: SamplingError| sampling_error(&error);
    let sampler = latent.sampler_kind().map_err(contradiction)?;
    let mut options = latent;
    options.max_new_tokens = options.max_new_tokens.or(read_max_tokens(body)?);
    let warm = temperature.filter(|&temperature| temperature > 0.0);
    match (warm, sampler) {
        (Some(_), Some(kind)) if kind != SamplerKind::Tokens => {
            let message = "answers are decoded greedily if thoughts are perturbed; omit the \
                           temperature, or set latent.sampler to tokens";
            return Err(body.error("temperature", message));
        }
        (None, None) if temperature.is_none() && top_p.is_some_and(|p| p < 1.0) => {
            return Err(body.error("top_p", "top_p requires a temperature above 0"));
        }
        (None, None) => return Ok(options),
        _ => {}
    }
    if warm.is_some() || sampler == Some(SamplerKind::Tokens) {
        let warm = warm.and_then(|t| Temperature::new(t as f32));
        options.temperature = options.temperature.or(warm);
        if let (None, Some(top_p)) = (options.top_p, top_p) {
            let wrong = || body.error("top_p", "top_p must be above 0 and at most 1");
            options.top_p = Some(TopP::new(top_p as f32).ok_or_else(wrong)?);
        }
        options.sampler = Some(SamplerKind::Tokens);
    }
    Ok(options)
}

/// The parameters of a request. A single trajectory without sampling options is greedy.
fn resolve(
    engine: &Engine,
    options: &SamplingOptions,
    samples: NonZeroU32,
) -> Result<SamplingParams, ApiError> {
    let contradiction = |error: SamplingError| sampling_error(&error);
    let is_greedy = samples.get() == 1
        && options.samples.is_none()
        && options.target_confidence.is_none()
        && options.sampler_kind().map_err(contradiction)?.is_none();
    let options = SamplingOptions {
        samples: Some(samples),
        sampler: if is_greedy { Some(SamplerKind::None) } else { options.sampler },
        ..options.clone()
    };
    options.resolve(&engine.reasoner().method).map_err(contradiction)
}

fn sampling_error(error: &SamplingError) -> ApiError {
    let field = error.fields().first().copied().unwrap_or("sampler");
    ApiError::field(format!("latent.{field}"), error.to_string())
}

/// Options that sample in rounds until a deadline. Without a target they only stop early when the
/// vote can no longer change.
fn with_deadline(options: SamplingOptions) -> Result<SamplingOptions, ApiError> {
    let searches = options.searches();
    if searches || options.adaptive == Some(false) {
        let field = if searches { "latent.beam" } else { "latent.adaptive" };
        let message = format!("{field} cannot be combined with deadline_ms; omit one of them");
        return Err(ApiError::field(field, message));
    }
    Ok(SamplingOptions {
        target_confidence: options.target_confidence.or(Confidence::new(1.0)),
        ..options
    })
}

/// The number of trajectories per prompt, and how they are mapped to choices.
fn read_samples(
    body: Fields<'_>,
    options: &SamplingOptions,
    most: usize,
) -> Result<(NonZeroU32, Choices), ApiError> {
    let latent = options.samples;
    let n = body.count("n", 1..=most as u64)?.unwrap_or(1) as usize;
    if let Some(samples) = latent.filter(|samples| samples.get() as usize > most) {
        let message = format!("{samples} trajectories exceed the server's limit of {most}");
        return Err(ApiError::field("latent.samples", message));
    }
    let samples = latent.map(|samples| samples.get() as usize);
    let effort = body.text("reasoning_effort")?.map(|name| effort(body, name, most)).transpose()?;
    if n > 1 && (samples.is_some() || effort.is_some()) {
        let message = "with n above 1 every trajectory is a choice and there is no vote; omit \
                       latent.samples and reasoning_effort, or n";
        return Err(body.error("n", message));
    }
    let samples = match (samples, effort) {
        (Some(samples), Some(effort)) if samples != effort => {
            let message = "reasoning_effort and latent.samples both set the number of \
                           trajectories; omit one";
            return Err(body.error("reasoning_effort", message));
        }
        (Some(samples), _) => samples,
        (None, Some(effort)) => effort,
        (None, None) if n == 1 && options.target_confidence.is_some() => DEFAULT_BOUND.min(most),
        (None, None) => n,
    };
    let choices = if n > 1 { Choices::Each } else { Choices::Vote };
    Ok((NonZeroU32::new(samples as u32).unwrap_or(NonZeroU32::MIN), choices))
}

fn effort(body: Fields<'_>, name: &str, most: usize) -> Result<usize, ApiError> {
    let known = EFFORTS.iter().find(|(known, _)| *known == name);
    let names = || EFFORTS.map(|(name, _)| name).join(", ");
    let wrong = || {
        // Client text: a long name is not repeated in full.
        let shown: String = name.chars().take(40).collect();
        let message = format!("unknown reasoning_effort `{shown}`; known levels: {}", names());
        body.error("reasoning_effort", message)
    };
    let (_, samples) = known.ok_or_else(wrong)?;
    if *samples > most {
        let message =
            format!("{name} requires {samples} trajectories, above the server's limit of {most}");
        return Err(body.error("reasoning_effort", message));
    }
    Ok(*samples)
}

/// The maximum number of answer tokens. A limit of 0 is handled where nothing is generated.
fn read_max_tokens(body: Fields<'_>) -> Result<Option<NonZeroU32>, ApiError> {
    let most = 1_000_000;
    let of_chat = body.count("max_completion_tokens", 1..=most)?;
    let limit = of_chat.map_or_else(|| body.count("max_tokens", 0..=most), |n| Ok(Some(n)))?;
    Ok(limit.and_then(|limit| NonZeroU32::new(limit as u32)))
}

fn read_stop(body: Fields<'_>) -> Result<Vec<String>, ApiError> {
    let message = || {
        let limits = format!("{MAX_STOPS} strings of 1 to {MAX_STOP_BYTES} bytes");
        body.error("stop", format!("stop must be a string, or a list of at most {limits}"))
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
                    let message = "return must be a list of votes, rewards, trajectories, thoughts";
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
        // Hard-coded values: a new version must not change the answers to old requests.
        assert_eq!(prompt_seed(1234, &[1, 2, 3]), 746_897_505_332_623);
    }
}
