//! Learning curves and page of small trainings, against their records.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::path::{Path, PathBuf};

use latent_tts_report::figures::{AxisScale, Figure, Panel, Series, learning_curves};
use latent_tts_report::training_data::{TrainingData, label_trainings};
use latent_tts_report::{ReportError, ReportOptions, write_trainings};
use record::{EvalRecord, Losses, StepRecord, TrainTiming, TrainingDir};
use serde::Serialize;
use serde_json::{Value, json};

const STEPS: u32 = 500;

fn lines<T: Serialize>(records: impl Iterator<Item = T>) -> String {
    records.map(|record| serde_json::to_string(&record).unwrap() + "\n").collect()
}

/// Writes the records of a training whose best model is the second of three.
fn training(dir: PathBuf, lr: f64) -> TrainingDir {
    let records = TrainingDir::new(dir.join("training"));
    std::fs::create_dir_all(records.path()).unwrap();
    let step = |step: u32| {
        let loss = 4.0 * (-f64::from(step) / 100.0).exp() + 0.01;
        let losses = Losses::new(loss).with("distill", 0.5);
        let grad_norm = 10.0 / f64::from(step + 1);
        StepRecord { step, losses, lr, grad_norm, examples: Some(8), tokens: None }
    };
    let eval = |(step, score, kept): (u32, f64, bool)| {
        let Value::Object(metrics) = json!({ "greedy": score, "problems": 200 }) else {
            unreachable!()
        };
        EvalRecord { step, score, kept, metrics }
    };
    let timing = |step: u32| TrainTiming { step, seconds: 0.25, eval_seconds: None };
    let evals = [(200, 0.3, true), (400, 0.6, true), (500, 0.5, false)];
    let settings = json!({ "seed": 0, "lr": lr, "data": "<b>.json" });
    std::fs::write(records.log_file(), lines((0..STEPS).map(step))).unwrap();
    std::fs::write(records.evals_file(), lines(evals.into_iter().map(eval))).unwrap();
    std::fs::write(records.timings_file(), lines((0..STEPS).map(timing))).unwrap();
    std::fs::write(records.settings_file(), settings.to_string()).unwrap();
    records
}

fn figures_of(trainings: &[TrainingDir]) -> Vec<Figure> {
    let mut loaded: Vec<TrainingData> =
        trainings.iter().map(|training| TrainingData::load(training).unwrap()).collect();
    label_trainings(&mut loaded);
    learning_curves(&loaded)
}

fn panel<'a>(figures: &'a [Figure], title: &str) -> &'a Panel {
    let mut panels = figures.iter().flat_map(|figure| &figure.panels);
    panels.find(|panel| panel.title == title).unwrap_or_else(|| panic!("no panel {title}"))
}

fn series<'a>(panel: &'a Panel, label: &str) -> &'a Series {
    let found = panel.series.iter().find(|series| series.label == label);
    found.unwrap_or_else(|| panic!("no series {label} in {}", panel.title))
}

fn labels(panel: &Panel) -> Vec<&str> {
    panel.series.iter().map(|series| series.label.as_str()).filter(|l| !l.is_empty()).collect()
}

#[test]
fn a_single_training_shows_its_losses_and_the_kept_model() {
    let dir = tempfile::tempdir().unwrap();
    let figures = figures_of(&[training(dir.path().join("a"), 1e-3)]);
    let names: Vec<&str> = figures.iter().map(|figure| figure.name).collect();
    assert_eq!(names, ["learning-curves", "optimizer"]);

    let losses = panel(&figures, "losses");
    assert_eq!(labels(losses), ["loss", "distill"], "every named loss");
    assert_eq!(losses.y.scale, AxisScale::Log10, "from 4 to 0.04");
    let distill = series(losses, "distill");
    assert!(distill.points.iter().all(|point| (point.y - 0.5).abs() < 1e-9));
    let raw = &losses.series[0];
    assert!(raw.style.opacity < 0.5 && raw.points.len() <= 240, "faint and thinned out");
    assert_eq!(raw.points.last().unwrap().x, f64::from(STEPS), "the last step is shown");

    let accuracy = panel(&figures, "held-out problems");
    assert_eq!(accuracy.y.scale, AxisScale::Percent);
    let points = &series(accuracy, "held-out accuracy").points;
    let values: Vec<(f64, f64)> = points.iter().map(|point| (point.x, point.y)).collect();
    assert_eq!(values, [(200.0, 0.3), (400.0, 0.6), (500.0, 0.5)]);
    let (low, high) = points[1].interval.unwrap();
    assert!(low > 0.52 && low < 0.6 && high > 0.6 && high < 0.68, "{low} {high}");
    let kept = &series(accuracy, "kept model").points;
    assert_eq!((kept.len(), kept[0].x), (1, 400.0));

    assert_eq!(panel(&figures, "gradient norm").y.scale, AxisScale::Log10);
    assert_eq!(panel(&figures, "learning rate").series.len(), 1);
}

#[test]
fn several_trainings_are_compared_loss_by_loss() {
    let dir = tempfile::tempdir().unwrap();
    let two = [training(dir.path().join("a"), 1e-3), training(dir.path().join("b"), 3e-4)];
    let figures = figures_of(&two);
    for title in ["loss", "distill", "gradient norm", "learning rate"] {
        assert_eq!(labels(panel(&figures, title)), ["a", "b"], "{title}");
    }
    assert_eq!(labels(panel(&figures, "held-out problems"))[..2], ["a", "b"]);
    let alike = [training(dir.path().join("x/m"), 1e-3), training(dir.path().join("y/m"), 1e-3)];
    let figures = figures_of(&alike);
    assert!(labels(panel(&figures, "loss"))[0].ends_with("x/m"), "one name, so the paths");
}

fn page(trainings: &[TrainingDir], out: &Path) -> String {
    let files = write_trainings(trainings, out, ReportOptions::default()).unwrap();
    assert_eq!(files.figures.len(), 6, "SVG, PNG and CSV of two figures");
    assert!(files.figures.iter().all(|file| std::fs::metadata(file).unwrap().len() > 1000));
    std::fs::read_to_string(files.page).unwrap()
}

#[test]
fn a_single_evaluation_is_on_the_axis_of_the_steps() {
    let dir = tempfile::tempdir().unwrap();
    let records = training(dir.path().join("a"), 1e-3);
    let evals = std::fs::read_to_string(records.evals_file()).unwrap();
    std::fs::write(records.evals_file(), evals.lines().next().unwrap().to_owned() + "\n").unwrap();
    let figures = figures_of(&[records]);
    let held_out = panel(&figures, "held-out problems");
    assert_eq!((held_out.x.scale, &held_out.x.encloses[..]), (AxisScale::Count, &[0.0, 499.0][..]));
}

#[test]
fn the_page_says_what_was_kept_and_which_settings_differ() {
    let dir = tempfile::tempdir().unwrap();
    let two = [training(dir.path().join("a"), 1e-3), training(dir.path().join("b"), 3e-4)];
    let one = page(&two[..1], &dir.path().join("one"));
    let lead = "The kept model is from step 400: it answers 60.0% of held-out problems correctly, \
                the last model 50.0%.";
    assert!(one.contains(lead) && !one.contains("Settings that differ"));
    assert!(
        one.contains("<td>4.0</td><td>32.0</td><td>–</td>"),
        "steps, examples, tokens per second"
    );
    assert!(one.contains("&lt;b&gt;.json") && !one.contains("<b>"));
    let both = page(&two, &dir.path().join("both"));
    assert!(both.contains("<tr><th>lr</th><td>0.001</td><td>0.0003</td></tr>"));
    assert!(!both.contains("<tr><th>seed</th>"), "equal settings are not listed");
}

#[test]
fn a_training_without_steps_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let records = training(dir.path().join("a"), 1e-3);
    std::fs::write(records.log_file(), "").unwrap();
    let out = dir.path().join("out");
    let refused = |trainings: &[TrainingDir]| {
        write_trainings(trainings, &out, ReportOptions::default()).unwrap_err()
    };
    assert!(matches!(refused(&[records]), ReportError::NoSteps { .. }));
    assert!(matches!(refused(&[]), ReportError::NoRuns));
    assert!(!out.exists(), "a refused training leaves no files");
}

/// Adds the numbers of a training by rewards to the records of another.
fn with_rewards(dir: PathBuf) -> TrainingDir {
    let records = training(dir, 1e-5);
    let add = |mut record: StepRecord| {
        let at = f64::from(record.step) / f64::from(STEPS);
        record.losses = record.losses.with("reward", 0.5 + 0.2 * at).with("coverage", 0.9);
        record.losses = record.losses.with("entropy", 0.2).with("answer_tokens", 4.5);
        record
    };
    std::fs::write(records.log_file(), lines(records.steps().unwrap().into_iter().map(add)))
        .unwrap();
    let add = |mut eval: EvalRecord| {
        eval.metrics.insert("majority".to_owned(), json!(eval.score + 0.1));
        eval
    };
    std::fs::write(records.evals_file(), lines(records.evals().unwrap().into_iter().map(add)))
        .unwrap();
    records
}

#[test]
fn a_training_by_rewards_has_a_panel_for_each_scale() {
    let dir = tempfile::tempdir().unwrap();
    let figures = figures_of(&[with_rewards(dir.path().join("a"))]);
    let rewards = panel(&figures, "rewards of sampled trajectories");
    assert_eq!(labels(rewards), ["reward", "coverage"]);
    assert_eq!(labels(panel(&figures, "diversity")), ["entropy"]);
    assert_eq!(labels(panel(&figures, "lengths")), ["answer_tokens"]);
    assert_eq!(labels(panel(&figures, "loss")), ["loss", "distill"]);
    let held_out = panel(&figures, "held-out problems");
    assert_eq!(labels(held_out), ["held-out accuracy", "majority", "kept model"]);
    let majority: Vec<f64> = series(held_out, "majority").points.iter().map(|p| p.y).collect();
    assert!(majority.iter().zip([0.4, 0.7, 0.6]).all(|(y, expected)| (y - expected).abs() < 1e-9));
}
