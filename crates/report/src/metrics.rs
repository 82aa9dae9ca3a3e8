//! From samples to figures.
//!
//! Samples are read once, one at a time; what stays of each is one number per metric and k. A figure is the mean
//! over questions of the mean over seeds, with an interval over questions.
//!
//! Whatever is missing is left out, not guessed: a question counts under the seeds it has (so a run can be
//! looked at before it ends), and a metric counts over the questions that have it. A voting rule needs what it looks
//! at on every trajectory of the question, `diversity` two trajectories with a thought.
//!
//! Where sampling stopped because a vote was settled, the rules at a larger k see what there is. Coverage at a larger
//! k cannot be known for such a question, and without the easy questions it would mislead, so it is left out.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use record::aggregate::{Aggregator, Tuning};
use record::ranking::ordered_pairs;
use record::{Cost, Effort, FORMAT, Gain, Metric, MetricName, Results, RunDir, Sample, Seconds, Trajectory};

use crate::error::Error;
use crate::interval::{Bootstrap, Interval};

/// What to measure.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricSettings {
    /// The numbers of trajectories; empty for powers of two up to N, and N.
    pub ks: Vec<usize>,
    /// The voting rules, if not the usual ones.
    pub aggregators: Option<Vec<Aggregator>>,
    /// The numbers in them.
    pub tuning: Tuning,
    /// How intervals are made.
    pub bootstrap: Bootstrap,
}

/// The results of a run directory, seconds included.
pub fn of_run(run: &RunDir, settings: &MetricSettings) -> Result<Results, Error> {
    let mut results = compute(run.samples()?, settings)?;
    results.cost.seconds = run.seconds()?;
    Ok(results)
}

/// The results of `samples`. Samples hold no clock readings, so the seconds are zero.
pub fn compute<I>(samples: I, settings: &MetricSettings) -> Result<Results, Error>
where
    I: IntoIterator<Item = Result<Sample, record::Error>>,
{
    let results = PerQuestion::collect(samples, settings)?.results(&settings.bootstrap);
    Ok(Results { tuning: (settings.tuning != Tuning::default()).then_some(settings.tuning), ..results })
}

/// Every metric of every question, before the mean over questions is taken.
#[derive(Debug, Default)]
pub struct PerQuestion {
    columns: BTreeMap<(MetricName, usize), Column>,
    seen: HashSet<(u64, u32)>,
    shape: Option<Shape>,
    trajectories: usize,
    steps: f64,
    flops: f64,
    beam: Option<Effort>, // summed, as steps and flops are
}

/// One metric at one k: a value per question.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Column {
    /// By question, the sum over seeds and their number. Ordered, so that intervals do not depend on the order
    /// in which questions were run.
    values: BTreeMap<u32, (f64, u32)>,
    seeds: BTreeSet<u64>,
}

/// What the samples of one run have in common.
#[derive(Debug, Clone)]
struct Shape {
    n: usize,
    ks: Vec<usize>,
    fewest: usize, // trajectories that a question has
}

impl PerQuestion {
    /// Reads all samples and keeps one number per metric and k.
    pub fn collect<I>(samples: I, settings: &MetricSettings) -> Result<Self, Error>
    where
        I: IntoIterator<Item = Result<Sample, record::Error>>,
    {
        let mut collected = Self::default();
        for sample in samples {
            collected.add(&sample?, settings)?;
        }
        let fewest = collected.shape.as_ref().map_or(0, |shape| shape.fewest);
        let is_coverage = |name| matches!(name, MetricName::Coverage | MetricName::Pass);
        collected.columns.retain(|&(name, k), _| !is_coverage(name) || k <= fewest);
        if collected.seen.is_empty() { Err(Error::Empty) } else { Ok(collected) }
    }

    /// One metric at one k, where the run has it.
    pub fn column(&self, name: MetricName, k: usize) -> Option<&Column> {
        self.columns.get(&(name, k))
    }

    /// The figures, with everything but the seconds.
    pub fn results(&self, bootstrap: &Bootstrap) -> Results {
        let metrics = self.columns.iter().filter_map(|(&(name, k), column)| {
            let Interval { value, low, high } = column.mean(bootstrap)?;
            Some(Metric { name, k, value, low, high, seeds: column.seeds.len() })
        });
        let samples = self.seen.len().max(1) as f64;
        Results {
            version: FORMAT,
            metrics: metrics.collect(),
            cost: Cost {
                steps: self.steps / samples,
                flops: self.flops / samples,
                beam: self.beam.map(|Effort { steps, flops }| Effort { steps: steps / samples, flops: flops / samples }),
                seconds: Seconds::default(),
            },
            questions: self.seen.iter().map(|&(_, id)| id).collect::<HashSet<_>>().len(),
            seeds: self.seen.iter().map(|&(seed, _)| seed).collect::<HashSet<_>>().len(),
            trajectories: self.shape.as_ref().map_or(0, |shape| shape.n),
            sampled: self.trajectories as f64 / samples,
            tuning: None,
            gains: self.gains(bootstrap),
        }
    }

    /// What every rule gains over greedy decoding and over the plain vote at the largest k that it has.
    fn gains(&self, bootstrap: &Bootstrap) -> Vec<Gain> {
        let choices = self.columns.keys().filter(|(name, _)| name.is_a_choice() && *name != MetricName::Greedy);
        let largest: BTreeMap<MetricName, usize> = choices.copied().collect(); // ascending k: the last one stays
        let gain = |name: MetricName, k: usize, over: MetricName, plain: usize| {
            let Interval { value, low, high } = difference(self.column(name, k)?, self.column(over, plain)?, bootstrap)?;
            Some(Gain { name, over, k, value, low, high })
        };
        let against = |(&name, &k): (&MetricName, &usize)| {
            let vote = if name == MetricName::Maj { None } else { gain(name, k, MetricName::Maj, k) };
            gain(name, k, MetricName::Greedy, 1).into_iter().chain(vote)
        };
        largest.iter().flat_map(against).collect()
    }

    fn add(&mut self, sample: &Sample, settings: &MetricSettings) -> Result<(), Error> {
        let (id, seed) = (sample.id, sample.seed);
        if !self.seen.insert((seed, id)) {
            return Err(Error::Duplicate { id, seed });
        }
        let there = sample.trajectories.len();
        let found = sample.stopped.map_or(there, |stopped| stopped.asked as usize);
        let shape = match self.shape.take() {
            Some(shape) => shape,
            None => Shape { n: found, ks: resolve(&settings.ks, found)?, fewest: there },
        };
        if found != shape.n {
            return Err(Error::Uneven { id, seed, found, expected: shape.n });
        }
        for (name, k, value) in facts(sample, &shape.ks, settings) {
            self.columns.entry((name, k)).or_default().add(id, seed, value);
        }
        self.shape = Some(Shape { fewest: shape.fewest.min(there), ..shape });
        self.spend(sample);
        Ok(())
    }

    fn spend(&mut self, sample: &Sample) {
        self.trajectories += sample.trajectories.len();
        self.steps += sample.steps as f64;
        self.flops += sample.flops;
        if let Some(beam) = &sample.beam {
            let sum = self.beam.get_or_insert_default();
            sum.steps += beam.steps as f64;
            sum.flops += beam.flops;
        }
    }
}

impl Column {
    /// The mean over questions, with its interval.
    pub fn mean(&self, bootstrap: &Bootstrap) -> Option<Interval> {
        let values: Vec<f64> = self.values().map(|(_, value)| value).collect();
        bootstrap.mean(&values)
    }

    /// The questions that have this metric, ascending, each with its mean over seeds.
    pub fn values(&self) -> impl Iterator<Item = (u32, f64)> {
        self.values.iter().map(|(&id, &(sum, seeds))| (id, sum / f64::from(seeds)))
    }

    fn add(&mut self, id: u32, seed: u64, value: f64) {
        let (sum, seeds) = self.values.entry(id).or_default();
        *sum += value;
        *seeds += 1;
        self.seeds.insert(seed);
    }
}

/// How much larger `a` is than `b`, by the paired bootstrap: over the questions that have both, of one run or
/// of two. `None` where no question has both.
///
/// What makes a question hard makes it hard for both, so this interval is narrower than the two apart suggest.
pub fn difference(a: &Column, b: &Column, bootstrap: &Bootstrap) -> Option<Interval> {
    let b: BTreeMap<u32, f64> = b.values().collect();
    let differences: Vec<f64> = a.values().filter_map(|(id, a)| Some(a - b.get(&id)?)).collect();
    bootstrap.mean(&differences)
}

/// Chance that k trajectories drawn from n, c of them correct, hold a correct one: 1 - C(n-c, k) / C(n, k).
///
/// As a product of c ratios below one, which neither overflows nor cancels as the binomials would.
pub fn coverage(n: usize, c: usize, k: usize) -> f64 {
    let wrong = n.saturating_sub(c);
    if wrong < k {
        return 1.0;
    }
    1.0 - (wrong + 1..=n).map(|i| 1.0 - k as f64 / i as f64).product::<f64>()
}

/// The ks to measure at: those asked for, or powers of two up to n, and n.
fn resolve(asked: &[usize], n: usize) -> Result<Vec<usize>, Error> {
    if let Some(&k) = asked.iter().find(|&&k| k == 0 || k > n) {
        return Err(Error::K { k, n });
    }
    let mut ks = asked.to_vec();
    if asked.is_empty() {
        ks.extend((0..usize::BITS).map(|power| 1 << power).take_while(|&k| k <= n));
        ks.extend((n > 0).then_some(n));
    }
    ks.sort_unstable();
    ks.dedup();
    Ok(ks)
}

/// All that is kept of a sample.
fn facts(sample: &Sample, ks: &[usize], settings: &MetricSettings) -> Vec<(MetricName, usize, f64)> {
    let trajectories = &sample.trajectories;
    let n = trajectories.len();
    let mut facts = Vec::new();
    if let Some(greedy) = &sample.greedy {
        facts.push((MetricName::Greedy, 1, truth(greedy.correct)));
    }
    if let Some(beam) = &sample.beam {
        let k = (beam.width as usize).saturating_mul(beam.candidates as usize);
        facts.push((MetricName::Beam, k, truth(beam.correct)));
    }
    if let Some(steps @ [_, ..]) = sample.diversity.as_deref() {
        let asked = sample.stopped.map_or(n, |stopped| stopped.asked as usize);
        facts.push((MetricName::Diversity, asked, steps.iter().sum::<f64>() / steps.len() as f64));
    }
    let correct = trajectories.iter().filter(|trajectory| trajectory.correct).count();
    for &k in ks.iter().filter(|&&k| k <= n) {
        let chance = coverage(n, correct, k);
        facts.push((MetricName::Coverage, k, chance));
        facts.push((MetricName::Pass, k, chance));
    }
    facts.extend(ranking(trajectories));
    let rules = settings.aggregators.as_deref().unwrap_or(Aggregator::USUAL);
    for rule in rules.iter().filter(|rule| rule.applies(trajectories)) {
        let verdicts = ks.iter().map(|&k| (k, verdict(&trajectories[..k.min(n)], *rule, &settings.tuning)));
        facts.extend(verdicts.map(|(k, correct)| ((*rule).into(), k, truth(correct))));
    }
    facts
}

/// How well the rewards at each thought and the verdicts tell right trajectories from wrong ones, where there are both.
fn ranking(trajectories: &[Trajectory]) -> impl Iterator<Item = (MetricName, usize, f64)> {
    let ranked = |reward: &dyn Fn(&Trajectory) -> Option<f32>| {
        let (right, pairs) = ordered_pairs(trajectories.iter().map(|of| (reward(of), of.correct)));
        (pairs > 0.0).then(|| right / pairs)
    };
    let longest = trajectories.iter().filter_map(|t| t.scores.as_ref()).map(Vec::len).max().unwrap_or(0);
    let by_thought = (0..longest).filter_map(move |t| {
        let chance = ranked(&|of| of.scores.as_ref().and_then(|s| s.get(t).copied()));
        chance.map(|chance| (MetricName::Auc, t + 1, chance))
    });
    by_thought.chain(ranked(&|of| of.verdict).map(|chance| (MetricName::AucVerdict, trajectories.len(), chance)))
}

fn verdict(trajectories: &[Trajectory], rule: Aggregator, tuning: &Tuning) -> bool {
    rule.choose(trajectories, tuning).is_some_and(|index| trajectories[index].correct)
}

fn truth(correct: bool) -> f64 {
    f64::from(u8::from(correct))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of k-subsets of n trajectories, the first c correct, that hold a correct one.
    fn enumerated(n: usize, c: usize, k: usize) -> f64 {
        let subsets = (0u32..1 << n).filter(|subset| subset.count_ones() as usize == k);
        let (all, right) =
            subsets.fold((0, 0), |(all, right), subset| (all + 1, right + usize::from(subset & ((1 << c) - 1) != 0)));
        right as f64 / f64::from(all)
    }

    #[test]
    fn the_estimator_equals_the_enumeration_of_subsets() {
        for n in 1..=9 {
            for c in 0..=n {
                for k in 1..=n {
                    let error = (coverage(n, c, k) - enumerated(n, c, k)).abs();
                    assert!(error < 1e-12, "n = {n}, c = {c}, k = {k}");
                }
            }
        }
    }

    #[test]
    fn the_estimator_is_stable_far_out() {
        assert_eq!(coverage(100_000, 0, 50_000), 0.0);
        assert_eq!(coverage(100_000, 100_000, 1), 1.0);
        assert!((coverage(100_000, 1, 1000) - 0.01).abs() < 1e-12);
        assert!((coverage(64, 16, 1) - 0.25).abs() < 1e-12);
    }

    #[test]
    fn ks_are_powers_of_two_and_n() {
        assert_eq!(resolve(&[], 1).unwrap(), [1]);
        assert_eq!(resolve(&[], 8).unwrap(), [1, 2, 4, 8]);
        assert_eq!(resolve(&[], 12).unwrap(), [1, 2, 4, 8, 12]);
        assert_eq!(resolve(&[], 0).unwrap(), [0usize; 0]);
        assert_eq!(resolve(&[4, 1, 4], 5).unwrap(), [1, 4]);
        for k in [0, 6] {
            assert!(matches!(resolve(&[1, k], 5).unwrap_err(), Error::K { n: 5, .. }));
        }
    }
}
