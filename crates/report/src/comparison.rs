//! Comparison of runs as text: accuracies, and paired differences from the first run.

use record::MetricName;
use serde::Serialize;

use crate::interval::{Bootstrap, Interval};
use crate::metrics::paired_difference;
use crate::rules;
use crate::run_data::RunData;
use crate::table::count;

/// The compared metrics, in the order of columns.
const METRICS: [MetricName; 5] = [
    MetricName::Greedy,
    MetricName::MAJORITY,
    MetricName::WEIGHTED,
    MetricName::BEST_OF,
    MetricName::Coverage,
];

/// The paired difference of a run from the first run in one metric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunDifference {
    /// The run.
    pub run: String,
    /// The first run.
    pub over: String,
    /// The compared metric.
    pub metric: MetricName,
    /// The number of trajectories of the metric.
    pub k: usize,
    /// The mean difference over the questions of both runs.
    pub value: f64,
    /// The lower bound of the 95% confidence interval.
    pub low: f64,
    /// The upper bound of the 95% confidence interval.
    pub high: f64,
}

/// The differences of all runs from the first run. Runs on different questions are skipped.
pub fn differences(runs: &[RunData]) -> Vec<RunDifference> {
    let Some((first, others)) = runs.split_first() else { return Vec::new() };
    let difference = |run: &RunData, metric: MetricName| {
        let k = shared_k(first, run, metric)?;
        let own = run.columns.column(metric, k)?;
        let base = first.columns.column(metric, k)?;
        let Interval { value, low, high } = paired_difference(own, base, &Bootstrap::default())?;
        let run = run.label.clone();
        let over = first.label.clone();
        Some(RunDifference { run, over, metric, k, value, low, high })
    };
    others
        .iter()
        .filter(|run| share_questions(first, run))
        .flat_map(|run| METRICS.iter().filter_map(|metric| difference(run, *metric)))
        .collect()
}

/// The largest k at which both runs have the metric.
fn shared_k(a: &RunData, b: &RunData, metric: MetricName) -> Option<usize> {
    let own: Vec<usize> = a.curve(metric).into_iter().map(|(k, _)| k).collect();
    b.curve(metric).into_iter().map(|(k, _)| k).filter(|k| own.contains(k)).max()
}

/// Whether the runs have questions in common, and questions with equal ids have equal texts.
fn share_questions(a: &RunData, b: &RunData) -> bool {
    let of = |id: u32| a.questions.iter().find(|question| question.id == id);
    let mut shared = b.questions.iter().filter_map(|own| Some((own, of(own.id)?))).peekable();
    shared.peek().is_some() && shared.all(|(own, other)| own.question == other.question)
}

/// A table of all runs, and their differences from the first run.
pub fn render(runs: &[RunData]) -> String {
    let shown: Vec<MetricName> = METRICS
        .into_iter()
        .filter(|metric| runs.iter().any(|run| !run.curve(*metric).is_empty()))
        .collect();
    let mut rows = vec![
        ["run", "questions", "N"]
            .map(str::to_owned)
            .into_iter()
            .chain(shown.iter().map(|metric| rules::display_name(*metric)))
            .collect::<Vec<String>>(),
    ];
    rows.extend(runs.iter().map(|run| row(run, &shown)));
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = "accuracy in % with all N trajectories\n\n".to_owned();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &width))| match i {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text.push_str(&render_differences(runs));
    text
}

fn row(run: &RunData, shown: &[MetricName]) -> Vec<String> {
    let value = |metric: &MetricName| {
        let last = run.curve(*metric).pop();
        last.map_or("-".to_owned(), |(_, interval)| format!("{:.1}", 100.0 * interval.value))
    };
    let questions = run.results.questions.to_string();
    let n = run.traits.n.to_string();
    [run.label.clone(), questions, n].into_iter().chain(shown.iter().map(value)).collect()
}

fn render_differences(runs: &[RunData]) -> String {
    let [first, others @ ..] = runs else { return String::new() };
    let all = differences(runs);
    let mut text = format!(
        "\npaired differences from {} in points, with 95% confidence intervals\n",
        first.label
    );
    for run in others {
        let own: Vec<&RunDifference> = all.iter().filter(|d| d.run == run.label).collect();
        text.push_str(&format!("{}\n", run.label));
        if own.is_empty() {
            text.push_str("  not comparable: different questions\n");
        }
        for RunDifference { metric, k, value, low, high, .. } in own {
            let name = rules::display_name(*metric);
            let [value, low, high] = [value, low, high].map(|share| 100.0 * share);
            let with = count(*k, "trajectory");
            text.push_str(&format!(
                "  {name:<14} {value:+.1} ({low:+.1} to {high:+.1}) with {with}\n"
            ));
        }
    }
    text
}
