//! `--preset`: published settings (and one small set) as defaults, which every other source of a
//! flag overrides.

use clap::{ArgMatches, Command, ValueEnum};

/// A set of settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PresetKind {
    /// The settings in the papers of the reasoner and of the reward model
    Paper,
    /// CODI's on GPT-2 (40 epochs)
    CodiGpt2,
    /// CODI's on Llama-3.2-1B (10 epochs)
    CodiLlama,
    /// SIM-CoT's on CODI with GPT-2 (40 epochs)
    SimcotCodiGpt2,
    /// SIM-CoT's on CODI with Llama-3.2-1B (10 epochs)
    SimcotCodiLlama,
    /// SIM-CoT's on a trained COCONUT, GPT-2 (35 epochs)
    SimcotCoconut,
    /// CoLaR's supervised stage on Llama-3.2-1B, from a model that writes its steps (50 epochs)
    Colar,
    /// Latent-SFT's second stage on Llama-3.2-1B (70 epochs); its first is not part of ours
    LatentSft,
    /// Render-of-Thought's on Qwen3-VL (2 epochs a stage, ours is one); its targets are others
    Rot,
    /// A small model on the built-in corpus, for a processor of two cores; not published
    Tiny,
}

/// The long name of a flag, and its value.
type FlagValue = (&'static str, &'static str);

/// COCONUT's run on GSM8K: 25 epochs, of which the stages with a fixed number of removed steps take
/// 12; two thoughts for each removed step, no mixing of stages, no auxiliary loss; AdamW at a
/// constant rate without clipping.
const REASONER: &[FlagValue] = &[
    ("removal", "stages"),
    ("stages", "3"),
    ("thoughts-per-step", "2"),
    ("thoughts", "6"),
    ("rise", "0.48"),
    ("mixed", "0"),
    ("digits", "0"),
    ("batch", "128"),
    ("lr", "1e-4"),
    ("warmup", "0"),
    ("floor", "1"),
    ("weight-decay", "0.01"),
    ("beta2", "0.999"),
    ("clip", "0"),
    ("dropout", "0.1"),
];

/// What both of CODI's runs share: LoRA on every linear map, a cosine without a floor.
macro_rules! codi {
    ($($more:expr),*) => {
        &[
            ("method", "codi"),
            ("mode", "latent"),
            ("thoughts", "6"),
            ("lora", "128"),
            ("lora-alpha", "32"),
            ("lora-dropout", "0.1"),
            ("dropout", "0"),
            ("digits", "0"),
            ("batch", "128"),
            ("warmup", "3%"),
            ("floor", "0"),
            ("weight-decay", "0.1"),
            ("beta2", "0.999"),
            ("clip", "2"),
            $($more),*
        ]
    };
}

const CODI_GPT2: &[FlagValue] = codi![("lr", "3e-3"), ("gamma", "1")];
const CODI_LLAMA: &[FlagValue] = codi![("lr", "8e-4"), ("gamma", "20")];
const SIMCOT_CODI_GPT2: &[FlagValue] = codi![("lr", "3e-3"), ("gamma", "1"), ("step-decoder", "1")];
const SIMCOT_CODI_LLAMA: &[FlagValue] =
    codi![("lr", "8e-4"), ("gamma", "20"), ("step-decoder", "1")];

/// SIM-CoT on a trained COCONUT: all ten thoughts and no steps from the start, all weights.
const SIMCOT_COCONUT: &[FlagValue] = &[
    ("method", "coconut"),
    ("mode", "latent"),
    ("step-decoder", "1"),
    ("thoughts", "10"),
    ("thoughts-per-step", "2"),
    ("rise", "0"),
    ("mixed", "0"),
    ("digits", "0"),
    ("batch", "128"),
    ("lr", "1e-4"),
    ("warmup", "0"),
    ("floor", "1"),
    ("weight-decay", "0.01"),
    ("beta2", "0.999"),
    ("clip", "0"),
    ("dropout", "0.1"),
];

/// CoLaR's supervised stage: LoRA, a constant rate.
const COLAR: &[FlagValue] = &[
    ("method", "colar"),
    ("mode", "latent"),
    ("max-speed", "5"),
    ("latent-head", "2048"),
    ("lora", "128"),
    ("lora-alpha", "32"),
    ("lora-targets", "q_proj,v_proj"),
    ("dropout", "0"),
    ("digits", "0"),
    ("batch", "256"),
    ("lr", "1e-4"),
    ("warmup", "0"),
    ("floor", "1"),
    ("weight-decay", "0.01"),
    ("beta2", "0.999"),
    ("clip", "0"),
];

/// Latent-SFT's second stage: LoRA, two tokens a thought.
const LATENT_SFT: &[FlagValue] = &[
    ("method", "latent-sft"),
    ("mode", "latent"),
    ("compression", "2"),
    ("thoughts", "64"),
    ("lora", "64"),
    ("lora-alpha", "128"),
    ("lora-dropout", "0.1"),
    ("dropout", "0"),
    ("batch", "64"),
    ("lr", "3e-4"),
];

/// Render-of-Thought: both losses of its first stage, LoRA as in its second.
const ROT: &[FlagValue] = &[
    ("method", "rot"),
    ("mode", "latent"),
    ("thoughts", "32"),
    ("latent-head", "2048"),
    ("gamma", "10"),
    ("lora", "16"),
    ("lora-alpha", "32"),
    ("lora-targets", "q_proj,k_proj,v_proj,o_proj"),
    ("dropout", "0"),
    ("batch", "64"),
    ("lr", "2e-5"),
];

/// A model of under a million parameters that two cores train in minutes. It shows the whole way
/// from nothing to a table; it is no good reasoner.
const TINY: &[FlagValue] = &[
    ("width", "128"),
    ("layers", "4"),
    ("heads", "4"),
    ("context", "192"),
    ("batch", "32"),
    ("steps", "1000"),
    ("warmup", "100"),
    ("lr", "3e-3"),
    ("held-out-count", "100"),
];

/// The published LatentRM: one linear map of the hidden state, the step-wise contrastive loss, 256
/// problems of 8 trajectories in a batch.
const REWARD: &[FlagValue] = &[
    ("head", "linear"),
    ("objective", "contrastive"),
    ("digits", "0"),
    ("late", "1"),
    ("batch", "256"),
    ("lr", "1e-5"),
];

/// N = 8 trajectories and M = 128 rollouts from every thought.
const ANNOTATE: &[FlagValue] = &[("labels", "rollouts"), ("samples", "8"), ("rollouts", "128")];

/// The flags of a preset for a command.
fn values(preset: PresetKind, path: &[&str]) -> &'static [FlagValue] {
    match (preset, path) {
        (PresetKind::Paper, ["train", "reasoner"]) => REASONER,
        (PresetKind::CodiGpt2, ["train", "reasoner"]) => CODI_GPT2,
        (PresetKind::CodiLlama, ["train", "reasoner"]) => CODI_LLAMA,
        (PresetKind::SimcotCodiGpt2, ["train", "reasoner"]) => SIMCOT_CODI_GPT2,
        (PresetKind::SimcotCodiLlama, ["train", "reasoner"]) => SIMCOT_CODI_LLAMA,
        (PresetKind::SimcotCoconut, ["train", "reasoner"]) => SIMCOT_COCONUT,
        (PresetKind::Colar, ["train", "reasoner"]) => COLAR,
        (PresetKind::LatentSft, ["train", "reasoner"]) => LATENT_SFT,
        (PresetKind::Rot, ["train", "reasoner"]) => ROT,
        (PresetKind::Tiny, ["train", "reasoner"]) => TINY,
        (PresetKind::Paper, ["train", "reward"]) => REWARD,
        (PresetKind::Paper, ["annotate"]) => ANNOTATE,
        _ => &[],
    }
}

/// Makes the values of the chosen preset, if any, the defaults of its subcommand.
pub fn apply(command: Command, typed: &ArgMatches) -> Command {
    let (mut path, mut matches) = (Vec::new(), typed);
    while let Some((name, inner)) = matches.subcommand() {
        path.push(name);
        matches = inner;
    }
    match matches.try_get_one::<PresetKind>("preset") {
        Ok(Some(preset)) => with_defaults(command, &path, values(*preset, &path)),
        _ => command,
    }
}

fn with_defaults(command: Command, path: &[&str], values: &'static [FlagValue]) -> Command {
    match path {
        [] => values.iter().fold(command, |command, (flag, value)| {
            command.mut_arg(flag.replace('-', "_"), |arg| arg.default_value(*value))
        }),
        [name, inner @ ..] => {
            let inner = inner.to_vec();
            command.mut_subcommand(*name, move |command| with_defaults(command, &inner, values))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// Every flag of a preset exists and accepts its value.
    #[test]
    fn presets_parse() {
        let reasoner: (&[&str], &[&str]) = (&["train", "reasoner"], &["--out", "x"]);
        let paper: [(&[&str], &[&str]); 2] =
            [(&["train", "reward"], &["--out", "x", "--model", "y"]), (&["annotate"], &[])];
        for (path, required) in paper {
            assert_parses(PresetKind::Paper, path, required);
        }
        for preset in PresetKind::value_variants() {
            assert_parses(*preset, reasoner.0, reasoner.1);
        }
    }

    #[track_caller]
    fn assert_parses(preset: PresetKind, path: &[&str], required: &[&str]) {
        let name = preset.to_possible_value().unwrap().get_name().to_owned();
        let argv = ["latent-tts"].iter().chain(path).chain(required).copied();
        let argv: Vec<&str> = argv.chain(["--preset", &name]).collect();
        let typed = Cli::command().try_get_matches_from(argv.clone()).unwrap();
        let layered = apply(Cli::command(), &typed);
        let mut matches = &layered.try_get_matches_from(argv).unwrap();
        while let Some((_, inner)) = matches.subcommand() {
            matches = inner;
        }
        assert!(!values(preset, path).is_empty(), "{name} sets nothing for {path:?}");
        for (flag, value) in values(preset, path) {
            let raw = matches.get_raw(&flag.replace('-', "_")).unwrap();
            let raw: Vec<_> = raw.map(|part| part.to_string_lossy()).collect();
            assert_eq!(raw.join(","), *value, "{path:?} --{flag}");
        }
    }

    #[test]
    fn the_command_line_overrides_a_preset() {
        let argv = ["latent-tts", "annotate", "--preset", "paper", "--rollouts", "2"];
        let typed = Cli::command().try_get_matches_from(argv).unwrap();
        let layered = apply(Cli::command(), &typed).try_get_matches_from(argv).unwrap();
        let (_, matches) = layered.subcommand().unwrap();
        assert_eq!(matches.get_raw("rollouts").unwrap().next().unwrap(), "2");
        assert_eq!(matches.get_raw("samples").unwrap().next().unwrap(), "8");
    }
}
