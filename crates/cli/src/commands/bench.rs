//! `latent-tts bench`: trajectories or rollouts per second of models with published shapes and
//! random weights, and the fraction of the machine's peak FLOP/s. `training` measures training
//! steps.

mod training;

use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::{Context, Result};
use latent_tts::bench::RandomModels;
use latent_tts::engine::bench::{BenchResult, EngineBench};
use latent_tts::engine::{LatentModel, Prompt};
use latent_tts::{
    DropoutScope, LatentLength, MaskLifetime, Perturbation, Probability, Question, SamplingParams,
    data,
};
use model::Tokenizer;
use tensor::Device;

use crate::args::{BenchArgs, StoredDtypeKind};
use crate::memory::peak_resident_bytes;
use crate::printer::Printer;

/// Default of `--dropout-p`.
const DEFAULT_P: f32 = 0.2;
/// Default of `--samples`.
const DEFAULT_SAMPLES: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Default of `--samples` with `--annotate` and `--train reward`.
const ANNOTATE_SAMPLES: NonZeroUsize = NonZeroUsize::new(8).unwrap();

/// Runs `bench`.
pub fn run(args: &BenchArgs, printer: &Printer) -> Result<ExitCode> {
    let device = args.machine.device.open(printer)?;
    if let Some(trained) = args.train {
        super::train::check_gradients(&args.machine.device, &device)?;
        return training::run(args, trained, &device, printer);
    }
    let machine = MeasuredMachine::measure(&device)?;
    device.reset_peak_memory()?;
    let random = RandomModels {
        shape: args.shape,
        seed: args.seed,
        bf16: args.weights == StoredDtypeKind::Bf16,
    };
    let model = random.reasoner(&device)?;
    let params = sampling_params(args, &model)?;
    let memory = args.machine.kv_cache_bytes(&device)?;
    let prompts = prompts(args, &model)?;
    let reward_model = if args.reward { Some(random.reward_model(&device)?) } else { None };
    let mut bench = EngineBench::new(&model, reward_model.as_ref(), params, memory);
    let mut measure = || {
        if args.annotate { bench.annotate(&prompts, args.rollouts) } else { bench.run(&prompts) }
    };
    measure()?; // warm-up: allocations, kernel selection, worker threads
    let mut runs = (0..args.repeat.get()).map(|_| measure()).collect::<Result<Vec<_>, _>>()?;
    runs.sort_by(|a, b| a.seconds.total.total_cmp(&b.seconds.total));
    let (best, median) = (runs[0], runs[runs.len() / 2]);
    let memory = PeakMemory { process: peak_resident_bytes(), gpu: device.peak_memory()? };
    if printer.is_json() {
        printer.json(&summary_json(&best, &median, &machine, memory))?;
    } else {
        print(&best, &median, &machine, printer)?;
        memory.print(printer)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Peak memory in bytes, including weights.
#[derive(Clone, Copy)]
struct PeakMemory {
    process: Option<u64>,
    gpu: Option<usize>,
}

impl PeakMemory {
    fn print(self, printer: &Printer) -> Result<()> {
        let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
        let of = |bytes: u64, whose: &str| format!("{:.2} GiB {whose}", gib(bytes));
        let process = self.process.map(|bytes| of(bytes, "(process)"));
        let gpu = self.gpu.map(|bytes| of(bytes as u64, "(GPU)"));
        let known: Vec<String> = process.into_iter().chain(gpu).collect();
        if known.is_empty() {
            return Ok(());
        }
        printer.line(&format!("peak memory: {}", known.join(", ")))
    }
}

/// The measured device and its peak throughput.
struct MeasuredMachine<'a> {
    device: &'a Device,
    /// Measured peak, FLOP/s.
    peak: f64,
}

impl MeasuredMachine<'_> {
    fn measure(device: &Device) -> Result<MeasuredMachine<'_>> {
        Ok(MeasuredMachine { device, peak: tensor::peak_flops(device)? })
    }

    /// Prints the throughput of `flops` operations in `seconds`, and its fraction of the peak.
    fn print_throughput(&self, flops: f64, seconds: f64, printer: &Printer) -> Result<()> {
        let rate = flops / seconds;
        printer.line(&format!(
            "{:.1} GFLOP at {:.1} GFLOP/s: {:.0}% of the measured peak of {:.1} GFLOP/s ({})",
            flops / 1e9,
            rate / 1e9,
            100.0 * rate / self.peak,
            self.peak / 1e9,
            self.device.describe()
        ))
    }
}

/// Trajectories and rollouts per second of total time.
fn rates(run: &BenchResult) -> [f64; 2] {
    [run.trajectories, run.rollouts].map(|count| count as f64 / run.seconds.total)
}

fn summary_json(
    best: &BenchResult,
    median: &BenchResult,
    machine: &MeasuredMachine<'_>,
    memory: PeakMemory,
) -> serde_json::Value {
    serde_json::json!({
        "trajectories_per_s": rates(best)[0],
        "rollouts_per_s": rates(best)[1],
        "rollouts_s": best.rollout_seconds,
        "prefill_s": best.seconds.prefill,
        "thoughts_s": best.seconds.thoughts,
        "score_s": best.seconds.scores,
        "answer_s": best.seconds.answers,
        "flops": best.flops,
        "peak_flops": machine.peak,
        "best_s": best.seconds.total,
        "median_s": median.seconds.total,
        "peak_share": best.flops / best.seconds.total / machine.peak,
        "peak_memory": memory.process,
        "gpu_peak_memory": memory.gpu,
        "device": machine.device.describe(),
    })
}

fn print(
    best: &BenchResult,
    median: &BenchResult,
    machine: &MeasuredMachine<'_>,
    printer: &Printer,
) -> Result<()> {
    let ([best_rate, best_rollout_rate], [median_rate, median_rollout_rate]) =
        (rates(best), rates(median));
    let BenchResult { seconds, trajectories, flops, rollouts, rollout_seconds } = best;
    if *rollouts > 0 {
        printer.line(&format!(
            "{best_rollout_rate:.1} rollouts/s (median {median_rollout_rate:.1})"
        ))?;
        printer.line(&format!(
            "{rollouts} rollouts in {rollout_seconds:.4} s, excluding their trajectories"
        ))?;
    }
    printer.line(&format!("{best_rate:.1} trajectories/s (median {median_rate:.1})"))?;
    printer.line(&format!(
        "{trajectories} trajectories in {:.4} s: prefill {:.4}, thoughts {:.4}, scores {:.4}, \
         answers {:.4}",
        seconds.total, seconds.prefill, seconds.thoughts, seconds.scores, seconds.answers
    ))?;
    machine.print_throughput(*flops, seconds.total, printer)
}

fn sampling_params(args: &BenchArgs, model: &LatentModel) -> Result<SamplingParams> {
    let share = args.p.unwrap_or(DEFAULT_P);
    let p =
        Probability::new(share).with_context(|| format!("--dropout-p {share} is not in [0, 1)"))?;
    let perturbation = match share {
        0.0 => Perturbation::None,
        _ => Perturbation::Dropout {
            p,
            sites: model.method.sites,
            scope: DropoutScope::Thoughts,
            mask: MaskLifetime::Step,
        },
    };
    Ok(SamplingParams {
        samples: args.samples.unwrap_or(if args.annotate {
            ANNOTATE_SAMPLES
        } else {
            DEFAULT_SAMPLES
        }),
        perturbation,
        length: LatentLength::Exactly(args.thoughts),
        max_new_tokens: args.answer,
        seed: args.seed,
        ..SamplingParams::defaults_for(&model.method)
    })
}

/// Prompts of synthetic tokens, or the prompts of a data set.
fn prompts(args: &BenchArgs, model: &LatentModel) -> Result<Vec<Prompt>> {
    let (Some(data), Some(tokenizer)) = (&args.data, &args.tokenizer) else {
        return Ok((0..args.questions.get())
            .map(|q| random_prompt(model, q as u32, args.prompt.get()))
            .collect());
    };
    let tokenizer = Tokenizer::read(tokenizer)?;
    let vocab = model.decoder.config().vocab as u32;
    let prompt = |question: Question| {
        let mut tokens = tokenizer.encode(&format!("{}\n", question.text))?;
        tokens.push(0); // in place of the begin-latent token
        anyhow::ensure!(
            tokens.iter().all(|&t| t < vocab),
            "--tokenizer has more tokens than the shape has embeddings"
        );
        Ok(Prompt { id: question.id, text: String::new(), tokens })
    };
    data::read_fields(data, &args.fields, None)?.into_iter().map(prompt).collect()
}

fn random_prompt(model: &LatentModel, question: u32, length: usize) -> Prompt {
    let tokens = train::bench::synthetic_tokens(model.decoder.config().vocab, question, length);
    Prompt { id: question, text: String::new(), tokens }
}
