//! One batch of lessons: forward through prompt, thoughts and tail, and the gradients of its loss back through all of them.
//!
//! ```text
//! prompt ──> thought 1 ──> … ──> thought T ──> tail ──> cross entropy of the tail's tokens
//!               └─ digits of step 1's result       (optional)
//! ```
//!
//! Each arrow is a segment of the decoder; the way back takes them in reverse order. A lesson without thoughts is one
//! segment. Lessons of unlike length go together without padding.

use model::{Cache, Dropout, HeadKept, HeadLearner, Learner, Masks, Parameter, Pass, Segment, Sequence};
use tensor::ops::{self, Indices, KvGrads};
use tensor::rng::Draw;
use tensor::{Device, DeviceError, Tensor};

use crate::digits::Digits;
use crate::lesson::Lesson;

/// Dropout while learning, at both sites of every position.
#[derive(Clone, Copy, Debug)]
pub struct Droppings {
    /// The share of elements dropped.
    pub p: f32,
    /// Other seeds give other masks.
    pub seed: u64,
    /// The training step, which names the masks beside the lesson and the position.
    pub step: u32,
}

/// Mean losses of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses {
    /// Cross entropy a token.
    pub tokens: f64,
    /// Cross entropy a digit of the thoughts' numbers; zero without that loss.
    pub digits: f64,
}

/// Who learns.
#[derive(Debug)]
pub struct Study {
    /// The decoder.
    pub learner: Learner,
    /// What makes thoughts of hidden states.
    pub head: HeadLearner,
    /// The loss on thoughts, and its weight.
    pub digits: Option<(Digits, f32)>,
    cache: Option<Cache>,
}

impl Study {
    /// From its parts.
    pub fn new(learner: Learner, head: HeadLearner, digits: Option<(Digits, f32)>) -> Self {
        Self { learner, head, digits, cache: None }
    }

    /// Adds the gradients of a batch's mean loss to all parameters.
    pub fn learn(&mut self, lessons: &[Lesson], droppings: Option<Droppings>) -> Result<Losses, DeviceError> {
        let slots = lessons.iter().map(|lesson| Cache::slots_for(lesson.len())).sum();
        let mut cache = match self.cache.take() {
            Some(mut cache) if cache.slots() >= slots => {
                cache.clear();
                cache
            }
            _ => Cache::new(self.learner.decoder.device(), self.learner.decoder.config(), slots + slots / 8)?,
        };
        let way = Way::forward(self, &mut cache, lessons, droppings)?;
        let losses = way.backward(self, &cache, lessons);
        self.cache = Some(cache);
        losses
    }

    fn device(&self) -> Device {
        self.learner.decoder.device().clone()
    }

    /// All parameters, always in the same order.
    pub fn parameters(&self) -> Vec<&Parameter> {
        let digits = self.digits.iter().flat_map(|(d, _)| d.map.parameters());
        self.learner.parameters().chain(self.head.parameters()).chain(digits).collect()
    }

    /// All parameters, to be changed. [`Self::refresh`] makes the change known to what computes.
    pub fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let digits = self.digits.iter_mut().flat_map(|(d, _)| d.map.parameters_mut());
        self.learner.parameters_mut().chain(self.head.parameters_mut()).chain(digits).collect()
    }

    /// Makes a change of the parameters known to what computes.
    pub fn refresh(&mut self) -> Result<(), DeviceError> {
        let device = self.device();
        self.learner.refresh()?;
        self.head.refresh(&device)?;
        self.digits.as_mut().map_or(Ok(()), |(digits, _)| digits.map.refresh(&device))
    }
}

/// A pass as it is put together: its rows, who they belong to and what follows them.
#[derive(Default)]
struct Rows {
    pass: Pass,
    draws: Vec<Option<Draw>>,
    /// Tokens that rows are made of, in the order of the rows.
    tokens: Vec<u32>,
    /// The rows that are tokens; the others are thoughts.
    token_rows: Vec<usize>,
    thought_rows: Vec<usize>,
    /// Among the wanted rows: those that a token follows, and that token.
    spoken: Vec<usize>,
    targets: Vec<u32>,
    /// Among the wanted rows: those whose hidden state becomes a thought.
    thinking: Vec<usize>,
}

/// What becomes of a row's hidden state.
enum Use {
    Nothing,
    Token(u32),
    Thought,
}

impl Rows {
    fn push(&mut self, to: (&mut Cache, &mut Sequence), draw: Option<Draw>, then: Use) {
        let (cache, sequence) = to;
        let wanted = self.spoken.len() + self.thinking.len();
        match then {
            Use::Nothing => {}
            Use::Token(target) => {
                self.spoken.push(wanted);
                self.targets.push(target);
            }
            Use::Thought => self.thinking.push(wanted),
        }
        self.draws.push(draw);
        self.pass.push(cache, sequence, !matches!(then, Use::Nothing));
    }

    fn push_token(&mut self, to: (&mut Cache, &mut Sequence), draw: Option<Draw>, token: u32, then: Use) {
        self.token_rows.push(self.draws.len());
        self.tokens.push(token);
        self.push(to, draw, then);
    }

    fn push_thought(&mut self, to: (&mut Cache, &mut Sequence), draw: Option<Draw>, then: Use) {
        self.thought_rows.push(self.draws.len());
        self.push(to, draw, then);
    }
}

/// A segment and what went into it and came out.
struct Stage {
    rows: Rows,
    segment: Segment,
    hidden: Tensor, // (wanted, width)
}

/// The thoughts of one step, of all lessons that have so many.
struct Thoughts {
    of: Vec<usize>,      // lessons
    vectors: Tensor,     // (lessons, width)
    kept: HeadKept,      // for the way back to the hidden states
    fed: Vec<usize>,     // places among these that are fed in a pass of their own
    pending: Vec<usize>, // places among these that are their lesson's last, fed with the tail
}

/// A batch on its way.
struct Way {
    prompts: Stage,
    thoughts: Vec<Thoughts>,
    steps: Vec<Stage>, // after thought t, for lessons with more
    tail: Option<Stage>,
}

fn draw_of(lesson: &Lesson, sequence: &Sequence, droppings: Option<Droppings>) -> Option<Draw> {
    let position = sequence.len() as u32;
    droppings.map(|d| Draw { seed: d.seed, question: lesson.id, trajectory: d.step, position })
}

impl Way {
    fn forward(study: &Study, cache: &mut Cache, lessons: &[Lesson], droppings: Option<Droppings>) -> Result<Self, DeviceError> {
        let device = study.device();
        let p = droppings.map(|d| d.p);
        let mut sequences = vec![Sequence::default(); lessons.len()];
        let draw = |i: usize, sequence: &Sequence| draw_of(&lessons[i], sequence, droppings);
        let mut rows = Rows::default();
        for (i, (lesson, sequence)) in lessons.iter().zip(&mut sequences).enumerate() {
            let whole = lesson.thoughts == 0;
            let tail = if whole { &lesson.tail[..] } else { &[] };
            let read: Vec<u32> = lesson.prompt.iter().chain(tail).copied().collect();
            let first_target = lesson.prompt.len() + lesson.given;
            let fed = if whole { read.len() - 1 } else { read.len() };
            for (at, &token) in read[..fed].iter().enumerate() {
                let then = match read.get(at + 1) {
                    None => Use::Thought,
                    Some(&next) if at + 1 >= first_target => Use::Token(next),
                    Some(_) => Use::Nothing,
                };
                let drawn = draw(i, sequence);
                rows.push_token((cache, sequence), drawn, token, then);
            }
        }
        let prompts = Stage::run(study, cache, rows, p, None)?;

        let (mut thoughts, mut steps): (Vec<Thoughts>, Vec<Stage>) = (Vec::new(), Vec::new());
        let mut live: Vec<usize> = (0..lessons.len()).filter(|&i| lessons[i].thoughts > 0).collect();
        while !live.is_empty() {
            let t = thoughts.len() + 1;
            let stage = steps.last().unwrap_or(&prompts);
            let hidden = ops::select(&device, [&stage.hidden], &stage.rows.thinking)?;
            let (vectors, kept) = study.head.forward(&device, hidden)?;
            let (fed, pending): (Vec<usize>, Vec<usize>) = (0..live.len()).partition(|&at| lessons[live[at]].thoughts > t);
            let next: Vec<usize> = fed.iter().map(|&at| live[at]).collect();
            if !next.is_empty() {
                let x = ops::select(&device, [&vectors], &fed)?;
                let mut rows = Rows::default();
                for &i in &next {
                    let drawn = draw(i, &sequences[i]);
                    rows.push_thought((cache, &mut sequences[i]), drawn, Use::Thought);
                }
                steps.push(Stage::run(study, cache, rows, p, Some(x))?);
            }
            thoughts.push(Thoughts { of: live, vectors, kept, fed, pending });
            live = next;
        }

        let mut rows = Rows::default();
        let pending: Vec<Tensor> =
            thoughts.iter().map(|t| ops::select(&device, [&t.vectors], &t.pending)).collect::<Result<_, _>>()?;
        // In the order of the pending thoughts, so that they need no further sorting.
        for i in thoughts.iter().flat_map(|t| t.pending.iter().map(|&at| t.of[at])) {
            let (lesson, sequence) = (&lessons[i], &mut sequences[i]);
            let drawn = draw(i, sequence);
            rows.push_thought(
                (cache, sequence),
                drawn,
                if lesson.given == 0 { Use::Token(lesson.tail[0]) } else { Use::Nothing },
            );
            for (at, &token) in lesson.tail[..lesson.tail.len() - 1].iter().enumerate() {
                let then = if at + 1 >= lesson.given { Use::Token(lesson.tail[at + 1]) } else { Use::Nothing };
                let drawn = draw(i, sequence);
                rows.push_token((cache, sequence), drawn, token, then);
            }
        }
        let tail = if rows.draws.is_empty() {
            None
        } else {
            let parts: Vec<&Tensor> = pending.iter().filter(|part| part.rows() > 0).collect();
            let x = ops::concat(&device, &parts)?;
            Some(Stage::run(study, cache, rows, p, Some(x))?)
        };
        Ok(Self { prompts, thoughts, steps, tail })
    }

    fn backward(self, study: &mut Study, cache: &Cache, lessons: &[Lesson]) -> Result<Losses, DeviceError> {
        let device = study.device();
        let mut dkv = cache.gradients(&device)?;
        let weight = 1.0 / lessons.iter().map(Lesson::targets).sum::<usize>().max(1) as f32;
        let mut total = Total::default();
        let Self { prompts, thoughts, mut steps, tail } = self;
        let width = prompts.hidden.cols();

        let mut dpending = match tail {
            Some(stage) => Some(stage.back(study, (cache, &mut dkv), (weight, None), &mut total)?),
            None => None,
        };
        let read: usize = thoughts.iter().enumerate().map(|(t, of)| of.read(lessons, t).count()).sum();
        let mut dthinking: Option<Tensor> = None; // of the hidden states that became the thoughts of the step behind
        let mut pending_left: usize = thoughts.iter().map(|t| t.pending.len()).sum();
        for (t, of) in thoughts.into_iter().enumerate().rev() {
            let mut dvectors = Tensor::zeros_on(&device, of.of.len(), width)?;
            if !of.pending.is_empty() {
                let start = pending_left - of.pending.len();
                let all = dpending.take().unwrap_or_default();
                let own = ops::select(&device, [&all], &(start..pending_left).collect::<Vec<_>>())?;
                scatter(&device, &own, &of.pending, &mut dvectors)?;
                (pending_left, dpending) = (start, Some(all));
            }
            if let Some(stage) = if of.fed.is_empty() { None } else { steps.pop() } {
                let dfed = stage.back(study, (cache, &mut dkv), (weight, dthinking.take()), &mut total)?;
                scatter(&device, &dfed, &of.fed, &mut dvectors)?;
            }
            of.learn_digits(study, lessons, (t, read), (&mut dvectors, &mut total))?;
            dthinking = Some(study.head.backward(&device, &of.kept, dvectors)?);
        }
        prompts.back(study, (cache, &mut dkv), (weight, dthinking), &mut total)?;
        total.means(lessons.iter().map(Lesson::targets).sum(), read)
    }
}

impl Thoughts {
    /// Places among these whose lesson has a step of that number, and the step's result.
    fn read<'a>(&'a self, lessons: &'a [Lesson], t: usize) -> impl Iterator<Item = (usize, i64)> {
        self.of.iter().enumerate().filter_map(move |(at, &i)| Some((at, *lessons[i].results.get(t)?)))
    }

    /// Adds the gradient of the loss on thoughts, if there is one.
    fn learn_digits(
        &self,
        study: &mut Study,
        lessons: &[Lesson],
        (t, read): (usize, usize),
        (dvectors, total): (&mut Tensor, &mut Total),
    ) -> Result<(), DeviceError> {
        let device = study.device();
        let (places, numbers): (Vec<usize>, Vec<i64>) = self.read(lessons, t).unzip();
        let Some((digits, weight)) = &mut study.digits else { return Ok(()) };
        if places.is_empty() {
            return Ok(());
        }
        let weight = *weight / (read * crate::digits::PLACES) as f32;
        let told = digits.learn(&device, &ops::select(&device, [&self.vectors], &places)?, &numbers, weight)?;
        total.digits.push(told.losses);
        scatter(&device, &told.gradient, &places, dvectors)
    }
}

impl Stage {
    /// x holds the vectors of the rows that are thoughts.
    fn run(study: &Study, cache: &mut Cache, rows: Rows, p: Option<f32>, thoughts: Option<Tensor>) -> Result<Self, DeviceError> {
        let device = study.device();
        let x = match thoughts {
            None => study.learner.decoder.embed(&rows.tokens)?,
            Some(thoughts) if rows.tokens.is_empty() => thoughts,
            Some(thoughts) => {
                let tokens = study.learner.decoder.embed(&rows.tokens)?;
                let mut from = vec![0; rows.draws.len()];
                rows.token_rows.iter().chain(&rows.thought_rows).enumerate().for_each(|(at, &row)| from[row] = at);
                ops::select(&device, [&tokens, &thoughts], &from)?
            }
        };
        let dropout = p.map(|p| Dropout { p, attn_out: true, mlp_out: true, masks: Masks::Drawn(&rows.draws) });
        let (hidden, segment) = study.learner.forward(cache, &rows.pass, x, dropout)?;
        Ok(Self { rows, segment, hidden })
    }

    /// The gradients of this stage; returns that of the vectors of its thought rows.
    fn back(
        self,
        study: &mut Study,
        (cache, dkv): (&Cache, &mut KvGrads),
        (weight, dthinking): (f32, Option<Tensor>),
        total: &mut Total,
    ) -> Result<Tensor, DeviceError> {
        let device = study.device();
        let Self { rows, segment, hidden } = self;
        let mut parts = Vec::new();
        if !rows.spoken.is_empty() {
            let said = ops::select(&device, [&hidden], &rows.spoken)?;
            let weights = vec![weight; rows.spoken.len()];
            let (losses, dsaid) = study.learner.cross_entropy(&said, rows.targets, &weights)?;
            total.tokens.push(losses);
            parts.push((dsaid, rows.spoken));
        }
        if let Some(dthinking) = dthinking {
            parts.push((dthinking, rows.thinking));
        }
        let dhidden = gathered(&device, parts, (hidden.rows(), hidden.cols()))?;
        let dx = study.learner.backward(cache, dkv, segment, &dhidden)?;
        if !rows.tokens.is_empty() {
            study.learner.embedded(rows.tokens, &ops::select(&device, [&dx], &rows.token_rows)?)?;
        }
        ops::select(&device, [&dx], &rows.thought_rows)
    }
}

/// Losses on the device, until the batch is done.
#[derive(Default)]
struct Total {
    tokens: Vec<Tensor>,
    digits: Vec<Tensor>,
}

impl Total {
    fn means(self, tokens: usize, numbers: usize) -> Result<Losses, DeviceError> {
        let mean = |parts: Vec<Tensor>, count: usize| -> Result<f64, DeviceError> {
            let mut sum = 0.0;
            for part in parts {
                sum += part.to_host()?.data().iter().map(|&x| f64::from(x)).sum::<f64>();
            }
            Ok(sum / count.max(1) as f64)
        };
        Ok(Losses { tokens: mean(self.tokens, tokens)?, digits: mean(self.digits, numbers * crate::digits::PLACES)? })
    }
}

fn is_all(places: &[usize], rows: usize) -> bool {
    places.len() == rows && places.iter().enumerate().all(|(at, &place)| at == place)
}

/// `to[places[r]] += x[r]`
pub(crate) fn scatter(device: &Device, x: &Tensor, places: &[usize], to: &mut Tensor) -> Result<(), DeviceError> {
    if is_all(places, to.rows()) {
        return ops::add(device, to, x);
    }
    ops::scatter_add(device, x, &Indices::new(device, places.iter().map(|&p| p as u32).collect())?, to)
}

/// A matrix whose rows are those of the parts, each at its place, and zeros elsewhere.
fn gathered(device: &Device, mut parts: Vec<(Tensor, Vec<usize>)>, (rows, cols): (usize, usize)) -> Result<Tensor, DeviceError> {
    if let [(_, places)] = &parts[..]
        && is_all(places, rows)
    {
        return Ok(parts.remove(0).0);
    }
    let mut out = Tensor::zeros_on(device, rows, cols)?;
    for (part, places) in &parts {
        scatter(device, part, places, &mut out)?;
    }
    Ok(out)
}
