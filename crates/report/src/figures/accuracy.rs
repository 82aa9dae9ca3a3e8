//! Accuracy of each aggregation rule against N (the paper's figure 6).

use record::MetricName;

use super::figure::{
    AxisScale, COLOURS, DataPoint, Figure, FigureAxis, IntervalStyle, LineStyle, Panel, Series,
    SeriesStyle, percent_interval,
};
use super::{group_by, pair_title};
use crate::draw::drawing::Symbol;
use crate::interval::Interval;
use crate::rules;
use crate::run_data::RunData;

/// Caption of the figure.
const CAPTION: &str = "\
    Greedy: one trajectory without perturbation. Majority: the most frequent of N answers. Best of \
    N, the weighted vote and the normalized vote (in units of the spread within the question) use \
    rewards; in beam search rewards guide the thoughts. Coverage (dashed) is an upper bound for \
    every rule. Accuracy at N is averaged over all size-N subsets of the trajectories. Bands and \
    bars: 95% confidence interval over questions; those not shown are about as wide as majority's.";

/// `None` if no run has a rule's accuracy.
pub fn figure(runs: &[RunData]) -> Option<Figure> {
    let panel = |((model, split), members): ((&str, &str), Vec<&RunData>)| {
        let run = best_rewarded_run(&members)?;
        let series: Vec<Series> = rules::shown(&[run])
            .into_iter()
            .enumerate()
            .filter_map(|(index, name)| curve(run, index, name))
            .collect();
        let title = format!("{} ({})", pair_title(model, split, runs), run.traits.sampler.name());
        let (x, y) = (
            FigureAxis::new("trajectories, N", AxisScale::Log2),
            FigureAxis::new("accuracy (%)", AxisScale::Percent),
        );
        (!series.is_empty()).then_some(Panel { title, x, y, series })
    };
    let pairs = group_by(runs, |s| (s.traits.model.as_str(), s.traits.split.as_str()));
    let panels: Vec<Panel> = pairs.into_iter().filter_map(panel).collect();
    (!panels.is_empty()).then(|| Figure {
        name: "accuracy",
        title: "Accuracy of each rule against the number of trajectories".into(),
        caption: CAPTION.into(),
        panels,
    })
}

/// The best run among those with rewards, or among all if there are none.
fn best_rewarded_run<'a>(members: &[&'a RunData]) -> Option<&'a RunData> {
    let rewarded: Vec<&RunData> =
        members.iter().copied().filter(|run| !run.curve(MetricName::BEST_OF).is_empty()).collect();
    super::best_run(if rewarded.is_empty() { members } else { &rewarded })
}

fn curve(run: &RunData, index: usize, name: MetricName) -> Option<Series> {
    let label = rules::display_name(name);
    let tooltip = |k: usize, interval: &Interval| {
        format!("{label}\nN = {k}\naccuracy {}", percent_interval(interval))
    };
    let points = run
        .curve(name)
        .into_iter()
        .map(|(k, interval)| DataPoint::with_interval(k as f64, interval, tooltip(k, &interval)));
    let mut points: Vec<DataPoint> = points.collect();
    // Greedy does not depend on N: a horizontal line.
    if let (MetricName::Greedy, [point]) = (name, &points[..]) {
        points.push(DataPoint { x: run.traits.n.max(2) as f64, ..point.clone() });
    }
    (!points.is_empty()).then(|| Series { label: label.clone(), style: style(index, name), points })
}

/// The style of the rule at `index` of the display order.
pub(super) fn style(index: usize, name: MetricName) -> SeriesStyle {
    // Greedy, the first, has the last color, gray.
    let style = SeriesStyle::line(COLOURS[(index + COLOURS.len() - 1) % COLOURS.len()]);
    match name {
        MetricName::Greedy => SeriesStyle {
            symbol: Symbol::Hidden,
            line: LineStyle::Dashed,
            intervals: IntervalStyle::None,
            ..style
        },
        MetricName::Coverage => SeriesStyle { line: LineStyle::Dashed, ..style },
        name if name.is_search() => SeriesStyle {
            symbol: Symbol::Star,
            intervals: IntervalStyle::Bars,
            radius: 4.0,
            ..style
        },
        MetricName::MAJORITY => style,
        MetricName::WEIGHTED => {
            SeriesStyle { symbol: Symbol::Square, intervals: IntervalStyle::None, ..style }
        }
        MetricName::NORMALIZED => {
            SeriesStyle { symbol: Symbol::Triangle, intervals: IntervalStyle::None, ..style }
        }
        MetricName::BEST_OF => {
            SeriesStyle { symbol: Symbol::Diamond, intervals: IntervalStyle::None, ..style }
        }
        // The curves are close to each other, so overlapping bands would hide the lines.
        _ => SeriesStyle { intervals: IntervalStyle::None, ..style },
    }
}
