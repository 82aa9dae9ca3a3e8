//! Figures and page of small runs, against values computed by hand.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;

use latent_tts_report::figures::{self, AxisScale, Figure};
use latent_tts_report::run_data::{RunData, assign_labels};
use latent_tts_report::{ReportError, ReportOptions, write};
use record::{
    BeamCost, Manifest, Metric, MetricName, RunDir, Sample, StageSeconds, TrajectoryRecord,
};
use serde_json::{Value, json};

/// Two questions with gold answer "1": two of four trajectories answer the first correctly, one of
/// four the second.
fn samples(diversity: [f64; 2]) -> Vec<Sample> {
    let trajectory = |k: usize, answer: &str, reward: f32| TrajectoryRecord {
        index: k as u32,
        latent_steps: 2,
        text: format!("### {answer}"),
        answer: (!answer.is_empty()).then(|| answer.into()),
        process_rewards: Some(vec![reward, 0.0]),
        correct: Some(answer == "1"),
        ..TrajectoryRecord::default()
    };
    let question = |id: u32, answers: [&str; 4], greedy: &str| Sample {
        id,
        question: format!("question </script> {id}"),
        gold: "1".into(),
        trajectories: answers
            .iter()
            .enumerate()
            .map(|(k, answer)| trajectory(k, answer, k as f32))
            .collect(),
        greedy: Some(TrajectoryRecord {
            process_rewards: None,
            lens: vec![vec![("</b>".into(), 0.25), ("1".into(), 0.1234)]; 2],
            ..trajectory(0, greedy, 0.0)
        }),
        diversity: Some(vec![diversity[id as usize], 0.3]),
        flops: 1e9,
        ..Sample::default()
    };
    vec![question(0, ["2", "1", "1", ""], "1"), question(1, ["3", "3", "2", "1"], "3")]
}

fn manifest(sampler: Value) -> Manifest {
    let host = json!({ "model": "/models/tiny", "data": "/data/test.json" });
    Manifest {
        host,
        settings: json!({ "sampling": sampler }),
        seeds: vec![0],
        questions: 2,
        ..Manifest::default()
    }
}

fn run(path: &Path, sampler: Value, samples: &[Sample]) -> RunDir {
    let mut writer = RunDir::create(path, &manifest(sampler)).unwrap();
    samples.iter().for_each(|sample| writer.append(sample).unwrap());
    writer.append_timing(&StageSeconds { total: 4.0, ..StageSeconds::default() }).unwrap();
    writer.finish().unwrap()
}

fn dropout(p: f64) -> Value {
    json!({ "sampler": "dropout", "dropout_p": p, "sites": "both", "scope": "thoughts" })
}

/// Three runs: dropout at two strengths, and noise at twice the cost.
fn runs(dir: &Path) -> Vec<RunDir> {
    let costly: Vec<Sample> =
        samples([0.4, 0.6]).into_iter().map(|s| Sample { flops: 2e9, ..s }).collect();
    vec![
        run(&dir.join("a"), dropout(0.3), &samples([0.2, 0.4])),
        run(&dir.join("b"), dropout(0.1), &samples([0.0, 0.2])),
        run(&dir.join("c"), json!({ "sampler": "noise", "noise_std": 0.5 }), &costly),
    ]
}

fn loaded_runs(dir: &Path) -> Vec<RunData> {
    let mut runs: Vec<RunData> =
        runs(dir).into_iter().map(|run| RunData::load(run, false).unwrap()).collect();
    assign_labels(&mut runs);
    runs
}

fn figure<'a>(figures: &'a [Figure], name: &str) -> &'a Figure {
    figures.iter().find(|figure| figure.name == name).unwrap_or_else(|| panic!("no figure {name}"))
}

#[track_caller]
fn assert_points(figure: &Figure, panel: usize, label: &str, expected: &[(f64, f64)]) {
    let series = figure.panels[panel].series.iter().find(|series| series.label == label);
    let points = &series
        .unwrap_or_else(|| panic!("no series {label} in {:?}", figure.panels[panel].series))
        .points;
    assert_eq!(points.len(), expected.len(), "{points:?}");
    for (point, (x, y)) in points.iter().zip(expected) {
        assert!(
            (point.x - x).abs() < 1e-12 && (point.y - y).abs() < 1e-12,
            "{point:?} is not {x}, {y}"
        );
        let (low, high) = point.interval.unwrap();
        assert!(low <= point.y && point.y <= high, "{point:?}");
    }
}

#[test]
fn figures_match_the_samples() {
    let dir = tempfile::tempdir().unwrap();
    let figures = figures::all(&loaded_runs(dir.path())).unwrap();
    let names: Vec<&str> = figures.iter().map(|figure| figure.name).collect();
    let all = [
        "coverage",
        "strength",
        "coverage-diversity",
        "diversity-steps",
        "comparison",
        "accuracy",
        "cost",
    ];
    assert_eq!(names, all);
    // From weak to strong, at the largest N; noise was run at one strength only.
    let strength = figure(&figures, "strength");
    assert_eq!(strength.panels.len(), 1);
    assert_eq!(strength.panels[0].x.label, "dropout probability p");
    assert_points(strength, 0, "coverage", &[(0.1, 1.0), (0.3, 1.0)]);
    assert_points(strength, 0, "majority", &[(0.1, 0.5), (0.3, 0.5)]);
    assert_points(strength, 0, "greedy", &[(0.1, 0.5), (0.3, 0.5)]);
    let comparison = figure(&figures, "comparison");
    assert_eq!(comparison.panels[0].series.len(), 3, "every run has a line");

    // Of 4, 2 and 1 are right: at 1 (2/4 + 1/4) / 2, at 2 (1 - 1/6 + 1/2) / 2, at 4 both.
    let coverage = figure(&figures, "coverage");
    assert_eq!((coverage.panels.len(), coverage.panels[0].title.as_str()), (1, "test"));
    assert_eq!(
        (coverage.panels[0].x.scale, coverage.panels[0].y.scale),
        (AxisScale::Log2, AxisScale::Percent)
    );
    let curve = [(1.0, 0.375), (2.0, (5.0 / 6.0 + 0.5) / 2.0), (4.0, 1.0)];
    assert_points(coverage, 0, "noise, σ = 0.5", &curve);
    assert!(coverage.panels[0].series[0].points[0].tooltip.contains("coverage 37.5%"));

    // Sorted from weak to strong; noise was run at one strength only.
    let diversity = figure(&figures, "coverage-diversity");
    assert_points(
        diversity,
        0,
        "dropout, N = 4",
        &[((0.15 + 0.25) / 2.0, 1.0), ((0.25 + 0.35) / 2.0, 1.0)],
    );
    assert!(diversity.legend_series().iter().all(|series| series.label.starts_with("dropout")));

    let steps = figure(&figures, "diversity-steps");
    assert_points(steps, 0, "p = 0.1", &[(1.0, 0.1), (2.0, 0.3)]);
    assert_points(steps, 0, "p = 0.3", &[(1.0, 0.3), (2.0, 0.3)]);
    assert_points(steps, 1, "σ = 0.5", &[(1.0, 0.5), (2.0, 0.3)]);

    let accuracy = figure(&figures, "accuracy");
    assert_points(accuracy, 0, "greedy", &[(1.0, 0.5), (4.0, 0.5)]);
    // Three pairs of the first question elect a correct answer, none of the second: the lower
    // number wins a tie.
    assert_points(accuracy, 0, "majority", &[(1.0, 0.375), (2.0, 0.25), (4.0, 0.5)]);
    // Right answers have the largest rewards, so that the best of N is right wherever one of N is;
    // the last trajectory of the first question has no answer and is never chosen.
    assert_points(accuracy, 0, "best of k", &curve);
    assert_points(accuracy, 0, "coverage", &curve);

    let cost = figure(&figures, "cost");
    assert_points(cost, 0, "tiny, noise: majority", &[(2.0, 0.5)]);
    assert_points(cost, 1, "tiny, dropout: majority", &[(2.0, 0.5)]);
}

#[test]
fn beam_search_is_drawn_at_its_own_cost() {
    let dir = tempfile::tempdir().unwrap();
    let mut runs = loaded_runs(dir.path());
    let results = &mut runs[2].results;
    let majority = |metric: &&Metric| metric.name == MetricName::MAJORITY && metric.k == 4;
    let metric = results.metrics.iter().find(majority).unwrap().clone();
    results.metrics.push(Metric { name: MetricName::Beam, ..metric });
    results.cost.beam = Some(BeamCost { steps: 1.0, flops: 5e8 });
    // Of the run's four seconds, for two questions.
    results.cost.seconds.beam = 1.0;
    let figures = figures::all(&runs).unwrap();
    let cost = figure(&figures, "cost");
    assert_points(cost, 0, "tiny, noise: beam search", &[(0.5, 0.5)]);
    assert_points(cost, 0, "tiny, noise: majority", &[(2.0, 0.5)]);
    assert_points(cost, 1, "tiny, noise: beam search", &[(0.5, 0.5)]);
    assert_points(cost, 1, "tiny, noise: majority", &[(1.5, 0.5)]);
}

#[test]
fn runs_are_labelled_by_their_differences() {
    let dir = tempfile::tempdir().unwrap();
    let labels: Vec<String> = loaded_runs(dir.path()).into_iter().map(|run| run.label).collect();
    assert_eq!(labels, ["dropout p = 0.3", "dropout p = 0.1", "noise σ = 0.5"]);
    let other = tempfile::tempdir().unwrap();
    let alike = [
        run(&other.path().join("x"), dropout(0.1), &samples([0.0; 2])),
        runs(dir.path().join("more").as_path()).remove(1),
    ];
    let mut alike: Vec<RunData> =
        alike.into_iter().map(|run| RunData::load(run, false).unwrap()).collect();
    assign_labels(&mut alike);
    assert_eq!(alike[0].label, "tiny, test (x)");
}

/// The JSON data embedded in the page.
fn data(page: &str) -> Value {
    let tag = "id=\"data\" type=\"application/json\">";
    let rest = &page[page.find(tag).unwrap() + tag.len()..];
    serde_json::from_str(&rest[..rest.find("</script>").unwrap()]).unwrap()
}

#[test]
fn costs_are_compared_within_a_split() {
    let dir = tempfile::tempdir().unwrap();
    let mut runs = loaded_runs(dir.path());
    let has_cost =
        |runs: &[RunData]| figures::all(runs).unwrap().iter().any(|figure| figure.name == "cost");
    assert!(has_cost(&runs));
    runs[2].traits.split = "hard".into();
    assert!(
        !has_cost(&runs),
        "the costly run is alone on its split, and the other two cost the same"
    );
}

#[test]
fn the_page_holds_every_question_with_its_markup_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let files =
        write(&runs(dir.path()), &dir.path().join("out"), ReportOptions::default()).unwrap();
    let page = std::fs::read_to_string(&files.page).unwrap();
    assert_eq!(files.figures.len(), 21, "SVG, PNG and CSV of seven figures");
    let data = data(&page);
    assert_eq!((&data["left_out"], data["runs"].as_array().unwrap().len()), (&json!(0), 3));
    let question = &data["runs"][0]["questions"][0];
    assert_eq!(question[1], "question </script> 0");
    assert_eq!(question[3], json!([["2", 0, "### 2"], ["1", 1, "### 1"], [null, 0, "###"]]));
    assert_eq!((&question[4], &question[5]), (&json!([0, 1, 1, 2]), &json!(2)));
    assert_eq!(
        question[8],
        json!([1, 1, 1]),
        "majority, weighted vote and best of N choose the second answer"
    );
    assert_eq!(question[9][0], "1");
    // Rewards 0, 1, 2, 3 and 0 between them, as bytes over the range of the question.
    assert_eq!(question[11], json!([0.0, 3.0]));
    assert_eq!(question[6], "AABVAKoA/wA=");
    let tokens = json!([["</b>", 250], ["1", 123]]);
    assert_eq!(question[14], json!([tokens, tokens]), "probabilities in thousandths");
    assert_eq!(page.matches("</script>").count(), 3, "only the page's own");
    let summary = "Majority voting over 4 trajectories answers 50.0% of 2 questions correctly; the \
                   difference from greedy decoding, +0.0 points, is within noise (95% CI ";
    assert!(page.contains(summary));
    let tile = "<span class=\"label\">coverage</span><span class=\"value\">100.0%</span>";
    assert!(page.contains(tile));
    assert!(
        !page.contains("http://")
            || page.matches("http://").count()
                == page.matches("http://www.w3.org/2000/svg").count()
    );
}

#[test]
fn an_incomplete_run_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fail = |name: &str, samples: &[Sample]| {
        let run = run(&dir.path().join(name), dropout(0.1), samples);
        write(&[run], &dir.path().join("out"), ReportOptions::default()).unwrap_err()
    };
    let complete = samples([0.1, 0.1]);
    assert!(matches!(
        fail("half", &complete[..1]),
        ReportError::Incomplete { found: 1, expected: 2, .. }
    ));
    let more: Vec<Sample> =
        complete.iter().cloned().chain([Sample { id: 9, ..complete[0].clone() }]).collect();
    assert!(matches!(fail("more", &more), ReportError::Surplus { found: 3, expected: 2, .. }));
    let foreign = [complete[0].clone(), Sample { seed: 8, ..complete[1].clone() }];
    assert!(matches!(fail("foreign", &foreign), ReportError::ForeignSeed { seed: 8, .. }));
    let mut uneven = complete.clone();
    uneven[1].trajectories.pop();
    let error = fail("uneven", &uneven);
    assert!(
        error.to_string().contains("uneven") && matches!(error, ReportError::Run { .. }),
        "{error}"
    );
    assert!(matches!(
        write(&[], dir.path(), ReportOptions::default()).unwrap_err(),
        ReportError::NoRuns
    ));
    assert!(!dir.path().join("out").exists(), "a refused run leaves no files");

    let half = RunDir::open(dir.path().join("half")).unwrap();
    write(
        &[half],
        &dir.path().join("out"),
        ReportOptions { partial: true, page_only: true, ..ReportOptions::default() },
    )
    .unwrap();
}

#[test]
fn a_failed_write_names_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("out"), "a file").unwrap();
    let error =
        write(&runs(dir.path()), &dir.path().join("out"), ReportOptions::default()).unwrap_err();
    assert!(error.to_string().contains("out/figures"), "{error}");
}
