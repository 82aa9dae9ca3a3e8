//! `bench --train`: how long a step of training takes, at real shapes with the weights that training begins with.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use tensor::Device;
use train::bench::{Drill, Size};

use super::shape;
use crate::args::{BenchArgs, Trained};
use crate::printer::Printer;

/// Steps that nobody looks at: memory is taken and products find their kernels in them.
const WARM_UP: usize = 2;

/// Several steps, timed.
struct Timed {
    best: f64, // seconds
    median: f64,
    loss: f64, // before the first step
}

/// Measures and prints.
pub fn run(args: &BenchArgs, trained: Trained, device: &Device, printer: &Printer) -> Result<ExitCode> {
    let mut drill = drill(args, trained, device)?.with_dropout(args.p.unwrap_or(0.0));
    let timed = time(&mut drill, args.repeat.get())?;
    let peak = tensor::peak(device)?;
    if printer.is_json() {
        printer.json(&summary(&drill, &timed, peak, device))?;
    } else {
        print(&drill, &timed, (peak, device), printer)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn drill(args: &BenchArgs, trained: Trained, device: &Device) -> Result<Drill> {
    let (config, sequences) = (shape(args.shape)?, args.batch.get());
    let size = Size { sequences, prompt: args.prompt.get(), thoughts: args.thoughts.get() };
    let longest = size.prompt + size.thoughts + args.target.get();
    ensure!(longest <= config.context, "{longest} positions of a sequence are more than the shape's {}", config.context);
    match trained {
        Trained::Reasoner => Ok(Drill::reasoner(device, &config, size, args.target.get())?),
        Trained::Reward => {
            let trajectories = args.samples.unwrap_or(super::ANNOTATED).get();
            let whole = sequences.is_multiple_of(trajectories);
            ensure!(
                whole,
                "--batch {sequences} is not a multiple of --samples {trajectories}; a problem's trajectories go together"
            );
            Ok(Drill::reward(device, &config, size, trajectories)?)
        }
    }
}

fn time(drill: &mut Drill, repeat: usize) -> Result<Timed> {
    let loss = drill.step()?;
    for _ in 1..WARM_UP {
        drill.step()?;
    }
    let mut seconds = Vec::with_capacity(repeat);
    for _ in 0..repeat {
        let start = Instant::now();
        drill.step()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(Timed { best: seconds[0], median: seconds[repeat / 2], loss })
}

fn summary(drill: &Drill, timed: &Timed, peak: f64, device: &Device) -> serde_json::Value {
    let Timed { best, median, loss } = *timed;
    serde_json::json!({
        "ms_per_step": 1e3 * best, "median_ms": 1e3 * median, "sequences_per_s": drill.sequences() as f64 / best,
        "positions_per_s": drill.positions() as f64 / best, "flops": drill.flops(), "peak_flops": peak,
        "peak_share": drill.flops() / best / peak, "loss": loss, "device": device.describe(),
    })
}

fn print(drill: &Drill, timed: &Timed, (peak, device): (f64, &Device), printer: &Printer) -> Result<()> {
    let Timed { best, median, loss } = *timed;
    let (sequences, positions, flops) = (drill.sequences(), drill.positions(), drill.flops());
    printer.line(&format!("{:.2} ms a step (median {:.2}); the first batch's loss was {loss:.3}", 1e3 * best, 1e3 * median))?;
    printer.line(&format!(
        "{:.1} sequences/s, {:.1} tokens and thoughts/s: {sequences} sequences of {positions} positions in all",
        sequences as f64 / best,
        positions as f64 / best
    ))?;
    super::print_speed(flops, flops / best, (peak, device), printer)
}
