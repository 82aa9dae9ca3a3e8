//! Metrics from samples.
//!
//! Samples are read once, one at a time; one number per metric and k is kept of each. A metric is
//! the mean over questions of the mean over seeds, with a confidence interval over questions. A
//! voting rule at k is averaged over all subsets of k trajectories, like coverage (`subsets`).
//!
//! Missing values are skipped: a question is averaged over its available seeds (so that incomplete
//! runs can be evaluated), and a metric over the questions that have it. A voting rule applies to a
//! question if every trajectory has the required signals; `diversity` needs two trajectories with
//! thoughts.
//!
//! If sampling of a question stopped early, rules at a larger k use the available trajectories.
//! Coverage at a larger k is unknown for such a question, and an average over the other, harder
//! questions would be biased, so it is omitted.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use aggregate::{Candidate, Reliability, Rule, VoteParams, ordered_pairs, signals};
use record::{
    BeamCost, FORMAT, Metric, MetricGain, MetricName, Results, RunCost, RunDir, Sample,
    StageSeconds, TrajectoryRecord, Unanswered,
};

use crate::error::ReportError;
use crate::interval::{Bootstrap, Interval};
use crate::subsets::Subsets;
pub use crate::subsets::coverage;

/// Which metrics to compute.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricSettings {
    /// The numbers of trajectories k; if empty, the powers of two up to N, and N.
    pub ks: Vec<usize>,
    /// The voting rules; `None` for [`Rule::DEFAULT`].
    pub aggregators: Option<Vec<Rule>>,
    /// The parameters of the voting rules.
    pub vote_params: VoteParams,
    /// The bootstrap for confidence intervals.
    pub bootstrap: Bootstrap,
}

/// The results of a run directory, including stage times.
pub fn results_of_run(run: &RunDir, settings: &MetricSettings) -> Result<Results, ReportError> {
    let mut results = results_of_samples(run.samples()?, settings)?;
    results.cost.seconds = run.seconds()?;
    Ok(results)
}

/// The results of `samples`. Stage times are zero, since samples do not contain them.
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

/// Number of example texts without an answer to keep.
const UNANSWERED_EXAMPLES: usize = 2;

/// Every metric of every question.
#[derive(Debug, Default)]
pub struct QuestionMetrics {
    columns: BTreeMap<(MetricName, usize), MetricColumn>,
    seen: HashSet<(u64, u32)>,
    layout: Option<SampleLayout>,
    trajectories: usize,
    steps: f64,
    flops: f64,
    /// Summed over samples, like `steps` and `flops`.
    beam: Option<BeamCost>,
    unanswered: Unanswered,
    /// The confidence in each chosen answer, and whether it is correct.
    confidences: Vec<(f64, bool)>,
}

/// One metric at one k: a value per question.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricColumn {
    /// Per question: the sum over seeds, and the number of seeds. Ordered by question, so that
    /// intervals do not depend on the order of the samples.
    values: BTreeMap<u32, (f64, u32)>,
    seeds: BTreeSet<u64>,
}

/// Properties that all samples of one run share.
#[derive(Debug, Clone)]
struct SampleLayout {
    n: usize,
    ks: Vec<usize>,
    /// The smallest number of trajectories of any question.
    fewest: usize,
}

impl QuestionMetrics {
    /// Computes the metrics of all samples.
    pub fn collect<I>(samples: I, settings: &MetricSettings) -> Result<Self, ReportError>
    where
        I: IntoIterator<Item = Result<Sample, record::RecordError>>,
    {
        let mut metrics = Self::default();
        for sample in samples {
            metrics.add(&sample?, settings)?;
        }
        let fewest = metrics.layout.as_ref().map_or(0, |layout| layout.fewest);
        metrics.columns.retain(|&(name, k), _| name != MetricName::Coverage || k <= fewest);
        if metrics.seen.is_empty() { Err(ReportError::Empty) } else { Ok(metrics) }
    }

    /// A metric at one k, if the run has it.
    pub fn column(&self, name: MetricName, k: usize) -> Option<&MetricColumn> {
        self.columns.get(&(name, k))
    }

    /// The metrics with confidence intervals, and the cost; stage times are zero.
    pub fn results(&self, bootstrap: &Bootstrap) -> Results {
        let metrics = self.columns.iter().filter_map(|(&(name, k), column)| {
            let Interval { value, low, high } = column.mean(name, bootstrap)?;
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
                seconds: StageSeconds::default(),
            },
            questions: self.seen.iter().map(|&(_, id)| id).collect::<HashSet<_>>().len(),
            seeds: self.seen.iter().map(|&(seed, _)| seed).collect::<HashSet<_>>().len(),
            trajectories: self.layout.as_ref().map_or(0, |layout| layout.n),
            sampled: self.trajectories as f64 / samples,
            vote_params: None,
            unanswered: self.unanswered(),
            gains: self.gains(bootstrap),
            reliability: Reliability::new(&self.confidences),
        }
    }

    /// The gain of every rule over greedy decoding and over the majority, at its largest k.
    fn gains(&self, bootstrap: &Bootstrap) -> Vec<MetricGain> {
        let rules = self
            .columns
            .keys()
            .filter(|(name, _)| name.is_accuracy() && *name != MetricName::Greedy);
        // Keys are sorted by k, so the map keeps the largest.
        let largest: BTreeMap<MetricName, usize> = rules.copied().collect();
        let gain = |name: MetricName, k: usize, over: MetricName, over_k: usize| {
            let Interval { value, low, high } =
                paired_difference(self.column(name, k)?, self.column(over, over_k)?, bootstrap)?;
            Some(MetricGain { name, over, k, value, low, high })
        };
        let gains = |(&name, &k): (&MetricName, &usize)| {
            let over_majority = if name == MetricName::MAJORITY {
                None
            } else {
                gain(name, k, MetricName::MAJORITY, k)
            };
            gain(name, k, MetricName::Greedy, 1).into_iter().chain(over_majority)
        };
        largest.iter().flat_map(gains).collect()
    }

    fn add(&mut self, sample: &Sample, settings: &MetricSettings) -> Result<(), ReportError> {
        let id = sample.id;
        let seed = sample.seed;
        if !self.seen.insert((seed, id)) {
            return Err(ReportError::Duplicate { id, seed });
        }
        let sampled = sample.trajectories.len();
        let found = sample.stopped.map_or(sampled, |stopped| stopped.requested as usize);
        let layout = match self.layout.take() {
            Some(layout) => layout,
            None => {
                SampleLayout { n: found, ks: resolve_ks(&settings.ks, found)?, fewest: sampled }
            }
        };
        if found != layout.n {
            return Err(ReportError::UnevenTrajectories { id, seed, found, expected: layout.n });
        }
        for MetricValue { name, k, value } in sample_metrics(sample, &layout.ks, settings) {
            self.columns.entry((name, k)).or_default().add(id, seed, value);
        }
        self.add_confidence(sample, &settings.vote_params);
        self.layout = Some(SampleLayout { fewest: layout.fewest.min(sampled), ..layout });
        self.add_cost(sample);
        sample.trajectories.iter().for_each(|trajectory| self.add_unanswered(trajectory));
        Ok(())
    }

    /// Adds the confidence in the answer chosen by the calibrated vote.
    fn add_confidence(&mut self, sample: &Sample, params: &VoteParams) {
        let all = &sample.trajectories;
        let chosen = params.calibration.and_then(|calibration| calibration.choose(all));
        let confidence = params.confidence(all, chosen);
        let is_right = chosen.is_some_and(|chosen| all[chosen].is_correct());
        self.confidences.extend(confidence.map(|confidence| (confidence, is_right)));
    }

    fn add_unanswered(&mut self, trajectory: &TrajectoryRecord) {
        if trajectory.answer.is_some() {
            return;
        }
        let counts = &mut self.unanswered;
        let text = trajectory.text.trim();
        match trajectory.truncated {
            true => counts.truncated += 1,
            false if text.is_empty() => counts.empty += 1,
            false => counts.not_found += 1,
        }
        let new = !text.is_empty() && counts.examples.iter().all(|example| example != text);
        if new && counts.examples.len() < UNANSWERED_EXAMPLES {
            counts.examples.push(text.to_owned());
        }
    }

    /// Why trajectories have no answer; `None` if all have one.
    fn unanswered(&self) -> Option<Unanswered> {
        let Unanswered { empty, truncated, not_found, .. } = self.unanswered;
        let count = empty + truncated + not_found;
        let share = count as f64 / self.trajectories.max(1) as f64;
        (count > 0).then(|| Unanswered { share, ..self.unanswered.clone() })
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
    /// The mean over questions with its interval, Wilson's if the metric is a proportion.
    pub fn mean(&self, name: MetricName, bootstrap: &Bootstrap) -> Option<Interval> {
        let values: Vec<f64> = self.values().map(|(_, value)| value).collect();
        match name {
            MetricName::Diversity => bootstrap.mean(&values),
            _ => Interval::of_share(&values),
        }
    }

    /// The mean over seeds for every question that has this metric, by question id.
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

/// The mean of a - b over the questions that have both, with a paired-bootstrap interval; `None` if
/// no question has both. The columns may come from different runs.
///
/// Pairing removes the variance of question difficulty, so the interval is narrower than the two
/// separate intervals suggest.
pub fn paired_difference(
    a: &MetricColumn,
    b: &MetricColumn,
    bootstrap: &Bootstrap,
) -> Option<Interval> {
    let b: BTreeMap<u32, f64> = b.values().collect();
    let differences: Vec<f64> = a.values().filter_map(|(id, a)| Some(a - b.get(&id)?)).collect();
    bootstrap.difference(&differences)
}

/// The requested ks, sorted; if there are none, the powers of two up to n, and n.
fn resolve_ks(requested: &[usize], n: usize) -> Result<Vec<usize>, ReportError> {
    if let Some(&k) = requested.iter().find(|&&k| k == 0 || k > n) {
        return Err(ReportError::InvalidK { k, n });
    }
    let mut ks = requested.to_vec();
    if requested.is_empty() {
        ks.extend((0..usize::BITS).map(|power| 1 << power).take_while(|&k| k <= n));
        ks.extend((n > 0).then_some(n));
    }
    ks.sort_unstable();
    ks.dedup();
    Ok(ks)
}

/// The value of a metric for one sample.
struct MetricValue {
    name: MetricName,
    k: usize,
    value: f64,
}

/// All metrics of a sample.
fn sample_metrics(sample: &Sample, ks: &[usize], settings: &MetricSettings) -> Vec<MetricValue> {
    let trajectories = &sample.trajectories;
    let n = trajectories.len();
    let mut metrics = Vec::new();
    let mut add = |name, k, value| metrics.push(MetricValue { name, k, value });
    if let Some(greedy) = &sample.greedy {
        add(MetricName::Greedy, 1, indicator(greedy.is_correct()));
    }
    if let Some(beam) = &sample.beam {
        let k = (beam.width as usize).saturating_mul(beam.candidates as usize);
        add(MetricName::of_search(beam.method), k, indicator(beam.correct));
    }
    if let Some(steps @ [_, ..]) = sample.diversity.as_deref() {
        let requested = sample.stopped.map_or(n, |stopped| stopped.requested as usize);
        add(MetricName::Diversity, requested, steps.iter().sum::<f64>() / steps.len() as f64);
    }
    let subsets = Subsets::new(trajectories, sample.seed ^ u64::from(sample.id) << 32);
    for &k in ks.iter().filter(|&&k| k <= n) {
        add(MetricName::Coverage, k, subsets.coverage(k));
    }
    let rules = settings.aggregators.as_deref().unwrap_or(Rule::DEFAULT);
    let params = &settings.vote_params;
    for &rule in rules.iter().filter(|rule| rule.applies(trajectories, params)) {
        for &k in ks {
            add(rule.into(), k, subsets.accuracy(rule, &settings.vote_params, k));
        }
    }
    metrics.extend(ranking_accuracy(trajectories));
    metrics
}

/// Pairwise ranking accuracy of the process rewards at each thought and of the outcome rewards, if
/// there are correct and incorrect trajectories.
fn ranking_accuracy(trajectories: &[TrajectoryRecord]) -> impl Iterator<Item = MetricValue> {
    let accuracy = |reward: &dyn Fn(&TrajectoryRecord) -> Option<f32>| {
        let (ordered, pairs) =
            ordered_pairs(trajectories.iter().map(|t| (reward(t), t.is_correct())));
        (pairs > 0.0).then(|| ordered / pairs)
    };
    let rewards = |t: &TrajectoryRecord| t.process_rewards.as_ref().map_or(0, Vec::len);
    let longest = trajectories.iter().map(rewards).max().unwrap_or(0);
    let by_thought = (0..longest).filter_map(move |step| {
        let value = accuracy(&|t| t.process_rewards.as_ref()?.get(step).copied())?;
        Some(MetricValue { name: MetricName::Auc, k: step + 1, value })
    });
    let signal = |name: &str| accuracy(&|t| t.signal(name));
    let whole = [
        (MetricName::AucOutcome, accuracy(&|t| t.outcome_reward)),
        (MetricName::AucProbe, signal(signals::PROBE)),
        (MetricName::AucArithmetic, signal(signals::ARITHMETIC)),
    ];
    let k = trajectories.len();
    let by_trajectory = whole
        .into_iter()
        .filter_map(move |(name, value)| Some(MetricValue { name, k, value: value? }));
    by_thought.chain(by_trajectory)
}

fn indicator(correct: bool) -> f64 {
    f64::from(u8::from(correct))
}

#[cfg(test)]
mod tests {
    use super::*;

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
