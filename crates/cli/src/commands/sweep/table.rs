//! The result of a sweep as a table with one line per point, and a conclusion.

use latent_tts::record::MetricName;
use latent_tts::report::rules::display_name;
use latent_tts::sweep::{RecommendedBand, SamplerSummary, SweepPointSummary, SweepSummary};
use latent_tts::{DropoutSites, MaskLifetime, SamplerKind, SamplingOptions};
use serde_json::Value;

/// Metrics that get a column in addition to the maximized one, if measured.
const METRICS: [MetricName; 4] =
    [MetricName::Coverage, MetricName::MAJORITY, MetricName::WEIGHTED, MetricName::BEST_OF];

/// The table and the conclusion.
pub fn render(summary: &SweepSummary) -> String {
    let columns = Columns::of(summary);
    let mut rows = vec![columns.header()];
    rows.extend(summary.points.iter().map(|point| columns.row(point, summary)));
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
    let k = summary.k;
    format!(
        "in %, {} at several k, the others at {k}; diversity of thoughts; * best, ~ no significant \
         difference from it (paired 95% CI)\n\n{table}\n{}",
        display_name(summary.metric),
        conclusion(summary)
    )
}

/// The columns of the table: the maximized metric at every k, the others at the largest k.
struct Columns {
    metric: MetricName,
    ks: Vec<String>,
    others: Vec<MetricName>,
}

impl Columns {
    fn of(summary: &SweepSummary) -> Self {
        let metric = summary.metric;
        let first = summary.points.first();
        let measured =
            |name: &MetricName| first.is_some_and(|point| !point.curve(*name).is_empty());
        Self {
            metric,
            ks: first.map_or_else(Vec::new, |point| point.curve(metric).keys().cloned().collect()),
            others: METRICS.into_iter().filter(|name| *name != metric).filter(measured).collect(),
        }
    }

    fn header(&self) -> Vec<String> {
        let name = display_name(self.metric);
        ["sampler".to_owned()]
            .into_iter()
            .chain(self.ks.iter().map(|k| format!("{name}@{k}")))
            .chain(["95%".to_owned()])
            .chain(self.others.iter().map(|name| display_name(*name)))
            .chain(["diversity", ""].map(str::to_owned))
            .collect()
    }

    fn row(&self, point: &SweepPointSummary, summary: &SweepSummary) -> Vec<String> {
        let curve = point.curve(self.metric);
        let last = summary.k.to_string();
        let ends = |end: &str| percent(curve.get(&last), end);
        let mark = if point.run == summary.best {
            "*"
        } else if point.as_good_as_best {
            "~"
        } else {
            ""
        };
        let mut cells = vec![point_label(point)];
        cells.extend(self.ks.iter().map(|k| percent(curve.get(k), "value")));
        cells.push(format!("{}-{}", ends("low"), ends("high")));
        let other = |name: &MetricName| percent(point.curve(*name).get(&last), "value");
        cells.extend(self.others.iter().map(other));
        let diversity = point.diversity["value"].as_f64();
        cells.push(diversity.map_or_else(|| "-".into(), |d| format!("{d:.3}")));
        cells.push(mark.into());
        cells
    }
}

fn point_label(point: &SweepPointSummary) -> String {
    let SamplingOptions { sampler, sites, scope, mask, .. } = &point.sampling;
    match sampler {
        Some(SamplerKind::Noise) => format!("noise sigma={}", point.strength),
        Some(SamplerKind::Gumbel) => format!("gumbel tau={}", point.strength),
        Some(SamplerKind::Dropout) => {
            let sites = sites.unwrap_or(DropoutSites::BOTH).name();
            let scope = scope.unwrap_or_default().name();
            let mask = match mask.unwrap_or_default() {
                MaskLifetime::Step => String::new(),
                kept => format!(" {}", kept.name()),
            };
            format!("dropout p={} {sites} {scope}{mask}", point.strength)
        }
        // Dropout with p = 0 is recorded as the sampler `none`.
        other => format!("{} {}", other.map_or("", SamplerKind::name), point.strength),
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
    let (k, metric) = (summary.k, display_name(summary.metric));
    let interval = best.curve(summary.metric).get(&k.to_string());
    let [value, low, high] = ["value", "low", "high"].map(|field| percent(interval, field));
    let indistinguishable = summary.points.iter().filter(|point| point.as_good_as_best).count() - 1;
    let others = match indistinguishable {
        0 => "every other value is significantly worse".to_owned(),
        1 => "one other value does not differ significantly".to_owned(),
        alike => format!("{alike} other values do not differ significantly"),
    };
    let bands: String = summary
        .samplers
        .iter()
        .map(|sampler| format!("\n{}", band_line(sampler, summary)))
        .collect();
    format!(
        "best: {}, {metric}@{k} {value}% ({low}-{high}); {others}{}{bands}",
        point_label(best),
        ties(summary, best)
    )
}

/// The points tied with the best one, and the criterion that decided between them.
fn ties(summary: &SweepSummary, best: &SweepPointSummary) -> String {
    let last = summary.k.to_string();
    let majority = |point: &SweepPointSummary| percent(point.majority.get(&last), "value");
    let tied = summary.points.iter().filter(|point| summary.ties.contains(&point.run));
    let tied: Vec<String> = tied
        .map(|point| format!("{} (majority {}%)", point_label(point), majority(point)))
        .collect();
    if tied.is_empty() {
        return String::new();
    }
    format!(
        "\ntie in {}: {}; the larger majority decides ({}%), then the weaker perturbation",
        display_name(summary.metric),
        tied.join(", "),
        majority(best)
    )
}

/// Whether the paper's recommended band contains the best strength of a sampler.
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
        (false, true) => {
            "does not contain it, but contains a value that does not differ significantly"
        }
        (false, false) => "does not contain it",
    };
    format!(
        "{kind}: best at {strength}; the paper's band for this backbone, {low} to {high}, \
         {relation}"
    )
}
