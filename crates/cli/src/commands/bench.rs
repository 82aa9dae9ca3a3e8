//! `bench`: trajectories, or rollouts from their thoughts, per second at real shapes, with random weights, and their share of the machine's peak.
//! `training` measures steps of training.

mod training;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::{Context, Result};
use engine::answer::Rule;
use engine::bench::{Bench, Measured};
use engine::prompt::Prompt;
use engine::question::{self, Question};
use engine::{Family, LatentLength, Method, Mind, Perturbation, Probability, RewardModel, Scope, Settings, Sites};
use model::config::{Architecture, Defaults, LatentFields, Llama3Scaling, Mlp, Norm, Positions};
use model::{Config, Decoder, LatentHead, LmHead, RandomWeights, RewardHead, Tokenizer};
use tensor::Device;

use crate::args::{BenchArgs, Shape};
use crate::printer::Printer;

/// The share of elements that dropout drops while thinking.
const P: f32 = 0.2;
/// Trajectories of each question.
const SAMPLES: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// The same for annotation, and for learning from it.
const ANNOTATED: NonZeroUsize = NonZeroUsize::new(8).unwrap();

/// Measures and prints.
pub fn run(args: &BenchArgs, printer: &Printer) -> Result<ExitCode> {
    let device = args.machine.device.open()?;
    if let Some(trained) = args.train {
        return training::run(args, trained, &device, printer);
    }
    let peak = tensor::peak(&device)?;
    let mind = mind(&device, args)?;
    let settings = settings(args, &mind)?;
    let prompts = prompts(args, &mind)?;
    let judge = if args.reward { Some(judge(&device, args)?) } else { None };
    let mut bench = Bench::new(&mind, judge.as_ref(), settings);
    let mut measure = || if args.annotate { bench.annotate(&prompts, args.rollouts) } else { bench.run(&prompts) };
    measure()?; // warms caches and workers
    let mut runs = (0..args.repeat.get()).map(|_| measure()).collect::<Result<Vec<_>, _>>()?;
    runs.sort_by(|a, b| a.seconds.total.total_cmp(&b.seconds.total));
    let (best, median) = (runs[0], runs[runs.len() / 2]);
    if printer.is_json() {
        printer.json(&summary(&best, &median, peak, &device))?;
    } else {
        print(&best, &median, peak, &device, printer)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Trajectories and rollouts a second, each over all of the time.
fn rates(run: &Measured) -> [f64; 2] {
    [run.trajectories, run.rollouts.0].map(|count| count as f64 / run.seconds.total)
}

fn summary(best: &Measured, median: &Measured, peak: f64, device: &Device) -> serde_json::Value {
    serde_json::json!({
        "trajectories_per_s": rates(best)[0], "rollouts_per_s": rates(best)[1], "rollouts_s": best.rollouts.1, "prefill_s": best.seconds.prefill, "thoughts_s": best.seconds.thoughts,
        "score_s": best.seconds.scores, "answer_s": best.seconds.answers, "flops": best.flops, "peak_flops": peak, "best_s": best.seconds.total,
        "median_s": median.seconds.total, "peak_share": best.flops / best.seconds.total / peak,
        "device": device.describe(),
    })
}

fn print(best: &Measured, median: &Measured, peak: f64, device: &Device, printer: &Printer) -> Result<()> {
    let ([each, rollouts_each], [middle, rollouts_middle]) = (rates(best), rates(median));
    let Measured { seconds, trajectories, flops, rollouts: (rollouts, rollouts_s) } = best;
    if *rollouts > 0 {
        printer.line(&format!("{rollouts_each:.1} rollouts/s (median {rollouts_middle:.1})"))?;
        printer.line(&format!("{rollouts} rollouts in {rollouts_s:.4} s, after their trajectories"))?;
    }
    printer.line(&format!("{each:.1} trajectories/s (median {middle:.1})"))?;
    printer.line(&format!(
        "{trajectories} trajectories in {:.4} s: prefill {:.4}, thoughts {:.4}, scores {:.4}, answers {:.4}",
        seconds.total, seconds.prefill, seconds.thoughts, seconds.scores, seconds.answers
    ))?;
    print_speed(*flops, flops / seconds.total, (peak, device), printer)
}

fn print_speed(flops: f64, speed: f64, (peak, device): (f64, &Device), printer: &Printer) -> Result<()> {
    printer.line(&format!(
        "{:.1} GFLOP at {:.1} GFLOP/s: {:.0}% of the {:.1} GFLOP/s measured as the most that {} can do",
        flops / 1e9,
        speed / 1e9,
        100.0 * speed / peak,
        peak / 1e9,
        device.describe()
    ))
}

/// Random weights of a real model's shape. Thoughts are hidden states as they are; no answer ends by itself.
fn mind(device: &Device, args: &BenchArgs) -> Result<Mind> {
    let config = shape(args.shape)?;
    let decoder = device.run(|| Decoder::load(device, &config, &RandomWeights { seed: args.seed }, LmHead::With))?;
    let count = LatentLength::Exactly(args.thoughts);
    let method = Method {
        family: Family::Coconut,
        before: "",
        after: "",
        then: Vec::new(),
        end: vec![1],
        eos: Vec::new(),
        length: count,
        max_new_tokens: args.answer.get(),
        rule: Rule::Hash,
        p: args.p.unwrap_or(P),
        sigma: 0.0,
        sites: if config.architecture == Architecture::Gpt2 { Sites::BOTH } else { Sites::MLP },
    };
    Ok(Mind { decoder, method, head: LatentHead::Identity, markers: BTreeMap::new() })
}

fn settings(args: &BenchArgs, mind: &Mind) -> Result<Settings> {
    let share = args.p.unwrap_or(P);
    let p = Probability::new(share).with_context(|| format!("--p {share} is not in [0, 1)"))?;
    let perturbation = match share {
        0.0 => Perturbation::None,
        _ => Perturbation::Dropout { p, sites: mind.method.sites, scope: Scope::Thoughts },
    };
    Ok(Settings {
        samples: args.samples.unwrap_or(if args.annotate { ANNOTATED } else { SAMPLES }),
        perturbation,
        seed: args.seed,
        memory: args.machine.memory(mind.decoder.device())?,
        ..Settings::of(&mind.method)
    })
}

/// A reward model of the same shape, its weights random too.
fn judge(device: &Device, args: &BenchArgs) -> Result<RewardModel> {
    let (config, weights) = (shape(args.shape)?, RandomWeights { seed: args.seed + 1 });
    let head = RewardHead::load(device, &config, &weights)?;
    let decoder = device.run(|| Decoder::load(device, &config, &weights, LmHead::Without))?;
    Ok(RewardModel { decoder, head, verdict: None, mind: None })
}

/// Prompts of made-up tokens, or those of a data set.
fn prompts(args: &BenchArgs, mind: &Mind) -> Result<Vec<Prompt>> {
    let (Some(data), Some(tokenizer)) = (&args.data, &args.tokenizer) else {
        return Ok((0..args.questions.get()).map(|q| made_up(mind, q as u32, args.prompt.get())).collect());
    };
    let tokenizer = Tokenizer::read(tokenizer)?;
    let vocab = mind.decoder.config().vocab as u32;
    let prompt = |question: Question| {
        let mut tokens = tokenizer.encode(&format!("{}\n", question.text))?;
        tokens.push(0); // where the start of thinking goes
        anyhow::ensure!(tokens.iter().all(|&t| t < vocab), "--tokenizer has more tokens than the shape has embeddings");
        Ok(Prompt { id: question.id, text: String::new(), tokens })
    };
    question::read(data, None)?.into_iter().map(prompt).collect()
}

fn made_up(mind: &Mind, question: u32, length: usize) -> Prompt {
    let tokens = train::bench::made_up(mind.decoder.config().vocab, question, length);
    Prompt { id: question, text: String::new(), tokens }
}

/// The published shapes, and that of the embedded reasoner.
fn shape(shape: Shape) -> Result<Config> {
    Ok(match shape {
        Shape::Embedded => Config::read(crate::embedded::reasoner())?,
        Shape::Gpt2 => Config {
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
            norm: Norm::LayerNorm { eps: 1e-5 },
            positions: Positions::Learned,
            mlp: Mlp::Gelu,
            qk_norm: false,
            tied: true,
            eos: Vec::new(),
            latent: LatentFields::default(),
            defaults: Defaults::default(),
        },
        Shape::Llama1b => Config {
            architecture: Architecture::Llama,
            layers: 16,
            width: 2048,
            heads: 32,
            kv_heads: 8,
            ffn: 8192,
            vocab: 128_256,
            context: 131_072,
            norm: Norm::RmsNorm { eps: 1e-5 },
            positions: Positions::Rope {
                theta: 500_000.0,
                scaling: Some(Llama3Scaling { factor: 32.0, low: 1.0, high: 4.0, original_context: 8192 }),
            },
            mlp: Mlp::SwiGlu,
            ..self::shape(Shape::Gpt2)?
        },
        Shape::Qwen32b => Config {
            architecture: Architecture::Qwen3,
            layers: 28,
            heads: 16,
            head_dim: 128,
            ffn: 6144,
            vocab: 151_936,
            norm: Norm::RmsNorm { eps: 1e-6 },
            positions: Positions::Rope { theta: 5_000_000.0, scaling: None },
            qk_norm: true,
            ..self::shape(Shape::Llama1b)?
        },
    })
}
