//! What the training data lack, told before the first step: steps, and words that the model knows.

use anyhow::{Result, bail, ensure};
use data::TrainExample;
use model::Tokenizer;
use report::table::count;
use train::data_loader::ExampleSource;
use train::vocabulary::UNKNOWN;

use crate::args::{ReasonerArgs, ReasonerMode};
use crate::printer::Printer;

/// Examples that are looked at: enough for a share, few enough to take no time.
const EXAMPLES: usize = 10_000;
/// The largest share of unknown tokens that is trained on.
const MAX_UNKNOWN: f64 = 0.05;

/// Tells what the files of `source` hold, and refuses what cannot be learned from.
pub(super) fn check(
    args: &ReasonerArgs,
    source: &ExampleSource,
    held_out: &[TrainExample],
    printer: &Printer,
) -> Result<()> {
    let lists = source.lists();
    let examples: Vec<&TrainExample> =
        lists.iter().flat_map(|list| list.iter().take(EXAMPLES)).collect();
    if examples.is_empty() {
        return Ok(());
    }
    let with_steps = examples.iter().filter(|example| !example.steps.is_empty()).count();
    let share = with_steps as f64 / examples.len() as f64;
    let without_steps = args.mode == ReasonerMode::NoCot;
    ensure!(
        without_steps || with_steps > 0,
        "--data: no example has steps such as <<12*3=36>>, and without them there is no chain of \
         thought to learn from; give data with steps, or pass --mode no-cot"
    );
    let tokenizer = super::reasoner::tokenizer(args)?;
    let unknown = unknown_share(&tokenizer, &examples)?;
    let total: usize = lists.iter().map(|list| list.len()).sum();
    printer.note(&format!(
        "training data: {}, {:.1}% with steps, {:.1}% of tokens unknown to the model",
        count(total, "example"),
        100.0 * share,
        100.0 * unknown
    ));
    if unknown > MAX_UNKNOWN {
        let whose = match args.init {
            Some(_) => "the initial model's vocabulary",
            None => "the built-in vocabulary, which has the words of the corpus alone",
        };
        bail!(
            "--data: {:.1}% of its tokens are not in {whose}; pass --init with a GPT-2, Llama or \
             Qwen, whose tokenizer knows every word, or leave --data out to train on the corpus",
            100.0 * unknown
        );
    }
    if held_out.is_empty() {
        printer
            .note("note: no held-out data, so accuracy is not measured; --held-out FILE gives it");
    }
    Ok(())
}

/// The share of the tokens of questions, steps and answers that are the unknown token.
fn unknown_share(tokenizer: &Tokenizer, examples: &[&TrainExample]) -> Result<f64> {
    let Some(unknown) = tokenizer.token_to_id(UNKNOWN) else { return Ok(0.0) };
    let (mut found, mut all) = (0, 0);
    for example in examples {
        let text = format!("{} {} {}", example.question, example.steps.join(" "), example.answer);
        let tokens = tokenizer.encode(&text)?;
        found += tokens.iter().filter(|token| **token == unknown).count();
        all += tokens.len();
    }
    Ok(found as f64 / all.max(1) as f64)
}
