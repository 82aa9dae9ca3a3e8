//! Runs several questions in one continuous batch, and prints trajectories and answers as soon as
//! they are complete.
//!
//! ```text
//! cargo run --release -p latent-tts --features embedded --example stream
//! ```

use std::sync::mpsc;

use latent_tts::scheduler::Event;
use latent_tts::{Model, Request, SamplingParams, Scheduler};

const QUESTIONS: [&str; 3] = [
    "Tom has 3 boxes with 4 pens in each. He gives away 5 pens. How many pens does Tom have?",
    "Olivia has 12 pens. Olivia buys 7 more pens. Olivia gives away 4 pens. How many pens does \
     Olivia have?",
    "Grace has 484 muffins. Fiona has a quarter as many muffins as Grace. How many muffins do \
     they have together?",
];

/// The most trajectories that may wait in the queue of the scheduler.
const MAX_WAITING: usize = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Model::load("embedded")?.engine()?;
    let params = SamplingParams { samples: 4.try_into()?, ..engine.default_params() };
    let scheduler = Scheduler::start(engine, MAX_WAITING);

    let (sender, events) = mpsc::channel();
    for (id, question) in (0..).zip(QUESTIONS) {
        let request = Request { id, ..Request::new(question, params) };
        let sender = sender.clone();
        // The callback runs on a thread of the scheduler and must not block. Sending fails only
        // when this function has returned early.
        scheduler.submit(request, move |event| {
            let _ = sender.send((id, event));
        })?;
    }

    let mut running = QUESTIONS.len();
    while running > 0 {
        let (id, event) = events.recv()?;
        match event {
            Event::Started => println!("question {id}: started"),
            Event::Trajectory(trajectory) => {
                let text = trajectory.text.trim();
                println!("question {id}: trajectory {} answers {text}", trajectory.number);
            }
            // Rewards arrive after the trajectories; single tokens only if they are requested.
            Event::Rewards { .. } | Event::Token { .. } => {}
            Event::Done(output) => {
                println!("question {id}: the vote chose {:?}", output?.answer());
                running -= 1;
            }
        }
    }
    Ok(())
}
