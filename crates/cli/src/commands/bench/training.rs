//! `bench --train`: time per training step of models with published shapes, from their initial
//! weights.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use model::{LoraConfig, LoraTargets};
use tensor::Device;
use train::bench::{BenchMethod, TrainBench, TrainBenchSize};

use super::{MeasuredMachine, PeakMemory};
use crate::args::{BenchArgs, TrainTarget};
use crate::memory::peak_resident_bytes;
use crate::printer::Printer;

/// Warm-up steps, in which memory is allocated and kernels are selected.
const WARMUP_STEPS: usize = 2;

/// The timing of several steps.
struct StepTiming {
    /// Seconds of the fastest step.
    best: f64,
    /// Median seconds per step.
    median: f64,
    /// Loss before the first step.
    loss: f64,
}

/// Runs `bench --train`.
pub fn run(
    args: &BenchArgs,
    target: TrainTarget,
    device: &Device,
    printer: &Printer,
) -> Result<ExitCode> {
    device.reset_peak_memory()?;
    let mut bench = train_bench(args, target, device)?.with_dropout(args.p.unwrap_or(0.0));
    if args.recompute {
        bench = bench.with_recompute();
    }
    let timed = measure_steps(&mut bench, args.repeat.get())?;
    let memory = PeakMemory { process: peak_resident_bytes(), gpu: device.peak_memory()? };
    let machine = MeasuredMachine::measure(device)?;
    if printer.is_json() {
        printer.json(&summary_json(&bench, &timed, &machine, memory))?;
    } else {
        print(&bench, &timed, &machine, printer)?;
        memory.print(printer)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn train_bench(args: &BenchArgs, target: TrainTarget, device: &Device) -> Result<TrainBench> {
    let (config, sequences) = (args.shape.config()?, args.batch.get());
    let size =
        TrainBenchSize { sequences, prompt: args.prompt.get(), thoughts: args.thoughts.get() };
    let longest = size.prompt + size.thoughts + args.target.get();
    ensure!(
        longest <= config.context,
        "sequences of {longest} positions exceed the {} positions of the shape",
        config.context
    );
    let method = match target {
        TrainTarget::Cot => BenchMethod::Cot,
        TrainTarget::Reasoner => BenchMethod::Coconut,
        TrainTarget::Codi => BenchMethod::Codi,
        TrainTarget::Simcot => BenchMethod::Simcot,
        TrainTarget::Colar => BenchMethod::Colar,
        TrainTarget::Reward => {
            let trajectories = args.samples.unwrap_or(super::ANNOTATE_SAMPLES).get();
            let whole = sequences.is_multiple_of(trajectories);
            ensure!(
                whole,
                "--batch {sequences} is not a multiple of --samples {trajectories}; a batch holds \
                 all trajectories of a problem"
            );
            return Ok(TrainBench::reward(device, &config, size, trajectories)?);
        }
    };
    let (rank, dropout) = (args.lora, args.lora_dropout);
    let lora = LoraConfig { rank, alpha: 32.0, targets: LoraTargets::All, dropout, seed: 0 };
    let of = (method, (rank > 0).then_some(&lora));
    Ok(TrainBench::reasoner(device, &config, size, args.target.get(), of)?)
}

fn measure_steps(bench: &mut TrainBench, repeat: usize) -> Result<StepTiming> {
    let loss = bench.step()?;
    for _ in 1..WARMUP_STEPS {
        bench.step()?;
    }
    let mut seconds = Vec::with_capacity(repeat);
    for _ in 0..repeat {
        let start = Instant::now();
        bench.step()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(StepTiming { best: seconds[0], median: seconds[repeat / 2], loss })
}

fn summary_json(
    bench: &TrainBench,
    timed: &StepTiming,
    machine: &MeasuredMachine<'_>,
    memory: PeakMemory,
) -> serde_json::Value {
    let StepTiming { best, median, loss } = *timed;
    serde_json::json!({
        "ms_per_step": 1e3 * best,
        "median_ms": 1e3 * median,
        "sequences_per_s": bench.sequences() as f64 / best,
        "positions_per_s": bench.positions() as f64 / best,
        "flops": bench.flops(),
        "peak_flops": machine.peak,
        "peak_share": bench.flops() / best / machine.peak,
        "loss": loss,
        "peak_memory": memory.process,
        "gpu_peak_memory": memory.gpu,
        "device": machine.device.describe(),
    })
}

fn print(
    bench: &TrainBench,
    timed: &StepTiming,
    machine: &MeasuredMachine<'_>,
    printer: &Printer,
) -> Result<()> {
    let StepTiming { best, median, loss } = *timed;
    let (sequences, positions) = (bench.sequences(), bench.positions());
    printer.line(&format!(
        "{:.2} ms per step (median {:.2}); initial loss {loss:.3}",
        1e3 * best,
        1e3 * median
    ))?;
    printer.line(&format!(
        "{:.1} sequences/s, {:.1} positions/s: {sequences} sequences with {positions} positions \
         in total",
        sequences as f64 / best,
        positions as f64 / best
    ))?;
    machine.print_throughput(bench.flops(), best, printer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use latent_tts::bench::BenchShape;
    use model::Config;
    use std::num::NonZeroUsize;

    /// Every shape with its heads, positions and norms but a single narrow layer: the initial loss
    /// of a reasoner is about that of a uniform guess, and both models reduce the loss of their
    /// batch within a few steps.
    #[test]
    fn both_steps_of_every_shape_train() {
        let device = Device::cpu(NonZeroUsize::new(2)).unwrap();
        let size = TrainBenchSize { sequences: 4, prompt: 5, thoughts: 2 };
        let fits = |bench: &mut TrainBench, what: BenchShape| {
            let losses: Vec<f64> = (0..6).map(|_| bench.step().unwrap()).collect();
            assert!(losses[1..].iter().any(|&loss| loss < losses[0]), "{what:?}: {losses:?}");
            losses[0]
        };
        for &shape in BenchShape::value_variants() {
            let published = shape.config().unwrap();
            let vocab = published.vocab.min(300);
            let config = Config { layers: 1, ffn: 64, vocab, ..published };
            let of = (BenchMethod::Coconut, None);
            let mut reasoner = TrainBench::reasoner(&device, &config, size, 3, of).unwrap();
            let first = fits(&mut reasoner, shape);
            assert!((first - (vocab as f64).ln()).abs() < 1.0, "{shape:?}: {first}");
            fits(&mut TrainBench::reward(&device, &config, size, 2).unwrap(), shape);
        }
    }
}
