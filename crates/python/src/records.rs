//! Run directories, annotations and trainings, as columns, JSON and figures.

use std::path::{Path, PathBuf};

use latent_tts::aggregate::{RewardReduction, reward};
use latent_tts::record::{RunDir, TRAINING_DIR, TrainingDir};
use latent_tts::report::figures::{self, AxisScale, Figure, IntervalStyle, LineStyle};
use latent_tts::report::run_data::{RunData, assign_labels};
use latent_tts::report::table::{self, TableOptions};
use latent_tts::report::training_data::{TrainingData, label_trainings};
use latent_tts::report::{self, ReportError, ReportOptions, draw};
use latent_tts::train::annotate::{AnnotationError, Annotations};
use latent_tts::{Error, rescore};
use numpy::{IntoPyArray, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Value, json};

use crate::errors::{raise, raise_annotations, raise_record, raise_report};
use crate::options;

/// Manifest and results of a run, as JSON; the results are null while the run is unfinished.
#[pyfunction]
pub fn run_json(path: PathBuf) -> PyResult<(String, String)> {
    let run = RunDir::open(path).map_err(raise_record)?;
    let results = run.results().ok();
    Ok((json!(run.manifest()).to_string(), json!(results).to_string()))
}

/// The table of a finished run.
#[pyfunction]
pub fn run_table(path: PathBuf, width: usize, all_rules: bool) -> PyResult<String> {
    let results = RunDir::open(path).and_then(|run| run.results()).map_err(raise_record)?;
    Ok(table::render(&results, TableOptions { width, all_rules }))
}

/// Measures rules on a finished run, in addition to those in its results.
#[pyfunction]
pub fn rescore_run(py: Python<'_>, path: PathBuf, rules: Vec<String>) -> PyResult<()> {
    let rules = rules.iter().map(|name| options::rule(name)).collect::<PyResult<Vec<_>>>()?;
    let measure = || RunDir::open(path).map_err(Error::from).and_then(|run| rescore(&run, &rules));
    py.detach(measure).map(drop).map_err(raise)
}

/// Writes the HTML report of runs, with its figures, into a directory, and returns its path.
#[pyfunction]
pub fn write_report(py: Python<'_>, paths: Vec<PathBuf>, out: PathBuf) -> PyResult<PathBuf> {
    let write = || -> Result<PathBuf, Error> {
        let runs = paths.iter().map(RunDir::open).collect::<Result<Vec<_>, _>>()?;
        Ok(report::write(&runs, &out, ReportOptions::default())?.page)
    };
    py.detach(write).map_err(raise)
}

/// The trajectories of a run as columns; `greedy` and `beam` are separate kinds.
#[pyfunction]
pub fn run_columns<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyDict>> {
    let columns = py.detach(|| RunColumns::read(&path)).map_err(raise_record)?;
    let RunColumns { seed, id, gold, kind, index, latent_steps, text, answer, correct, numbers } =
        columns;
    let [reward, outcome_reward, logprob] = numbers;
    let dict = PyDict::new(py);
    dict.set_item("seed", seed.into_pyarray(py))?;
    dict.set_item("id", id.into_pyarray(py))?;
    dict.set_item("gold", gold)?;
    dict.set_item("kind", kind)?;
    dict.set_item("index", index.into_pyarray(py))?;
    dict.set_item("latent_steps", latent_steps.into_pyarray(py))?;
    dict.set_item("text", text)?;
    dict.set_item("answer", answer)?;
    dict.set_item("correct", correct.into_pyarray(py))?;
    dict.set_item("reward", reward.into_pyarray(py))?;
    dict.set_item("outcome_reward", outcome_reward.into_pyarray(py))?;
    dict.set_item("logprob", logprob.into_pyarray(py))?;
    Ok(dict)
}

/// The trajectories of a run; missing numbers are NaN.
#[derive(Default)]
struct RunColumns {
    seed: Vec<u64>,
    id: Vec<u32>,
    gold: Vec<String>,
    kind: Vec<&'static str>,
    index: Vec<u32>,
    latent_steps: Vec<u32>,
    text: Vec<String>,
    answer: Vec<Option<String>>,
    correct: Vec<bool>,
    /// Mean process reward, outcome reward, log-probability.
    numbers: [Vec<f64>; 3],
}

impl RunColumns {
    fn read(path: &Path) -> Result<Self, latent_tts::record::RecordError> {
        let mut columns = Self::default();
        for sample in RunDir::open(path)?.samples()? {
            let sample = sample?;
            let greedy = sample.greedy.iter().map(|t| ("greedy", t));
            let sampled = sample.trajectories.iter().map(|t| ("sampled", t));
            for (kind, trajectory) in greedy.chain(sampled) {
                let mean = reward(trajectory, RewardReduction::Mean);
                let number = |x: Option<f32>| x.map_or(f64::NAN, f64::from);
                let numbers = [
                    if mean.is_finite() { mean } else { f64::NAN },
                    number(trajectory.outcome_reward),
                    number(trajectory.logprob),
                ];
                columns.seed.push(sample.seed);
                columns.id.push(sample.id);
                columns.gold.push(sample.gold.clone());
                columns.kind.push(kind);
                columns.index.push(trajectory.index);
                columns.latent_steps.push(trajectory.latent_steps);
                columns.text.push(trajectory.text.clone());
                columns.answer.push(trajectory.answer.clone());
                columns.correct.push(trajectory.is_correct());
                columns.numbers.iter_mut().zip(numbers).for_each(|(column, x)| column.push(x));
            }
        }
        Ok(columns)
    }
}

/// The figures of runs, each as an SVG document and its data as JSON.
#[pyfunction]
pub fn run_figures(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    partial: bool,
) -> PyResult<Vec<(String, String)>> {
    let load = || -> Result<Vec<Figure>, ReportError> {
        let load = |path: &PathBuf| RunData::load(RunDir::open(path)?, partial);
        let mut runs = paths.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        assign_labels(&mut runs);
        figures::all(&runs)
    };
    let drawn = py.detach(|| load().map(|figures| figures.iter().map(figure).collect()));
    drawn.map_err(raise_report)
}

/// The learning curves of trained models, in the same format.
#[pyfunction]
pub fn training_figures(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Vec<(String, String)>> {
    let load = || -> Result<Vec<(String, String)>, ReportError> {
        let load = |path: &PathBuf| TrainingData::load(&TrainingDir::new(path.join(TRAINING_DIR)));
        let mut trainings = paths.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        label_trainings(&mut trainings);
        Ok(figures::learning_curves(&trainings).iter().map(figure).collect())
    };
    py.detach(load).map_err(raise_report)
}

fn figure(figure: &Figure) -> (String, String) {
    let data = json!({
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "panels": figure.panels.iter().map(panel).collect::<Vec<_>>(),
    });
    (draw::svg(&draw::sheet(figure)), data.to_string())
}

fn panel(panel: &figures::Panel) -> Value {
    let axis = |axis: &figures::FigureAxis| {
        let scale = match axis.scale {
            AxisScale::Linear => "linear",
            AxisScale::Count => "count",
            AxisScale::Percent => "percent",
            AxisScale::Log2 => "log2",
            AxisScale::Log10 => "log10",
            AxisScale::Unlabelled => "unlabelled",
        };
        json!({ "label": axis.label, "scale": scale })
    };
    let series = panel.series.iter().map(|series| {
        let points = &series.points;
        json!({
            "label": series.label,
            "colour": series.style.colour.css(),
            "line": match series.style.line {
                LineStyle::None => "none",
                LineStyle::Solid => "solid",
                LineStyle::Dashed => "dashed",
            },
            "intervals": match series.style.intervals {
                IntervalStyle::None => "none",
                IntervalStyle::Band => "band",
                IntervalStyle::Bars => "bars",
            },
            "x": points.iter().map(|point| point.x).collect::<Vec<_>>(),
            "y": points.iter().map(|point| point.y).collect::<Vec<_>>(),
            "low": points.iter().map(|p| p.interval.map(|i| i.0)).collect::<Vec<_>>(),
            "high": points.iter().map(|p| p.interval.map(|i| i.1)).collect::<Vec<_>>(),
        })
    });
    json!({
        "title": panel.title,
        "x": axis(&panel.x),
        "y": axis(&panel.y),
        "series": series.collect::<Vec<_>>(),
    })
}

/// The labeled thoughts of annotations as columns (question, trajectory, position of the thought,
/// label, whether the trajectory is correct, and thoughts of shape (rows, width)), and the index as
/// JSON.
#[pyfunction]
pub fn annotation_columns<'py>(
    py: Python<'py>,
    path: PathBuf,
) -> PyResult<(String, Bound<'py, PyDict>)> {
    let read = || -> Result<(String, usize, ThoughtColumns), AnnotationError> {
        let annotations = Annotations::open(&path)?;
        let mut columns = ThoughtColumns::default();
        annotations.problems().for_each(|problem| columns.add(&problem));
        let index = annotations.index();
        Ok((json!(index).to_string(), index.width, columns))
    };
    let (index, width, columns) = py.detach(read).map_err(raise_annotations)?;
    let ThoughtColumns { id, trajectory, position, label, correct, thoughts } = columns;
    let dict = PyDict::new(py);
    let rows = id.len();
    dict.set_item("id", id.into_pyarray(py))?;
    dict.set_item("trajectory", trajectory.into_pyarray(py))?;
    dict.set_item("position", position.into_pyarray(py))?;
    dict.set_item("label", label.into_pyarray(py))?;
    dict.set_item("correct", correct.into_pyarray(py))?;
    dict.set_item("thoughts", thoughts.into_pyarray(py).reshape([rows, width])?)?;
    Ok((index, dict))
}

#[derive(Default)]
struct ThoughtColumns {
    id: Vec<u32>,
    trajectory: Vec<u32>,
    position: Vec<u32>,
    label: Vec<f32>,
    correct: Vec<bool>,
    thoughts: Vec<f32>,
}

impl ThoughtColumns {
    fn add(&mut self, problem: &latent_tts::train::annotate::AnnotatedProblem<'_>) {
        for (number, trajectory) in problem.trajectories().enumerate() {
            for (position, &label) in trajectory.labels().iter().enumerate() {
                self.id.push(problem.id());
                self.trajectory.push(number as u32);
                self.position.push(position as u32);
                self.label.push(label);
                self.correct.push(trajectory.correct());
            }
            self.thoughts.extend(trajectory.thoughts());
        }
    }
}
