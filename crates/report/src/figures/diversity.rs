//! Diversity: against coverage (the paper's figure 3) and step by step (its figure 4).

use record::MetricName;

use super::figure::{Axis, BLUES, Figure, Look, Panel, Point, REDS, Scale, Series, Spread, percent_with, ramp};
use super::{best, groups, title};
use crate::draw::scene::{Colour, Symbol};
use crate::interval::Interval;
use crate::study::{Sampler, Study};

/// Numbers of trajectories that are shown at most, the largest.
const CURVES: usize = 4;

fn ramp_of(sampler: &Sampler) -> (Colour, Colour) {
    if sampler.kind() == "noise" { BLUES } else { REDS }
}

/// One run for each strength, from weak to strong: of those that differ in N the largest, which measures best. Runs whose
/// sampler has no strength have no place on such a curve.
fn by_strength<'a>(studies: &[&'a Study]) -> Vec<&'a Study> {
    let strength = |study: &Study| study.traits.sampler.strength();
    let settings = groups(studies.iter().copied().filter(|s| strength(s).is_some()), |s| strength(s).map(f64::to_bits));
    let mut sorted: Vec<&Study> = settings.iter().filter_map(|(_, members)| best(members)).collect();
    sorted.sort_by(|a, b| strength(a).unwrap_or_default().total_cmp(&strength(b).unwrap_or_default()));
    sorted
}

/// Coverage against diversity by N, one point a run; none where no sampler was run at two strengths.
pub fn against_coverage(studies: &[Study]) -> Option<Figure> {
    let panel = |((model, split), members): ((&str, &str), Vec<&Study>)| {
        let kinds = groups(members, |s| s.traits.sampler.kind());
        let swept = kinds.iter().map(|(_, m)| by_strength(m)).filter(|runs| runs.len() > 1);
        let series: Vec<Series> = swept.flat_map(|runs| curves(&runs)).collect();
        let (x, y) =
            (Axis::new("diversity (mean cosine dissimilarity)", Scale::Linear), Axis::new("coverage (%)", Scale::Percent));
        (!series.is_empty()).then(|| Panel { title: title(model, split, studies), x, y, series })
    };
    let pairs = groups(studies, |s| (s.traits.model.as_str(), s.traits.split.as_str()));
    let panels: Vec<Panel> = pairs.into_iter().filter_map(panel).collect();
    (!panels.is_empty()).then(|| Figure {
        name: "coverage-diversity",
        title: "How unlike the thoughts should be: coverage against diversity".into(),
        caption:
            "Each point is a run at one strength of dropout (red, p) or noise (blue, σ), from weak to strong along the line; \
                  darker lines use more trajectories. Diversity: 1 – cosine of two trajectories' thoughts at the same step, \
                  averaged over pairs, steps and questions (its mean does not depend on N). Bars: 95% bootstrap interval of \
                  coverage over questions at the largest N."
                .into(),
        panels,
    })
}

fn curves(runs: &[&Study]) -> Vec<Series> {
    let shared = |k: &usize| *k > 1 && runs.iter().all(|run| run.metric(MetricName::Coverage, *k).is_some());
    let mut ks: Vec<usize> = runs[0].curve(MetricName::Coverage).into_iter().map(|(k, _)| k).filter(shared).collect();
    ks.drain(..ks.len().saturating_sub(CURVES));
    let sampler = &runs[0].traits.sampler;
    // Bars of every N would stand in the same place.
    let spread = |i: usize| if i + 1 == ks.len() { Spread::Bars } else { Spread::None };
    let series = |(i, &k): (usize, &usize)| Series {
        label: format!("{}, N = {k}", sampler.kind()),
        look: Look { spread: spread(i), radius: 3.2, ..Look::line(ramp(ramp_of(sampler), i, ks.len())) },
        points: runs.iter().filter_map(|run| point(run, k)).collect(),
    };
    ks.iter().enumerate().map(series).filter(|series| series.points.len() > 1).collect()
}

fn point(run: &Study, k: usize) -> Option<Point> {
    let (coverage, diversity) = (run.metric(MetricName::Coverage, k)?, run.metric(MetricName::Diversity, run.traits.n)?);
    let Interval { value, low, high } = diversity;
    let setting = run.traits.sampler.name();
    let tip =
        format!("{setting}, N = {k}\ncoverage {}\ndiversity {value:.3} (95%: {low:.3} – {high:.3})", percent_with(&coverage));
    Some(Point::with_interval(value, coverage, tip))
}

/// Diversity of each thought, one line a run; none where no run has it.
pub fn by_step(studies: &[Study]) -> Option<Figure> {
    let panel = |((model, split, kind), members): ((&str, &str, &str), Vec<&Study>)| {
        let runs: Vec<&Study> = by_strength(&members).into_iter().filter(|run| !run.steps.is_empty()).collect();
        let series: Vec<Series> = runs.iter().enumerate().map(|(i, run)| steps(run, i, runs.len())).collect();
        let (x, y) = (Axis::new("thought", Scale::Linear), Axis::new("diversity", Scale::Linear));
        (!series.is_empty()).then(|| Panel { title: format!("{}: {kind}", title(model, split, studies)), x, y, series })
    };
    let key = |s: &'_ Study| (s.traits.model.clone(), s.traits.split.clone(), s.traits.sampler.kind().to_owned());
    let keyed = groups(studies, key);
    let panels: Vec<Panel> = keyed.iter().filter_map(|((m, s, k), members)| panel(((m, s, k), members.clone()))).collect();
    (!panels.is_empty()).then(|| Figure {
        name: "diversity-steps",
        title: "Where along the thinking trajectories part: diversity of each thought".into(),
        caption:
            "Mean cosine dissimilarity of two trajectories' thoughts at the same step; 0 = all alike, 1 = unrelated. Darker: \
                  stronger perturbation. Bands: 95% bootstrap interval over questions."
                .into(),
        panels,
    })
}

fn steps(run: &Study, i: usize, count: usize) -> Series {
    let setting = run.traits.sampler.setting();
    let point = |(t, step): (usize, &Interval)| {
        let Interval { value, low, high } = step;
        let tip = format!("{setting}, thought {}\ndiversity {value:.3} (95%: {low:.3} – {high:.3})", t + 1);
        Point::with_interval((t + 1) as f64, *step, tip)
    };
    Series {
        label: setting.clone(),
        look: Look { symbol: Symbol::Circle, ..Look::line(ramp(ramp_of(&run.traits.sampler), i, count)) },
        points: run.steps.iter().enumerate().map(point).collect(),
    }
}
