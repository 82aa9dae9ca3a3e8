//! A step of training on a made-up batch, again and again, for measuring: forward, backward, optimizer, refresh.
//!
//! Weights are those that training begins with, so that losses mean something: the first is that of guessing.

use model::{Config, HeadLearner, InitialWeights, Learner, LmHead};
use tensor::rng::{Draw, MAX_ELEMENTS};
use tensor::{Device, DeviceError, Tensor};

use crate::judge::{Case, HeadKind, Judge, Judging, ScoreLearner};
use crate::lesson::Lesson;
use crate::loss::Objective;
use crate::schedule::{Optimizer, Schedule};
use crate::study::{Droppings, Study};

/// What all sequences of a batch have in common.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// How many sequences.
    pub sequences: usize,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Thoughts after it.
    pub thoughts: usize,
}

/// Who learns, and its batch.
enum Learning {
    Reasoner { study: Box<Study>, lessons: Vec<Lesson> },
    Reward { judge: Box<Judge>, cases: Vec<Case> },
}

/// A learner that takes the same batch in every step.
pub struct Drill {
    device: Device,
    learning: Learning,
    dropout: f32,
    steps: u32,
}

/// As most use AdamW; the rate is so small that nothing blows up however often the batch is taken.
const OPTIMIZER: Optimizer = Optimizer {
    schedule: Schedule { peak: 1e-4, warmup: 0, steps: 1, floor: 1.0 },
    betas: (0.9, 0.999),
    eps: 1e-8,
    weight_decay: 0.01,
    decay_all: false,
    clip: Some(1.0),
};

impl Drill {
    /// A reasoner of a shape that learns to say `target` tokens after its thoughts and one token that ends them.
    pub fn reasoner(device: &Device, config: &Config, size: Size, target: usize) -> Result<Self, model::Error> {
        let learner = learner(device, config, LmHead::With)?;
        let lesson = |i: u32| Lesson {
            id: i,
            prompt: made_up(config.vocab, i, size.prompt),
            thoughts: size.thoughts,
            tail: made_up(config.vocab, !i, 1 + target),
            given: 1,
            results: Vec::new(),
        };
        let study = Box::new(Study::new(learner, HeadLearner::Identity, None));
        let learning = Learning::Reasoner { study, lessons: (0..size.sequences as u32).map(lesson).collect() };
        Ok(Self { device: device.clone(), learning, dropout: 0.0, steps: 0 })
    }

    /// A reward model of a shape that compares the trajectories of problems, which have `trajectories` each; sequences that
    /// do not make a whole problem are left out.
    pub fn reward(device: &Device, config: &Config, size: Size, trajectories: usize) -> Result<Self, model::Error> {
        let learner = learner(device, config, LmHead::Without)?;
        let head = ScoreLearner::load(device, &initial(config), HeadKind::Linear, config.width)?;
        let thoughts = trajectories * size.thoughts;
        let case = |i: u32| Case {
            id: i,
            prompt: made_up(config.vocab, i, size.prompt),
            thoughts: hidden_states(i, thoughts, config.width),
            lengths: vec![size.thoughts; trajectories],
            labels: (0..thoughts).map(|t| (t % 5) as f32 / 4.0).collect(),
            ..Case::default()
        };
        let problems = (size.sequences / trajectories) as u32;
        let judge = Box::new(Judge::new(learner, head, None));
        let learning = Learning::Reward { judge, cases: (0..problems).map(case).collect() };
        Ok(Self { device: device.clone(), learning, dropout: 0.0, steps: 0 })
    }

    /// With dropout of a share at both sites of every position.
    pub fn with_dropout(self, dropout: f32) -> Self {
        Self { dropout, ..self }
    }

    /// Takes a step, waits until it is done, and returns the batch's mean loss before it: of a reasoner a token's, of a
    /// reward model a problem's.
    pub fn step(&mut self) -> Result<f64, DeviceError> {
        let Self { device, learning, dropout, steps } = self;
        let (step, p) = (*steps, *dropout);
        *steps += 1;
        let droppings = (p > 0.0).then_some(Droppings { p, seed: 0, step });
        let loss = device.run(|| match learning {
            Learning::Reasoner { study, lessons } => {
                let losses = study.learn(lessons, droppings)?;
                OPTIMIZER.step(device, step, 1, study.parameters_mut())?;
                study.refresh()?;
                Ok::<_, DeviceError>(losses.tokens)
            }
            Learning::Reward { judge, cases } => {
                let losses = judge.learn(cases, Judging { objective: Objective::Contrastive, weight: &|_| 1.0, droppings })?;
                OPTIMIZER.step(device, step, 1, judge.parameters_mut())?;
                judge.refresh()?;
                Ok(losses.score)
            }
        })?;
        device.synchronize()?;
        Ok(loss)
    }

    /// Sequences of the batch.
    pub fn sequences(&self) -> usize {
        match &self.learning {
            Learning::Reasoner { lessons, .. } => lessons.len(),
            Learning::Reward { cases, .. } => cases.iter().map(|case| case.lengths.len()).sum(),
        }
    }

    /// Tokens and thoughts that a step passes; a prompt that trajectories share counts once.
    pub fn positions(&self) -> usize {
        match &self.learning {
            Learning::Reasoner { lessons, .. } => lessons.iter().map(Lesson::len).sum(),
            Learning::Reward { cases, .. } => cases.iter().map(|case| case.prompt.len() + case.thoughts.rows()).sum(),
        }
    }

    /// Floating-point operations of a step's algorithm: the way there, and twice as many for the way back. Optimizer and
    /// score head have too few to count.
    pub fn flops(&self) -> f64 {
        let forward: f64 = match &self.learning {
            Learning::Reasoner { study, lessons } => {
                let decoder = &study.learner.decoder;
                let of =
                    |lesson: &Lesson| decoder.flops_of(0..lesson.len()) + lesson.targets() as f64 * decoder.flops_per_logits();
                lessons.iter().map(of).sum()
            }
            Learning::Reward { judge, cases } => {
                let decoder = &judge.learner.decoder;
                let of = |case: &Case| {
                    let prompt = case.prompt.len();
                    let own = case.lengths.iter().map(|&n| decoder.flops_of(prompt..prompt + n));
                    decoder.flops_of(0..prompt) + own.sum::<f64>()
                };
                cases.iter().map(of).sum()
            }
        };
        3.0 * forward
    }
}

fn initial(config: &Config) -> InitialWeights {
    InitialWeights { seed: 0, layers: config.layers }
}

fn learner(device: &Device, config: &Config, head: LmHead) -> Result<Learner, model::Error> {
    device.run(|| Learner::load(device, config, &initial(config), head))
}

/// Tokens of a vocabulary that differ from sequence to sequence.
pub fn made_up(vocab: usize, sequence: u32, count: usize) -> Vec<u32> {
    let of = |i: u32| sequence.wrapping_mul(7919).wrapping_add(i.wrapping_mul(104_729)) % vocab as u32;
    (0..count as u32).map(of).collect()
}

/// Vectors (thoughts, width) as a final norm leaves them.
fn hidden_states(problem: u32, thoughts: usize, width: usize) -> Tensor {
    let mut numbers = vec![0.0; thoughts * width];
    for (position, part) in (0..).zip(numbers.chunks_mut(MAX_ELEMENTS)) {
        Draw { seed: 1, question: problem, trajectory: 0, position }.add_noise(1.0, part);
    }
    Tensor::from_vec(thoughts, width, numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::testkit::{Spec, write_checkpoint};

    fn config() -> Config {
        let dir = tempfile::tempdir().unwrap();
        write_checkpoint(dir.path(), &Spec { ffn: 64, ..Spec::default() }).unwrap();
        Config::read(dir.path()).unwrap()
    }

    const SIZE: Size = Size { sequences: 6, prompt: 7, thoughts: 3 };

    fn device() -> Device {
        Device::cpu(std::num::NonZeroUsize::new(2)).unwrap()
    }

    #[test]
    fn a_reasoner_begins_by_guessing_and_learns_its_batch() {
        let mut drill = Drill::reasoner(&device(), &config(), SIZE, 4).unwrap().with_dropout(0.1);
        let first = drill.step().unwrap();
        assert!((first - (config().vocab as f64).ln()).abs() < 0.2, "{first}");
        let last = (0..60).map(|_| drill.step().unwrap()).last().unwrap();
        assert!(last < first - 0.1, "{first} and then {last}");
    }

    #[test]
    fn a_reward_model_begins_by_guessing_and_learns_its_batch() {
        let mut drill = Drill::reward(&device(), &config(), SIZE, 3).unwrap();
        let first = drill.step().unwrap();
        // Each step's labels times the log of three trajectories to choose from.
        let labels: f64 = (0..9).map(|t| f64::from(t % 5) / 4.0).sum();
        assert!((first - labels * 3f64.ln()).abs() < 0.2 * first, "{first}");
        let last = (0..60).map(|_| drill.step().unwrap()).last().unwrap();
        assert!(last < first, "{first} and then {last}");
    }

    #[test]
    fn what_trajectories_share_is_counted_once() {
        let reasoner = Drill::reasoner(&device(), &config(), SIZE, 4).unwrap();
        assert_eq!((reasoner.sequences(), reasoner.positions()), (6, 6 * (7 + 3 + 4)));
        let shared = Drill::reward(&device(), &config(), SIZE, 3).unwrap();
        assert_eq!((shared.sequences(), shared.positions()), (6, 2 * (7 + 3 * 3)));
        let alone = Drill::reward(&device(), &config(), SIZE, 1).unwrap();
        assert_eq!((alone.sequences(), alone.positions()), (6, 6 * (7 + 3)));
        let prompt = 2.0 * (2 * 32 * (3 * 32 + 32 + 2 * 64)) as f64 * 7.0 + 4.0 * (2 * 32) as f64 * 28.0;
        assert_eq!(alone.flops() - shared.flops(), 3.0 * 4.0 * prompt);
    }
}
