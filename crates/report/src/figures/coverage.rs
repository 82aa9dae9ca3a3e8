//! Coverage against N by sampler and model (the paper's figure 2).

use record::MetricName;

use super::figure::{Axis, COLOURS, Figure, Line, Look, Panel, Point, Scale, Series, percent_with};
use super::{best, groups};
use crate::draw::scene::Symbol;
use crate::study::Study;

/// The figure; none where no run has coverage.
pub fn figure(studies: &[Study]) -> Option<Figure> {
    let kinds = groups(studies, |s| (&s.traits.split, &s.traits.model, s.traits.sampler.kind()));
    let chosen: Vec<&Study> = kinds.iter().filter_map(|(_, members)| best(members)).collect();
    let panel = |(split, members): (&str, Vec<&Study>)| {
        let series: Vec<Series> = members.into_iter().filter_map(|run| curve(run, &chosen)).collect();
        let (x, y) = (Axis::new("trajectories, N", Scale::Doublings), Axis::new("coverage (%)", Scale::Percent));
        (!series.is_empty()).then(|| Panel { title: split.into(), x, y, series })
    };
    let splits = groups(chosen.iter().copied(), |s| s.traits.split.as_str());
    let panels: Vec<Panel> = splits.into_iter().filter_map(panel).collect();
    (!panels.is_empty()).then(|| Figure {
        name: "coverage",
        title: "More thoughts in parallel solve more questions".into(),
        caption: "Coverage: the share of questions that at least one of N trajectories answers correctly (pass@N, unbiased \
                  estimator); no rule that chooses among N answers can do better. Bands: 95% bootstrap interval over \
                  questions. Of runs that differ only in the strength of the sampler, the one with the highest coverage at its \
                  largest N is shown."
            .into(),
        panels,
    })
}

fn curve(run: &Study, chosen: &[&Study]) -> Option<Series> {
    let traits = &run.traits;
    let name = traits.sampler.name();
    let tip = |k: usize, words: String| format!("{}, {name}\nN = {k}\ncoverage {words}", traits.model);
    let points: Vec<Point> = run
        .curve(MetricName::Coverage)
        .into_iter()
        .map(|(k, interval)| Point::with_interval(k as f64, interval, tip(k, percent_with(&interval))))
        .collect();
    (!points.is_empty()).then(|| Series { label: label(run, chosen), look: look(run, chosen), points })
}

/// Model and sampler, with its strength where that is the same on every split; else only the values name it.
fn label(run: &Study, chosen: &[&Study]) -> String {
    let (traits, kind, setting) = (&run.traits, run.traits.sampler.kind(), run.traits.sampler.setting());
    let alike = |s: &&&Study| s.traits.model == traits.model && s.traits.sampler.kind() == kind;
    let settled = chosen.iter().filter(alike).all(|s| s.traits.sampler.setting() == setting);
    let sampler = if settled && setting != kind { format!("{kind}, {setting}") } else { kind.into() };
    let one_model = chosen.iter().all(|s| s.traits.model == traits.model);
    if one_model { sampler } else { format!("{}: {sampler}", traits.model) }
}

/// One model: a colour for each sampler. Several: a colour for each model, and the sampler by line and symbol.
fn look(run: &Study, chosen: &[&Study]) -> Look {
    let noise = run.traits.sampler.kind() == "noise";
    let models = groups(chosen.iter().copied(), |s| &s.traits.model);
    let place = models.iter().position(|(model, _)| **model == run.traits.model).unwrap_or_default();
    let colour = match models.len() {
        1 => COLOURS[if noise { 0 } else { 3 }],
        _ => COLOURS[place % COLOURS.len()],
    };
    let (line, symbol) = if noise { (Line::Dashed, Symbol::Diamond) } else { (Line::Solid, Symbol::Circle) };
    Look { line, symbol, ..Look::line(colour) }
}
