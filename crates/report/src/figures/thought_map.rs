//! A map of the thoughts about an easy and a hard question (the paper's figure 5), where thoughts
//! were kept.

use super::figure::{
    AxisScale, BLUES, DataPoint, Figure, FigureAxis, GREEN, GREY, Panel, REDS, Series, SeriesStyle,
    ramp,
};
use super::{group_by, pair_title};
use crate::draw::scene::{Colour, Symbol};
use crate::error::ReportError;
use crate::run_data::RunData;
use crate::tsne::tsne;

/// Points on a map at most; the exact method takes time with their square.
const MAX_POINTS: usize = 900;

/// The figure; none where no run kept its thoughts.
pub fn figure(studies: &[RunData]) -> Result<Option<Figure>, ReportError> {
    let mut panels = Vec::new();
    for ((model, split), members) in
        group_by(studies, |s| (s.traits.model.as_str(), s.traits.split.as_str()))
    {
        let kept: Vec<&RunData> = members.into_iter().filter(|run| run.latents.is_some()).collect();
        let kept = sorted_by_sampler(kept);
        let Some((easy, hard)) = easy_and_hard(&kept) else { continue };
        let alone = studies.iter().all(|s| s.traits.model == model && s.traits.split == split);
        let which =
            if alone { String::new() } else { format!("{}: ", pair_title(model, split, studies)) };
        for (word, (id, share)) in [("easy", easy), ("hard", hard)] {
            let series = series(&kept, id)?;
            let title = format!("{which}{word} question {id}, {:.0}% right", 100.0 * share);
            let axis = |label| FigureAxis::new(label, AxisScale::Unlabelled);
            if !series.is_empty() {
                panels.push(Panel { title, x: axis("t-SNE 1"), y: axis("t-SNE 2"), series });
            }
        }
    }
    Ok((!panels.is_empty()).then(|| Figure {
        name: "thoughts",
        title: "Where the thoughts go: a map of one easy and one hard question".into(),
        caption: "Each point is the last thought of one trajectory, placed by t-SNE (perplexity 20, from principal components) so \
                  that neighbours are alike. Diamonds: the answer was right; crosses: wrong. Red: dropout, blue: noise; darker is \
                  stronger. The green star is the thought without perturbation, where it was kept. Easy and hard: the questions with \
                  the largest share of right trajectories up to 95%, and with the smallest from 5%."
            .into(),
        panels,
    }))
}

/// Dropout before noise, each from weak to strong, so that the legend is in order.
fn sorted_by_sampler(mut runs: Vec<&RunData>) -> Vec<&RunData> {
    runs.sort_by(|a, b| {
        let (a, b) = (&a.traits.sampler, &b.traits.sampler);
        a.kind()
            .cmp(b.kind())
            .then(a.strength().unwrap_or_default().total_cmp(&b.strength().unwrap_or_default()))
    });
    runs
}

/// An easy and a hard question with their shares of right trajectories: those nearest to always and
/// to never among the ones that show both, or among all where there is none.
fn easy_and_hard(runs: &[&RunData]) -> Option<((u32, f64), (u32, f64))> {
    let first = runs.first()?;
    let share = |id: u32| {
        let briefs = runs.iter().map(|run| run.questions.iter().find(|brief| brief.id == id));
        let shares: Option<Vec<f64>> =
            briefs.map(|brief| brief.map(|brief| brief.share_correct())).collect();
        shares.map(|shares| shares.iter().sum::<f64>() / shares.len() as f64)
    };
    let mut known: Vec<(u32, f64)> =
        first.questions.iter().filter_map(|brief| Some((brief.id, share(brief.id)?))).collect();
    known.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let mixed: Vec<(u32, f64)> =
        known.iter().copied().filter(|(_, share)| (0.05..=0.95).contains(share)).collect();
    let known = if mixed.is_empty() { known } else { mixed };
    Some((*known.last()?, *known.first()?))
}

/// What is known of a point before it has a place.
#[derive(Clone, PartialEq)]
struct PointInfo {
    /// Its sampler's strength, or that it has none.
    label: String,
    colour: Colour,
    symbol: Symbol,
    tooltip: String,
}

fn series(runs: &[&RunData], id: u32) -> Result<Vec<Series>, ReportError> {
    let (mut numbers, mut origins, mut width) = (Vec::new(), Vec::new(), None);
    let most = (MAX_POINTS / runs.len()).max(1);
    for run in runs {
        let seed = run.run.manifest().seeds.first().copied().unwrap_or_default();
        let (Some(latents), Some(brief)) =
            (&run.latents, run.questions.iter().find(|brief| brief.id == id))
        else {
            continue;
        };
        let Some(thoughts) = latents.read_sampled(seed, id)? else { continue };
        // Runs of another width are of another model under the same name.
        if *width.get_or_insert(thoughts.width) != thoughts.width {
            continue;
        }
        let mut end = 0;
        for (k, &count) in brief.thought_counts.iter().enumerate().take(most) {
            end += count as usize;
            if count > 0 && end <= thoughts.rows() {
                numbers.extend_from_slice(thoughts.row(end - 1));
                origins.push(point_info(runs, run, brief.is_correct(k), k));
            }
        }
        let greedy = latents
            .read_greedy(seed, id)?
            .filter(|thoughts| thoughts.rows() > 0 && Some(thoughts.width) == width);
        if let (Some(greedy), false) =
            (greedy, origins.iter().any(|o: &PointInfo| o.symbol == Symbol::Star))
        {
            numbers.extend_from_slice(greedy.row(greedy.rows() - 1));
            origins.push(unperturbed_point());
        }
    }
    Ok(into_series(tsne(&numbers, width.unwrap_or_default()), origins))
}

fn unperturbed_point() -> PointInfo {
    let setting = "no perturbation".to_owned();
    PointInfo { tooltip: setting.clone(), label: setting, colour: GREEN, symbol: Symbol::Star }
}

fn point_info(runs: &[&RunData], run: &RunData, correct: bool, k: usize) -> PointInfo {
    let sampler = &run.traits.sampler;
    let Some(strength) = sampler.strength() else { return unperturbed_point() };
    let alike = runs.iter().filter(|other| other.traits.sampler.kind() == sampler.kind());
    let mut strengths: Vec<f64> =
        alike.filter_map(|other| other.traits.sampler.strength()).collect();
    strengths.sort_by(f64::total_cmp);
    strengths.dedup();
    let place = strengths.iter().position(|known| *known == strength).unwrap_or_default();
    let colours = if sampler.kind() == "noise" { BLUES } else { REDS };
    PointInfo {
        label: sampler.strength_label(),
        colour: ramp(colours, place, strengths.len()),
        symbol: if correct { Symbol::Diamond } else { Symbol::Cross },
        tooltip: format!(
            "{}\ntrajectory {k}: {}",
            sampler.strength_label(),
            if correct { "right" } else { "wrong" }
        ),
    }
}

/// Points of one look together, the green star on top. The legend explains colours and signs apart:
/// its entries have no points, and the points no entries.
fn into_series(map: Vec<[f64; 2]>, origins: Vec<PointInfo>) -> Vec<Series> {
    if origins.is_empty() {
        return Vec::new();
    }
    let mut series: Vec<Series> = Vec::new();
    let mut entry = |label: &str, colour: Colour, symbol: Symbol| {
        if series.iter().all(|known| known.label != label) {
            series.push(Series {
                label: label.into(),
                style: SeriesStyle::points_only(colour, symbol),
                points: Vec::new(),
            });
        }
    };
    let (fixed, perturbed): (Vec<&PointInfo>, Vec<&PointInfo>) =
        origins.iter().partition(|origin| origin.symbol == Symbol::Star);
    for origin in perturbed.into_iter().chain(fixed) {
        let symbol = if origin.symbol == Symbol::Star { Symbol::Star } else { Symbol::Circle };
        entry(&origin.label, origin.colour, symbol);
    }
    entry("right", GREY, Symbol::Diamond);
    entry("wrong", GREY, Symbol::Cross);
    let mut marks: Vec<Series> = Vec::new();
    for ([x, y], origin) in map.into_iter().zip(origins) {
        let radius = if origin.symbol == Symbol::Star { 5.5 } else { 3.2 };
        let look = SeriesStyle { radius, ..SeriesStyle::points_only(origin.colour, origin.symbol) };
        let point = DataPoint { x, y, interval: None, tooltip: origin.tooltip };
        match marks.iter_mut().find(|known| known.style == look) {
            Some(known) => known.points.push(point),
            None => marks.push(Series { label: String::new(), style: look, points: vec![point] }),
        }
    }
    marks.sort_by_key(|series| series.style.symbol == Symbol::Star);
    series.extend(marks);
    series
}
