//! Sampling options for an engine: what evaluations add to the model's defaults.

use engine::{Engine, Perturbation, SamplingParams};
use schema::{SamplingError, SamplingOptions};

use crate::Error;

/// The parameters of an evaluation: with the greedy trajectory, and with a beam search where there
/// are rewards and thoughts to guide it, unless the options say otherwise.
///
/// # Errors
///
/// When fields contradict one another.
pub fn evaluation_params(
    options: &SamplingOptions,
    engine: &Engine,
) -> Result<SamplingParams, SamplingError> {
    let method = &engine.reasoner().method;
    let length = options.latent_length.unwrap_or(method.length);
    let searches = engine.reward_model().is_some() && length.limit() > 0;
    let sized = options.beam_width.is_some() || options.beam_candidates.is_some();
    let defaults = SamplingOptions {
        greedy: Some(true),
        beam: (searches && !sized).then_some(true),
        ..SamplingOptions::default()
    };
    options.clone().or(defaults).resolve(method)
}

/// The failure of a sampler of the calling program since this was last asked.
///
/// # Errors
///
/// The failure. Replies made since the last call are not to be used.
pub fn check_sampler(perturbation: &Perturbation) -> Result<(), Error> {
    let Perturbation::Custom(sampler) = perturbation else { return Ok(()) };
    sampler.take_failure().map_or(Ok(()), |error| {
        Err(Error::Callback { name: format!("sampler {}", sampler.name()), error })
    })
}
