//! Accuracy against the strength of the sampler, the result of a sweep.

use record::MetricName;

use super::accuracy;
use super::diversity::by_strength;
use super::figure::{
    AxisScale, DataPoint, Figure, FigureAxis, IntervalStyle, Panel, Series, SeriesStyle,
    percent_interval,
};
use super::{group_by, pair_title};
use crate::rules;
use crate::run_data::{RunData, SamplerInfo};

/// The axis is logarithmic if the ratio of the largest to the smallest strength is at least this.
const LOG_RATIO: f64 = 50.0;

/// `None` if no sampler was run at two strengths.
pub fn figure(runs: &[RunData]) -> Option<Figure> {
    let mut panels = Vec::new();
    let mut ks = Vec::new();
    let pairs = group_by(runs, |run| (run.traits.model.as_str(), run.traits.split.as_str()));
    let samplers = pairs.into_iter().flat_map(|(_, members)| {
        group_by(members, |run| (run.traits.sampler.kind(), run.traits.sampler.sites_label()))
    });
    for (_, members) in samplers {
        let sorted = by_strength(&members);
        let Some(k) = sorted.iter().map(|run| run.traits.n).min() else { continue };
        if sorted.len() > 1 {
            panels.push(panel(&sorted, k, runs));
            ks.push(k);
        }
    }
    let caption = format!(
        "Each point is a run at one strength, with {} per question. Greedy (dashed horizontal \
         line) is one trajectory without perturbation. Coverage (dashed) is an upper bound for \
         every rule. Bands: 95% confidence interval over questions for majority and coverage; \
         those of other rules are about as wide as majority's.",
        trajectories(&mut ks)
    );
    (!panels.is_empty()).then(|| Figure {
        name: "strength",
        title: "Accuracy against the strength of the perturbation".into(),
        caption,
        panels,
    })
}

/// `N = 16 trajectories`, or a list of several N.
fn trajectories(ks: &mut Vec<usize>) -> String {
    ks.sort_unstable();
    ks.dedup();
    let ks: Vec<String> = ks.iter().map(ToString::to_string).collect();
    format!("N = {} trajectories", ks.join(" or "))
}

/// The runs of one sampler, from weak to strong, at `k` trajectories.
fn panel(sorted: &[&RunData], k: usize, runs: &[RunData]) -> Panel {
    let traits = &sorted[0].traits;
    let series = rules::DISPLAY_ORDER
        .into_iter()
        .enumerate()
        .filter_map(|(index, name)| curve(sorted, k, index, name))
        .collect();
    let strengths = || sorted.iter().filter_map(|run| run.traits.sampler.strength());
    let low = strengths().fold(f64::INFINITY, f64::min);
    let high = strengths().fold(0.0, f64::max);
    let scale =
        if low > 0.0 && high >= LOG_RATIO * low { AxisScale::Log10 } else { AxisScale::Linear };
    let sites = match traits.sampler.sites_label() {
        "" => String::new(),
        sites => format!(" ({sites})"),
    };
    Panel {
        title: format!(
            "{}: {}{sites}",
            pair_title(&traits.model, &traits.split, runs),
            traits.sampler.kind()
        ),
        x: FigureAxis::new(strength_name(&traits.sampler), scale),
        y: FigureAxis::new(format!("accuracy at N = {k} (%)"), AxisScale::Percent),
        series,
    }
}

/// The quantity on the horizontal axis.
fn strength_name(sampler: &SamplerInfo) -> &'static str {
    match sampler {
        SamplerInfo::Dropout { .. } => "dropout probability p",
        SamplerInfo::Noise { .. } => "noise standard deviation σ",
        SamplerInfo::Gumbel { .. } => "Gumbel temperature τ",
        SamplerInfo::Other(_) => "strength",
    }
}

fn curve(sorted: &[&RunData], k: usize, index: usize, name: MetricName) -> Option<Series> {
    let label = rules::display_name(name);
    // Greedy is measured at k = 1 and beam search at its beam size.
    let own_k = name == MetricName::Greedy || name.is_search();
    let point = |run: &&RunData| {
        let interval = match own_k {
            true => run.curve(name).pop()?.1,
            false => run.metric(name, k)?,
        };
        let strength = run.traits.sampler.strength()?;
        let tooltip = format!(
            "{label}\n{}, N = {k}\n{}",
            run.traits.sampler.strength_label(),
            percent_interval(&interval)
        );
        Some(DataPoint::with_interval(strength, interval, tooltip))
    };
    let points: Vec<DataPoint> = sorted.iter().filter_map(point).collect();
    let style = accuracy::style(index, name);
    let style = match name {
        name if name.is_search() => SeriesStyle { intervals: IntervalStyle::None, ..style },
        _ => style,
    };
    (points.len() > 1).then_some(Series { label, style, points })
}
