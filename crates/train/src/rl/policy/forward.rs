//! The forward pass over sampled trajectories, segment by segment.

use engine::PassStage;
use model::{Cache, HeadActivations, Segment, Sequence};
use tensor::ops::{self, PerturbedRows, RowPerturbation};
use tensor::{DeviceError, Tensor};

use super::{ActionValues, PolicyBatch, PolicyConfig, PolicyStep, ThoughtGradient};
use crate::rows::{PassRows, RowInput};

/// A segment after its forward pass.
pub(super) struct PolicySegment {
    pub(super) input: PassRows,
    pub(super) segment: Segment,
    pub(super) hidden: Tensor, // (output rows, width)
}

/// Thought number t of every trajectory with more than t thoughts.
pub(super) struct PolicyThoughts {
    pub(super) trajectories: Vec<usize>,
    /// The output rows of the previous segment from which the thoughts are computed.
    pub(super) made_from: Vec<usize>,
    pub(super) fed: Tensor, // (trajectories, width)
    /// `fed` minus the computed thoughts, (trajectories, width); only with a density.
    pub(super) noise: Option<Tensor>,
    pub(super) activations: HeadActivations,
    /// Indices into `trajectories` of those with further thoughts.
    pub(super) more: Vec<usize>,
    /// Indices into `trajectories` of those whose last thought this is, which is fed together with
    /// the answer.
    pub(super) last: Vec<usize>,
}

/// A row that predicts an answer token.
pub(super) struct PredictingRow {
    pub(super) trajectory: usize,
    /// Index of the token in the answer.
    pub(super) at: usize,
    /// Output row; rows of the answers' segment are counted after those of the prompts' segment.
    pub(super) output: usize,
}

/// A batch after its forward pass.
pub(super) struct PolicyForward {
    pub(super) prompts: PolicySegment,
    pub(super) thoughts: Vec<PolicyThoughts>,
    /// Entry t feeds thought t of the trajectories with further thoughts.
    pub(super) intermediate: Vec<PolicySegment>,
    pub(super) answers: Option<PolicySegment>,
    pub(super) predicting: Vec<PredictingRow>,
    pub(super) targets: Vec<u32>,
}

/// Shared state of a batch's segments.
struct PolicyForwardContext<'a> {
    step: &'a PolicyStep,
    cache: &'a mut Cache,
    config: &'a PolicyConfig,
    batch: &'a PolicyBatch,
    sequences: Vec<Sequence>, // one per trajectory
}

/// The rows of a segment, and the number of output rows.
#[derive(Default)]
struct PolicyRows {
    input: PassRows,
    outputs: usize,
}

impl PolicyRows {
    /// Counts an output row; returns its index.
    fn next_output(&mut self) -> usize {
        self.outputs += 1;
        self.outputs - 1
    }
}

impl PolicyForward {
    pub(super) fn run(
        step: &PolicyStep,
        cache: &mut Cache,
        config: &PolicyConfig,
        batch: &PolicyBatch,
    ) -> Result<Self, DeviceError> {
        let device = step.device();
        let sequences = vec![Sequence::default(); batch.trajectories.len()];
        let mut context = PolicyForwardContext { step, cache, config, batch, sequences };
        let (prompts, prompt_outputs) = context.prompts()?;
        let mut thoughts: Vec<PolicyThoughts> = Vec::new();
        let mut intermediate: Vec<PolicySegment> = Vec::new();
        let count = |n: usize| batch.trajectories[n].thoughts;
        let mut live: Vec<usize> =
            (0..batch.trajectories.len()).filter(|&n| count(n) > 0).collect();
        let mut made_from: Vec<usize> = live.iter().map(|&n| prompt_outputs[n]).collect();
        while !live.is_empty() {
            let t = thoughts.len();
            let previous = intermediate.last().unwrap_or(&prompts);
            let hidden = ops::select(&device, [&previous.hidden], &made_from)?;
            let (vectors, activations) = step.head.forward(&device, hidden)?;
            let (fed, noise) = context.perturbed(t, &live, vectors)?;
            let (more, last): (Vec<usize>, Vec<usize>) =
                (0..live.len()).partition(|&i| count(live[i]) > t + 1);
            let next: Vec<usize> = more.iter().map(|&i| live[i]).collect();
            if !next.is_empty() {
                let x = ops::select(&device, [&fed], &more)?;
                intermediate.push(context.next_thoughts(t + 1, &next, x)?);
            }
            let trajectories = std::mem::replace(&mut live, next);
            let made_from = std::mem::replace(&mut made_from, (0..more.len()).collect());
            thoughts.push(PolicyThoughts {
                trajectories,
                made_from,
                fed,
                noise,
                activations,
                more,
                last,
            });
        }
        let mut forward = Self {
            prompts,
            thoughts,
            intermediate,
            answers: None,
            predicting: Vec::new(),
            targets: Vec::new(),
        };
        context.answers(&mut forward, &prompt_outputs)?;
        Ok(forward)
    }

    /// The hidden states of predicting rows, divided by the temperature: (rows, width).
    pub(super) fn predicting_hidden(
        &self,
        step: &PolicyStep,
        config: &PolicyConfig,
        rows: &[usize],
    ) -> Result<Tensor, DeviceError> {
        let device = step.device();
        let outputs: Vec<usize> = rows.iter().map(|&i| self.predicting[i].output).collect();
        let mut hidden = match &self.answers {
            Some(answers) => {
                ops::select(&device, [&self.prompts.hidden, &answers.hidden], &outputs)?
            }
            None => ops::select(&device, [&self.prompts.hidden], &outputs)?,
        };
        if config.temperature != 1.0 {
            ops::scale(&device, &mut hidden, 1.0 / config.temperature)?;
        }
        Ok(hidden)
    }

    /// The log-probabilities of all actions.
    pub(super) fn logprobs(
        &self,
        step: &PolicyStep,
        config: &PolicyConfig,
        batch: &PolicyBatch,
    ) -> Result<ActionValues, DeviceError> {
        let rows: Vec<usize> = (0..self.predicting.len()).collect();
        let hidden = self.predicting_hidden(step, config, &rows)?;
        let head = step.model.decoder.lm_head();
        let found = ops::token_logprobs(&step.device(), &hidden, head, &self.targets)?;
        let mut values = ActionValues {
            tokens: batch.trajectories.iter().map(|one| vec![0.0; one.answer.len()]).collect(),
            thoughts: vec![Vec::new(); batch.trajectories.len()],
        };
        for (row, logprob) in self.predicting.iter().zip(found) {
            values.tokens[row.trajectory][row.at] = logprob;
        }
        for thoughts in &self.thoughts {
            let Some(noise) = &thoughts.noise else { continue };
            let noise = noise.clone().to_host()?;
            for (i, &n) in thoughts.trajectories.iter().enumerate() {
                values.thoughts[n].push(log_density(noise.row(i), config));
            }
        }
        Ok(values)
    }
}

/// The log-density of a thought under the Gaussian around the computed one, from their difference.
fn log_density(noise: &[f32], config: &PolicyConfig) -> f32 {
    let std = f64::from(config.noise_std());
    let squares: f64 = noise.iter().map(|&z| f64::from(z).powi(2)).sum();
    let scale = std.ln() + 0.5 * (2.0 * std::f64::consts::PI).ln();
    (-0.5 * squares / std.powi(2) - noise.len() as f64 * scale) as f32
}

impl PolicyConfig {
    /// The standard deviation of the noise on thoughts; 1 without noise.
    pub(super) fn noise_std(&self) -> f32 {
        match self.keys.perturbation {
            engine::Perturbation::Gaussian { std } => std,
            _ => 1.0,
        }
    }
}

impl PolicyForwardContext<'_> {
    /// Adds the next position of a trajectory, with the dropout of its stage.
    fn push(
        &mut self,
        rows: &mut PolicyRows,
        n: usize,
        (input, stage): (RowInput, PassStage),
        is_output: bool,
    ) {
        let sequence = &mut self.sequences[n];
        let id = self.batch.trajectories[n].id();
        let dropout = self.config.keys.dropout(id, sequence.len(), stage);
        rows.input.push(self.cache, sequence, input, dropout, is_output);
    }

    fn run(
        &mut self,
        rows: PolicyRows,
        vectors: Option<Tensor>,
    ) -> Result<PolicySegment, DeviceError> {
        let model = &self.step.model;
        let input = rows.input;
        let x = input.embed(&model.decoder, vectors)?;
        let dropout = self.config.keys.perturbation.is_dropout().then(|| input.dropout());
        let (hidden, segment) = model.forward(self.cache, &input.pass, x, dropout)?;
        Ok(PolicySegment { input, segment, hidden })
    }

    /// Feeds the prompts: first the tokens shared by trajectories, then the tokens of each
    /// trajectory. Also returns the output row at the end of each trajectory's prompt.
    fn prompts(&mut self) -> Result<(PolicySegment, Vec<usize>), DeviceError> {
        let mut of_prompt = vec![Vec::new(); self.batch.prompts.len()];
        for (n, trajectory) in self.batch.trajectories.iter().enumerate() {
            of_prompt[trajectory.prompt].push(n);
        }
        let mut rows = PolicyRows::default();
        let mut outputs = vec![0; self.batch.trajectories.len()];
        for (prompt, members) in self.batch.prompts.iter().zip(of_prompt) {
            let shared = prompt.len() - self.config.keys.private_tokens(prompt.len());
            let mut prefix = Sequence::default();
            for (i, &token) in prompt[..shared].iter().enumerate() {
                let is_output = i + 1 == prompt.len();
                rows.input.push(self.cache, &mut prefix, RowInput::Token(token), None, is_output);
            }
            let shared_output = (shared == prompt.len()).then(|| rows.next_output());
            for n in members {
                self.sequences[n] = prefix.fork();
                for (i, &token) in prompt[shared..].iter().enumerate() {
                    let is_output = shared + i + 1 == prompt.len();
                    let input = (RowInput::Token(token), PassStage::Prompt);
                    self.push(&mut rows, n, input, is_output);
                }
                outputs[n] = shared_output.unwrap_or_else(|| rows.next_output());
            }
        }
        Ok((self.run(rows, None)?, outputs))
    }

    /// Thoughts number `t` of some trajectories after perturbation, and with a density their
    /// difference from the computed ones.
    fn perturbed(
        &self,
        t: usize,
        live: &[usize],
        vectors: Tensor,
    ) -> Result<(Tensor, Option<Tensor>), DeviceError> {
        let device = self.step.device();
        let batch = self.batch;
        if self.config.thoughts == ThoughtGradient::Density {
            let mut sampled = Tensor::zeros(0, vectors.cols());
            live.iter().for_each(|&n| sampled.push(batch.trajectories[n].latents.row(t)));
            let fed = sampled.to_device(&device)?;
            let mut noise = fed.clone();
            ops::add_scaled(&device, &mut noise, &vectors, -1.0)?;
            return Ok((fed, Some(noise)));
        }
        let noise_of = |&n: &usize| -> Option<RowPerturbation> {
            self.config.keys.noise(batch.trajectories[n].id(), self.sequences[n].len())
        };
        let noise: Vec<_> = live.iter().map(noise_of).collect();
        let mut fed = vectors;
        if noise.iter().any(Option::is_some) {
            ops::add_noise(&device, &mut fed, &PerturbedRows::new(&device, noise)?)?;
        }
        Ok((fed, None))
    }

    /// Feeds one thought to each of some trajectories; its hidden state becomes thought `t`.
    fn next_thoughts(
        &mut self,
        t: usize,
        trajectories: &[usize],
        thoughts: Tensor,
    ) -> Result<PolicySegment, DeviceError> {
        let mut rows = PolicyRows::default();
        for &n in trajectories {
            self.push(&mut rows, n, (RowInput::Vector, PassStage::Thought(t)), true);
        }
        self.run(rows, Some(thoughts))
    }

    /// Feeds each trajectory's last thought, the end tokens and the answer without its last token,
    /// which is only predicted.
    fn answers(
        &mut self,
        forward: &mut PolicyForward,
        prompt_outputs: &[usize],
    ) -> Result<(), DeviceError> {
        let device = self.step.device();
        let with_thoughts: Vec<usize> = (forward.thoughts.iter())
            .flat_map(|step| step.last.iter().map(|&i| step.trajectories[i]))
            .collect();
        let all = self.batch.trajectories.iter().enumerate();
        let without = all.filter(|(_, one)| one.thoughts == 0).map(|(n, _)| n);
        let order: Vec<usize> = with_thoughts.into_iter().chain(without).collect();
        let first_output = forward.prompts.hidden.rows();
        let mut rows = PolicyRows::default();
        for n in order {
            let outputs = self.push_answer(&mut rows, n);
            let answer = &self.batch.trajectories[n].answer;
            // Without thoughts and end tokens the end of the prompt predicts the first token.
            let own = outputs.iter().map(|output| first_output + output);
            let at_prompt = (outputs.len() < answer.len()).then_some(prompt_outputs[n]);
            let outputs = at_prompt.into_iter().chain(own);
            for ((at, &token), output) in answer.iter().enumerate().zip(outputs) {
                forward.predicting.push(PredictingRow { trajectory: n, at, output });
                forward.targets.push(token);
            }
        }
        if rows.input.is_empty() {
            return Ok(());
        }
        let last = |step: &PolicyThoughts| ops::select(&device, [&step.fed], &step.last);
        let last: Vec<Tensor> = forward.thoughts.iter().map(last).collect::<Result<_, _>>()?;
        let last: Vec<&Tensor> = last.iter().filter(|part| part.rows() > 0).collect();
        let vectors = if last.is_empty() { None } else { Some(ops::concat(&device, &last)?) };
        forward.answers = Some(self.run(rows, vectors)?);
        Ok(())
    }

    /// Adds the inputs of a trajectory after its intermediate thoughts; returns the output rows
    /// that predict answer tokens.
    fn push_answer(&mut self, rows: &mut PolicyRows, n: usize) -> Vec<usize> {
        let one = &self.batch.trajectories[n];
        let mut inputs: Vec<(RowInput, PassStage)> = Vec::new();
        if one.thoughts > 0 {
            let stage = match one.ended_early {
                true => PassStage::Thought(one.thoughts),
                false => PassStage::Answer,
            };
            inputs.push((RowInput::Vector, stage));
        }
        let token = |&token: &u32| (RowInput::Token(token), PassStage::Answer);
        inputs.extend(self.config.end_latent.iter().map(token));
        let before = inputs.len();
        let fed = one.answer.len().saturating_sub(1);
        inputs.extend(one.answer[..fed].iter().map(token));
        let mut outputs = Vec::with_capacity(one.answer.len());
        for (i, input) in inputs.into_iter().enumerate() {
            let is_output = i + 1 >= before;
            self.push(rows, n, input, is_output);
            if is_output {
                outputs.push(rows.next_output());
            }
        }
        outputs
    }
}
