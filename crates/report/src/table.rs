//! Results as a plain-text table.
//!
//! Rows are aggregation rules, columns are values of k; below each value is its 95% confidence
//! interval. Columns that do not fit the terminal continue in a second table. A legend under the
//! table explains the rows.

use std::collections::BTreeSet;

use record::{
    BeamCost, Metric, MetricGain, MetricName, Results, RunCost, StageSeconds, Unanswered,
};

use crate::rules;

/// A row of the table.
#[derive(Clone, Copy)]
struct RuleRow {
    name: MetricName,
    label: &'static str,
    meaning: &'static str,
}

/// The rows of a table in display order: the baseline, the rules by their registry, the rest.
fn rule_rows(results: &Results) -> Vec<RuleRow> {
    let measured: BTreeSet<MetricName> = results.metrics.iter().map(|metric| metric.name).collect();
    let rule_row = |name: MetricName| match name {
        MetricName::Rule(rule) => {
            Some(RuleRow { name, label: rule.label(), meaning: rule.describe() })
        }
        _ => None,
    };
    let others = [
        (MetricName::Beam, "beam", "beam search guided by rewards, k candidates per step"),
        (MetricName::Particles, "particles", "k particles resampled by rewards at each step"),
        (MetricName::Dvts, "dvts", "search in independent subtrees, k candidates per step"),
        (
            MetricName::Coverage,
            "coverage",
            "at least one of k answers is correct: upper bound for every rule (pass@k)",
        ),
    ];
    let greedy = RuleRow {
        name: MetricName::Greedy,
        label: "greedy",
        meaning: "a single trajectory without perturbation",
    };
    let rules = measured.iter().filter_map(|name| rule_row(*name));
    let others = others.into_iter().map(|(name, label, meaning)| RuleRow { name, label, meaning });
    let rows = std::iter::once(greedy).chain(rules).chain(others);
    rows.filter(|row| measured.contains(&row.name)).collect()
}

/// The width of the label column in characters.
const LABEL_WIDTH: usize = 11;
const GAP: &str = "  ";

/// Options of [`render`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableOptions {
    /// The line width in characters; a single column may exceed it.
    pub width: usize,
    /// Show every rule instead of only the main ones.
    pub all_rules: bool,
}

/// Renders the results as text.
pub fn render(results: &Results, options: TableOptions) -> String {
    let (rows, others): (Vec<RuleRow>, Vec<RuleRow>) = rule_rows(results)
        .into_iter()
        .partition(|row| options.all_rules || rules::is_main(row.name));
    let mut text = heading(results);
    for columns in columns(results, &rows, options.width) {
        text.push('\n');
        write_grid(&mut text, results, &rows, &columns);
    }
    write_legend(&mut text, &rows, &others);
    write_gains(&mut text, results, &rows);
    write_footer(&mut text, results);
    if let Some(unanswered) = &results.unanswered {
        write_unanswered(&mut text, unanswered);
    }
    text
}

/// Maximum number of characters shown of a text without an answer.
const EXAMPLE_CHARS: usize = 72;

/// Writes why trajectories have no answer, with examples of their texts.
fn write_unanswered(text: &mut String, unanswered: &Unanswered) {
    let Unanswered { share, empty, truncated, not_found, examples } = unanswered;
    text.push_str(&format!("\n{}% of trajectories have no answer\n", percent(*share)));
    let reasons = [
        (not_found, "no answer found in the text"),
        (truncated, "text truncated at the maximum number of answer tokens (--max-new-tokens)"),
        (empty, "empty text"),
    ];
    for (count, reason) in reasons.into_iter().filter(|(count, _)| **count > 0) {
        text.push_str(&format!("{count:>LABEL_WIDTH$}{GAP}{reason}\n"));
    }
    for example in examples {
        let cut = example.chars().nth(EXAMPLE_CHARS).is_some();
        let shown: String = example.chars().take(EXAMPLE_CHARS).collect();
        let dots = if cut { "..." } else { "" };
        text.push_str(&format!("{:>LABEL_WIDTH$}{GAP}{shown:?}{dots}\n", "e.g."));
    }
}

fn heading(results: &Results) -> String {
    let questions = count(results.questions, "question");
    let seeds = count(results.seeds, "seed");
    let trajectories = count(results.trajectories, "trajectory");
    let stopped = results.sampled < results.trajectories as f64;
    let each = if stopped {
        format!("up to {trajectories} each ({:.1} on average)", results.sampled)
    } else {
        format!("{trajectories} each")
    };
    let warning = match results.questions {
        0..FEW_QUESTIONS => "few questions: the confidence intervals are wide\n",
        _ => "",
    };
    format!(
        "{questions}, {seeds}, {each}\n\
         accuracy in % with its 95% confidence interval below\n\
         accuracy at k is averaged over all size-k subsets of the trajectories (as in pass@k)\n\
         {warning}"
    )
}

/// With fewer questions a warning is printed: the interval of an accuracy is up to 34 points wide.
const FEW_QUESTIONS: usize = 30;

/// A number with its noun, in the plural unless the number is 1.
pub fn count(number: usize, noun: &str) -> String {
    match (number, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {noun}s"),
    }
}

/// The column of a k, with its width in characters.
struct TableColumn {
    k: usize,
    width: usize,
}

/// The columns, split into groups that fit the line width.
fn columns(results: &Results, rows: &[RuleRow], width: usize) -> Vec<Vec<TableColumn>> {
    let shown =
        || results.metrics.iter().filter(|metric| rows.iter().any(|row| row.name == metric.name));
    let mut ks: Vec<usize> = shown().map(|metric| metric.k).collect();
    ks.sort_unstable();
    ks.dedup();

    let mut groups: Vec<Vec<TableColumn>> = Vec::new();
    let mut room = 0;
    for k in ks {
        let cells = shown().filter(|metric| metric.k == k).map(|metric| interval(metric).len());
        let column = TableColumn { k, width: cells.max().unwrap_or(0).max(k.to_string().len()) };
        let needed = GAP.len() + column.width;
        match groups.last_mut() {
            Some(group) if needed <= room => group.push(column),
            _ => {
                room = width.saturating_sub(LABEL_WIDTH).max(needed);
                groups.push(vec![column]);
            }
        }
        room -= needed;
    }
    groups
}

fn write_grid(text: &mut String, results: &Results, rows: &[RuleRow], columns: &[TableColumn]) {
    write_line(text, "k", columns.iter().map(|column| (column, column.k.to_string())));
    for RuleRow { name, label, .. } in rows {
        let cells: Vec<_> =
            columns.iter().map(|column| (column, find_metric(results, *name, column.k))).collect();
        if cells.iter().any(|(_, metric)| metric.is_some()) {
            let show = |cell: fn(&Metric) -> String| {
                cells
                    .iter()
                    .map(move |(column, metric)| (*column, metric.map(cell).unwrap_or_default()))
            };
            write_line(text, label, show(|metric| percent(metric.value)));
            write_line(text, "", show(interval));
        }
    }
}

fn write_line<'a>(
    text: &mut String,
    label: &str,
    cells: impl Iterator<Item = (&'a TableColumn, String)>,
) {
    let mut line = format!("{label:<LABEL_WIDTH$}");
    for (column, cell) in cells {
        line.push_str(GAP);
        line.push_str(&format!("{cell:>width$}", width = column.width));
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

fn find_metric(results: &Results, name: MetricName, k: usize) -> Option<&Metric> {
    results.metrics.iter().find(|metric| metric.name == name && metric.k == k)
}

fn interval(metric: &Metric) -> String {
    format!("{}-{}", percent(metric.low), percent(metric.high))
}

fn percent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

fn write_legend(text: &mut String, rows: &[RuleRow], others: &[RuleRow]) {
    text.push('\n');
    let mut line = |label: &str, meaning: &str| {
        text.push_str(&format!("{label:<LABEL_WIDTH$}{GAP}{meaning}\n"))
    };
    rows.iter().for_each(|row| line(row.label, row.meaning));
    if !others.is_empty() {
        let names: Vec<&str> = others.iter().map(|row| row.label).collect();
        let rest = match names[..] {
            [name] => format!("{name} is in results.json (print it with --aggregate)"),
            _ => format!("{} are in results.json (print them with --aggregate)", names.join(", ")),
        };
        line("", &rest);
    }
}

/// Writes the paired gains of the rules over greedy and majority, significant if the interval
/// excludes zero.
fn write_gains(text: &mut String, results: &Results, rows: &[RuleRow]) {
    let shown = |MetricGain { over, value, low, high, .. }: &MetricGain| {
        let over = if *over == MetricName::Greedy { "greedy" } else { "majority" };
        format!("{:+.1} ({:+.1} to {:+.1}) over {over}", 100.0 * value, 100.0 * low, 100.0 * high)
    };
    let mut lines = rows.iter().filter_map(|RuleRow { name, label, .. }| {
        let own: Vec<&MetricGain> =
            results.gains.iter().filter(|gain| gain.name == *name).collect();
        let k = own.first()?.k;
        let gains = own.into_iter().map(shown).collect::<Vec<_>>().join(", ");
        Some((k, format!("{label:<LABEL_WIDTH$}{GAP}{gains}\n")))
    });
    let Some((k, first)) = lines.next() else { return };
    text.push_str(&format!(
        "\npaired gains in points at k = {k}, with 95% confidence intervals\n{first}"
    ));
    lines.for_each(|(_, line)| text.push_str(&line));
}

fn write_footer(text: &mut String, results: &Results) {
    text.push('\n');
    let mut line = |label: &str, content: String| {
        text.push_str(&format!("{label:<LABEL_WIDTH$}{GAP}{content}\n"))
    };
    let diversity = |metric: &&Metric| metric.name == MetricName::Diversity;
    for Metric { value, low, high, k, .. } in results.metrics.iter().filter(diversity) {
        let content = format!(
            "{value:.3} ({low:.3}-{high:.3}) over {k} trajectories; 0 = identical thoughts"
        );
        line("diversity", content);
    }
    let ranked = |name: MetricName| {
        results.metrics.iter().filter(move |m| m.name == name).map(|m| format!("{:.2}", m.value))
    };
    let by_thought: Vec<String> = ranked(MetricName::Auc).collect();
    if !by_thought.is_empty() {
        let by_answer = ranked(MetricName::AucOutcome)
            .next()
            .map_or_else(String::new, |auc| format!(", {auc} by answer"));
        let accuracy = format!("{} by thought{by_answer}", by_thought.join(" "));
        line("ranking", format!("{accuracy}: AUC of rewards, correct against wrong trajectories"));
    }
    for (label, name, of) in [
        ("probe", MetricName::AucProbe, "probe scores"),
        ("arithmetic", MetricName::AucArithmetic, "fractions of correct equations"),
    ] {
        for auc in ranked(name) {
            line(label, format!("{auc}: AUC of {of}, correct against wrong trajectories"));
        }
    }
    if let Some(reliability) = &results.reliability {
        let error = reliability.expected_calibration_error;
        line("confidence", format!("expected calibration error {error:.3}"));
    }
    let RunCost { steps, flops, beam, seconds } = &results.cost;
    let compute = |steps: f64, flops: f64| {
        format!("{steps:.1} decoding steps and {} GFLOP per question", gflop(flops))
    };
    line("cost", compute(*steps, *flops));
    if let Some(BeamCost { steps, flops }) = beam {
        line("beam cost", compute(*steps, *flops));
    }
    line("time", format_seconds(seconds));
    if let Some(share) = seconds.scoring_share() {
        line("scoring", format!("{}% of the sampling time", percent(share)));
    }
}

fn format_seconds(seconds: &StageSeconds) -> String {
    let StageSeconds { prefill, thoughts, scores, answers, beam, total } = seconds;
    let stages = [
        ("prefill", prefill),
        ("thoughts", thoughts),
        ("scores", scores),
        ("answers", answers),
        ("beam", beam),
    ];
    let ran = stages.into_iter().filter(|(stage, seconds)| *stage != "beam" || **seconds > 0.0);
    let stages: Vec<String> = ran.map(|(stage, seconds)| format!("{stage} {seconds:.1}")).collect();
    format!("{total:.1} s: {}", stages.join(", "))
}

/// A number of floating-point operations in GFLOP (10^9), the unit of all tables and figures, with
/// one decimal, or three significant digits below 1.
pub fn gflop(operations: f64) -> String {
    let value = operations / 1e9;
    let digits = match value {
        0.0 => 0,
        large if large >= 1.0 => 1,
        _ => (2 - value.abs().log10().floor() as i32).clamp(0, 9) as usize,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use aggregate::Rule;

    fn results() -> Results {
        let metric = |name, k, value| Metric {
            name,
            k,
            value,
            low: value - 0.05,
            high: value + 0.05,
            seeds: 3,
        };
        Results {
            metrics: vec![
                metric(MetricName::Greedy, 1, 0.341),
                metric(MetricName::Coverage, 1, 0.3),
                metric(MetricName::Coverage, 4, 0.95),
                metric(MetricName::MAJORITY, 1, 0.3),
                metric(MetricName::MAJORITY, 4, 0.3456),
                metric(MetricName::Beam, 4, 0.4),
                metric(MetricName::Diversity, 4, 0.125),
            ],
            cost: RunCost {
                steps: 53.25,
                flops: 12.345e9,
                beam: Some(BeamCost { steps: 30.0, flops: 5e9 }),
                seconds: StageSeconds {
                    prefill: 0.5,
                    thoughts: 2.0,
                    scores: 1.0,
                    answers: 1.25,
                    beam: 0.25,
                    total: 5.0,
                },
            },
            questions: 1319,
            seeds: 3,
            trajectories: 4,
            sampled: 3.5,
            gains: vec![
                MetricGain {
                    name: MetricName::MAJORITY,
                    over: MetricName::Greedy,
                    k: 4,
                    value: 0.0046,
                    low: -0.01,
                    high: 0.02,
                },
                MetricGain {
                    name: MetricName::Beam,
                    over: MetricName::Greedy,
                    k: 4,
                    value: 0.059,
                    low: 0.03,
                    high: 0.09,
                },
                MetricGain {
                    name: MetricName::Beam,
                    over: MetricName::MAJORITY,
                    k: 4,
                    value: 0.0544,
                    low: 0.02,
                    high: 0.08,
                },
            ],
            ..Results::default()
        }
    }

    fn wide(width: usize) -> TableOptions {
        TableOptions { width, all_rules: false }
    }

    #[test]
    fn rules_without_a_row_are_named_below() {
        let metric = |name| Metric { name, k: 4, value: 0.5, low: 0.4, high: 0.6, seeds: 1 };
        let one = [MetricName::MAJORITY, MetricName::Rule(Rule::LIKELIHOOD)].map(metric).to_vec();
        let text = render(&Results { metrics: one, ..Results::default() }, wide(80));
        assert!(text.contains("likelihood is in results.json"), "{text}");
        let metrics = [
            MetricName::MAJORITY,
            MetricName::Rule(Rule::LIKELIHOOD),
            MetricName::Rule(Rule::COMBINED),
        ]
        .map(metric)
        .to_vec();
        let results = Results { metrics, ..Results::default() };
        let text = render(&results, wide(80));
        assert!(
            text.contains("likelihood, combined are in results.json")
                && text.matches("50.0").count() == 1,
            "{text}"
        );
        let whole = render(&results, TableOptions { width: 80, all_rules: true });
        assert!(!whole.contains("results.json") && whole.matches("50.0").count() == 3, "{whole}");
    }

    #[test]
    fn a_table() {
        let expected = "\
1319 questions, 3 seeds, up to 4 trajectories each (3.5 on average)
accuracy in % with its 95% confidence interval below
accuracy at k is averaged over all size-k subsets of the trajectories (as in pass@k)

k                    1           4
greedy            34.1
             29.1-39.1
majority          30.0        34.6
             25.0-35.0   29.6-39.6
beam                          40.0
                         35.0-45.0
coverage          30.0        95.0
             25.0-35.0  90.0-100.0

greedy       a single trajectory without perturbation
majority     the most frequent answer of k trajectories
beam         beam search guided by rewards, k candidates per step
coverage     at least one of k answers is correct: upper bound for every rule (pass@k)

paired gains in points at k = 4, with 95% confidence intervals
majority     +0.5 (-1.0 to +2.0) over greedy
beam         +5.9 (+3.0 to +9.0) over greedy, +5.4 (+2.0 to +8.0) over majority

diversity    0.125 (0.075-0.175) over 4 trajectories; 0 = identical thoughts
cost         53.2 decoding steps and 12.3 GFLOP per question
beam cost    30.0 decoding steps and 5.0 GFLOP per question
time         5.0 s: prefill 0.5, thoughts 2.0, scores 1.0, answers 1.2, beam 0.2
scoring      21.1% of the sampling time
";
        assert_eq!(render(&results(), wide(80)), expected);
    }

    #[test]
    fn stages_that_did_not_run_are_not_mentioned() {
        let text =
            render(&Results { trajectories: 4, sampled: 4.0, ..Results::default() }, wide(80));
        assert!(text.starts_with("0 questions, 0 seeds, 4 trajectories each\n"), "{text}");
        assert!(!text.contains("beam") && !text.contains("scoring"), "{text}");
    }

    #[test]
    fn columns_that_do_not_fit_continue_below() {
        let text = render(&results(), wide(31));
        let tables: Vec<&str> = text.split("\n\n").collect();
        assert!(tables[1].starts_with("k                    1\n"), "{text}");
        assert!(tables[2].starts_with("k                     4\n"), "{text}");
        assert!(tables[1].contains("greedy") && !tables[2].contains("greedy"), "{text}");
    }

    #[test]
    fn empty_results_have_a_table() {
        let text = render(&Results::default(), wide(0));
        assert!(text.starts_with("0 questions, 0 seeds, 0 trajectories each\n"), "{text}");
        assert!(text.contains("0 GFLOP per question"), "{text}");
    }

    #[test]
    fn operations_are_in_gflop() {
        let all = [0.0, 1e3, 2.5e6, 1.2345e10, 9.87e11, 2.5e13];
        let expected = ["0", "0.00000100", "0.00250", "12.3", "987.0", "25000.0"];
        assert_eq!(all.map(gflop), expected);
    }
}
