//! The page of trainings: summary sentences, table, figures, settings.

use serde_json::Value;

use super::{document, figure_grid, header, headline};
use crate::draw::escape;
use crate::figures::{Figure, percent};
use crate::training_data::{TrainingData, score_interval, smooth};

/// The HTML of the page.
pub fn html(trainings: &[TrainingData], figures: &[Figure]) -> String {
    let title = match trainings {
        [one] => format!("Training of {}", one.label),
        many => format!("{} trainings compared", many.len()),
    };
    let lead: String = trainings.iter().map(|training| lead(training, trainings.len())).collect();
    let sections = [("figures", "Figures"), ("summary", "Trainings"), ("settings", "Settings")];
    let body = format!(
        "{}<main>\n{}{}{}{}</main>\n",
        header(&title, &sections, &format!("{}{lead}", tiles(trainings))),
        figure_grid(figures),
        summary(trainings),
        differences(trainings),
        settings(trainings)
    );
    document(&title, &body, "")
}

/// Tiles with the main numbers of a single training; several trainings are in the table.
fn tiles(trainings: &[TrainingData]) -> String {
    let [training] = trainings else { return String::new() };
    let mut tiles = headline::tile("steps", &training.steps.len().to_string(), "");
    if let Some((_, loss)) = smooth(&training.curve(|record| record.losses.get("loss"))).pop() {
        tiles.push_str(&headline::tile("last loss", &format!("{loss:.4}"), "moving average"));
    }
    if let Some(kept) = training.kept() {
        let below = format!("after {} steps", kept.step);
        let value = match score_interval(kept) {
            Some(interval) => percent(interval.value),
            None => format!("{:.4}", kept.score),
        };
        tiles.push_str(&headline::tile("held-out, kept model", &value, &below));
    }
    format!("<div class=\"tiles\">\n{tiles}</div>\n")
}

/// A summary of a training in a few sentences.
fn lead(training: &TrainingData, count: usize) -> String {
    let which = if count > 1 { format!("{}: ", training.label) } else { String::new() };
    let mut text = format!("{which}{} steps. ", training.steps.len());
    let losses = smooth(&training.curve(|record| record.losses.get("loss")));
    let is_rewarded = training.loss_names().contains(&"reward");
    if let (false, Some((_, first)), Some((_, last))) = (is_rewarded, losses.first(), losses.last())
    {
        text.push_str(&format!("The loss went from {first:.3} to {last:.3}. "));
    }
    let rewards = smooth(&training.curve(|record| record.losses.get("reward")));
    if let (Some((_, first)), Some((_, last))) = (rewards.first(), rewards.last()) {
        text.push_str(&format!("The mean reward went from {first:.3} to {last:.3}. "));
    }
    if let (Some(kept), Some(last)) = (training.kept(), training.evals.last()) {
        text.push_str(&format!("The kept model is from step {}", kept.step));
        text.push_str(&match score_interval(kept) {
            Some(_) if kept.step == last.step => {
                format!(": it answers {} of held-out problems correctly.", percent(kept.score))
            }
            Some(_) => format!(
                ": it answers {} of held-out problems correctly, the last model {}.",
                percent(kept.score),
                percent(last.score)
            ),
            None => format!("; its held-out score is {:.4}.", kept.score),
        });
    }
    format!("<p class=\"lead\">{}</p>\n", escape(text.trim()))
}

fn summary(trainings: &[TrainingData]) -> String {
    let rows: String = trainings.iter().map(summary_row).collect();
    format!(
        "<section id=\"summary\">\n<h2>Trainings</h2>\n<div class=\"wide\"><table class=\"sortable\">\n\
         <thead><tr><th>training</th><th>steps</th><th>last loss</th><th>held-out, kept model</th>\
         <th>kept at step</th><th>held-out, last model</th><th>steps/s</th><th>examples/s</th>\
         <th>tokens/s</th></tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n\
         <p class=\"caption\">The last loss is a moving average over 2% of the steps. Held-out \
         accuracy in % with its 95% confidence interval (Wilson). Rates exclude evaluations.</p>\n\
         </section>\n"
    )
}

fn summary_row(training: &TrainingData) -> String {
    let none = || "<td>–</td>".to_owned();
    let score = |eval: Option<&record::EvalRecord>| match eval {
        None => none(),
        Some(eval) => match score_interval(eval) {
            None => format!("<td>{:.4}</td>", eval.score),
            Some(interval) => format!(
                "<td>{:.1}<small>{:.1}–{:.1}</small></td>",
                100.0 * interval.value,
                100.0 * interval.low,
                100.0 * interval.high
            ),
        },
    };
    let loss = smooth(&training.curve(|record| record.losses.get("loss"))).pop();
    let (seconds, timed) = training.seconds;
    let per_step = |count: f64| count / training.steps.len() as f64;
    let rate = |count: f64| match count > 0.0 && seconds > 0.0 {
        true => format!("<td>{:.1}</td>", per_step(count) * timed as f64 / seconds),
        false => none(),
    };
    let total = |count: fn(&record::StepRecord) -> Option<u64>| {
        training.steps.iter().filter_map(count).sum::<u64>() as f64
    };
    format!(
        "<tr><th>{}</th><td>{}</td>{}{}{}{}{}{}{}</tr>\n",
        escape(&training.label),
        training.steps.len(),
        loss.map_or_else(none, |(_, loss)| format!("<td>{loss:.4}</td>")),
        score(training.kept()),
        training.kept().map_or_else(none, |kept| format!("<td>{}</td>", kept.step)),
        score(training.evals.last()),
        rate(training.steps.len() as f64),
        rate(total(|record| record.examples)),
        rate(total(|record| record.tokens))
    )
}

/// A table of the settings in which trainings differ; empty for a single training.
fn differences(trainings: &[TrainingData]) -> String {
    let mut names: Vec<&String> = Vec::new();
    for name in trainings.iter().filter_map(|t| t.settings.as_object()).flat_map(|s| s.keys()) {
        let differs = trainings.iter().any(|t| t.settings[name] != trainings[0].settings[name]);
        if differs && !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return String::new();
    }
    let heads: String =
        trainings.iter().map(|training| format!("<th>{}</th>", escape(&training.label))).collect();
    let cell = |training: &TrainingData, name: &str| match &training.settings[name] {
        Value::Null => "<td>–</td>".to_owned(),
        Value::String(text) => format!("<td>{}</td>", escape(text)),
        value => format!("<td>{}</td>", escape(&value.to_string())),
    };
    let row = |name: &&String| {
        let cells: String = trainings.iter().map(|training| cell(training, name)).collect();
        format!("<tr><th>{}</th>{cells}</tr>\n", escape(name))
    };
    let rows: String = names.iter().map(row).collect();
    format!(
        "<section id=\"differences\">\n<h2>Settings that differ</h2>\n<div class=\"wide\"><table>\n\
         <thead><tr><th>setting</th>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n\
         </section>\n"
    )
}

/// All settings of each training.
fn settings(trainings: &[TrainingData]) -> String {
    let section = |training: &TrainingData| {
        let settings = serde_json::to_string_pretty(&training.settings).unwrap_or_default();
        let text = format!("{}\nsettings {settings}", training.dir.display());
        format!("<h3>{}</h3>\n<pre>{}</pre>\n", escape(&training.label), escape(&text))
    };
    let all: String = trainings.iter().map(section).collect();
    format!(
        "<section id=\"settings\">\n<details><summary>All settings</summary>\n{all}</details>\n</section>\n"
    )
}
