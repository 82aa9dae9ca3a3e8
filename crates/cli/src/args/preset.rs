//! `--preset`: published settings as defaults, which every other source of a flag overrides.

use clap::{ArgMatches, Command, ValueEnum};

/// A set of published settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PresetKind {
    /// The settings in the papers of the reasoner and of the reward model
    Paper,
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
        let required: [(&[&str], &[&str]); 3] = [
            (&["train", "reasoner"], &["--out", "x"]),
            (&["train", "reward"], &["--out", "x", "--model", "y"]),
            (&["annotate"], &[]),
        ];
        for (path, required) in required {
            let argv =
                ["latent-tts"].iter().chain(path).chain(required).chain(&["--preset", "paper"]);
            let typed = Cli::command().try_get_matches_from(argv.clone()).unwrap();
            let layered = apply(Cli::command(), &typed);
            let mut matches = &layered.try_get_matches_from(argv).unwrap();
            while let Some((_, inner)) = matches.subcommand() {
                matches = inner;
            }
            for (flag, value) in values(PresetKind::Paper, path) {
                let raw = matches.get_raw(&flag.replace('-', "_")).unwrap().next().unwrap();
                assert_eq!(raw, *value, "{path:?} --{flag}");
            }
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
