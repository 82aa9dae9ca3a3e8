//! All runs of a comparison against N: one line per run, one panel per metric and split.

use record::MetricName;

use super::figure::{
    AxisScale, COLOURS, DataPoint, Figure, FigureAxis, IntervalStyle, LineStyle, Panel, SYMBOLS,
    Series, SeriesStyle, percent_interval,
};
use super::group_by;
use crate::rules;
use crate::run_data::RunData;

/// Caption of the figure.
const CAPTION: &str = "\
    One line per run, against the number of trajectories; values at N are averaged over all size-N \
    subsets. Bands: 95% confidence interval over questions, only of the first run if there are \
    several. Paired differences, printed by the command report, have narrower intervals.";

const METRICS: [MetricName; 4] =
    [MetricName::MAJORITY, MetricName::WEIGHTED, MetricName::BEST_OF, MetricName::Coverage];

/// `None` for a single run, for more runs than colors, and if the best run was selected before.
pub fn figure(runs: &[RunData]) -> Option<Figure> {
    if runs.len() < 2 || runs.len() > COLOURS.len() || runs.iter().any(|run| run.best) {
        return None;
    }
    let mut panels = Vec::new();
    let splits = group_by(runs, |run| run.traits.split.as_str());
    for metric in METRICS {
        for (split, members) in &splits {
            let series: Vec<Series> = members
                .iter()
                .enumerate()
                .filter_map(|(place, run)| curve(run, metric, colour_index(runs, run), place == 0))
                .collect();
            let name = rules::display_name(metric);
            let title = match splits.len() {
                1 => name.clone(),
                _ => format!("{name}, {split}"),
            };
            if !series.is_empty() {
                let x = FigureAxis::new("trajectories, N", AxisScale::Log2);
                let y = FigureAxis::new(format!("{name} (%)"), AxisScale::Percent);
                panels.push(Panel { title, x, y, series });
            }
        }
    }
    (!panels.is_empty()).then(|| Figure {
        name: "comparison",
        title: "All runs against the number of trajectories".into(),
        caption: CAPTION.into(),
        panels,
    })
}

/// The color of a run, the same in all panels.
fn colour_index(runs: &[RunData], run: &RunData) -> usize {
    runs.iter().position(|other| std::ptr::eq(other, run)).unwrap_or_default()
}

fn curve(run: &RunData, metric: MetricName, index: usize, with_band: bool) -> Option<Series> {
    let points: Vec<DataPoint> = run
        .curve(metric)
        .into_iter()
        .map(|(k, interval)| {
            let tooltip = format!("{}\nN = {k}\n{}", run.label, percent_interval(&interval));
            DataPoint::with_interval(k as f64, interval, tooltip)
        })
        .collect();
    // Every other line is dashed, so that coinciding lines are both visible.
    let line = if index.is_multiple_of(2) { LineStyle::Solid } else { LineStyle::Dashed };
    let symbol = SYMBOLS[index % SYMBOLS.len()];
    let style = SeriesStyle { line, symbol, ..SeriesStyle::line(COLOURS[index % COLOURS.len()]) };
    let style = match with_band {
        true => style,
        false => SeriesStyle { intervals: IntervalStyle::None, ..style },
    };
    (!points.is_empty()).then(|| Series { label: run.label.clone(), style, points })
}
