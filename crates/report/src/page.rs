//! The HTML page: summary, table of runs, figures, and a browser for single questions.
//!
//! The page is one file with styles, scripts and data; its content security policy forbids all
//! requests. Figures are inline SVG. `assets/tooltips.js` shows tooltips, `assets/question.js`
//! draws a question, and `assets/page.js` is the browser for the questions of [`data`]. The page of
//! trainings ([`training`]) has figures but no questions.

mod data;
mod headline;
pub mod training;

use record::MetricName;

use crate::ablation::{self, AblationRow};
use crate::draw::{escape, inline, legend_key, panel};
use crate::error::ReportError;
use crate::figures::Figure;
use crate::interval::Interval;
use crate::rules;
use crate::run_data::RunData;
use crate::table::gflop;
use crate::write::BestRun;

/// Assets shared with other pages that show questions, such as the server's: styles and independent
/// scripts.
pub mod assets {
    /// Style sheet with light and dark colors.
    pub const STYLE: &str = include_str!("../assets/page.css");
    /// DOM helpers, tooltips and sortable tables.
    pub const TOOLTIPS: &str = include_str!("../assets/tooltips.js");
    /// The votes, rewards and thoughts of one question; needs the tooltips.
    pub const QUESTION: &str = include_str!("../assets/question.js");
}

use assets::{QUESTION, STYLE, TOOLTIPS};

/// Script for the values of figures and their export.
const FIGURES: &str = include_str!("../assets/figures.js");
const SCRIPT: &str = include_str!("../assets/page.js");
const BROWSER: &str = include_str!("../assets/browser.html");
/// Forbids all requests.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// The HTML of the page.
pub fn html(
    runs: &[RunData],
    figures: &[Figure],
    best_run: Option<&BestRun>,
) -> Result<String, ReportError> {
    let title = match runs {
        [one] => format!("{} on {}", one.traits.model, one.traits.split),
        many => format!("{} runs compared", many.len()),
    };
    let sections = [
        ("figures", "Figures"),
        ("summary", "Runs"),
        ("browser", "Questions"),
        ("settings", "Settings"),
    ];
    let body = format!(
        "{}<main>\n{}{}{}{BROWSER}{}</main>\n\
         <script id=\"data\" type=\"application/json\">{}</script>\n",
        header(&title, &sections, &headline::html(runs, best_run)),
        figure_grid(figures),
        summary(runs),
        ablations(runs),
        provenance(runs),
        data::json(runs)?
    );
    Ok(document(&title, &body, &[QUESTION, SCRIPT].concat()))
}

/// The page's title, links to its sections, and its summary.
fn header(title: &str, sections: &[(&str, &str)], headline: &str) -> String {
    let links: String = sections
        .iter()
        .map(|(id, name): &(&str, &str)| format!("<a href=\"#{id}\">{name}</a>"))
        .collect();
    format!(
        "<header class=\"top\"><div class=\"bar\"><span class=\"brand\">latent-tts</span>\
         <nav aria-label=\"sections\">{links}</nav></div>\n<h1>{}</h1>\n{headline}</header>\n",
        escape(title)
    )
}

/// The figures in a grid. The width of a figure is its number of panels.
fn figure_grid(figures: &[Figure]) -> String {
    let sections: String = figures.iter().map(figure_section).collect();
    let data: Vec<serde_json::Value> = figures.iter().map(Figure::data_json).collect();
    // A label may contain "</script>"; in JSON strings `<` can be escaped.
    let data = serde_json::Value::from(data).to_string().replace('<', "\\u003c");
    format!(
        "<div id=\"figures\" class=\"figures\">\n{sections}</div>\n\
         <script id=\"figure-data\" type=\"application/json\">{data}</script>\n"
    )
}

/// A page with this body, the shared scripts and an additional script.
fn document(title: &str, body: &str, script: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{title} – latent-tts</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n{body}<script>\n{TOOLTIPS}{FIGURES}{script}</script>\n</body>\n</html>\n",
        title = escape(title)
    )
}

/// A table of all runs with every rule at k = N.
fn summary(runs: &[RunData]) -> String {
    let shown: Vec<MetricName> = rules::shown(&runs.iter().collect::<Vec<_>>())
        .into_iter()
        .filter(|name| runs.iter().any(|run| !run.curve(*name).is_empty()))
        .collect();
    let heads: String = shown
        .iter()
        .map(|name| format!("<th>{}</th>", escape(&rules::display_name(*name))))
        .collect();
    let rows: String = runs.iter().map(|run| summary_row(run, &shown)).collect();
    format!(
        "<section id=\"summary\">\n<h2>Runs</h2>\n<div class=\"wide\"><table class=\"sortable\">\n\
         <thead><tr><th>run</th><th>N</th>{heads}<th>diversity</th><th>GFLOP per question</th>\
         <th>seconds per question</th><th>questions</th><th>seeds</th></tr></thead>\n\
         <tbody>\n{rows}</tbody></table></div>\n\
         <p class=\"caption\">Accuracy in % with all N trajectories and its 95% confidence interval \
         over questions. Coverage: at least one of the N trajectories is correct, an upper bound \
         for every rule. Diversity: mean cosine dissimilarity of thoughts, 0 = identical.</p>\n\
         </section>\n"
    )
}

fn summary_row(run: &RunData, shown: &[MetricName]) -> String {
    let cell = |interval: Option<Interval>, unit: f64, digits: usize| match interval {
        None => "<td>–</td>".to_owned(),
        Some(Interval { value, low, high }) => {
            let show = |x: f64| format!("{:.digits$}", unit * x);
            format!("<td>{}<small>{}–{}</small></td>", show(value), show(low), show(high))
        }
    };
    // Greedy is measured at k = 1, beam search at its beam size, other metrics at k = N.
    let last = |name: MetricName| run.curve(name).pop().map(|(_, interval)| interval);
    let cells: String = shown.iter().map(|name| cell(last(*name), 100.0, 1)).collect();
    let results = &run.results;
    format!(
        "<tr><th>{}</th><td>{}</td>{cells}{}<td>{}</td><td>{:.3}</td><td>{}</td>\
         <td>{}</td></tr>\n",
        escape(&run.label),
        run.traits.n,
        cell(last(MetricName::Diversity), 1.0, 3),
        gflop(results.cost.flops),
        run.seconds(),
        results.questions,
        results.seeds
    )
}

/// A table of the accuracy with replaced thoughts, for all runs with an ablation.
fn ablations(runs: &[RunData]) -> String {
    // The name of a run is in its first row; a single run needs no name.
    let named = |name: &str| match runs {
        [_] => String::new(),
        _ => format!("<th>{}</th>", escape(name)),
    };
    let row = |name: &str, row: &AblationRow| {
        format!(
            "<tr>{}<th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            named(name),
            row.name,
            row.accuracy,
            row.difference,
            row.changed,
            row.meaning
        )
    };
    let rows_of = |run: &RunData| {
        let rows = ablation::rows(run.ablation.as_ref()?);
        let names = std::iter::once(run.label.as_str()).chain(std::iter::repeat(""));
        Some(rows.iter().zip(names).map(|(one, name)| row(name, one)).collect::<String>())
    };
    let body: String = runs.iter().filter_map(rows_of).collect();
    if body.is_empty() {
        return body;
    }
    format!(
        "<section id=\"ablation\">\n<h2>Accuracy with replaced thoughts</h2>\n\
         <div class=\"wide\"><table>\n<thead><tr>{}<th>thoughts</th><th>accuracy</th>\
         <th>difference from greedy</th><th>changed answers</th><th>input</th></tr></thead>\n\
         <tbody>\n{body}</tbody></table></div>\n\
         <p class=\"caption\">Accuracy in % of greedy decoding with replaced thoughts, with 95% \
         confidence intervals; differences from unmodified greedy decoding are paired by question. \
         A reasoner that uses its thoughts loses accuracy with those of another question.</p>\n\
         </section>\n",
        named("run")
    )
}

fn figure_section(figure: &Figure) -> String {
    let panels: String = figure
        .panels
        .iter()
        .map(|one| format!("<div class=\"panel\">{}</div>\n", inline(&panel(one))))
        .collect();
    let key = |series: &&crate::figures::Series| {
        format!("<li>{}{}</li>\n", inline(&legend_key(&series.style)), escape(&series.label))
    };
    let keys: String = figure.legend_series().iter().map(key).collect();
    format!(
        "<section class=\"figure\" id=\"{}\" style=\"--panels:{}\">\n<h2>{}</h2>\n\
         <div class=\"plot\">\n<div class=\"panels\">\n{panels}</div>\n\
         <div class=\"words\"><ul class=\"legend\">\n{keys}</ul>\n\
         <p class=\"caption\">{}</p></div>\n</div>\n</section>\n",
        figure.name,
        figure.panels.len(),
        escape(&figure.title),
        escape(&figure.caption)
    )
}

/// Settings and host of each run.
fn provenance(runs: &[RunData]) -> String {
    let section = |run: &RunData| {
        let manifest = run.dir.manifest();
        let settings = serde_json::to_string_pretty(&manifest.settings).unwrap_or_default();
        let host = serde_json::to_string_pretty(&manifest.host).unwrap_or_default();
        let created = &manifest.created;
        let commit = manifest.commit.as_deref().unwrap_or("unknown");
        let text = format!(
            "{}\nstarted {created}\n{} (commit {commit})\nsettings {settings}\nhost {host}",
            run.dir.path().display(),
            manifest.program
        );
        format!("<h3>{}</h3>\n<pre>{}</pre>\n", escape(&run.label), escape(&text))
    };
    let all: String = runs.iter().map(section).collect();
    format!(
        "<section id=\"settings\">\n<details><summary>Settings and machines of these runs</summary>\n\
         {all}</details>\n</section>\n"
    )
}
