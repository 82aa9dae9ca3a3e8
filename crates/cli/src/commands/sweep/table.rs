//! The result of a sweep as a table with one line per point, and a conclusion.

use latent_tts::sweep::{RecommendedBand, SamplerSummary, SweepPointSummary, SweepSummary};
use serde_json::{Map, Value};

/// The table and the conclusion.
pub fn render(summary: &SweepSummary) -> String {
    let ks: Vec<&String> =
        summary.points.first().map_or_else(Vec::new, |point| point.coverage.keys().collect());
    let mut rows = vec![header(&ks)];
    rows.extend(summary.points.iter().map(|point| row(point, &ks, summary)));
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or_default())
        .collect();
    let line =
        |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(i, (cell, &width))| {
                if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
    let table: String = rows.iter().map(line).collect();
    format!(
        "coverage in %, diversity of thoughts; * best, ~ not told apart from it (paired 95% \
         interval)\n\n{table}\n{}",
        conclusion(summary)
    )
}

fn header(ks: &[&String]) -> Vec<String> {
    let coverage = ks.iter().map(|k| format!("coverage@{k}"));
    ["sampler".to_owned()]
        .into_iter()
        .chain(coverage)
        .chain(["95%", "majority", "diversity", ""].map(str::to_owned))
        .collect()
}

fn row(point: &SweepPointSummary, ks: &[&String], summary: &SweepSummary) -> Vec<String> {
    let last = ks.last().map(|k| k.as_str()).unwrap_or_default();
    let ends = |end: &str| percent(point.coverage.get(last), end);
    let mark = if point.run == summary.best {
        "*"
    } else if point.as_good_as_best {
        "~"
    } else {
        ""
    };
    let mut cells = vec![point_label(point)];
    cells.extend(ks.iter().map(|k| percent(point.coverage.get(k.as_str()), "value")));
    cells.push(format!("{}-{}", ends("low"), ends("high")));
    cells.push(percent(point.majority.get(last), "value"));
    cells.push(point.diversity["value"].as_f64().map_or_else(|| "-".into(), |d| format!("{d:.3}")));
    cells.push(mark.into());
    cells
}

fn point_label(point: &SweepPointSummary) -> String {
    let text = |key: &str| point.sampler[key].as_str().unwrap_or_default();
    match text("kind") {
        "noise" => format!("noise sigma={}", point.strength),
        "gumbel" => format!("gumbel tau={}", point.strength),
        "dropout" => {
            let [sites, scope, mask] = ["sites", "scope", "mask"].map(text);
            format!("dropout p={} {sites} {scope} {mask}", point.strength).trim_end().to_owned()
        }
        // Dropout with p = 0 is recorded as the sampler `none`.
        kind => format!("{kind} {}", point.strength),
    }
}

fn percent(metric: Option<&Value>, field: &str) -> String {
    metric
        .and_then(|metric| metric[field].as_f64())
        .map_or_else(|| "-".into(), |share| format!("{:.1}", 100.0 * share))
}

fn conclusion(summary: &SweepSummary) -> String {
    let Some(best) = summary.points.iter().find(|point| point.run == summary.best) else {
        return String::new();
    };
    let k = summary.k;
    let at =
        |coverage: &Map<String, Value>, field: &str| percent(coverage.get(&k.to_string()), field);
    let [value, low, high] = ["value", "low", "high"].map(|field| at(&best.coverage, field));
    let indistinguishable = summary.points.iter().filter(|point| point.as_good_as_best).count() - 1;
    let others = match indistinguishable {
        0 => "every other value is worse".to_owned(),
        1 => "one other value is not told apart from it".to_owned(),
        alike => format!("{alike} other values are not told apart from it"),
    };
    let bands: String = summary
        .samplers
        .iter()
        .map(|sampler| format!("\n{}", band_line(sampler, summary)))
        .collect();
    format!("best: {}, coverage@{k} {value}% ({low}-{high}); {others}{bands}", point_label(best))
}

/// Whether the paper's band contains the best strength of a sampler.
fn band_line(
    SamplerSummary { kind, best, band }: &SamplerSummary,
    summary: &SweepSummary,
) -> String {
    let strength = summary
        .points
        .iter()
        .find(|point| point.run == *best)
        .map_or(f64::NAN, |point| point.strength);
    let Some(RecommendedBand { low, high, contains_best, contains_as_good }) = band else {
        return format!("{kind}: best at {strength}; the paper gives no band for this backbone");
    };
    let relation = match (contains_best, contains_as_good) {
        (true, _) => "contains it",
        (false, true) => "does not contain it, but holds a value that is not told apart from it",
        (false, false) => "does not contain it",
    };
    format!(
        "{kind}: best at {strength}; the paper's band for this backbone, {low} to {high}, \
         {relation}"
    )
}
