//! From samples to figures.
//!
//! Samples are read once, one at a time; what stays of each is one number per metric and k. A
//! figure is the mean over questions of the mean over seeds, with an interval over questions.
//!
//! Whatever is missing is left out, not guessed: a question counts under the seeds it has (so a run
//! can be looked at before it ends), and a metric counts over the questions that have it. A voting
//! rule needs what it looks at on every trajectory of the question, `diversity` two trajectories
//! with a thought.
//!
//! Where sampling stopped because a vote was settled, the rules at a larger k see what there is.
//! Coverage at a larger k cannot be known for such a question, and without the easy questions it
//! would mislead, so it is left out.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use aggregate::{Aggregator, VoteParams, ordered_pairs};
use record::{
    BeamCost, FORMAT, Metric, MetricGain, MetricName, Results, RunCost, RunDir, Sample, Seconds,
    TrajectoryRecord,
};

use crate::error::ReportError;
use crate::interval::{Bootstrap, Interval};

/// What to measure.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricSettings {
    /// The numbers of trajectories; empty for powers of two up to N, and N.
    pub ks: Vec<usize>,
    /// The voting rules, if not the usual ones.
    pub aggregators: Option<Vec<Aggregator>>,
    /// The numbers in them.
    pub vote_params: VoteParams,
    /// How intervals are made.
    pub bootstrap: Bootstrap,
}

/// The results of a run directory, seconds included.
pub fn results_of_run(run: &RunDir, settings: &MetricSettings) -> Result<Results, ReportError> {
    let mut results = results_of_samples(run.samples()?, settings)?;
    results.cost.seconds = run.seconds()?;
    Ok(results)
}

/// The results of `samples`. Samples hold no clock readings, so the seconds are zero.
pub fn results_of_samples<I>(samples: I, settings: &MetricSettings) -> Result<Results, ReportError>
where
    I: IntoIterator<Item = Result<Sample, record::RecordError>>,
{
    let results = QuestionMetrics::collect(samples, settings)?.results(&settings.bootstrap);
    Ok(Results {
        vote_params: (settings.vote_params != VoteParams::default())
            .then_some(settings.vote_params),
        ..results
    })
}

/// Every metric of every question, before the mean over questions is taken.
#[derive(Debug, Default)]
pub struct QuestionMetrics {
    columns: BTreeMap<(MetricName, usize), MetricColumn>,
    seen: HashSet<(u64, u32)>,
    layout: Option<SampleLayout>,
    trajectories: usize,
    steps: f64,
    flops: f64,
    beam: Option<BeamCost>, // summed, as steps and flops are
}

/// One metric at one k: a value per question.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricColumn {
    /// By question, the sum over seeds and their number. Ordered, so that intervals do not depend
    /// on the order in which questions were run.
    values: BTreeMap<u32, (f64, u32)>,
    seeds: BTreeSet<u64>,
}

/// What the samples of one run have in common.
#[derive(Debug, Clone)]
struct SampleLayout {
    n: usize,
    ks: Vec<usize>,
    fewest: usize, // trajectories that a question has
}

impl QuestionMetrics {
    /// Reads all samples and keeps one number per metric and k.
    pub fn collect<I>(samples: I, settings: &MetricSettings) -> Result<Self, ReportError>
    where
        I: IntoIterator<Item = Result<Sample, record::RecordError>>,
    {
        let mut collected = Self::default();
        for sample in samples {
            collected.add(&sample?, settings)?;
        }
        let fewest = collected.layout.as_ref().map_or(0, |shape| shape.fewest);
        collected.columns.retain(|&(name, k), _| name != MetricName::Coverage || k <= fewest);
        if collected.seen.is_empty() { Err(ReportError::Empty) } else { Ok(collected) }
    }

    /// One metric at one k, where the run has it.
    pub fn column(&self, name: MetricName, k: usize) -> Option<&MetricColumn> {
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
            cost: RunCost {
                steps: self.steps / samples,
                flops: self.flops / samples,
                beam: self.beam.map(|BeamCost { steps, flops }| BeamCost {
                    steps: steps / samples,
                    flops: flops / samples,
                }),
                seconds: Seconds::default(),
            },
            questions: self.seen.iter().map(|&(_, id)| id).collect::<HashSet<_>>().len(),
            seeds: self.seen.iter().map(|&(seed, _)| seed).collect::<HashSet<_>>().len(),
            trajectories: self.layout.as_ref().map_or(0, |shape| shape.n),
            sampled: self.trajectories as f64 / samples,
            vote_params: None,
            gains: self.gains(bootstrap),
        }
    }

    /// What every rule gains over greedy decoding and over the plain vote at the largest k that it
    /// has.
    fn gains(&self, bootstrap: &Bootstrap) -> Vec<MetricGain> {
        let choices = self
            .columns
            .keys()
            .filter(|(name, _)| name.is_accuracy() && *name != MetricName::Greedy);
        let largest: BTreeMap<MetricName, usize> = choices.copied().collect(); // ascending k: the last one stays
        let gain = |name: MetricName, k: usize, over: MetricName, plain: usize| {
            let Interval { value, low, high } =
                paired_difference(self.column(name, k)?, self.column(over, plain)?, bootstrap)?;
            Some(MetricGain { name, over, k, value, low, high })
        };
        let against = |(&name, &k): (&MetricName, &usize)| {
            let vote =
                if name == MetricName::Maj { None } else { gain(name, k, MetricName::Maj, k) };
            gain(name, k, MetricName::Greedy, 1).into_iter().chain(vote)
        };
        largest.iter().flat_map(against).collect()
    }

    fn add(&mut self, sample: &Sample, settings: &MetricSettings) -> Result<(), ReportError> {
        let (id, seed) = (sample.id, sample.seed);
        if !self.seen.insert((seed, id)) {
            return Err(ReportError::Duplicate { id, seed });
        }
        let there = sample.trajectories.len();
        let found = sample.stopped.map_or(there, |stopped| stopped.requested as usize);
        let shape = match self.layout.take() {
            Some(shape) => shape,
            None => SampleLayout { n: found, ks: resolve_ks(&settings.ks, found)?, fewest: there },
        };
        if found != shape.n {
            return Err(ReportError::UnevenTrajectories { id, seed, found, expected: shape.n });
        }
        for (name, k, value) in sample_metrics(sample, &shape.ks, settings) {
            self.columns.entry((name, k)).or_default().add(id, seed, value);
        }
        self.layout = Some(SampleLayout { fewest: shape.fewest.min(there), ..shape });
        self.add_cost(sample);
        Ok(())
    }

    fn add_cost(&mut self, sample: &Sample) {
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

impl MetricColumn {
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

/// How much larger `a` is than `b`, by the paired bootstrap: over the questions that have both, of
/// one run or of two. `None` where no question has both.
///
/// What makes a question hard makes it hard for both, so this interval is narrower than the two
/// apart suggest.
pub fn paired_difference(
    a: &MetricColumn,
    b: &MetricColumn,
    bootstrap: &Bootstrap,
) -> Option<Interval> {
    let b: BTreeMap<u32, f64> = b.values().collect();
    let differences: Vec<f64> = a.values().filter_map(|(id, a)| Some(a - b.get(&id)?)).collect();
    bootstrap.mean(&differences)
}

/// Chance that k trajectories drawn from n, c of them correct, hold a correct one: 1 - C(n-c, k) /
/// C(n, k).
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
fn resolve_ks(asked: &[usize], n: usize) -> Result<Vec<usize>, ReportError> {
    if let Some(&k) = asked.iter().find(|&&k| k == 0 || k > n) {
        return Err(ReportError::InvalidK { k, n });
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
fn sample_metrics(
    sample: &Sample,
    ks: &[usize],
    settings: &MetricSettings,
) -> Vec<(MetricName, usize, f64)> {
    let trajectories = &sample.trajectories;
    let n = trajectories.len();
    let mut facts = Vec::new();
    if let Some(greedy) = &sample.greedy {
        facts.push((MetricName::Greedy, 1, indicator(greedy.correct)));
    }
    if let Some(beam) = &sample.beam {
        let k = (beam.width as usize).saturating_mul(beam.candidates as usize);
        facts.push((MetricName::Beam, k, indicator(beam.correct)));
    }
    if let Some(steps @ [_, ..]) = sample.diversity.as_deref() {
        let asked = sample.stopped.map_or(n, |stopped| stopped.requested as usize);
        facts.push((MetricName::Diversity, asked, steps.iter().sum::<f64>() / steps.len() as f64));
    }
    let correct = trajectories.iter().filter(|trajectory| trajectory.correct).count();
    for &k in ks.iter().filter(|&&k| k <= n) {
        facts.push((MetricName::Coverage, k, coverage(n, correct, k)));
    }
    facts.extend(ranking_accuracy(trajectories));
    let rules = settings.aggregators.as_deref().unwrap_or(Aggregator::DEFAULT);
    for rule in rules.iter().filter(|rule| rule.applies(trajectories)) {
        let verdicts = ks.iter().map(|&k| {
            (k, is_choice_correct(&trajectories[..k.min(n)], *rule, &settings.vote_params))
        });
        facts.extend(verdicts.map(|(k, correct)| ((*rule).into(), k, indicator(correct))));
    }
    facts
}

/// How well the rewards at each thought and the verdicts tell right trajectories from wrong ones,
/// where there are both.
fn ranking_accuracy(
    trajectories: &[TrajectoryRecord],
) -> impl Iterator<Item = (MetricName, usize, f64)> {
    let ranked = |reward: &dyn Fn(&TrajectoryRecord) -> Option<f32>| {
        let (right, pairs) = ordered_pairs(trajectories.iter().map(|of| (reward(of), of.correct)));
        (pairs > 0.0).then(|| right / pairs)
    };
    let longest = trajectories
        .iter()
        .filter_map(|t| t.process_rewards.as_ref())
        .map(Vec::len)
        .max()
        .unwrap_or(0);
    let by_thought = (0..longest).filter_map(move |t| {
        let chance = ranked(&|of| of.process_rewards.as_ref().and_then(|s| s.get(t).copied()));
        chance.map(|chance| (MetricName::Auc, t + 1, chance))
    });
    by_thought.chain(
        ranked(&|of| of.outcome_reward)
            .map(|chance| (MetricName::AucOutcome, trajectories.len(), chance)),
    )
}

fn is_choice_correct(
    trajectories: &[TrajectoryRecord],
    rule: Aggregator,
    tuning: &VoteParams,
) -> bool {
    rule.choose(trajectories, tuning).is_some_and(|index| trajectories[index].correct)
}

fn indicator(correct: bool) -> f64 {
    f64::from(u8::from(correct))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of k-subsets of n trajectories, the first c correct, that hold a correct one.
    fn enumerated(n: usize, c: usize, k: usize) -> f64 {
        let subsets = (0u32..1 << n).filter(|subset| subset.count_ones() as usize == k);
        let (all, right) = subsets.fold((0, 0), |(all, right), subset| {
            (all + 1, right + usize::from(subset & ((1 << c) - 1) != 0))
        });
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
    fn the_estimator_is_stable_for_large_n() {
        assert_eq!(coverage(100_000, 0, 50_000), 0.0);
        assert_eq!(coverage(100_000, 100_000, 1), 1.0);
        assert!((coverage(100_000, 1, 1000) - 0.01).abs() < 1e-12);
        assert!((coverage(64, 16, 1) - 0.25).abs() < 1e-12);
    }

    #[test]
    fn ks_are_powers_of_two_and_n() {
        assert_eq!(resolve_ks(&[], 1).unwrap(), [1]);
        assert_eq!(resolve_ks(&[], 8).unwrap(), [1, 2, 4, 8]);
        assert_eq!(resolve_ks(&[], 12).unwrap(), [1, 2, 4, 8, 12]);
        assert_eq!(resolve_ks(&[], 0).unwrap(), [0usize; 0]);
        assert_eq!(resolve_ks(&[4, 1, 4], 5).unwrap(), [1, 4]);
        for k in [0, 6] {
            assert!(matches!(
                resolve_ks(&[1, k], 5).unwrap_err(),
                ReportError::InvalidK { n: 5, .. }
            ));
        }
    }
}
