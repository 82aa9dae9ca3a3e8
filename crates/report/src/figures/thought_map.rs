//! A map of the last thoughts of an easy and a hard question (the paper's figure 5): t-SNE, or
//! principal components if there are few points.

use super::figure::{
    AxisScale, BLUES, DataPoint, Figure, FigureAxis, GREEN, GREY, Panel, REDS, Series, SeriesStyle,
    ramp,
};
use super::{group_by, pair_title};
use crate::draw::drawing::{Colour, Symbol};
use crate::error::ReportError;
use crate::run_data::RunData;
use crate::tsne::{Embedding, embed};

/// Maximum number of points: exact t-SNE takes quadratic time.
const MAX_POINTS: usize = 900;

/// End of the caption, after the sentences on each embedding.
const CAPTION: &str = "\
    Diamonds: correct answers; crosses: wrong answers. Red: dropout; blue: noise; darker is \
    stronger. Green star: the thought without perturbation, if it was recorded. Easy and hard: the \
    questions with the largest fraction of correct trajectories up to 95%, and the smallest from 5%.";

/// Start of the caption: how the points were projected.
fn placement(embedding: Embedding) -> String {
    let place = match embedding {
        Embedding::Pca => "onto the principal components of these points".to_owned(),
        Embedding::Tsne { perplexity } => {
            format!("by t-SNE (perplexity {perplexity:.0}, initialized with principal components)")
        }
    };
    format!("Each point is the last thought of one trajectory, projected {place}.")
}

/// The labels of the two axes.
fn axis_labels(embedding: Embedding) -> [&'static str; 2] {
    match embedding {
        Embedding::Pca => ["principal component 1", "principal component 2"],
        Embedding::Tsne { .. } => ["t-SNE 1", "t-SNE 2"],
    }
}

/// `None` if no run kept its thoughts.
pub fn figure(runs: &[RunData]) -> Result<Option<Figure>, ReportError> {
    let mut panels = Vec::new();
    let mut placements: Vec<String> = Vec::new();
    for ((model, split), members) in
        group_by(runs, |s| (s.traits.model.as_str(), s.traits.split.as_str()))
    {
        let kept: Vec<&RunData> = members.into_iter().filter(|run| run.latents.is_some()).collect();
        let kept = sorted_by_sampler(kept);
        let Some((easy, hard)) = easy_and_hard(&kept) else { continue };
        let single = runs.iter().all(|s| s.traits.model == model && s.traits.split == split);
        let which =
            if single { String::new() } else { format!("{}: ", pair_title(model, split, runs)) };
        // The same question may be both.
        let questions = match easy.0 == hard.0 {
            true => vec![("", easy)],
            false => vec![("easy ", easy), ("hard ", hard)],
        };
        for (word, (id, share)) in questions {
            let (series, embedding) = series(&kept, id)?;
            if series.is_empty() {
                continue;
            }
            let title = format!("{which}{word}question {id}, {:.0}% correct", 100.0 * share);
            let [x, y] =
                axis_labels(embedding).map(|label| FigureAxis::new(label, AxisScale::Unlabelled));
            panels.push(Panel { title, x, y, series });
            if !placements.contains(&placement(embedding)) {
                placements.push(placement(embedding));
            }
        }
    }
    Ok((!panels.is_empty()).then(|| Figure {
        name: "thoughts",
        title: "Map of the thoughts of an easy and a hard question".into(),
        caption: format!("{} {CAPTION}", placements.join(" ")),
        panels,
    }))
}

/// Sorts by kind of sampler, then from weak to strong, the order of the legend.
fn sorted_by_sampler(mut runs: Vec<&RunData>) -> Vec<&RunData> {
    runs.sort_by(|a, b| {
        let a = &a.traits.sampler;
        let b = &b.traits.sampler;
        a.kind()
            .cmp(b.kind())
            .then(a.strength().unwrap_or_default().total_cmp(&b.strength().unwrap_or_default()))
    });
    runs
}

/// The ids of an easy and a hard question with their fractions of correct trajectories: the largest
/// and the smallest fraction from 5% to 95%, or of all questions if none is in that range.
fn easy_and_hard(runs: &[&RunData]) -> Option<((u32, f64), (u32, f64))> {
    let first = runs.first()?;
    let share = |id: u32| {
        let questions =
            runs.iter().map(|run| run.questions.iter().find(|question| question.id == id));
        let shares: Option<Vec<f64>> =
            questions.map(|question| question.map(|question| question.share_correct())).collect();
        shares.map(|shares| shares.iter().sum::<f64>() / shares.len() as f64)
    };
    let mut known: Vec<(u32, f64)> = first
        .questions
        .iter()
        .filter_map(|question| Some((question.id, share(question.id)?)))
        .collect();
    known.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let mixed: Vec<(u32, f64)> =
        known.iter().copied().filter(|(_, share)| (0.05..=0.95).contains(share)).collect();
    let known = if mixed.is_empty() { known } else { mixed };
    Some((*known.last()?, *known.first()?))
}

/// A point, before its embedding is computed.
#[derive(Clone, PartialEq)]
struct PointInfo {
    /// The label in the legend: the strength of the sampler.
    label: String,
    colour: Colour,
    symbol: Symbol,
    tooltip: String,
}

fn series(runs: &[&RunData], id: u32) -> Result<(Vec<Series>, Embedding), ReportError> {
    let mut values = Vec::new();
    let mut points = Vec::new();
    let mut width = None;
    let most = (MAX_POINTS / runs.len()).max(1);
    for run in runs {
        let seed = run.dir.manifest().seeds.first().copied().unwrap_or_default();
        let (Some(latents), Some(question)) =
            (&run.latents, run.questions.iter().find(|question| question.id == id))
        else {
            continue;
        };
        let Some(thoughts) = latents.read_sampled(seed, id)? else { continue };
        // A run with another width belongs to another model of the same name.
        if *width.get_or_insert(thoughts.width) != thoughts.width {
            continue;
        }
        let mut end = 0;
        for (k, &count) in question.thought_counts.iter().enumerate().take(most) {
            end += count as usize;
            if count > 0 && end <= thoughts.rows() {
                values.extend_from_slice(thoughts.row(end - 1));
                points.push(point_info(runs, run, question.is_correct(k), k));
            }
        }
        let greedy = latents
            .read_greedy(seed, id)?
            .filter(|thoughts| thoughts.rows() > 0 && Some(thoughts.width) == width);
        if let (Some(greedy), false) =
            (greedy, points.iter().any(|p: &PointInfo| p.symbol == Symbol::Star))
        {
            values.extend_from_slice(greedy.row(greedy.rows() - 1));
            points.push(unperturbed_point());
        }
    }
    let (positions, embedding) = embed(&values, width.unwrap_or_default());
    Ok((into_series(positions, points), embedding))
}

fn unperturbed_point() -> PointInfo {
    let label = "no perturbation".to_owned();
    PointInfo { tooltip: label.clone(), label, colour: GREEN, symbol: Symbol::Star }
}

fn point_info(runs: &[&RunData], run: &RunData, correct: bool, k: usize) -> PointInfo {
    let sampler = &run.traits.sampler;
    let Some(strength) = sampler.strength() else { return unperturbed_point() };
    let alike = runs.iter().filter(|other| other.traits.sampler.kind() == sampler.kind());
    let mut strengths: Vec<f64> =
        alike.filter_map(|other| other.traits.sampler.strength()).collect();
    strengths.sort_by(f64::total_cmp);
    strengths.dedup();
    let index = strengths.iter().position(|known| *known == strength).unwrap_or_default();
    let colours = if sampler.kind() == "noise" { BLUES } else { REDS };
    PointInfo {
        label: sampler.strength_label(),
        colour: ramp(colours, index, strengths.len()),
        symbol: if correct { Symbol::Diamond } else { Symbol::Cross },
        tooltip: format!(
            "{}\ntrajectory {k}: {}",
            sampler.strength_label(),
            if correct { "right" } else { "wrong" }
        ),
    }
}

/// One unlabeled series per style, with the unperturbed point on top, and labeled series without
/// points for the legend, which explains colors and symbols separately.
fn into_series(positions: Vec<[f64; 2]>, points: Vec<PointInfo>) -> Vec<Series> {
    if points.is_empty() {
        return Vec::new();
    }
    let mut series: Vec<Series> = Vec::new();
    let mut add_to_legend = |label: &str, colour: Colour, symbol: Symbol| {
        if series.iter().all(|known| known.label != label) {
            series.push(Series {
                label: label.into(),
                style: SeriesStyle::points_only(colour, symbol),
                points: Vec::new(),
            });
        }
    };
    let (unperturbed, perturbed): (Vec<&PointInfo>, Vec<&PointInfo>) =
        points.iter().partition(|point| point.symbol == Symbol::Star);
    for point in perturbed.into_iter().chain(unperturbed) {
        let symbol = if point.symbol == Symbol::Star { Symbol::Star } else { Symbol::Circle };
        add_to_legend(&point.label, point.colour, symbol);
    }
    add_to_legend("right", GREY, Symbol::Diamond);
    add_to_legend("wrong", GREY, Symbol::Cross);
    let mut by_style: Vec<Series> = Vec::new();
    for ([x, y], info) in positions.into_iter().zip(points) {
        let radius = if info.symbol == Symbol::Star { 5.5 } else { 3.2 };
        let style = SeriesStyle { radius, ..SeriesStyle::points_only(info.colour, info.symbol) };
        let point = DataPoint { x, y, interval: None, tooltip: info.tooltip };
        match by_style.iter_mut().find(|known| known.style == style) {
            Some(known) => known.points.push(point),
            None => by_style.push(Series { label: String::new(), style, points: vec![point] }),
        }
    }
    by_style.sort_by_key(|series| series.style.symbol == Symbol::Star);
    series.extend(by_style);
    series
}
