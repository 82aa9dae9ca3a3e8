//! A map of the thoughts about an easy and a hard question (the paper's figure 5), where thoughts were kept.

use super::figure::{Axis, BLUES, Figure, GREEN, GREY, Look, Panel, Point, REDS, Scale, Series, ramp};
use super::{groups, title};
use crate::draw::scene::{Colour, Symbol};
use crate::error::Error;
use crate::study::Study;
use crate::tsne::tsne;

/// Points on a map at most; the exact method takes time with their square.
const POINTS: usize = 900;

/// The figure; none where no run kept its thoughts.
pub fn figure(studies: &[Study]) -> Result<Option<Figure>, Error> {
    let mut panels = Vec::new();
    for ((model, split), members) in groups(studies, |s| (s.traits.model.as_str(), s.traits.split.as_str())) {
        let kept: Vec<&Study> = members.into_iter().filter(|run| run.latents.is_some()).collect();
        let kept = ordered(kept);
        let Some((easy, hard)) = questions(&kept) else { continue };
        let alone = studies.iter().all(|s| s.traits.model == model && s.traits.split == split);
        let which = if alone { String::new() } else { format!("{}: ", title(model, split, studies)) };
        for (word, (id, share)) in [("easy", easy), ("hard", hard)] {
            let series = series(&kept, id)?;
            let title = format!("{which}{word} question {id}, {:.0}% right", 100.0 * share);
            let axis = |label| Axis::new(label, Scale::Unnamed);
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
fn ordered(mut runs: Vec<&Study>) -> Vec<&Study> {
    runs.sort_by(|a, b| {
        let (a, b) = (&a.traits.sampler, &b.traits.sampler);
        a.kind().cmp(b.kind()).then(a.strength().unwrap_or_default().total_cmp(&b.strength().unwrap_or_default()))
    });
    runs
}

/// An easy and a hard question with their shares of right trajectories: those nearest to always and to never among the ones
/// that show both, or among all where there is none.
fn questions(runs: &[&Study]) -> Option<((u32, f64), (u32, f64))> {
    let first = runs.first()?;
    let share = |id: u32| {
        let briefs = runs.iter().map(|run| run.briefs.iter().find(|brief| brief.id == id));
        let shares: Option<Vec<f64>> = briefs.map(|brief| brief.map(|brief| brief.share_correct())).collect();
        shares.map(|shares| shares.iter().sum::<f64>() / shares.len() as f64)
    };
    let mut known: Vec<(u32, f64)> = first.briefs.iter().filter_map(|brief| Some((brief.id, share(brief.id)?))).collect();
    known.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let mixed: Vec<(u32, f64)> = known.iter().copied().filter(|(_, share)| (0.05..=0.95).contains(share)).collect();
    let known = if mixed.is_empty() { known } else { mixed };
    Some((*known.last()?, *known.first()?))
}

/// What is known of a point before it has a place.
#[derive(Clone, PartialEq)]
struct Origin {
    /// Its sampler's strength, or that it has none.
    setting: String,
    colour: Colour,
    symbol: Symbol,
    tip: String,
}

fn series(runs: &[&Study], id: u32) -> Result<Vec<Series>, Error> {
    let (mut numbers, mut origins, mut width) = (Vec::new(), Vec::new(), None);
    let most = (POINTS / runs.len()).max(1);
    for run in runs {
        let seed = run.run.manifest().seeds.first().copied().unwrap_or_default();
        let (Some(latents), Some(brief)) = (&run.latents, run.briefs.iter().find(|brief| brief.id == id)) else { continue };
        let Some(thoughts) = latents.of(seed, id)? else { continue };
        // Runs of another width are of another model under the same name.
        if *width.get_or_insert(thoughts.width) != thoughts.width {
            continue;
        }
        let mut end = 0;
        for (k, &count) in brief.thoughts.iter().enumerate().take(most) {
            end += count as usize;
            if count > 0 && end <= thoughts.rows() {
                numbers.extend_from_slice(thoughts.row(end - 1));
                origins.push(origin(runs, run, brief.is_correct(k), k));
            }
        }
        let greedy = latents.of_greedy(seed, id)?.filter(|thoughts| thoughts.rows() > 0 && Some(thoughts.width) == width);
        if let (Some(greedy), false) = (greedy, origins.iter().any(|o: &Origin| o.symbol == Symbol::Star)) {
            numbers.extend_from_slice(greedy.row(greedy.rows() - 1));
            origins.push(unperturbed());
        }
    }
    Ok(placed(tsne(&numbers, width.unwrap_or_default()), origins))
}

fn unperturbed() -> Origin {
    let setting = "no perturbation".to_owned();
    Origin { tip: setting.clone(), setting, colour: GREEN, symbol: Symbol::Star }
}

fn origin(runs: &[&Study], run: &Study, correct: bool, k: usize) -> Origin {
    let sampler = &run.traits.sampler;
    let Some(strength) = sampler.strength() else { return unperturbed() };
    let alike = runs.iter().filter(|other| other.traits.sampler.kind() == sampler.kind());
    let mut strengths: Vec<f64> = alike.filter_map(|other| other.traits.sampler.strength()).collect();
    strengths.sort_by(f64::total_cmp);
    strengths.dedup();
    let place = strengths.iter().position(|known| *known == strength).unwrap_or_default();
    let colours = if sampler.kind() == "noise" { BLUES } else { REDS };
    Origin {
        setting: sampler.setting(),
        colour: ramp(colours, place, strengths.len()),
        symbol: if correct { Symbol::Diamond } else { Symbol::Cross },
        tip: format!("{}\ntrajectory {k}: {}", sampler.setting(), if correct { "right" } else { "wrong" }),
    }
}

/// Points of one look together, the green star on top. The legend explains colours and signs apart: its entries have no points,
/// and the points no entries.
fn placed(map: Vec<[f64; 2]>, origins: Vec<Origin>) -> Vec<Series> {
    if origins.is_empty() {
        return Vec::new();
    }
    let mut series: Vec<Series> = Vec::new();
    let mut entry = |label: &str, colour: Colour, symbol: Symbol| {
        if series.iter().all(|known| known.label != label) {
            series.push(Series { label: label.into(), look: Look::dots(colour, symbol), points: Vec::new() });
        }
    };
    let (fixed, perturbed): (Vec<&Origin>, Vec<&Origin>) = origins.iter().partition(|origin| origin.symbol == Symbol::Star);
    for origin in perturbed.into_iter().chain(fixed) {
        let symbol = if origin.symbol == Symbol::Star { Symbol::Star } else { Symbol::Circle };
        entry(&origin.setting, origin.colour, symbol);
    }
    entry("right", GREY, Symbol::Diamond);
    entry("wrong", GREY, Symbol::Cross);
    let mut marks: Vec<Series> = Vec::new();
    for ([x, y], origin) in map.into_iter().zip(origins) {
        let radius = if origin.symbol == Symbol::Star { 5.5 } else { 3.2 };
        let look = Look { radius, ..Look::dots(origin.colour, origin.symbol) };
        let point = Point { x, y, interval: None, tip: origin.tip };
        match marks.iter_mut().find(|known| known.look == look) {
            Some(known) => known.points.push(point),
            None => marks.push(Series { label: String::new(), look, points: vec![point] }),
        }
    }
    marks.sort_by_key(|series| series.look.symbol == Symbol::Star);
    series.extend(marks);
    series
}
