//! Metrics of small runs, against values computed by hand.

use aggregate::{EarlyStop, Rule, StopReason, VoteParams};
use latent_tts_report::ReportError;
use latent_tts_report::interval::Bootstrap;
use latent_tts_report::metrics::{
    MetricSettings, QuestionMetrics, paired_difference, results_of_run, results_of_samples,
};
use record::{
    BeamCost, BeamResult, Manifest, Metric, MetricName, Results, RunDir, Sample, StageSeconds,
    TrajectoryRecord,
};

/// A question with gold answer "1" and four trajectories with these answers (an empty one is none)
/// and process rewards.
fn sample(seed: u64, id: u32, answers: [&str; 4], rewards: Option<[f32; 4]>) -> Sample {
    let trajectory = |k: usize| TrajectoryRecord {
        index: k as u32,
        latent_steps: 1,
        text: answers[k].into(),
        answer: (!answers[k].is_empty()).then(|| answers[k].into()),
        process_rewards: rewards.map(|rewards| vec![rewards[k]]),
        correct: Some(answers[k] == "1"),
        ..TrajectoryRecord::default()
    };
    let trajectories = (0..4).map(trajectory).collect();
    Sample { id, seed, gold: "1".into(), trajectories, ..Sample::default() }
}

fn beam(correct: bool) -> Option<BeamResult> {
    Some(BeamResult {
        width: 2,
        candidates: 2,
        answer: Some("x".into()),
        correct,
        ..BeamResult::default()
    })
}

/// Two questions under two seeds.
///
/// | seed | question | answers | rewards | greedy | beam | d |
/// |---|---|---|---|---|---|---|
/// | 5 | 0 | 2 1 1 none | 0 1 0 5 | right | right | 0.2, 0.4 |
/// | 5 | 1 | 3 3 1 2    | 1 0 4 0 | wrong | wrong | 0.5 |
/// | 6 | 0 | 1 1 2 2    | 0 0 2 2 | right | wrong | 0.1 |
/// | 6 | 1 | none x 4   | 0 0 0 0 | wrong | wrong | nothing |
fn samples() -> Vec<Sample> {
    let greedy = |correct: bool| {
        Some(TrajectoryRecord {
            answer: Some("g".into()),
            correct: Some(correct),
            ..TrajectoryRecord::default()
        })
    };
    let a = sample(5, 0, ["2", "1", "1", ""], Some([0.0, 1.0, 0.0, 5.0]));
    let b = sample(5, 1, ["3", "3", "1", "2"], Some([1.0, 0.0, 4.0, 0.0]));
    let c = sample(6, 0, ["1", "1", "2", "2"], Some([0.0, 0.0, 2.0, 2.0]));
    let d = sample(6, 1, [""; 4], Some([0.0; 4]));
    vec![
        Sample {
            greedy: greedy(true),
            beam: beam(true),
            diversity: Some(vec![0.2, 0.4]),
            steps: 10,
            flops: 1e9,
            ..a
        },
        Sample {
            greedy: greedy(false),
            beam: beam(false),
            diversity: Some(vec![0.5]),
            steps: 20,
            flops: 2e9,
            ..b
        },
        Sample {
            greedy: greedy(true),
            beam: beam(false),
            diversity: Some(vec![0.1]),
            steps: 30,
            flops: 3e9,
            ..c
        },
        Sample {
            greedy: greedy(false),
            beam: beam(false),
            diversity: Some(vec![]),
            steps: 40,
            flops: 6e9,
            ..d
        },
    ]
}

fn read(samples: Vec<Sample>) -> impl Iterator<Item = Result<Sample, record::RecordError>> {
    samples.into_iter().map(Ok)
}

fn value(results: &Results, name: MetricName, k: usize) -> f64 {
    find(results, name, k).expect("the metric exists").value
}

fn find(results: &Results, name: MetricName, k: usize) -> Option<&Metric> {
    results.metrics.iter().find(|metric| metric.name == name && metric.k == k)
}

fn assert_close(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-12, "{a} is not {b}");
}

#[test]
fn metrics_of_a_run_match_hand_computed_values() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = RunDir::create(dir.path(), &Manifest::default()).unwrap();
    for sample in samples() {
        run.append(&sample).unwrap();
    }
    let seconds = StageSeconds { thoughts: 2.0, total: 3.0, ..StageSeconds::default() };
    run.append_timing(&seconds).unwrap();
    let results = results_of_run(&run.finish().unwrap(), &MetricSettings::default()).unwrap();

    // Correct of 4: question 0 has 2 and 2, question 1 has 1 and 0.
    let coverage = |k| value(&results, MetricName::Coverage, k);
    assert_close(coverage(1), (0.5 + (0.25 + 0.0) / 2.0) / 2.0);
    assert_close(coverage(2), (5.0 / 6.0 + (0.5 + 0.0) / 2.0) / 2.0);
    assert_close(coverage(4), (1.0 + (1.0 + 0.0) / 2.0) / 2.0);
    // One trajectory is its own majority. Of the six pairs of the samples 3, 1, 5 and 0 are right;
    // the lower number wins a tie.
    assert_close(value(&results, MetricName::MAJORITY, 1), coverage(1));
    let pairs = [[3.0, 5.0], [1.0, 0.0]].map(|[a, b]| (a + b) / 12.0);
    assert_close(value(&results, MetricName::MAJORITY, 2), (pairs[0] + pairs[1]) / 2.0);
    // At 4 the third is a tie that the lower number wins, a right one of lower reward.
    assert_close(value(&results, MetricName::MAJORITY, 4), (1.0 + 0.0) / 2.0);
    // The second question under seed 5: e^0 for "1" against e^-3 + e^-4 for "3".
    assert_close(value(&results, MetricName::WEIGHTED, 4), (0.5 + 0.5) / 2.0);
    // Of the pairs, 4, 3, 1 and 0 have a right one of the highest reward.
    let pairs = [[4.0, 1.0], [3.0, 0.0]].map(|[a, b]| (a + b) / 12.0);
    assert_close(value(&results, MetricName::BEST_OF, 2), (pairs[0] + pairs[1]) / 2.0);
    assert_close(value(&results, MetricName::BEST_OF, 4), (0.5 + 0.5) / 2.0);
    // The same: z = 1.78 for "1" against -0.15 and -0.76 for "3". Under seed 6 two wrong ones have
    // the rewards.
    assert_close(value(&results, MetricName::NORMALIZED, 4), (0.5 + 0.5) / 2.0);
    // 4 - 1.64 for "1" against 0.5 - 1.64 / sqrt 2 for "3".
    assert_close(value(&results, MetricName::Rule(Rule::LCB), 4), (0.5 + 0.5) / 2.0);
    assert_close(value(&results, MetricName::Greedy, 1), 0.5);
    assert_close(value(&results, MetricName::Beam, 4), 0.25);
    // Under seed 6 question 1 has no diversity and is left out.
    assert_close(value(&results, MetricName::Diversity, 4), ((0.3 + 0.1) / 2.0 + 0.5) / 2.0);

    // Pairs of right and wrong: 1.5 of 4 and 0 of 4 in question 0, 3 of 3 in question 1, which has
    // none under seed 6.
    assert_close(value(&results, MetricName::Auc, 1), ((1.5 / 4.0 + 0.0) / 2.0 + 1.0) / 2.0);
    let gain = results
        .gains
        .iter()
        .find(|g| (g.name, g.over) == (MetricName::BEST_OF, MetricName::Greedy))
        .unwrap();
    assert_close(gain.value, (0.5 + 0.5) / 2.0 - 0.5);

    assert_eq!((results.questions, results.seeds, results.trajectories), (2, 2, 4));
    assert_eq!(
        (results.cost.steps, results.cost.flops, results.cost.seconds),
        (25.0, 3e9, seconds)
    );
    let ks: Vec<usize> = results.metrics.iter().map(|metric| metric.k).collect();
    assert_eq!(ks, [&[1][..], &[1, 2, 4].repeat(6), &[4, 4, 1]].concat());
    assert_eq!(results.sampled, 4.0);
    for metric in &results.metrics {
        assert_eq!(metric.seeds, 2, "{metric:?}");
        assert!(metric.low <= metric.value && metric.value <= metric.high, "{metric:?}");
    }
}

#[test]
fn only_requested_rules_are_measured() {
    let rules = vec![Rule::MAJORITY, Rule::BEST_OF_MIN];
    let settings = MetricSettings { aggregators: Some(rules), ..MetricSettings::default() };
    let results = results_of_samples(read(samples()), &settings).unwrap();
    assert!(
        find(&results, MetricName::Rule(Rule::BEST_OF_MIN), 4).is_some()
            && find(&results, MetricName::MAJORITY, 4).is_some()
    );
    assert!(
        find(&results, MetricName::WEIGHTED, 4).is_none()
            && find(&results, MetricName::BEST_OF, 4).is_none()
    );
    assert!(
        find(&results, MetricName::Coverage, 4).is_some()
            && find(&results, MetricName::Beam, 4).is_some()
    );
}

/// With outcome rewards, `best_of` follows them and `best_of_mean` the process rewards.
#[test]
fn best_of_mean_ignores_outcome_rewards() {
    let mut one = sample(0, 0, ["1", "2", "2", "2"], Some([9.0, 1.0, 1.0, 1.0]));
    for (trajectory, reward) in one.trajectories.iter_mut().zip([-1.0, 0.0, 3.0, 0.0]) {
        trajectory.outcome_reward = Some(reward);
    }
    let rules = [Rule::BEST_OF, Rule::BEST_OF_MEAN];
    let settings =
        MetricSettings { aggregators: Some(rules.to_vec()), ..MetricSettings::default() };
    let results = results_of_samples(read(vec![one]), &settings).unwrap();
    assert_eq!(value(&results, MetricName::BEST_OF, 4), 0.0);
    assert_eq!(value(&results, MetricName::Rule(Rule::BEST_OF_MEAN), 4), 1.0);
}

/// A large temperature approaches the majority, large caution favours many votes.
#[test]
fn vote_params_change_the_rules() {
    let one = || read(vec![sample(0, 0, ["1", "2", "2", "2"], Some([9.0, 1.0, 1.0, 1.0]))]);
    let default = results_of_samples(one(), &MetricSettings::default()).unwrap();
    let params = VoteParams { temperature: 50.0, lcb_coefficient: 50.0, ..VoteParams::default() };
    let other = results_of_samples(
        one(),
        &MetricSettings { vote_params: params, ..MetricSettings::default() },
    )
    .unwrap();
    for name in [MetricName::NORMALIZED, MetricName::Rule(Rule::LCB)] {
        assert_eq!((value(&default, name, 4), value(&other, name, 4)), (1.0, 0.0), "{name:?}");
    }
    assert_eq!((default.vote_params, other.vote_params), (None, Some(params)));
}

/// The second question stopped after two of four trajectories: votes at 4 use two, coverage at 4 is
/// unknown.
#[test]
fn an_early_stop_limits_coverage_but_not_votes() {
    let mut samples =
        vec![sample(0, 0, ["2", "1", "1", "1"], None), sample(0, 1, ["1", "1", "2", "2"], None)];
    samples[1].trajectories.truncate(2);
    samples[1].stopped = Some(EarlyStop { requested: 4, reason: StopReason::Confident });
    for samples in [samples.clone(), samples.into_iter().rev().collect()] {
        let results = results_of_samples(read(samples), &MetricSettings::default()).unwrap();
        assert_eq!((results.trajectories, results.sampled), (4, 3.0));
        assert_eq!(value(&results, MetricName::MAJORITY, 4), 1.0);
        assert_eq!(value(&results, MetricName::Coverage, 2), 1.0);
        assert!(find(&results, MetricName::Coverage, 4).is_none());
    }
}

#[test]
fn without_a_correct_answer_every_metric_is_zero() {
    let with_logprobs = |mut sample: Sample| {
        sample.trajectories.iter_mut().for_each(|t| t.logprob = Some(-1.0));
        sample
    };
    let wrong = vec![
        sample(0, 0, ["2", "3", "", "2"], Some([0.5, 1.0, 9.0, 0.1])),
        sample(0, 1, [""; 4], Some([1.0; 4])),
    ];
    let wrong =
        wrong.into_iter().map(|s| Sample { beam: beam(false), ..with_logprobs(s) }).collect();
    let settings =
        MetricSettings { aggregators: Some(Rule::ALL.to_vec()), ..MetricSettings::default() };
    let results = results_of_samples(read(wrong), &settings).unwrap();
    assert_eq!(results.metrics.len(), 12 * 3 + 1);
    assert!(
        // Two questions do not prove that the share is zero.
        results.metrics.iter().all(|metric| metric.value == 0.0 && metric.high > 0.5),
        "{:?}",
        results.metrics
    );
}

#[test]
fn beam_search_cost_is_reported_separately() {
    let beam =
        BeamResult { width: 2, candidates: 2, steps: 12, flops: 3e6, ..BeamResult::default() };
    let one = Sample { beam: Some(beam), steps: 8, flops: 2e6, ..sample(0, 0, ["1"; 4], None) };
    let cost = results_of_samples(read(vec![one]), &MetricSettings::default()).unwrap().cost;
    assert_eq!(
        (cost.steps, cost.flops, cost.beam),
        (8.0, 2e6, Some(BeamCost { steps: 12.0, flops: 3e6 }))
    );
}

#[test]
fn a_vote_at_k_is_averaged_over_the_choices_of_k() {
    let late = vec![sample(0, 0, ["2", "2", "1", "1"], None)];
    let mut later = late.clone();
    later[0].trajectories[3].answer = Some("7".into());
    later[0].trajectories[3].correct = Some(false);
    for samples in [late, later] {
        let results = results_of_samples(read(samples), &MetricSettings::default()).unwrap();
        // The last pair alone elects a right answer, the second time by its lower number.
        assert_close(value(&results, MetricName::MAJORITY, 2), 1.0 / 6.0);
    }
    let settings = MetricSettings { ks: vec![3, 1], ..MetricSettings::default() };
    let results =
        results_of_samples(read(vec![sample(0, 0, ["2", "1", "1", "2"], None)]), &settings)
            .unwrap();
    assert_eq!(
        (value(&results, MetricName::MAJORITY, 1), value(&results, MetricName::MAJORITY, 3)),
        (0.5, 0.5)
    );
    assert!(find(&results, MetricName::MAJORITY, 4).is_none());
}

#[test]
fn metrics_without_data_are_absent() {
    let results =
        results_of_samples(read(vec![sample(0, 0, ["1"; 4], None)]), &MetricSettings::default())
            .unwrap();
    for metric in &results.metrics {
        assert!(matches!(metric.name, MetricName::Coverage | MetricName::MAJORITY), "{metric:?}");
    }
    let beam_only = Sample { beam: beam(true), ..Sample::default() };
    let results = results_of_samples(read(vec![beam_only]), &MetricSettings::default()).unwrap();
    assert_eq!(results.metrics.len(), 1);
    assert_eq!((results.metrics[0].name, results.metrics[0].k), (MetricName::Beam, 4));
}

#[test]
fn an_incomplete_run_can_be_measured() {
    let mut incomplete = samples();
    incomplete.truncate(3);
    let results = results_of_samples(read(incomplete), &MetricSettings::default()).unwrap();
    assert_close(value(&results, MetricName::Coverage, 1), (0.5 + 0.25) / 2.0);
}

#[test]
fn the_order_of_the_samples_does_not_matter() {
    let ordered = results_of_samples(read(samples()), &MetricSettings::default()).unwrap();
    let reversed =
        results_of_samples(read(samples().into_iter().rev().collect()), &MetricSettings::default())
            .unwrap();
    assert_eq!(ordered, reversed);
}

#[test]
fn differences_are_paired() {
    let metrics = QuestionMetrics::collect(read(samples()), &MetricSettings::default()).unwrap();
    let column = |name, k| metrics.column(name, k).unwrap();
    let bootstrap = Bootstrap::default();
    // Greedy is right on question 0 alone, and coverage@4 is 1 there and 0.5 on question 1.
    let gain = paired_difference(
        column(MetricName::Coverage, 4),
        column(MetricName::Greedy, 1),
        &bootstrap,
    )
    .unwrap();
    assert_eq!(gain.value, 0.25);
    assert!(gain.low < 0.0 && gain.high > 0.5, "two questions show little: {gain:?}");
    let none = paired_difference(
        column(MetricName::MAJORITY, 2),
        column(MetricName::MAJORITY, 2),
        &bootstrap,
    )
    .unwrap();
    assert_eq!(none.value, 0.0);
    assert!(none.low < 0.0 && none.high > 0.0);

    let other = QuestionMetrics::collect(
        read(vec![sample(0, 9, ["1"; 4], None)]),
        &MetricSettings::default(),
    )
    .unwrap();
    let disjoint = other.column(MetricName::MAJORITY, 2).unwrap();
    assert_eq!(paired_difference(column(MetricName::MAJORITY, 2), disjoint, &bootstrap), None);
}

#[test]
fn invalid_inputs_are_errors() {
    let fail = |samples: Vec<Sample>, ks: &[usize]| {
        results_of_samples(
            read(samples),
            &MetricSettings { ks: ks.into(), ..MetricSettings::default() },
        )
        .unwrap_err()
    };
    assert!(matches!(fail(vec![], &[]), ReportError::Empty));
    let error = fail(samples(), &[8]);
    assert!(error.to_string().ends_with("use k from 1 to 4"), "{error}");
    assert!(matches!(
        fail([samples(), samples()].concat(), &[]),
        ReportError::Duplicate { id: 0, seed: 5 }
    ));
    let mut uneven = samples();
    uneven[1].trajectories.pop();
    assert!(matches!(
        fail(uneven, &[]),
        ReportError::UnevenTrajectories { id: 1, seed: 5, found: 3, expected: 4 }
    ));
    let broken = std::iter::once(Err(record::RecordError::NotARun { path: "x".into() }));
    let error = results_of_samples(broken, &MetricSettings::default()).unwrap_err();
    assert!(error.to_string().starts_with("x is not a run directory"), "{error}");
}
