//! A map of the thoughts about an easy and a hard question (the paper's figure 5), where thoughts were kept.

use super::figure::{Axis, BLUES, Figure, GREEN, Look, Panel, Point, REDS, Scale, Series, ramp};
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
        let Some((easy, hard)) = questions(&kept) else { continue };
        for (word, (id, share)) in [("easy", easy), ("hard", hard)] {
            let series = series(&kept, id)?;
            let title = format!("{}: {word}, {:.0}% right (question {id})", title(model, split, studies), 100.0 * share);
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
                  the largest share of right trajectories, and with the smallest that is not zero."
            .into(),
        panels,
    }))
}

/// The easiest question and the hardest that is ever answered, with their shares of right trajectories.
fn questions(runs: &[&Study]) -> Option<((u32, f64), (u32, f64))> {
    let first = runs.first()?;
    let share = |id: u32| {
        let briefs = runs.iter().map(|run| run.briefs.iter().find(|brief| brief.id == id));
        let shares: Option<Vec<f64>> = briefs.map(|brief| brief.map(|brief| brief.share_correct())).collect();
        shares.map(|shares| shares.iter().sum::<f64>() / shares.len() as f64)
    };
    let known = first.briefs.iter().filter_map(|brief| Some((brief.id, share(brief.id)?)));
    let known: Vec<(u32, f64)> = known.filter(|(_, share)| *share > 0.0).collect();
    let order = |a: &&(u32, f64), b: &&(u32, f64)| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0));
    Some((*known.iter().max_by(order)?, *known.iter().min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)))?))
}

/// What is known of a point before it has a place.
struct Origin {
    label: String,
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
    let label = "no perturbation".to_owned();
    Origin { tip: label.clone(), label, colour: GREEN, symbol: Symbol::Star }
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
    let word = if correct { "right" } else { "wrong" };
    Origin {
        label: format!("{}, {word}", sampler.setting()),
        colour: ramp(colours, place, strengths.len()),
        symbol: if correct { Symbol::Diamond } else { Symbol::Cross },
        tip: format!("{}\ntrajectory {k}: {word}", sampler.setting()),
    }
}

/// Points of one origin together, the green star on top.
fn placed(map: Vec<[f64; 2]>, origins: Vec<Origin>) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for ([x, y], origin) in map.into_iter().zip(origins) {
        let point = Point { x, y, interval: None, tip: origin.tip };
        match series.iter_mut().find(|known| known.label == origin.label) {
            Some(known) => known.points.push(point),
            None => {
                let look = Look {
                    radius: if origin.symbol == Symbol::Star { 5.5 } else { 3.2 },
                    ..Look::dots(origin.colour, origin.symbol)
                };
                series.push(Series { label: origin.label, look, points: vec![point] });
            }
        }
    }
    series.sort_by_key(|series| series.look.symbol == Symbol::Star);
    series
}
