//! The library alone: solve one question, evaluate a file, cancel.
//!
//! ```text
//! cargo run --release -p latent-tts --example library -- [DATA.jsonl]
//! ```

use std::io::Write;
use std::time::Duration;

use latent_tts::{
    CancelToken, DataSource, DeviceOptions, EMBEDDED, EngineError, Evaluation, FieldNames,
    ModelSelection, Request, RewardModelChoice, SamplingOptions, SamplingParams,
};

/// Problems in the words that the embedded reasoner knows.
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
    let reply = engine.solve(&Request::new(question, params))?;
    println!("answer {:?} by {}", reply.answer(), reply.rule.name());
    for vote in reply.votes() {
        println!("  {:>2} votes for {}", vote.votes, vote.answer);
    }

    // Evaluate a file: its own, or the two problems above.
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
        println!("{:?}@{} = {:.2}", metric.name, metric.k, metric.value);
    }

    // Cancel: a request that is cancelled, or whose time has passed, is an error of its own.
    let cancel = CancelToken::with_timeout(Duration::from_millis(1));
    let many = SamplingParams { samples: 4096.try_into()?, ..params };
    let request = Request { cancel: cancel.clone(), ..Request::new(question, many) };
    match engine.solve(&request) {
        Err(EngineError::Cancelled { .. }) => println!("cancelled"),
        other => println!("finished before its time: {:?}", other?.answer()),
    }
    Ok(())
}
