//! `latent-tts bench`: trajectories or rollouts per second of models with published shapes and
//! random weights, and the share of the machine's peak FLOP/s. `training` measures training steps.

mod training;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use latent_tts::engine::bench::{BenchResult, EngineBench};
use latent_tts::engine::{LatentModel, Method, Prompt};
use latent_tts::{
    AnswerRule, DropoutScope, DropoutSites, EMBEDDED, Family, LatentLength, MaskLifetime,
    Perturbation, Probability, Question, RewardModel, SamplingParams, data, model_files,
};
use model::config::{
    Architecture, GenerationDefaults, LatentConfig, Llama3Scaling, Mlp, NormConfig,
    PositionEncoding,
};
use model::{
    Config, Decoder, LatentHead, LmHead, ModelError, RandomWeights, RewardHead, TensorSource,
    Tokenizer,
};
use tensor::Device;

use crate::args::{BenchArgs, BenchShape, StoredDtypeKind};
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
    let model = random_model(&device, args)?;
    let params = sampling_params(args, &model)?;
    let memory = args.machine.kv_cache_bytes(&device)?;
    let prompts = prompts(args, &model)?;
    let reward_model = if args.reward { Some(random_reward_model(&device, args)?) } else { None };
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

/// The most bytes that were held at a time, weights included.
#[derive(Clone, Copy)]
struct PeakMemory {
    process: Option<u64>,
    gpu: Option<usize>,
}

impl PeakMemory {
    fn print(self, printer: &Printer) -> Result<()> {
        let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
        let of = |bytes: u64, whose: &str| format!("{:.2} GiB {whose}", gib(bytes));
        let process = self.process.map(|bytes| of(bytes, "of the process"));
        let gpu = self.gpu.map(|bytes| of(bytes as u64, "of the GPU"));
        let known: Vec<String> = process.into_iter().chain(gpu).collect();
        if known.is_empty() {
            return Ok(());
        }
        printer.line(&format!("at most {} at a time", known.join(" and ")))
    }
}

/// The device that is measured, and its peak.
struct MeasuredMachine<'a> {
    device: &'a Device,
    /// Measured peak, FLOP/s.
    peak: f64,
}

impl MeasuredMachine<'_> {
    fn measure(device: &Device) -> Result<MeasuredMachine<'_>> {
        Ok(MeasuredMachine { device, peak: tensor::peak_flops(device)? })
    }

    /// Prints the throughput of `flops` operations in `seconds`, and its share of the peak.
    fn print_throughput(&self, flops: f64, seconds: f64, printer: &Printer) -> Result<()> {
        let rate = flops / seconds;
        printer.line(&format!(
            "{:.1} GFLOP at {:.1} GFLOP/s: {:.0}% of the {:.1} GFLOP/s measured as the most that \
             {} can do",
            flops / 1e9,
            rate / 1e9,
            100.0 * rate / self.peak,
            self.peak / 1e9,
            self.device.describe()
        ))
    }
}

/// Trajectories and rollouts per second, each over the total time.
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
            "{rollouts} rollouts in {rollout_seconds:.4} s, after their trajectories"
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

/// Random weights as a checkpoint of some dtype has them.
struct BenchWeights {
    random: RandomWeights,
    dtype: StoredDtypeKind,
}

impl TensorSource for BenchWeights {
    fn has(&self, name: &str) -> bool {
        self.random.has(name)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let mut values = self.random.tensor(name, shape)?;
        if self.dtype == StoredDtypeKind::Bf16 {
            values.iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() & 0xffff_0000));
        }
        Ok(values)
    }
}

/// A model with random weights and a published shape. Thoughts are unprojected hidden states, and
/// there is no EOS token, so that every answer has its full length.
fn random_model(device: &Device, args: &BenchArgs) -> Result<LatentModel> {
    let config = shape_config(args.shape)?;
    let weights = BenchWeights { random: RandomWeights { seed: args.seed }, dtype: args.weights };
    let decoder = device.run(|| Decoder::load(device, &config, &weights, LmHead::With))?;
    let count = LatentLength::Exactly(args.thoughts);
    let method = Method {
        family: Family::COCONUT,
        prompt_prefix: String::new(),
        prompt_suffix: String::new(),
        begin_latent: Vec::new(),
        end_latent: vec![1],
        latent_stops: Vec::new(),
        eos: Vec::new(),
        length: count,
        max_new_tokens: args.answer.get(),
        answer_rule: AnswerRule::Hash,
        p: args.p.unwrap_or(DEFAULT_P),
        sigma: 0.0,
        sites: if config.architecture == Architecture::Gpt2 {
            DropoutSites::BOTH
        } else {
            DropoutSites::MLP
        },
        cold_stop: None,
        soft_thoughts: false,
    };
    Ok(LatentModel {
        decoder: Arc::new(decoder),
        method,
        head: Arc::new(LatentHead::Identity),
        marker_embeddings: BTreeMap::new(),
        gate: None,
    })
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
        seed: args.seed,
        ..SamplingParams::defaults_for(&model.method)
    })
}

/// A reward model of the same shape, with random weights.
fn random_reward_model(device: &Device, args: &BenchArgs) -> Result<RewardModel> {
    let config = shape_config(args.shape)?;
    let random = RandomWeights { seed: args.seed + 1 };
    let weights = BenchWeights { random, dtype: args.weights };
    let head = RewardHead::load(device, &config, &weights)?;
    let decoder = device.run(|| Decoder::load(device, &config, &weights, LmHead::Without))?;
    let (outcome_head, reference, warnings) = (None, None, Vec::new());
    Ok(RewardModel { decoder, head, outcome_head, reference, warnings })
}

/// Prompts of synthetic tokens, or those of a data set.
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

/// The configuration of a published model, or of the embedded reasoner.
fn shape_config(shape: BenchShape) -> Result<Config> {
    Ok(match shape {
        BenchShape::Embedded => Config::read(model_files(EMBEDDED)?)?,
        BenchShape::Gpt2 => Config {
            architecture: Architecture::Gpt2,
            class_name: None,
            layers: 12,
            width: 768,
            heads: 12,
            kv_heads: 12,
            head_dim: 64,
            ffn: 3072,
            vocab: 50_257,
            context: 1024,
            norm: NormConfig::LayerNorm { eps: 1e-5 },
            positions: PositionEncoding::Learned,
            mlp: Mlp::GeluTanh,
            qk_norm: false,
            qkv_bias: false,
            tied: true,
            eos: Vec::new(),
            latent: LatentConfig::default(),
            defaults: GenerationDefaults::default(),
            reference: None,
        },
        BenchShape::Smollm2 => Config {
            layers: 30,
            width: 576,
            heads: 9,
            kv_heads: 3,
            ffn: 1536,
            vocab: 49_152,
            context: 8192,
            positions: PositionEncoding::Rope { theta: 100_000.0, scaling: None },
            ..self::shape_config(BenchShape::Llama1b)?
        },
        BenchShape::Llama1b => Config {
            architecture: Architecture::Llama,
            layers: 16,
            width: 2048,
            heads: 32,
            kv_heads: 8,
            ffn: 8192,
            vocab: 128_256,
            context: 131_072,
            norm: NormConfig::RmsNorm { eps: 1e-5 },
            positions: PositionEncoding::Rope {
                theta: 500_000.0,
                scaling: Some(Llama3Scaling {
                    factor: 32.0,
                    low: 1.0,
                    high: 4.0,
                    original_context: 8192,
                }),
            },
            mlp: Mlp::SwiGlu,
            ..self::shape_config(BenchShape::Gpt2)?
        },
        BenchShape::Qwen32b => Config {
            architecture: Architecture::Qwen3,
            layers: 28,
            heads: 16,
            head_dim: 128,
            ffn: 6144,
            vocab: 151_936,
            norm: NormConfig::RmsNorm { eps: 1e-6 },
            positions: PositionEncoding::Rope { theta: 5_000_000.0, scaling: None },
            qk_norm: true,
            qkv_bias: false,
            ..self::shape_config(BenchShape::Llama1b)?
        },
    })
}
