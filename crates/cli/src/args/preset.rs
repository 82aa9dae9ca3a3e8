//! `--preset`: presets of the library as defaults, overridden by every other source of a flag.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{ArgMatches, Command};
use latent_tts::training::Preset;

/// A parser for the preset names of a command.
pub fn preset_parser(command: &str) -> PossibleValuesParser {
    let value = |preset: &Preset| PossibleValue::new(preset.name).help(preset.about);
    PossibleValuesParser::new(Preset::of(command).map(value))
}

/// Makes the values of the selected preset, if any, the defaults of its subcommand.
pub fn apply(command: Command, typed: &ArgMatches) -> Command {
    let mut path = Vec::new();
    let mut matches = typed;
    while let Some((name, inner)) = matches.subcommand() {
        path.push(name);
        matches = inner;
    }
    let Ok(Some(name)) = matches.try_get_one::<String>("preset") else { return command };
    match Preset::named(name, &path.join(" ")) {
        Ok(preset) => with_defaults(command, &path, preset.values),
        Err(_) => command,
    }
}

fn with_defaults(
    command: Command,
    path: &[&str],
    values: &'static [(&'static str, &'static str)],
) -> Command {
    match path {
        [] => values.iter().fold(command, |command, (id, value)| {
            command.mut_arg(id, |arg| arg.default_value(*value))
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

    /// Every value of a preset is a flag that accepts it.
    #[test]
    fn presets_parse() {
        let commands: [(&str, &[&str]); 3] = [
            (Preset::REASONER, &["--out", "x"]),
            (Preset::REWARD, &["--out", "x", "--model", "y"]),
            (Preset::ANNOTATE, &[]),
        ];
        for (command, required) in commands {
            for preset in Preset::of(command) {
                assert_parses(preset, required);
            }
        }
    }

    #[track_caller]
    fn assert_parses(preset: &Preset, required: &[&str]) {
        let argv = ["latent-tts"].into_iter().chain(preset.command.split(' '));
        let argv: Vec<&str> =
            argv.chain(required.iter().copied()).chain(["--preset", preset.name]).collect();
        let typed = Cli::command().try_get_matches_from(argv.clone()).unwrap();
        let layered = apply(Cli::command(), &typed);
        let mut matches = &layered.try_get_matches_from(argv).unwrap();
        while let Some((_, inner)) = matches.subcommand() {
            matches = inner;
        }
        assert!(!preset.values.is_empty(), "{preset:?} sets nothing");
        for (id, value) in preset.values {
            let raw = matches.get_raw(id).unwrap();
            let raw: Vec<_> = raw.map(|part| part.to_string_lossy()).collect();
            assert_eq!(raw.join(","), *value, "{} --{id}", preset.command);
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
