//! A voting rule of one's own, evaluated beside two built-in rules.
//!
//! ```text
//! cargo run --release -p latent-tts --features embedded --example custom_rule
//! ```

use latent_tts::aggregate::{Candidate, Signals, VotingRule, best_first, majority};
use latent_tts::record::MetricName;
use latent_tts::{
    DataSource, DeviceOptions, EMBEDDED, Evaluation, ModelSelection, RewardModelChoice,
    RewardReduction, Rule, SamplingParams, VoteParams,
};

/// The majority vote of the half of the trajectories with the highest rewards.
struct TopHalf;

impl VotingRule for TopHalf {
    fn name(&self) -> &str {
        "top_half"
    }

    fn describe(&self) -> &str {
        "the majority of the half with the highest rewards"
    }

    fn needs(&self) -> Signals {
        Signals { rewards: true, ..Signals::default() }
    }

    fn choose(&self, candidates: &[&dyn Candidate], _: &VoteParams) -> Option<usize> {
        let mut best = best_first(candidates, RewardReduction::OutcomeOrMean);
        best.truncate(best.len().div_ceil(2));
        let half: Vec<&dyn Candidate> = best.iter().map(|&index| candidates[index]).collect();
        majority(&half).map(|chosen| best[chosen])
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // From here on the rule can also be requested by its name.
    let top_half = Rule::register(Box::new(TopHalf))?;

    let selection = ModelSelection::new(EMBEDDED, RewardModelChoice::Default)?;
    let engine = selection.load(&DeviceOptions::default().open()?)?.engine()?;
    let data = DataSource::parse("embedded:hard:0..20")?;
    let questions = data.read(None, 0)?;
    let params = SamplingParams { samples: 8.try_into()?, ..engine.default_params() };

    let run = tempfile::tempdir()?;
    let output = Evaluation::new(&selection, &data, params)
        .rules(vec![Rule::MAJORITY, Rule::WEIGHTED, top_half])
        .out(run.path().join("run"))
        .run(&engine, &questions, &mut ())?;
    for metric in &output.results.metrics {
        if let MetricName::Rule(rule) = metric.name {
            println!(
                "{:<9} of {}: {:.3} (95% CI {:.3} to {:.3})",
                rule.name(),
                metric.k,
                metric.value,
                metric.low,
                metric.high
            );
        }
    }
    Ok(())
}
