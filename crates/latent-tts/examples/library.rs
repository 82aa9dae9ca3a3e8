//! Solves one question, evaluates a file, and cancels a request.
//!
//! ```text
//! cargo run --release -p latent-tts --features embedded --example library -- [DATA.jsonl]
//! ```

use std::io::Write;
use std::time::Duration;

use latent_tts::{
    CancelToken, DataSource, DeviceOptions, EMBEDDED, EngineError, Evaluation, FieldNames,
    ModelSelection, Request, RewardModelChoice, SamplingOptions, SamplingParams,
};

/// Problems in the vocabulary of the embedded reasoner.
const DATA: &str = r#"{"question": "Olivia has 12 pens. Olivia buys 7 more pens. Olivia gives away 4 pens. How many pens does Olivia have?", "answer": "15"}
{"question": "Grace has 484 muffins. Fiona has a quarter as many muffins as Grace. How many muffins do they have together?", "answer": "605"}
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let selection = ModelSelection::new(EMBEDDED, RewardModelChoice::Default)?;
    let model = selection.load(&DeviceOptions::default().open()?)?;
    let engine = model.engine()?;

    // Solve one question with 16 trajectories.
    let params = SamplingParams { samples: 16.try_into()?, ..engine.default_params() };
    let question = "Grace has 484 muffins. Fiona has a quarter as many muffins as Grace. \
                    How many muffins do they have together?";
    let output = engine.solve(&Request::new(question, params))?;
    println!("answer {:?} by {}", output.answer(), output.rule.name());
    for vote in output.votes() {
        println!("  {:>2} votes for {}", vote.votes, vote.answer);
    }

    // Evaluate a file: the one that is given, or the two problems above.
    let scratch = tempfile::tempdir()?;
    let file = match std::env::args().nth(1) {
        Some(file) => file.into(),
        None => {
            let file = scratch.path().join("data.jsonl");
            std::fs::File::create(&file)?.write_all(DATA.as_bytes())?;
            file
        }
    };
    let data = DataSource::File(file, FieldNames::default());
    let questions = data.read(None, 0)?;
    let options = SamplingOptions::new(8.try_into()?);
    let eval_params = options.resolve(&model.reasoner().method)?;
    let evaluation =
        Evaluation::new(&selection, &data, eval_params).out(scratch.path().join("run"));
    let output = evaluation.run(&engine, &questions, &mut ())?;
    for metric in output.results.metrics.iter().filter(|metric| metric.k == 8) {
        println!("{}@{} = {:.2}", metric.name.name(), metric.k, metric.value);
    }

    // A request that is cancelled, or exceeds its time limit, returns `EngineError::Cancelled`.
    let cancel = CancelToken::with_timeout(Duration::from_millis(1));
    let many = SamplingParams { samples: 4096.try_into()?, ..params };
    let request = Request { cancel: cancel.clone(), ..Request::new(question, many) };
    match engine.solve(&request) {
        Err(EngineError::Cancelled { .. }) => println!("cancelled"),
        other => println!("finished within the time limit: {:?}", other?.answer()),
    }
    Ok(())
}
