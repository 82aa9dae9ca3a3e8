//! `rules.md`, `samplers.md` and `metrics.md`, from the registries of the library.

use std::fmt::Write;

use clap::ValueEnum;
use latent_tts::{Rule, SamplerKind, SamplingOptions};
use record::MetricName;

use super::commands::eval_flag;

/// The voting rules with what they need.
pub(super) fn rules() -> String {
    let mut page = String::from(
        "# Voting rules\n\n\
         Generated from the registry of rules. `--rule` (`latent.rule` over HTTP, `rule=` in \
         Python) selects\nthe answer that is returned; `--aggregate` selects the rules that \
         `eval` reports. Formulas:\n[Aggregation](../explanation/aggregation.md).\n\n\
         | rule | label | chooses | needs |\n|---|---|---|---|\n",
    );
    for rule in Rule::ALL {
        let needs = rule.needs();
        let mut names = Vec::new();
        names.extend(needs.rewards.then(|| "a reward model".to_owned()));
        names.extend(needs.logprobs.then(|| "log-probabilities".to_owned()));
        names.extend(needs.signal.map(|signal| format!("the signal `{signal}`")));
        names.extend(needs.calibration.then(|| "a calibration".to_owned()));
        let needs = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {needs} |",
            rule.name(),
            rule.label(),
            rule.describe()
        );
    }
    page.push_str(
        "\nThe default is `weighted` with outcome rewards, `normalized` with process rewards, \
         `probe` with a\nprobe and no reward model, `calibrated` with a calibration, and \
         `majority` otherwise. Programs add\nrules with `Rule::register` in Rust or a callable in \
         Python.\n",
    );
    page
}

/// The samplers with their options.
pub(super) fn samplers() -> String {
    let mut page = String::from(
        "# Samplers\n\n\
         Generated from the definitions of the sampling options. A sampler makes the N \
         trajectories of a\nquestion differ. An option of another sampler than the selected one \
         is an error.\n",
    );
    for kind in SamplerKind::BUILT_IN {
        let value = kind.to_possible_value();
        let help = value.as_ref().and_then(|value| value.get_help()).map(ToString::to_string);
        let summary = help.unwrap_or_default();
        let summary = summary.split(" (").next().unwrap_or_default();
        let _ = write!(page, "\n## {}\n\n{summary}.\n", kind.name());
        let fields = SamplingOptions::fields_of(kind);
        if fields.is_empty() {
            continue;
        }
        page.push_str("\n| option | meaning |\n|---|---|\n");
        for (flag, meaning) in fields.into_iter().filter_map(eval_flag) {
            let _ = writeln!(page, "| {flag} | {meaning} |");
        }
    }
    page.push_str(
        "\nPrograms add samplers with the trait `LatentSampler` in Rust or a callable in \
         Python.\n",
    );
    page
}

/// The metrics of `results.json`.
pub(super) fn metrics() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         Generated from the definitions of `results.json`. A metric is a mean over questions of \
         the mean over\nseeds, with a 95% bootstrap interval over questions. At k it is averaged \
         over all subsets of k of the\nN trajectories, as pass@k is. Every \
         [voting rule](rules.md) is a metric as well: the accuracy of the\nanswers it \
         chooses.\n\n| metric | meaning |\n|---|---|\n",
    );
    for (name, description) in MetricName::descriptions() {
        let _ = writeln!(page, "| `{name}` | {description} |");
    }
    page
}
