//! Arguments of `train reasoner`, `train reward` and `train rl`: the options of the library as
//! flags, and the flags specific to the command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use latent_tts::training::{
    Preset, ProbeTrainerOptions, RewardTrainerOptions, RlTrainerOptions, TrainerOptions,
};
use latent_tts::{Family, FieldNames, SamplingOptions};

use super::preset::preset_parser;
use super::{DeviceArgs, MachineArgs, OutputArgs, TooLongKind, values};

/// Subcommands of `latent-tts train`.
#[derive(Debug, Subcommand)]
pub enum TrainCommand {
    /// Train a latent reasoner, or a baseline with or without a chain of thought
    ///
    /// --method selects how thoughts are learned. coconut replaces the steps of a chain of thought
    /// by thoughts one at a time; start with --mode cot, then train --mode latent with --init set
    /// to its output. codi trains one model as both a teacher that writes the steps and a student
    /// that uses thoughts, matching the student's hidden states to the teacher's. colar compresses
    /// the steps into vectors and learns to predict the next one. latent-sft compresses them into
    /// mixtures of token embeddings predicted by the LM head, and rot into a fixed number of
    /// vectors predicted by a projection head; start both from --mode cot. --step-decoder adds the
    /// auxiliary loss of SIM-CoT to coconut and codi. docs/how-to/train-reasoner.md explains which
    /// method to choose.
    ///
    /// Trains all weights or, with --lora, adapters on a frozen model. The result is a directory
    /// that eval, annotate, transformers and (for adapters) peft can load.
    #[command(after_help = "\
Examples:
  latent-tts train reasoner --mode cot --out models/cot --steps 3300
  latent-tts train reasoner --mode latent --init models/cot --out models/latent --steps 8200 \
    --lr 1e-3 --min-lr-ratio 0.01 --dropout 0.1
  latent-tts train reasoner --method codi --preset codi-llama --init smollm2.gguf \
    --data gsm8k_train.jsonl --held-out valid.json --eval-every 200 --out models/codi \
    --steps 20000
  latent-tts train reasoner --method latent-sft --init models/cot --out models/latent-sft
  latent-tts train reasoner --method rot --init models/cot --thoughts 24 --out models/rot
  latent-tts train reasoner --preset paper --init ./gpt2 --data gsm8k_train.jsonl \
    --out models/mine
  latent-tts train reasoner --mode cot --init ./gpt2 --out models/mix \
    --data more.jsonl:4 --data extra.jsonl:1 --data corpus:1")]
    Reasoner(Box<ReasonerArgs>),

    /// Train a latent reward model on the output of annotate
    ///
    /// Starts from the weights of a reasoner and learns to rank the thoughts of a problem's
    /// trajectories by their labels.
    #[command(after_help = "\
Examples:
  latent-tts train reward --model models/latent --annotations labels/ \
    --held-out labels-valid/ --out models/rm
  latent-tts train reward --model models/latent --annotations labels/ --out models/rm-bce \
    --objective bce --head linear
  latent-tts train reward --model models/lora --lora 16 --reference reasoner --reads-answers \
    --objective pairwise --annotations labels/ --out models/reward
  latent-tts train reward --model models/latent --out models/rm-none --objective untrained")]
    Reward(Box<RewardArgs>),

    /// Train a probe on the hidden states of the reasoner
    ///
    /// Samples trajectories of problems that the reasoner was not trained on, keeps the hidden
    /// states, which are computed anyway, and learns to rank the correct trajectories of a question
    /// above the wrong ones. Training takes minutes; scoring with a probe adds a few percent to the
    /// sampling time and needs no second model. --probe DIR of eval, solve and serve adds the score
    /// as the signal probe.
    #[command(after_help = "\
Examples:
  latent-tts train probe --out models/probe
  latent-tts train probe --model ./codi --data held_back.jsonl --limit 2000 --samples 16 \
    --out models/probe
  latent-tts train probe --kind linear --data embedded:valid:0..2000 --out models/linear
  latent-tts eval --probe models/probe --aggregate majority,probe,best_probe")]
    Probe(Box<ProbeArgs>),

    /// Train a reasoner by reinforcement learning on its own trajectories
    ///
    /// Samples a group of trajectories per question, rewards correct answers, and raises the
    /// probability of trajectories above the mean of their group. The dropout masks and noise of
    /// sampling are regenerated from their keys, and gradients flow through the thoughts. Answer
    /// tokens are sampled under every policy. --reward majority needs no gold answers.
    ///
    /// The result is a model of the same family that eval, annotate and serve can load.
    #[command(after_help = "\
Examples:
  latent-tts train rl --out models/rl
  latent-tts train rl --model models/latent --data gsm8k_train.jsonl --held-out valid.jsonl \
    --samples 16 --mask trajectory --out models/rl
  latent-tts train rl --model models/codi --lora 16 --sampler noise --thought-gradient density \
    --estimator grpo --out models/rl-noise
  latent-tts train rl --model models/cot --data gsm8k_train.jsonl --updates 4 --kl-coef 0.01 \
    --out models/rl-cot
  latent-tts train rl --model models/latent --data questions.jsonl --reward majority \
    --out models/ttrl")]
    Rl(Box<RlArgs>),
}

/// Flags of `train probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// The output directory
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Replace an existing probe
    #[arg(long)]
    pub overwrite: bool,

    /// The reasoner: a checkpoint directory, a Hugging Face Hub id, or `embedded` [default:
    /// embedded]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub model: Option<String>,

    /// The base model, if the reasoner is an adapter [default: the model that the adapter records]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub base: Option<String>,

    /// The family of the reasoner [default: detected from the checkpoint]
    #[arg(long, value_name = "FAMILY", value_parser = values::family(), help_heading = "Model")]
    pub method: Option<Family>,

    /// The problems: a file or a split of the embedded corpus, as for eval [default: the first 1000
    /// of embedded:train]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub data: Option<String>,

    /// Use only the first COUNT questions
    #[arg(long, value_name = "COUNT", help_heading = "Data")]
    pub limit: Option<NonZeroUsize>,

    #[command(flatten)]
    pub fields: FieldNames,

    /// How to handle questions that exceed the model's context [default: stop]
    #[arg(long, value_enum, help_heading = "Data")]
    pub too_long: Option<TooLongKind>,

    #[command(flatten)]
    pub sampling: SamplingOptions,

    #[command(flatten)]
    pub options: ProbeTrainerOptions,

    #[command(flatten)]
    pub machine: MachineArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `train rl`.
#[derive(Debug, Args)]
pub struct RlArgs {
    /// The output directory
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    #[command(flatten)]
    pub options: RlTrainerOptions,

    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `train reasoner`.
#[derive(Debug, Args)]
pub struct ReasonerArgs {
    /// The output directory
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Use published settings, or `tiny`, a small model for a CPU, instead of the defaults below.
    /// Other flags override it
    #[arg(long, value_parser = preset_parser(Preset::REASONER))]
    pub preset: Option<String>,

    #[command(flatten)]
    pub options: TrainerOptions,

    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `train reward`.
#[derive(Debug, Args)]
pub struct RewardArgs {
    /// The output directory
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Use published settings instead of the defaults below: `paper` uses the head, loss, batch
    /// size and learning rate of the LatentRM. Other flags override it
    #[arg(long, value_parser = preset_parser(Preset::REWARD))]
    pub preset: Option<String>,

    #[command(flatten)]
    pub options: RewardTrainerOptions,

    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    /// Reinforcement learning has its own defaults for shared options.
    #[test]
    fn defaults_of_train_rl_are_those_of_the_library() {
        let cli = Cli::try_parse_from(["latent-tts", "train", "rl", "--out", "x"]).unwrap();
        let Command::Train(TrainCommand::Rl(args)) = cli.command else { panic!("another command") };
        assert_eq!(args.options, RlTrainerOptions::default());
    }
}
