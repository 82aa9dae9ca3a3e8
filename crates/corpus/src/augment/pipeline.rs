//! Generates the variants of many problems, in parallel and in order.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use rayon::prelude::*;
use serde::Serialize;

use super::story::StoryTemplate;
use super::{OverlapIndex, Refusal, RenumberedProblem, VariantSource};
use data::TrainExample;

/// Number of problems whose variants are in memory at a time.
const CHUNK: usize = 256;

/// Requested number of variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariantCount {
    /// Variants per problem.
    PerProblem(usize),
    /// Total number of variants, distributed evenly over the problems that have variants.
    Total(usize),
}

/// Options of [`augment`].
#[derive(Debug, Clone)]
pub struct AugmentOptions {
    /// Random seed.
    pub seed: u64,
    /// Requested number of variants.
    pub count: VariantCount,
    /// Whether to keep the problems themselves as variant 0, including those without variants.
    pub keep_original: bool,
    /// Texts for decontamination: outputs that overlap with them are dropped.
    pub without: OverlapIndex,
}

/// A source of variants.
#[derive(Debug, Clone)]
pub enum AugmentSource {
    /// A problem with annotated steps, whose numbers are resampled.
    Problem(TrainExample),
    /// A story template.
    Story(Box<StoryTemplate>),
}

impl AugmentSource {
    /// The original problem; `None` for a template.
    fn original(&self) -> Option<&TrainExample> {
        match self {
            Self::Problem(example) => Some(example),
            Self::Story(_) => None,
        }
    }

    fn overlaps(&self, without: &OverlapIndex) -> bool {
        self.original().is_some_and(|example| without.overlaps(&example.question))
    }

    /// The first `count` distinct variants of problem number `problem`.
    fn variants(
        &self,
        seed: u64,
        problem: u32,
        count: usize,
    ) -> Result<Vec<(u32, TrainExample)>, Refusal> {
        let variants = match self {
            Self::Problem(example) => {
                RenumberedProblem::new(example)?.variants(seed, problem, count)
            }
            Self::Story(template) => template.variants(seed, problem, count),
        };
        match variants.is_empty() && count > 0 {
            true => Err(Refusal::NoSensibleDraw),
            false => Ok(variants),
        }
    }
}

/// A problem with its origin. It serializes to a JSON line for training and evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AugmentedExample {
    /// The problem.
    #[serde(flatten)]
    pub example: TrainExample,
    /// Index of the source problem.
    pub source: u32,
    /// Variant number; 0 is the original.
    pub variant: u32,
}

/// The result for one problem.
#[derive(Debug, Clone)]
pub struct ProblemOutcome {
    /// The output: the original if it is kept, then the variants.
    pub examples: Vec<AugmentedExample>,
    /// The reason if there are no variants.
    pub refusal: Option<Refusal>,
}

/// Counts of a whole run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AugmentReport {
    /// Number of input problems.
    pub problems: usize,
    /// Number of problems whose solution is a graph over the numbers of the question.
    pub with_graph: usize,
    /// Number of problems without variants, by reason.
    pub refused: BTreeMap<Refusal, usize>,
    /// Number of kept originals.
    pub originals: usize,
    /// Number of written variants.
    pub variants: usize,
    /// Number of dropped duplicate questions.
    pub duplicates: usize,
    /// Number of dropped variants that overlap with decontamination texts.
    pub overlapping: usize,
}

/// Generates the variants of all problems and passes them to `each` in order, chunk by chunk.
///
/// The result does not depend on the number of threads.
///
/// # Errors
///
/// The first error of `each`.
pub fn augment<E>(
    problems: &[AugmentSource],
    options: &AugmentOptions,
    mut each: impl FnMut(ProblemOutcome) -> Result<(), E>,
) -> Result<AugmentReport, E> {
    let mut report = AugmentReport { problems: problems.len(), ..AugmentReport::default() };
    let (per_problem, mut left) = requested(problems, options);
    let mut seen = HashSet::new();
    for (chunk, sources) in problems.chunks(CHUNK).enumerate() {
        let first = chunk * CHUNK;
        let outcomes: Vec<ProblemOutcome> = sources
            .par_iter()
            .enumerate()
            .map(|(at, source)| outcome(source, (first + at) as u32, per_problem, options))
            .collect();
        for mut outcome in outcomes {
            report.filter(&mut outcome, &options.without, &mut seen, &mut left);
            each(outcome)?;
        }
    }
    Ok(report)
}

/// Requested number of variants per problem, and in total.
fn requested(problems: &[AugmentSource], options: &AugmentOptions) -> (usize, usize) {
    match options.count {
        VariantCount::PerProblem(count) => (count, usize::MAX),
        VariantCount::Total(total) => {
            let usable = |source: &&AugmentSource| {
                !source.overlaps(&options.without) && source.variants(options.seed, 0, 0).is_ok()
            };
            let sources = problems.par_iter().filter(usable).count();
            (total.div_ceil(sources.max(1)), total)
        }
    }
}

fn outcome(
    from: &AugmentSource,
    source: u32,
    count: usize,
    options: &AugmentOptions,
) -> ProblemOutcome {
    let mut examples = Vec::new();
    if from.overlaps(&options.without) {
        return ProblemOutcome { examples, refusal: Some(Refusal::Overlap) };
    }
    if let Some(example) = from.original().filter(|_| options.keep_original) {
        examples.push(AugmentedExample { example: example.clone(), source, variant: 0 });
    }
    let variants = from.variants(options.seed, source, count);
    let refusal = variants.as_ref().err().copied();
    for (variant, example) in variants.into_iter().flatten() {
        examples.push(AugmentedExample { example, source, variant });
    }
    ProblemOutcome { examples, refusal }
}

impl AugmentReport {
    /// Counts the result of one problem; drops duplicates, overlaps and variants beyond the total.
    fn filter(
        &mut self,
        outcome: &mut ProblemOutcome,
        without: &OverlapIndex,
        seen: &mut HashSet<u64>,
        left: &mut usize,
    ) {
        match outcome.refusal {
            Some(refusal) => *self.refused.entry(refusal).or_default() += 1,
            None => self.with_graph += 1,
        }
        outcome.examples.retain(|example| {
            let is_variant = example.variant > 0;
            let question = &example.example.question;
            if is_variant && without.overlaps(question) {
                self.overlapping += 1;
                return false;
            }
            if !seen.insert(hash(question)) {
                self.duplicates += 1;
                return false;
            }
            if is_variant && *left == 0 {
                return false;
            }
            *left -= usize::from(is_variant);
            *(if is_variant { &mut self.variants } else { &mut self.originals }) += 1;
            true
        });
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
