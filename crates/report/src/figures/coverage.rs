//! Coverage against N by sampler and model (the paper's figure 2).

use record::MetricName;

use super::figure::{
    AxisScale, COLOURS, DataPoint, Figure, FigureAxis, LineStyle, Panel, Series, SeriesStyle,
    percent_interval,
};
use super::{best_run, group_by};
use crate::draw::drawing::Symbol;
use crate::run_data::RunData;

/// Caption of the figure.
const CAPTION: &str = "\
    Coverage: fraction of questions that at least one of N trajectories answers correctly (pass@N, \
    unbiased estimator), an upper bound for every rule that selects among N answers. Bands: 95% \
    confidence interval over questions. Of runs that differ only in the strength of the sampler, \
    the one with the highest coverage at its largest N is shown.";

/// `None` if no run has coverage.
pub fn figure(runs: &[RunData]) -> Option<Figure> {
    let kinds = group_by(runs, |s| (&s.traits.split, &s.traits.model, s.traits.sampler.kind()));
    let chosen: Vec<&RunData> = kinds.iter().filter_map(|(_, members)| best_run(members)).collect();
    let panel = |(split, members): (&str, Vec<&RunData>)| {
        let series: Vec<Series> =
            members.into_iter().filter_map(|run| curve(run, &chosen)).collect();
        let (x, y) = (
            FigureAxis::new("trajectories, N", AxisScale::Log2),
            FigureAxis::new("coverage (%)", AxisScale::Percent),
        );
        (!series.is_empty()).then(|| Panel { title: split.into(), x, y, series })
    };
    let splits = group_by(chosen.iter().copied(), |s| s.traits.split.as_str());
    let panels: Vec<Panel> = splits.into_iter().filter_map(panel).collect();
    (!panels.is_empty()).then(|| Figure {
        name: "coverage",
        title: "Coverage against the number of trajectories".into(),
        caption: CAPTION.into(),
        panels,
    })
}

fn curve(run: &RunData, chosen: &[&RunData]) -> Option<Series> {
    let traits = &run.traits;
    let name = traits.sampler.name();
    let tooltip = |k: usize, coverage: String| {
        format!("{}, {name}\nN = {k}\ncoverage {coverage}", traits.model)
    };
    let points: Vec<DataPoint> = run
        .curve(MetricName::Coverage)
        .into_iter()
        .map(|(k, interval)| {
            DataPoint::with_interval(k as f64, interval, tooltip(k, percent_interval(&interval)))
        })
        .collect();
    (!points.is_empty()).then(|| Series {
        label: label(run, chosen),
        style: style(run, chosen),
        points,
    })
}

/// Model and sampler, with the strength if it is the same on every split; otherwise the strength is
/// only in the tooltips.
fn label(run: &RunData, chosen: &[&RunData]) -> String {
    let traits = &run.traits;
    let kind = run.traits.sampler.kind();
    let strength = run.traits.sampler.strength_label();
    let alike = |s: &&&RunData| s.traits.model == traits.model && s.traits.sampler.kind() == kind;
    let same_strength =
        chosen.iter().filter(alike).all(|s| s.traits.sampler.strength_label() == strength);
    let sampler =
        if same_strength && strength != kind { format!("{kind}, {strength}") } else { kind.into() };
    let one_model = chosen.iter().all(|s| s.traits.model == traits.model);
    if one_model { sampler } else { format!("{}: {sampler}", traits.model) }
}

/// With one model, colors distinguish the samplers; with several models, colors distinguish the
/// models, and lines and symbols the samplers.
fn style(run: &RunData, chosen: &[&RunData]) -> SeriesStyle {
    let noise = run.traits.sampler.kind() == "noise";
    let models = group_by(chosen.iter().copied(), |s| &s.traits.model);
    let index =
        models.iter().position(|(model, _)| **model == run.traits.model).unwrap_or_default();
    let colour = match models.len() {
        1 => COLOURS[if noise { 0 } else { 3 }],
        _ => COLOURS[index % COLOURS.len()],
    };
    let (line, symbol) = if noise {
        (LineStyle::Dashed, Symbol::Diamond)
    } else {
        (LineStyle::Solid, Symbol::Circle)
    };
    SeriesStyle { line, symbol, ..SeriesStyle::line(colour) }
}
