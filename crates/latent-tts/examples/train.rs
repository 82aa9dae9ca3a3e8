//! Trains a tiny reasoner on the built-in word problems for a few steps, and loads it.
//!
//! The steps are far too few for a useful model; the preset `tiny` itself has 1,000.
//!
//! ```text
//! cargo run --release -p latent-tts --features embedded --example train -- [DIR]
//! ```

use std::path::PathBuf;

use latent_tts::training::{TrainEvent, Warmup};
use latent_tts::{
    CancelToken, DeviceOptions, Model, Request, SamplingParams, TrainObserver, Trainer,
    TrainerOptions,
};

/// Prints notes, every fifth step, and evaluations.
struct PrintProgress;

impl TrainObserver for PrintProgress {
    fn note(&mut self, text: &str) {
        println!("{text}");
    }

    fn event(&mut self, event: &TrainEvent<'_>) {
        match event {
            TrainEvent::Stepped { steps, total, record, .. } if steps % 5 == 0 => {
                let loss = record.losses.get("loss").unwrap_or(f64::NAN);
                println!("step {steps} of {total}: loss {loss:.3}");
            }
            TrainEvent::Evaluated { record, .. } => {
                println!("after step {}: held-out accuracy {:.2}", record.step, record.score);
            }
            _ => {}
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = tempfile::tempdir()?;
    let dir = std::env::args().nth(1).map_or_else(|| scratch.path().join("tiny"), PathBuf::from);

    let mut options = TrainerOptions::preset("tiny")?;
    options.held_out_count = 20;
    options.training.steps = 20.try_into()?;
    options.training.warmup = Warmup::Steps(4);
    options.training.eval_every = 10;

    // A cancelled training saves its state; `options.training.resume` continues it.
    let cancel = CancelToken::default();
    let device = DeviceOptions::default().open()?;
    let report = Trainer::new(&dir, options)?.run(&device, &mut PrintProgress, &cancel)?;
    println!("{} after {:.0} s", report.out.display(), report.seconds);

    let name = report.out.to_str().ok_or("the directory is not valid UTF-8")?;
    let engine = Model::load(name)?.engine()?;
    let params = SamplingParams { samples: 4.try_into()?, ..engine.default_params() };
    let question = "Tom has 3 boxes with 4 pens in each. How many pens does Tom have?";
    let output = engine.solve(&Request::new(question, params))?;
    println!("answer of the trained model: {:?}", output.answer());
    Ok(())
}
