//! Resolves sampling options for an engine, with the defaults of evaluations.

use engine::{Engine, Perturbation, SamplingParams};
use schema::{SamplingError, SamplingOptions};

use crate::Error;

/// The parameters of an evaluation. By default with the greedy trajectory, and with a beam search
/// if there are rewards and thoughts to guide it.
///
/// # Errors
///
/// If fields contradict one another.
pub fn evaluation_params(
    options: &SamplingOptions,
    engine: &Engine,
) -> Result<SamplingParams, SamplingError> {
    let method = &engine.reasoner().method;
    let length = options.latent_length.unwrap_or(method.length);
    let searches = engine.reward_model().is_some() && length.limit() > 0;
    let defaults = SamplingOptions {
        greedy: Some(true),
        beam: (searches && !options.searches()).then_some(true),
        ..SamplingOptions::default()
    };
    options.clone().or(defaults).resolve(method)
}

/// Returns the failure of a user-defined sampler since the last call.
///
/// # Errors
///
/// The failure of the sampler. Outputs since the last call must be discarded.
pub fn check_sampler(perturbation: &Perturbation) -> Result<(), Error> {
    let Perturbation::Custom(sampler) = perturbation else { return Ok(()) };
    sampler.take_failure().map_or(Ok(()), |error| {
        Err(Error::Callback { name: format!("sampler {}", sampler.name()), error })
    })
}
