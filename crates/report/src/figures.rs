//! The figures of a report, as data. A figure is `None` if the runs do not have the required data.
//!
//! There is one file per figure. Each groups the runs into panels and series; its caption explains
//! how to read the figure and which runs were selected.

mod accuracy;
mod comparison;
mod cost;
mod coverage;
mod diversity;
mod figure;
mod learning_curves;
mod reliability;
mod rows;
mod strength;
mod thought_map;

pub use figure::{
    AxisScale, COLOURS, DataPoint, Figure, FigureAxis, IntervalStyle, LineStyle, Panel, Series,
    SeriesStyle, percent, percent_interval,
};

pub use learning_curves::learning_curves;
pub use rows::FigureRow;

use crate::error::ReportError;
use crate::run_data::RunData;

/// All figures for which these runs have data, in the paper's order.
pub fn all(runs: &[RunData]) -> Result<Vec<Figure>, ReportError> {
    let mut figures: Vec<Figure> =
        [coverage::figure, strength::figure, diversity::against_coverage, diversity::by_step]
            .iter()
            .filter_map(|figure| figure(runs))
            .collect();
    figures.extend(thought_map::figure(runs)?);
    figures.extend(
        [comparison::figure, accuracy::figure, reliability::figure, cost::figure]
            .iter()
            .filter_map(|figure| figure(runs)),
    );
    Ok(figures)
}

/// Groups runs by key, in the order in which the keys first appear.
fn group_by<'a, K: PartialEq>(
    runs: impl IntoIterator<Item = &'a RunData>,
    key: impl Fn(&'a RunData) -> K,
) -> Vec<(K, Vec<&'a RunData>)> {
    let mut groups: Vec<(K, Vec<&RunData>)> = Vec::new();
    for run in runs {
        let key = key(run);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(run),
            None => groups.push((key, vec![run])),
        }
    }
    groups
}

/// A title from model and split, without the part that all runs share.
fn pair_title(model: &str, split: &str, runs: &[RunData]) -> String {
    let one_model = runs.iter().all(|run| run.traits.model == model);
    let one_split = runs.iter().all(|run| run.traits.split == split);
    match (one_model, one_split) {
        (false, true) => model.into(),
        (true, false) => split.into(),
        _ => format!("{model} on {split}"),
    }
}

/// The best of the runs with the most trajectories.
fn best_run<'a>(runs: &[&'a RunData]) -> Option<&'a RunData> {
    let most = runs.iter().map(|run| run.traits.n).max()?;
    let largest = runs.iter().copied().filter(|run| run.traits.n == most);
    largest.reduce(|best, run| if run.is_better(best) { run } else { best })
}

/// The device of a run, for captions of figures with times.
fn device_name(run: &RunData) -> String {
    run.dir.manifest().host["device"].as_str().unwrap_or("an unknown device").into()
}
