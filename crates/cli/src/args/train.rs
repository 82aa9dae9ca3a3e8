//! Arguments of `train reasoner`, `train reward` and `train rl`: the library's options as flags,
//! and what is the command line's own.

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
    /// --method names how thoughts are learned. coconut removes the steps of a chain of thought one
    /// by one and puts thoughts in their place; start with --mode cot, then train --mode latent
    /// with --init on its output. codi learns both at once: the same model as a teacher that writes
    /// the steps and as a student that thinks, drawn to the teacher's hidden states. colar
    /// compresses the steps into vectors and learns to predict the next one. latent-sft does so
    /// with mixtures of token embeddings, which the language-model head predicts, and rot with a
    /// fixed number of vectors, which a projection head predicts; start both from --mode cot.
    /// --step-decoder adds SIM-CoT's auxiliary loss to coconut and codi. docs/training.md says
    /// which to choose.
    ///
    /// All weights are trained, or with --lora adapters on a frozen model. The result is a
    /// directory that eval, annotate, transformers and (an adapter) peft load.
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
    /// Starts from a reasoner's weights and learns to rank the thoughts of one problem's
    /// trajectories by their labels.
    #[command(after_help = "\
Examples:
  latent-tts train reward --model models/latent --annotations labels/ \
    --held-out labels-valid/ --out models/rm
  latent-tts train reward --model models/latent --annotations labels/ --out models/rm-bce \
    --objective bce --head linear
  latent-tts train reward --model models/lora --lora 16 --reference reasoner --reads-answers \
    --objective pairwise --annotations labels/ --out models/judge
  latent-tts train reward --model models/latent --out models/rm-none --objective untrained")]
    Reward(Box<RewardArgs>),

    /// Train a probe on the reasoner's own hidden states
    ///
    /// Samples trajectories of problems that the reasoner was not trained on, keeps the hidden
    /// states that it computes anyway, and learns to rank the right ones of a question above the
    /// wrong ones. Takes minutes; scoring with a probe takes a few percent of the time of sampling
    /// and no second model. --probe DIR of eval, solve and serve gives its score as the signal
    /// probe.
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
    /// Samples a group of trajectories for every question, rewards right answers, and raises the
    /// probability of the trajectories above their group's mean. Dropout masks and noise are those
    /// of the sampling, repeated from their keys, and gradients flow through the thoughts. Every
    /// policy samples the tokens of its answers. --reward majority needs no gold answers.
    ///
    /// The result is a model of the same family that eval, annotate and serve load.
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
    /// The directory to write
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Replace a probe that is there
    #[arg(long)]
    pub overwrite: bool,

    /// The reasoner: a checkpoint directory, an id of the Hugging Face Hub, or `embedded`
    /// [default: embedded]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub model: Option<String>,

    /// The model that the reasoner, an adapter, is added to [default: the one that it records]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub base: Option<String>,

    /// The reasoner's family [default: detected from the checkpoint]
    #[arg(long, value_name = "FAMILY", value_parser = values::family(), help_heading = "Model")]
    pub method: Option<Family>,

    /// The problems: a file or a part of the embedded corpus, as for eval [default: the first 1000
    /// of embedded:train]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub data: Option<String>,

    /// Take only the first questions
    #[arg(long, value_name = "COUNT", help_heading = "Data")]
    pub limit: Option<NonZeroUsize>,

    #[command(flatten)]
    pub fields: FieldNames,

    /// What becomes of questions that do not fit the model's positions [default: stop]
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
    /// The directory to write
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
    /// The directory to write
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Published settings in place of the defaults below, or `tiny`, a small model for a CPU.
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
    /// The directory to write
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Published settings in place of the defaults below: `paper` is the LatentRM's head, loss,
    /// batch and learning rate. Other flags override it
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

    /// Reinforcement learning has defaults of its own for options that it shares.
    #[test]
    fn defaults_of_train_rl_are_those_of_the_library() {
        let cli = Cli::try_parse_from(["latent-tts", "train", "rl", "--out", "x"]).unwrap();
        let Command::Train(TrainCommand::Rl(args)) = cli.command else { panic!("another command") };
        assert_eq!(args.options, RlTrainerOptions::default());
    }
}
