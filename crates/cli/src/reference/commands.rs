//! `cli.md` and `configuration.md`, from the definitions of the commands.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::{Arg, ArgAction, Command};

use crate::args::layers;

/// Every command with its flags.
pub(super) fn command_line() -> String {
    let command = layers::command();
    let mut page = String::from(
        "# Command line\n\n\
         Generated from the definitions of the commands; `latent-tts COMMAND --help` prints the \
         same text.\n\n\
         Flags can also be set by environment variables and in a TOML file: see\n\
         [Configuration](configuration.md).\n",
    );
    for subcommand in command.get_subcommands() {
        write_command(&mut page, subcommand, "latent-tts");
    }
    page
}

fn write_command(page: &mut String, command: &Command, parent: &str) {
    let name = format!("{parent} {}", command.get_name());
    if command.has_subcommands() {
        for subcommand in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            write_command(page, subcommand, &name);
        }
        return;
    }
    if command.get_name() == "help" {
        return;
    }
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    // Writing to a string cannot fail.
    let _ = write!(page, "\n## {name}\n\n{}\n", about.trim());
    let mut heading = None;
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        if arg.get_id() == "help" || arg.get_id() == "version" {
            continue;
        }
        if heading != Some(arg.get_help_heading()) {
            heading = Some(arg.get_help_heading());
            let title = arg.get_help_heading().unwrap_or("Arguments");
            let _ = write!(page, "\n**{title}**\n\n| flag | meaning |\n|---|---|\n");
        }
        let _ = writeln!(page, "| {} | {} |", flag(arg), meaning(arg));
    }
}

/// The flags that can be set in other ways, each with its environment variable, its key and the
/// commands that have it.
pub(super) fn configuration() -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         Generated from the definitions of the commands.\n\n\
         A setting can be given in four ways. The first one found wins:\n\n\
         1. a flag on the command line: `--dropout-p 0.2`\n\
         2. an environment variable: `LATENT_TTS_DROPOUT_P=0.2`\n\
         3. a key in the TOML file passed as `--config FILE.toml`, for commands with that flag: \
         `dropout_p = 0.2`\n\
         4. the preset of a training (`--preset`)\n\n\
         Keys of one TOML file may belong to several commands; a command ignores those of others. \
         An\nunknown key is an error that names the closest known key. An unknown variable that \
         starts with\n`LATENT_TTS_` is reported as a warning. Switches take `true` or `false`.\n\n\
         The same names are the fields of `latent` in HTTP requests and the keyword arguments in \
         Python,\nwhere these interfaces have the setting.\n\n\
         ## Other environment variables\n\n\
         | variable | meaning |\n|---|---|\n\
         | `HF_HOME`, `HF_HUB_CACHE` | directory of the Hugging Face Hub's cache |\n\
         | `HF_TOKEN` | token for the Hub |\n\
         | `HF_HUB_OFFLINE` | `1`: never use the network |\n\
         | `RUST_LOG` | log levels of `serve` |\n\
         | `NO_COLOR` | no colors in the terminal |\n\n\
         ## Settings\n\n\
         | key in TOML | environment variable | commands |\n|---|---|---|\n",
    );
    let mut settings = BTreeMap::<String, Vec<String>>::new();
    for subcommand in layers::command().get_subcommands() {
        collect_settings(&mut settings, subcommand, "");
    }
    for (long, commands) in settings {
        let _ = writeln!(
            page,
            "| `{}` | `{}` | {} |",
            long.replace('-', "_"),
            layers::env_var(&long),
            commands.join(", ")
        );
    }
    page
}

fn collect_settings(settings: &mut BTreeMap<String, Vec<String>>, command: &Command, parent: &str) {
    let name = format!("{parent}{}", command.get_name());
    for subcommand in command.get_subcommands() {
        collect_settings(settings, subcommand, &format!("{name} "));
    }
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        match arg.get_long() {
            Some(long) if !["help", "version"].contains(&long) => {
                settings.entry(long.to_owned()).or_default().push(name.clone());
            }
            _ => {}
        }
    }
}

/// The help of a flag of `eval`, by its identifier, and its flag.
pub(super) fn eval_flag(id: &str) -> Option<(String, String)> {
    let command = layers::command();
    let eval = command.find_subcommand("eval")?;
    let arg = eval.get_arguments().find(|arg| arg.get_id() == id)?;
    Some((flag(arg), meaning(arg)))
}

/// The flag with its value and its visible aliases.
fn flag(arg: &Arg) -> String {
    let value = arg.get_value_names().map(|names| names.join(" "));
    let value = value.filter(|_| arg.get_action().takes_values());
    let Some(long) = arg.get_long() else {
        return format!("`{}`", value.unwrap_or_else(|| arg.get_id().to_string()));
    };
    let short = arg.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
    let value = value.map(|value| format!(" {value}")).unwrap_or_default();
    let aliases = arg.get_visible_aliases().unwrap_or_default();
    let aliases: String = aliases.iter().map(|alias| format!(", `--{alias}`")).collect();
    format!("{short}`--{long}{}`{aliases}", value.replace('|', "\\|"))
}

/// The help in one cell, with the possible values and the default.
fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default();
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({help})", value.get_name()),
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !values.is_empty() && !matches!(arg.get_action(), ArgAction::SetTrue) {
        let _ = write!(text, "; one of {}", values.join(", "));
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
    if !defaults.is_empty() && !matches!(arg.get_action(), ArgAction::SetTrue) {
        let _ = write!(text, " [default: {}]", defaults.join(","));
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace('|', "\\|").replace('<', "&lt;")
}
