//! Coverage against N by sampler and model (the paper's figure 2).

use record::MetricName;

use super::figure::{Axis, COLOURS, Figure, Line, Look, Panel, Point, Scale, Series, percent_with};
use super::{best, groups};
use crate::draw::scene::Symbol;
use crate::study::Study;

/// The figure; none where no run has coverage.
pub fn figure(studies: &[Study]) -> Option<Figure> {
    let models: Vec<&str> = groups(studies, |s| s.traits.model.as_str()).into_iter().map(|(model, _)| model).collect();
    let panel = |(split, members): (&str, Vec<&Study>)| {
        let series: Vec<Series> = groups(members, |s| (&s.traits.model, s.traits.sampler.kind()))
            .iter()
            .filter_map(|(_, m)| curve(best(m)?, &models))
            .collect();
        let (x, y) = (Axis::new("trajectories, N", Scale::Doublings), Axis::new("coverage (%)", Scale::Percent));
        (!series.is_empty()).then(|| Panel { title: split.into(), x, y, series })
    };
    let panels: Vec<Panel> = groups(studies, |s| s.traits.split.as_str()).into_iter().filter_map(panel).collect();
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

fn curve(study: &Study, models: &[&str]) -> Option<Series> {
    let traits = &study.traits;
    let sampler = format!("{} {}", traits.sampler.kind(), traits.sampler.setting());
    let label =
        if models.len() > 1 { format!("{}, {}", traits.model, traits.sampler.kind()) } else { traits.sampler.kind().into() };
    let tip = |k: usize, words: String| format!("{}, {sampler}\nN = {k}\ncoverage {words}", traits.model);
    let points: Vec<Point> = study
        .curve(MetricName::Coverage)
        .into_iter()
        .map(|(k, interval)| Point::with_interval(k as f64, interval, tip(k, percent_with(&interval))))
        .collect();
    (!points.is_empty()).then(|| Series { label, look: look(study, models), points })
}

/// One model: a colour for each sampler. Several: a colour for each model, and the sampler by line and symbol.
fn look(study: &Study, models: &[&str]) -> Look {
    let noise = study.traits.sampler.kind() == "noise";
    let place = models.iter().position(|model| *model == study.traits.model).unwrap_or_default();
    let colour = match models.len() {
        1 => COLOURS[if noise { 0 } else { 3 }],
        _ => COLOURS[place % COLOURS.len()],
    };
    let (line, symbol) = if noise { (Line::Dashed, Symbol::Diamond) } else { (Line::Solid, Symbol::Circle) };
    Look { line, symbol, ..Look::line(colour) }
}
