//! The top of a report: tiles with the main numbers, and a summary in a few sentences.

use record::MetricName;

use crate::draw::escape;
use crate::figures::percent;
use crate::interval::{Bootstrap, Interval};
use crate::metrics::paired_difference;
use crate::rules;
use crate::run_data::RunData;
use crate::table::{count, gflop};
use crate::write::BestRun;

/// The metrics with a tile, if they were measured.
const TILES: [MetricName; 8] = [
    MetricName::Greedy,
    MetricName::MAJORITY,
    MetricName::WEIGHTED,
    MetricName::BEST_OF,
    MetricName::Beam,
    MetricName::Particles,
    MetricName::Dvts,
    MetricName::Coverage,
];

/// Tiles, summary, and the run that they describe.
pub fn html(runs: &[RunData], best_run: Option<&BestRun>) -> String {
    let best = runs.iter().reduce(|best, run| if run.is_better(best) { run } else { best });
    let Some(run) = best else { return String::new() };
    let selected = match (best_run, runs.len()) {
        (_, 1) => String::new(),
        (Some(best_run), _) => best_run_sentence(runs, best_run),
        (None, _) => largest_coverage_sentence(runs, run),
    };
    let note = match selected.as_str() {
        "" => String::new(),
        text => format!("<p class=\"note\">{}</p>\n", escape(text)),
    };
    format!(
        "<div class=\"tiles\">\n{}</div>\n<p class=\"lead\">{}</p>\n{note}",
        tiles(run),
        escape(&summary(run))
    )
}

/// Names the run with the largest coverage, if no best run was selected before.
fn largest_coverage_sentence(runs: &[RunData], run: &RunData) -> String {
    let ties = runs
        .iter()
        .filter(|other| !std::ptr::eq(*other, run) && other.coverage() == run.coverage());
    let ties: Vec<&str> = ties.map(|other| other.label.as_str()).collect();
    format!("The run with the largest coverage is {}{}.", run.label, tied_with(&ties))
}

/// Names the best run and the runs tied with it.
fn best_run_sentence(runs: &[RunData], best_run: &BestRun) -> String {
    let label = |index: usize| runs.get(index).map_or("", |run| run.label.as_str());
    let metric = rules::display_name(best_run.metric);
    let ties: Vec<&str> = best_run.ties.iter().map(|index| label(*index)).collect();
    format!(
        "The run with the largest {metric} of {} trajectories is {}{}.",
        best_run.k,
        label(best_run.index),
        tied_with(&ties)
    )
}

/// The runs tied with the best one, in parentheses.
fn tied_with(ties: &[&str]) -> String {
    match ties {
        [] => String::new(),
        ties => format!(" (tied with {}; ties are broken by majority)", ties.join("; ")),
    }
}

/// Whether voting helps, and the upper bound for all rules.
fn summary(run: &RunData) -> String {
    let n = run.traits.n;
    let questions = count(run.results.questions, "question");
    let share = |name| last(run, name).map(|interval| percent(interval.value));
    let mut text = match (share(MetricName::MAJORITY), share(MetricName::Greedy)) {
        (Some(majority), Some(_)) if n > 1 => format!(
            "Majority voting over {} answers {majority} of {questions} correctly{}",
            count(n, "trajectory"),
            difference_to_greedy(run, MetricName::MAJORITY)
        ),
        (_, Some(greedy)) => {
            format!("Greedy decoding answers {greedy} of {questions} correctly.")
        }
        (Some(majority), None) => {
            format!(
                "Majority voting over {} answers {majority} of {questions} correctly.",
                count(n, "trajectory")
            )
        }
        (None, None) => format!("{questions}."),
    };
    let rewarded = [MetricName::WEIGHTED, MetricName::BEST_OF];
    let rewarded: Vec<String> = rewarded
        .into_iter()
        .filter_map(|name| Some(format!("{} {}", rules::display_name(name), share(name)?)))
        .collect();
    if !rewarded.is_empty() {
        text.push_str(&format!(" With the reward model: {}.", rewarded.join(", ")));
    }
    if let Some(coverage) = share(MetricName::Coverage).filter(|_| n > 1) {
        text.push_str(&format!(
            " For {coverage}, at least one trajectory is correct: an upper bound for every rule."
        ));
    }
    text
}

/// The paired difference of a rule from greedy decoding, as the end of a sentence.
fn difference_to_greedy(run: &RunData, name: MetricName) -> String {
    let Some(Interval { value, low, high }) = paired_to_greedy(run, name) else {
        return ".".into();
    };
    let points = |x: f64| format!("{:+.1}", 100.0 * x);
    let interval = format!("95% CI {} to {}", points(low), points(high));
    let distance = format!("{:.1} points", 100.0 * value.abs());
    match (low > 0.0, high < 0.0) {
        (true, _) => format!(", {distance} more than greedy decoding ({interval})."),
        (_, true) => format!(", {distance} fewer than greedy decoding ({interval})."),
        _ => format!(
            "; the difference from greedy decoding, {} points, is within noise ({interval}).",
            points(value)
        ),
    }
}

fn paired_to_greedy(run: &RunData, name: MetricName) -> Option<Interval> {
    let k = run.curve(name).pop()?.0;
    let rule = run.columns.column(name, k)?;
    let greedy = run.columns.column(MetricName::Greedy, 1)?;
    paired_difference(rule, greedy, &Bootstrap::default())
}

/// A metric at its largest number of trajectories.
fn last(run: &RunData, name: MetricName) -> Option<Interval> {
    run.curve(name).pop().map(|(_, interval)| interval)
}

/// The main numbers of a run.
fn tiles(run: &RunData) -> String {
    let accuracy: String = TILES.into_iter().filter_map(|name| accuracy_tile(run, name)).collect();
    let cost = tile("GFLOP per question", &gflop(run.results.cost.flops), "all trajectories");
    let seconds = tile("seconds per question", &format!("{:.3}", run.seconds()), "throughput");
    let timed = if run.seconds() > 0.0 { seconds } else { String::new() };
    format!("{accuracy}{cost}{timed}")
}

fn accuracy_tile(run: &RunData, name: MetricName) -> Option<String> {
    let Interval { value, low, high } = last(run, name)?;
    let mut below = format!("CI {:.1}–{:.1}", 100.0 * low, 100.0 * high);
    if let Some(difference) = paired_to_greedy(run, name).filter(|_| name != MetricName::Greedy) {
        below.push_str(&format!("\n{:+.1} vs. greedy", 100.0 * difference.value));
    }
    let tile = tile(&rules::display_name(name), &percent(value), &below);
    let tip = " data-tip=\"with the 95% confidence interval over questions\"";
    Some(tile.replacen("class=\"tile\"", &format!("class=\"tile\"{tip}"), 1))
}

/// A large number with its label; the same HTML as `tile` in `question.js`.
pub fn tile(label: &str, value: &str, below: &str) -> String {
    format!(
        "<div class=\"tile\"><span class=\"label\">{}</span><span class=\"value\">{}</span>\
         <span class=\"below\">{}</span></div>\n",
        escape(label),
        escape(value),
        escape(below)
    )
}
