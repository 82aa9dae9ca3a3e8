//! Coverage against diversity (the paper's figure 3) and diversity by step (its figure 4).

use record::MetricName;

use super::figure::{
    AxisScale, BLUES, DataPoint, Figure, FigureAxis, IntervalStyle, Panel, REDS, Series,
    SeriesStyle, percent_interval, ramp,
};
use super::{best_run, group_by, pair_title};
use crate::draw::drawing::{Colour, Symbol};
use crate::interval::Interval;
use crate::run_data::{RunData, SamplerInfo};

/// Maximum number of curves; the largest values of k are shown.
const MAX_CURVES: usize = 4;

fn sampler_ramp(sampler: &SamplerInfo) -> (Colour, Colour) {
    if sampler.kind() == "noise" { BLUES } else { REDS }
}

/// The run with the largest N for each strength, from weak to strong. Runs whose sampler has no
/// strength are skipped.
pub(super) fn by_strength<'a>(runs: &[&'a RunData]) -> Vec<&'a RunData> {
    let strength = |run: &RunData| run.traits.sampler.strength();
    let strengths = group_by(runs.iter().copied().filter(|s| strength(s).is_some()), |s| {
        strength(s).map(f64::to_bits)
    });
    let mut sorted: Vec<&RunData> =
        strengths.iter().filter_map(|(_, members)| best_run(members)).collect();
    sorted.sort_by(|a, b| {
        strength(a).unwrap_or_default().total_cmp(&strength(b).unwrap_or_default())
    });
    sorted
}

/// Caption of the figure of coverage against diversity.
const COVERAGE_CAPTION: &str = "\
    Each point is a run at one strength of dropout (red, p) or noise (blue, σ), from weak to \
    strong along the line; darker lines use more trajectories. Diversity: 1 – cosine similarity of \
    two trajectories' thoughts at the same step, averaged over pairs, steps and questions (its \
    expectation does not depend on N). Bars: 95% confidence interval of coverage over questions \
    at the largest N.";

/// Coverage against diversity for several N, one point per run; `None` if no sampler was run at two
/// strengths.
pub fn against_coverage(runs: &[RunData]) -> Option<Figure> {
    let panel = |((model, split), members): ((&str, &str), Vec<&RunData>)| {
        let kinds = group_by(members, |s| s.traits.sampler.kind());
        let swept = kinds.iter().map(|(_, m)| by_strength(m)).filter(|sorted| sorted.len() > 1);
        let series: Vec<Series> = swept.flat_map(|sorted| curves(&sorted)).collect();
        let (x, y) = (
            FigureAxis::new("diversity (mean cosine dissimilarity)", AxisScale::Linear),
            FigureAxis::new("coverage (%)", AxisScale::Percent),
        );
        (!series.is_empty()).then(|| Panel { title: pair_title(model, split, runs), x, y, series })
    };
    let pairs = group_by(runs, |s| (s.traits.model.as_str(), s.traits.split.as_str()));
    let panels: Vec<Panel> = pairs.into_iter().filter_map(panel).collect();
    (!panels.is_empty()).then(|| Figure {
        name: "coverage-diversity",
        title: "Coverage against the diversity of thoughts".into(),
        caption: COVERAGE_CAPTION.into(),
        panels,
    })
}

fn curves(runs: &[&RunData]) -> Vec<Series> {
    let shared =
        |k: &usize| *k > 1 && runs.iter().all(|run| run.metric(MetricName::Coverage, *k).is_some());
    let mut ks: Vec<usize> =
        runs[0].curve(MetricName::Coverage).into_iter().map(|(k, _)| k).filter(shared).collect();
    ks.drain(..ks.len().saturating_sub(MAX_CURVES));
    let sampler = &runs[0].traits.sampler;
    // The bars of all ks would overlap.
    let intervals =
        |i: usize| if i + 1 == ks.len() { IntervalStyle::Bars } else { IntervalStyle::None };
    let series = |(i, &k): (usize, &usize)| Series {
        label: format!("{}, N = {k}", sampler.kind()),
        style: SeriesStyle {
            intervals: intervals(i),
            radius: 3.2,
            ..SeriesStyle::line(ramp(sampler_ramp(sampler), i, ks.len()))
        },
        points: runs.iter().filter_map(|run| data_point(run, k)).collect(),
    };
    ks.iter().enumerate().map(series).filter(|series| series.points.len() > 1).collect()
}

fn data_point(run: &RunData, k: usize) -> Option<DataPoint> {
    let coverage = run.metric(MetricName::Coverage, k)?;
    let diversity = run.metric(MetricName::Diversity, run.traits.n)?;
    let Interval { value, low, high } = diversity;
    let sampler = run.traits.sampler.name();
    let tooltip = format!(
        "{sampler}, N = {k}\ncoverage {}\ndiversity {value:.3} (95%: {low:.3} – {high:.3})",
        percent_interval(&coverage)
    );
    Some(DataPoint::with_interval(value, coverage, tooltip))
}

/// Caption of the figure of diversity by step.
const STEPS_CAPTION: &str = "\
    Mean cosine dissimilarity of two trajectories' thoughts at the same step; 0 = identical, 1 = \
    orthogonal. Darker: stronger perturbation. Bands: 95% bootstrap confidence interval over \
    questions.";

/// Diversity at each step, one line per run; `None` if no run has diversity.
pub fn by_step(runs: &[RunData]) -> Option<Figure> {
    let panel = |((model, split, kind), members): ((&str, &str, &str), Vec<&RunData>)| {
        let sorted: Vec<&RunData> = by_strength(&members)
            .into_iter()
            .filter(|run| !run.step_diversity.is_empty())
            .collect();
        let series: Vec<Series> =
            sorted.iter().enumerate().map(|(i, run)| step_series(run, i, sorted.len())).collect();
        let (x, y) = (
            FigureAxis::new("thought", AxisScale::Count),
            FigureAxis::new("diversity", AxisScale::Linear),
        );
        (!series.is_empty()).then(|| Panel {
            title: format!("{}: {kind}", pair_title(model, split, runs)),
            x,
            y,
            series,
        })
    };
    let key = |s: &'_ RunData| {
        (s.traits.model.clone(), s.traits.split.clone(), s.traits.sampler.kind().to_owned())
    };
    let keyed = group_by(runs, key);
    let panels: Vec<Panel> = keyed
        .iter()
        .filter_map(|((m, s, k), members)| panel(((m, s, k), members.clone())))
        .collect();
    (!panels.is_empty()).then(|| Figure {
        name: "diversity-steps",
        title: "Diversity of thoughts at each step".into(),
        caption: STEPS_CAPTION.into(),
        panels,
    })
}

fn step_series(run: &RunData, i: usize, count: usize) -> Series {
    let strength = run.traits.sampler.strength_label();
    let point = |(t, step): (usize, &Interval)| {
        let Interval { value, low, high } = step;
        let tooltip = format!(
            "{strength}, thought {}\ndiversity {value:.3} (95%: {low:.3} – {high:.3})",
            t + 1
        );
        DataPoint::with_interval((t + 1) as f64, *step, tooltip)
    };
    Series {
        label: strength.clone(),
        style: SeriesStyle {
            symbol: Symbol::Circle,
            ..SeriesStyle::line(ramp(sampler_ramp(&run.traits.sampler), i, count))
        },
        points: run.step_diversity.iter().enumerate().map(point).collect(),
    }
}
