//! Inspection of thoughts: their tokens, a map of them, and which of them led to a correct answer.

use std::num::NonZeroUsize;

use engine::{Lens, SamplingParams, Trajectory};
use latent_tts::report::{self, Embedding};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;

/// Maximum number of tokens per thought, as on the command line.
const MAX_LENS_TOKENS: u64 = 20;
/// Maximum number of points of a map. t-SNE compares all pairs of them hundreds of times.
const MAX_PCA_POINTS: usize = 8192;
const MAX_TSNE_POINTS: usize = 768;

/// The requested views of the thoughts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inspection {
    /// Decodes thoughts to tokens.
    pub(crate) lens: Option<Lens>,
    /// The gold answer, if the client knows it.
    pub(crate) gold: Option<String>,
    pub(crate) map: Option<Projection>,
}

/// The projection of thoughts onto the plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Projection {
    Pca,
    Tsne,
}

impl Inspection {
    pub(crate) fn read(latent: Fields<'_>, params: &SamplingParams) -> Result<Self, ApiError> {
        let tokens = latent.count("lens", 1..=MAX_LENS_TOKENS)?;
        let tokens = tokens.and_then(|tokens| NonZeroUsize::new(tokens as usize));
        let gold = match latent.get("gold") {
            None => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(number @ Value::Number(_)) => Some(number.to_string()),
            Some(_) => return Err(latent.error("gold", "gold must be a string or a number")),
        };
        Ok(Self {
            lens: tokens.map(|tokens| Lens { tokens, sampled: true }),
            gold,
            map: read_map(latent, params)?,
        })
    }

    /// Whether an answer is correct; `None` without a gold answer.
    pub(crate) fn is_correct(&self, trajectory: &Trajectory) -> Option<bool> {
        let gold = self.gold.as_ref()?;
        Some(trajectory.answer.as_ref().is_some_and(|answer| answer.matches(gold)))
    }
}

fn read_map(latent: Fields<'_>, params: &SamplingParams) -> Result<Option<Projection>, ApiError> {
    let (projection, most) = match latent.text("map")? {
        None => return Ok(None),
        Some("pca") => (Projection::Pca, MAX_PCA_POINTS),
        Some("tsne") => (Projection::Tsne, MAX_TSNE_POINTS),
        Some(_) => return Err(latent.error("map", "map must be pca or tsne")),
    };
    let points = params.samples.get().saturating_mul(params.length.limit());
    if points > most {
        let message = format!("a map of {points} thoughts exceeds the limit of {most}");
        return Err(latent.error("map", message));
    }
    Ok(Some(projection))
}

impl Projection {
    /// The positions of each trajectory's thoughts, and the projection used. With few thoughts,
    /// principal components are used even if t-SNE was requested.
    pub(crate) fn map_json(self, trajectories: &[Trajectory]) -> (Value, Value) {
        let (mut values, mut width) = (Vec::new(), 1);
        for latents in trajectories.iter().map(|trajectory| &trajectory.latents) {
            for row in 0..latents.rows() {
                values.extend_from_slice(latents.row(row));
                width = latents.row(row).len();
            }
        }
        let (points, embedding) = match self {
            Self::Pca => (report::pca(&values, width), Embedding::Pca),
            Self::Tsne => report::embed(&values, width),
        };
        let method = match embedding {
            Embedding::Pca => json!({ "name": "pca" }),
            Embedding::Tsne { perplexity } => json!({ "name": "tsne", "perplexity": perplexity }),
        };
        // Four digits are more than a screen can show.
        let digits = |x: f64| (x * 1e4).round() / 1e4;
        let mut points = points.into_iter().map(|point| json!(point.map(digits)));
        let path = |t: &Trajectory| points.by_ref().take(t.latents.rows()).collect::<Value>();
        (trajectories.iter().map(path).collect(), method)
    }
}
