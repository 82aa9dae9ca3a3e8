//! A model family in one file: the weights of the embedded COCONUT reasoner, with thoughts that are
//! mixtures of token embeddings instead of hidden states.
//!
//! A family defines the prompt, the tokens around the thoughts, their number, and the head that
//! computes the next thought. The head is a type of the crate `latent-tts-model`, which is called
//! `model` here.
//!
//! ```text
//! cargo run --release -p latent-tts --features embedded --example custom_family
//! ```

use latent_tts::engine::{FamilySpec, Method, TokenLookup};
use latent_tts::{
    Device, DeviceOptions, EMBEDDED, EngineError, Family, ModelSelection, Request,
    RewardModelChoice, SamplingParams,
};
use model::{Checkpoint, LatentHead};

const QUESTION: &str = "Olivia has 12 pens. Olivia buys 7 more pens. Olivia gives away 4 pens. \
                        How many pens does Olivia have?";

/// Every thought is the mean of the embeddings of the three most probable tokens, weighted by their
/// probabilities.
struct Mixtures;

impl FamilySpec for Mixtures {
    fn name(&self) -> &'static str {
        "mixtures"
    }

    fn method(&self, tokens: &TokenLookup<'_>) -> Result<Method, EngineError> {
        let [begin, end] = tokens.latent_markers(None)?;
        Ok(Method {
            prompt_suffix: "\n".into(),
            begin_latent: vec![begin],
            end_latent: vec![end],
            ..tokens.base()?
        })
    }

    fn latent_head(&self, _: &Device, _: &Checkpoint) -> Result<LatentHead, EngineError> {
        Ok(LatentHead::TopKMixture { k: 3 })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = DeviceOptions::default().open()?;
    // Without a family, the one that the checkpoint names is used.
    for family in [None, Some(Family::new(&Mixtures))] {
        let mut selection = ModelSelection::new(EMBEDDED, RewardModelChoice::None)?;
        selection.family = family;
        let engine = selection.load(&device)?.engine()?;
        let params = SamplingParams { samples: 8.try_into()?, ..engine.default_params() };
        let output = engine.solve(&Request::new(QUESTION, params))?;
        println!("family {}:", engine.reasoner().method.family);
        for vote in output.votes() {
            println!("  {:>2} votes for {}", vote.votes, vote.answer);
        }
    }
    Ok(())
}
