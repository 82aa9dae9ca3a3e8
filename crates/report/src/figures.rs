//! What can be drawn of some runs: each figure from the studies alone, or not at all where they do
//! not hold it.
//!
//! One file per figure. Each groups the runs by what its panels and series are, takes the figures
//! with their intervals, and says in its caption how to read it and which runs it chose.

mod accuracy;
mod cost;
mod coverage;
mod diversity;
mod figure;
mod thought_map;

pub use figure::{
    AxisScale, DataPoint, Figure, FigureAxis, IntervalStyle, LineStyle, Panel, Series, SeriesStyle,
    percent, percent_interval,
};

use crate::error::ReportError;
use crate::run_data::RunData;

/// Every figure that these runs allow, in the order of the paper.
pub fn all(studies: &[RunData]) -> Result<Vec<Figure>, ReportError> {
    let mut figures: Vec<Figure> =
        [coverage::figure, diversity::against_coverage, diversity::by_step]
            .iter()
            .filter_map(|figure| figure(studies))
            .collect();
    figures.extend(thought_map::figure(studies)?);
    figures.extend([accuracy::figure, cost::figure].iter().filter_map(|figure| figure(studies)));
    Ok(figures)
}

/// Runs by a common trait, in the order in which each value first appears.
fn group_by<'a, K: PartialEq>(
    studies: impl IntoIterator<Item = &'a RunData>,
    key: impl Fn(&'a RunData) -> K,
) -> Vec<(K, Vec<&'a RunData>)> {
    let mut groups: Vec<(K, Vec<&RunData>)> = Vec::new();
    for study in studies {
        let key = key(study);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(study),
            None => groups.push((key, vec![study])),
        }
    }
    groups
}

/// A name for a pair among the runs, with only the part that says something.
fn pair_title(model: &str, split: &str, studies: &[RunData]) -> String {
    let one_model = studies.iter().all(|study| study.traits.model == model);
    let one_split = studies.iter().all(|study| study.traits.split == split);
    match (one_model, one_split) {
        (false, true) => model.into(),
        (true, false) => split.into(),
        _ => format!("{model} on {split}"),
    }
}

/// The run with the most trajectories, and of those with the largest coverage.
fn best_run<'a>(studies: &[&'a RunData]) -> Option<&'a RunData> {
    let better = |a: &&RunData, b: &&RunData| {
        a.traits.n.cmp(&b.traits.n).then(a.coverage().total_cmp(&b.coverage()))
    };
    studies.iter().copied().max_by(better)
}

/// What the machine was, for figures with seconds.
fn device_name(study: &RunData) -> String {
    study.run.manifest().host["device"].as_str().unwrap_or("an unnamed machine").into()
}
