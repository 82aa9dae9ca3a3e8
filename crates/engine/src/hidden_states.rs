//! Hidden states and logits along a given trajectory, for analysis: probing, patching, the logit
//! lens at any layer.

use std::ops::Range;

use model::{Cache, Pass, Sequence, head};
use tensor::Tensor;
use tensor::ops;

use crate::batch_plan::check_context;
use crate::error::EngineError;
use crate::prompt::Prompt;
use crate::reasoner::Reasoner;

/// A given trajectory: its thoughts and tokens are inputs, nothing is generated.
#[derive(Clone, Debug, Default)]
pub struct GivenTrajectory {
    /// The question's text, without the family's prompt template.
    pub question: String,
    /// The thoughts that are fed after the prompt, (thoughts, width), on the host; may be empty.
    pub thoughts: Tensor,
    /// The tokens of the answer. They are fed after the family's end tokens, which are fed if there
    /// are thoughts or answer tokens.
    pub answer: Vec<u32>,
}

/// Hidden states of a trajectory; see [`Reasoner::hidden_states`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HiddenStates {
    /// (positions, width) for each requested layer, on the host.
    pub layers: Vec<Tensor>,
    /// (positions, vocabulary), on the host, if they were requested.
    pub logits: Option<Tensor>,
    /// The positions of the prompt.
    pub prompt: Range<usize>,
    /// The positions of the thoughts.
    pub thoughts: Range<usize>,
    /// The positions of the end tokens.
    pub end: Range<usize>,
    /// The positions of the answer.
    pub answer: Range<usize>,
}

impl Reasoner {
    /// Hidden states of the requested layers at every position of a trajectory and, with `logits`,
    /// the logits at these positions. Layer 0 is the input of the first block, layer l the output
    /// of block l, the last one after the final norm. No dropout and no noise are applied.
    ///
    /// # Errors
    ///
    /// If a layer does not exist, the thoughts have the wrong width, tokens are unknown, or the
    /// trajectory does not fit the context.
    pub fn hidden_states(
        &self,
        trajectory: &GivenTrajectory,
        layers: &[usize],
        logits: bool,
    ) -> Result<HiddenStates, EngineError> {
        let config = self.decoder.config();
        if let Some(&layer) = layers.iter().find(|layer| **layer > config.layers) {
            return Err(EngineError::UnknownLayer { layer, layers: config.layers });
        }
        let (prompt, tail) = self.given_tokens(trajectory)?;
        let thoughts = prompt.len()..prompt.len() + trajectory.thoughts.rows();
        let answer_start = thoughts.end + tail.len() - trajectory.answer.len();
        let mut states = HiddenStates {
            layers: Vec::new(),
            logits: None,
            prompt: 0..prompt.len(),
            end: thoughts.end..answer_start,
            answer: answer_start..thoughts.end + tail.len(),
            thoughts,
        };
        let last = config.layers;
        let read: Vec<usize> = layers.iter().copied().chain(logits.then_some(last)).collect();
        let device = self.decoder.device();
        device.run(|| -> Result<(), EngineError> {
            let x = self.given_vectors(trajectory, &prompt, &tail)?;
            let mut cache = Cache::new(device, config, Cache::slots_for(x.rows()))?;
            let mut pass = Pass::default();
            let mut sequence = Sequence::default();
            (0..x.rows()).for_each(|_| pass.push(&mut cache, &mut sequence, true));
            states.layers = self.decoder.hidden_states(&mut cache, &pass, &x, &read)?;
            if logits && let Some(hidden) = states.layers.pop() {
                let hidden = hidden.to_device(device)?;
                states.logits = Some(head::logits(&self.decoder, &hidden)?.to_host()?);
            }
            Ok(())
        })?;
        Ok(states)
    }

    /// The tokens of the prompt, and those that follow the thoughts.
    fn given_tokens(&self, of: &GivenTrajectory) -> Result<(Vec<u32>, Vec<u32>), EngineError> {
        let config = self.decoder.config();
        let prompt = Prompt::new(self, 0, &of.question)?;
        let has_tail = of.thoughts.rows() > 0 || !of.answer.is_empty();
        let end: &[u32] = if has_tail { &self.method.end_latent } else { &[] };
        let tail = [end, &of.answer].concat();
        if of.thoughts.rows() > 0 && of.thoughts.cols() != config.width {
            return Err(EngineError::ForcedShape {
                id: 0,
                trajectory: 0,
                found: [of.thoughts.rows(), of.thoughts.cols()],
                expected: [of.thoughts.rows(), config.width],
            });
        }
        Prompt { tokens: of.answer.clone(), ..prompt.clone() }.check_tokens(config.vocab)?;
        check_context(config, &prompt, of.thoughts.rows(), tail.len())?;
        Ok((prompt.tokens, tail))
    }

    /// The input vectors of all positions: (positions, width).
    fn given_vectors(
        &self,
        of: &GivenTrajectory,
        prompt: &[u32],
        tail: &[u32],
    ) -> Result<Tensor, EngineError> {
        let device = self.decoder.device();
        let mut parts = vec![self.embed(prompt)?];
        if of.thoughts.rows() > 0 {
            parts.push(of.thoughts.clone().to_device(device)?);
        }
        if !tail.is_empty() {
            parts.push(self.embed(tail)?);
        }
        Ok(ops::concat(device, &parts.iter().collect::<Vec<_>>())?)
    }
}
