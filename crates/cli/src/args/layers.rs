//! Command line over environment over configuration file over preset, for every flag at once.
//!
//! clap knows the first two. The file's values become clap's default values, the lowest layer it
//! has, so that one set of readers and one set of messages serves all three. Names are not repeated
//! anywhere: a flag's variable and its key in the file are made from its long name.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};
use toml::{Table, Value};

use super::{Cli, preset};

/// A file of settings is small; anything larger is another file given by mistake.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Reads the command line, the environment, and the file that `--config` names.
///
/// # Errors
///
/// A [`clap::Error`] for what was typed, or a message that names the configuration file and its
/// key.
pub fn parse(argv: &[OsString]) -> Result<Cli> {
    let typed = command().try_get_matches_from(argv)?;
    let mut layered = preset::apply(command(), &typed);
    let config = typed.subcommand().and_then(|(name, matches)| Some((name, config_path(matches)?)));
    if let Some((name, file)) = config {
        layered = with_config(layered, name, &file)
            .with_context(|| format!("config file {}", file.display()))?;
    }
    Ok(Cli::from_arg_matches(&layered.try_get_matches_from(argv)?)?)
}

/// Not every command has the flag.
fn config_path(matches: &clap::ArgMatches) -> Option<PathBuf> {
    matches.try_get_one::<PathBuf>("config").ok().flatten().cloned()
}

/// All commands, each flag with its environment variable.
fn command() -> Command {
    Cli::command().mut_subcommands(with_env_vars)
}

fn with_env_vars(command: Command) -> Command {
    let command = command.mut_args(|arg| match arg.get_long().map(env_var) {
        Some(variable) => boolish(arg).env(variable).hide_env(true),
        None => arg,
    });
    command.mut_subcommands(with_env_vars)
}

/// A switch may be set to 1, true, yes or on.
fn boolish(arg: Arg) -> Arg {
    if is_switch(&arg) { arg.value_parser(BoolishValueParser::new()) } else { arg }
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

fn env_var(long: &str) -> String {
    format!("LATENT_TTS_{}", long.to_ascii_uppercase().replace('-', "_"))
}

/// Puts the file's values under those of the command called `name`.
fn with_config(mut command: Command, name: &str, file: &Path) -> Result<Command> {
    for (key, value) in &read_config(file)? {
        let flags: Vec<&Arg> =
            command.get_subcommands().filter_map(|c| find_flag(c, key)).collect();
        if flags.is_empty() || key == "config" {
            bail!("unknown key `{key}`{}", suggestion(&command, key));
        }
        // A file may serve several commands; a key that only another one has is not an error.
        let Some(arg) = command.find_subcommand(name).and_then(|c| find_flag(c, key)) else {
            continue;
        };
        let text = flag_text(key, value, is_switch(arg))?;
        check_value(name, key, is_switch(arg), &text)?;
        command = command.mut_subcommand(name, |c| {
            c.mut_arg(key.replace('-', "_"), |arg| arg.default_value(text))
        });
    }
    Ok(command)
}

fn read_config(file: &Path) -> Result<Table> {
    let size = std::fs::metadata(file)?.len();
    if size > MAX_CONFIG_BYTES {
        bail!(
            "{size} bytes are too many for a file of settings; at most {MAX_CONFIG_BYTES} are read"
        );
    }
    let bytes = std::fs::read(file)?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|e| anyhow::anyhow!("not UTF-8 at byte {}", e.valid_up_to()))?;
    text.parse::<Table>().map_err(|error| {
        let before = error
            .span()
            .map_or(0, |span| bytes.iter().take(span.start).filter(|byte| **byte == b'\n').count());
        let content = text.lines().nth(before).unwrap_or_default().trim();
        anyhow::anyhow!("line {}, `{content}`: {}", before + 1, error.message())
    })
}

fn find_flag<'a>(command: &'a Command, long: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(long))
}

/// A value as it would be typed.
fn flag_text(key: &str, value: &Value, switch: bool) -> Result<String> {
    Ok(match value {
        Value::Boolean(on) if switch => on.to_string(),
        _ if switch => bail!("`{key}` is {}; give it true or false", value.type_str()),
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Array(items) => {
            let items: Result<Vec<String>> =
                items.iter().map(|item| flag_text(key, item, false)).collect();
            items?.join(",")
        }
        _ => bail!("`{key}` is {}; give it a string, a number or a list of them", value.type_str()),
    })
}

/// Reads one value by itself, so that what is wrong with it can be said to be in the file.
fn check_value(name: &str, key: &str, switch: bool, text: &str) -> Result<()> {
    let value = if switch { format!("--{key}") } else { format!("--{key}={text}") };
    let alone = Cli::command().mut_subcommand(name, |c| c.mut_args(|arg| arg.required(false)));
    match alone.try_get_matches_from(["latent-tts", name, &value]) {
        Ok(_) => Ok(()),
        Err(error) => {
            let message = error.to_string();
            let first = message.lines().next().unwrap_or_default();
            bail!("`{key}`: {}", first.trim_start_matches("error: "))
        }
    }
}

/// The key that was meant, if one is close.
fn suggestion(command: &Command, key: &str) -> String {
    let flags = command
        .get_subcommands()
        .filter(|c| find_flag(c, "config").is_some())
        .flat_map(Command::get_arguments);
    let close = flags.filter_map(Arg::get_long).filter(|&long| long != "config");
    let scored = close.map(|long| (strsim::jaro_winkler(long, &key.replace('_', "-")), long));
    match scored.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((score, long)) if score > 0.7 => format!("; did you mean `{long}`?"),
        _ => "; keys are the names of flags, see `latent-tts eval --help`".to_owned(),
    }
}
