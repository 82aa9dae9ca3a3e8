//! Answers one question: samples trajectories, prints them, and compares voting rules.
//!
//! ```text
//! cargo run --release -p latent-tts --features embedded --example solve -- [QUESTION]
//! ```

use latent_tts::{Answer, Model, Request, Rule, SamplingParams, VoteParams};

const QUESTION: &str = "Grace has 484 muffins. Fiona has a quarter as many muffins as Grace. \
                        How many muffins do they have together?";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let question = std::env::args().nth(1).unwrap_or_else(|| QUESTION.to_owned());

    // The small reasoner inside the library, with its reward model. A directory or the id of a
    // model on the Hugging Face Hub works as well.
    let engine = Model::load("embedded")?.engine()?;
    let params = SamplingParams { samples: 8.try_into()?, greedy: true, ..engine.default_params() };
    let output = engine.solve(&Request::new(question, params))?;

    println!("trajectory  thoughts  reward  text");
    for trajectory in &output.trajectories {
        let reward = trajectory.outcome_reward.unwrap_or(f32::NAN);
        println!(
            "{:>10}  {:>8}  {reward:>6.2}  {}",
            trajectory.number,
            trajectory.thoughts,
            trajectory.text.trim()
        );
    }
    if let Some(greedy) = &output.greedy {
        println!("without perturbation: {}", greedy.text.trim());
    }

    // Every rule chooses among the same trajectories, without sampling again.
    for rule in [Rule::MAJORITY, Rule::WEIGHTED, Rule::BEST_OF] {
        let chosen = output.choose(rule, &VoteParams::default());
        let answer = chosen.and_then(|trajectory| trajectory.answer.as_ref()).map(Answer::as_str);
        println!("{:>10}: {}", rule.name(), answer.unwrap_or("no answer"));
    }
    Ok(())
}
