//! `docs/reference/cli.md`, generated from the definitions of the commands.
//!
//! Tested by `tests/reference.rs`, which fails if the page differs and rewrites it with
//! `UPDATE_REFERENCE=1`.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command};

use crate::args::layers;

/// The contents of the page.
pub fn markdown() -> String {
    let command = layers::command();
    let mut page = String::from(
        "# Command line\n\n\
         Generated from the definitions of the commands; `latent-tts COMMAND --help` shows the \
         same.\n\n\
         Every flag can also be set by an environment variable\n\
         (`LATENT_TTS_MAX_NEW_TOKENS` for `--max-new-tokens`) or, for `eval`, `solve`, `sweep` \
         and\n`annotate`, in a TOML file passed with `--config`.\n",
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

/// The flag with its value name and visible aliases.
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

/// The help text as a table cell, with the possible values and the default.
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
