//! Precedence of flag values: command line, environment, configuration file, preset.
//!
//! clap itself handles the first two. Values from the file and the preset become clap's default
//! values, its lowest layer, so that all sources share the same value parsers and error messages. A
//! flag's environment variable and its key in the file are derived from its long name.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::builder::BoolishValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};
use toml::{Table, Value};

use super::{Cli, preset};
use crate::settings::AGGREGATION_FIELDS;

/// Maximum size of a configuration file; a larger file is most likely not a configuration.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Parses the command line, the environment, and the file passed with `--config`.
///
/// # Errors
///
/// A [`clap::Error`] for the command line and the environment, otherwise a message that names the
/// configuration file and the key.
pub fn parse(argv: &[OsString]) -> Result<Cli> {
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    unknown_variables(variables).iter().for_each(|note| crate::printer::stderr_line(note));
    let typed = command().try_get_matches_from(argv)?;
    let config = typed.subcommand().and_then(|(name, matches)| Some((name, config_path(matches)?)));
    let config = config.map(|(name, file)| ConfigLayer::read(name, file)).transpose()?;
    parse_layers(argv, config.as_ref())
}

/// Parses a command line and the environment, with the settings of a file and a preset as defaults.
pub(crate) fn parse_layers(argv: &[OsString], config: Option<&ConfigLayer>) -> Result<Cli> {
    let layer_config = |command| match config {
        Some(config) => config.apply(command),
        None => Ok(command),
    };
    // The file may select a preset; its other values override those of the preset.
    let with_preset = layer_config(command())?.try_get_matches_from(argv)?;
    let layered = layer_config(preset::apply(command(), &with_preset))?;
    Ok(Cli::from_arg_matches(&layered.try_get_matches_from(argv)?)?)
}

/// The path passed with `--config`, if the command has that flag.
fn config_path(matches: &clap::ArgMatches) -> Option<PathBuf> {
    matches.try_get_one::<PathBuf>("config").ok().flatten().cloned()
}

/// The clap command, with an environment variable for each flag.
pub(crate) fn command() -> Command {
    let hide = |command: Command| {
        AGGREGATION_FIELDS
            .into_iter()
            .fold(command, |command, field| command.mut_arg(field, |arg| arg.hide(true)))
    };
    Cli::command()
        .mut_subcommand("annotate", hide)
        .mut_subcommand("train", |train| train.mut_subcommand("probe", hide))
        .mut_subcommands(with_env_vars)
}

/// The command that an argument list (without the program name) selects.
pub(crate) fn command_of(line: &[String]) -> Command {
    let mut command = command();
    for word in line {
        match command.find_subcommand(word) {
            Some(found) => command = found.clone(),
            None => break,
        }
    }
    command
}

fn with_env_vars(command: Command) -> Command {
    let command = command.mut_args(|arg| match variable_for(&arg) {
        Some(variable) => boolish(arg).env(variable).hide_env(true),
        None => arg,
    });
    command.mut_subcommands(with_env_vars)
}

/// The environment variable of a flag: that of its name, or that of an alias if only that one is
/// set.
fn variable_for(arg: &Arg) -> Option<String> {
    let name = env_var(arg.get_long()?);
    let aliases = arg.get_all_aliases().unwrap_or_default();
    let is_set = |variable: &String| std::env::var_os(variable).is_some();
    let alias = aliases.into_iter().map(env_var).find(is_set);
    Some(alias.filter(|_| !is_set(&name)).unwrap_or(name))
}

/// Allows the environment to set a switch to 1, true, yes or on.
fn boolish(arg: Arg) -> Arg {
    if is_switch(&arg) { arg.value_parser(BoolishValueParser::new()) } else { arg }
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

const ENV_PREFIX: &str = "LATENT_TTS_";

pub(crate) fn env_var(long: &str) -> String {
    format!("{ENV_PREFIX}{}", long.to_ascii_uppercase().replace('-', "_"))
}

/// The environment variable that the value of an error came from: the variable of its flag, if it
/// is set and the flag is not on the command line.
pub fn variable_of(error: &clap::Error) -> Option<String> {
    let ContextValue::String(flag) = error.get(ContextKind::InvalidArg)? else { return None };
    let flag = flag.split([' ', '=']).next()?;
    let typed = |arg: OsString| {
        let arg = arg.to_string_lossy().into_owned();
        arg == flag || arg.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='))
    };
    let variable = env_var(flag.strip_prefix("--")?);
    (std::env::var_os(&variable).is_some() && !std::env::args_os().any(typed)).then_some(variable)
}

/// A note for each variable that starts with the prefix but belongs to no flag, which is most
/// likely a typo.
pub(crate) fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut known = BTreeSet::new();
    collect_variables(&Cli::command(), &mut known);
    let unknown = names.filter(|name| name.starts_with(ENV_PREFIX) && !known.contains(name));
    let note = |name: String| {
        let scored = known.iter().map(|flag| (strsim::jaro_winkler(flag, &name), flag));
        let meant = match scored.max_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((score, flag)) if score > 0.9 => format!("; did you mean {flag}?"),
            _ => String::new(),
        };
        format!("note: unknown environment variable {name}{meant}")
    };
    unknown.map(note).collect()
}

fn collect_variables(command: &Command, known: &mut BTreeSet<String>) {
    for arg in command.get_arguments() {
        known.extend(arg.get_long().map(env_var));
        known.extend(arg.get_all_aliases().unwrap_or_default().into_iter().map(env_var));
    }
    command.get_subcommands().for_each(|command| collect_variables(command, known));
}

/// The settings file of a subcommand.
pub(crate) struct ConfigLayer<'a> {
    pub(crate) subcommand: &'a str,
    pub(crate) file: PathBuf,
    pub(crate) settings: Table,
}

impl<'a> ConfigLayer<'a> {
    fn read(subcommand: &'a str, file: PathBuf) -> Result<Self> {
        let settings = read_config(&file).with_context(|| in_file(&file))?;
        Ok(Self { subcommand, file, settings })
    }

    /// Makes the values of the file the defaults of the subcommand.
    fn apply(&self, mut command: Command) -> Result<Command> {
        for (key, value) in &self.settings {
            command =
                self.apply_setting(command, key, value).with_context(|| in_file(&self.file))?;
        }
        Ok(command)
    }

    fn apply_setting(&self, command: Command, key: &str, value: &Value) -> Result<Command> {
        let name = self.subcommand;
        if key == "config" || !command.get_subcommands().any(|c| find_flag(c, key).is_some()) {
            bail!("unknown key `{key}`{}", suggestion(&command, key));
        }
        // One file may serve several commands: a key that only another command has is skipped.
        let Some(arg) = command.find_subcommand(name).and_then(|c| find_flag(c, key)) else {
            return Ok(command);
        };
        let text = flag_text(key, value, is_switch(arg))?;
        check_value(name, key, is_switch(arg), &text)?;
        let id = arg.get_id().clone();
        Ok(command.mut_subcommand(name, |c| c.mut_arg(id, |arg| arg.default_value(text))))
    }

    /// The settings of this subcommand as command-line arguments, without switches that are off.
    #[cfg(feature = "testkit")]
    pub(crate) fn typed(&self) -> Result<Vec<OsString>> {
        let command = command();
        let flags = command.find_subcommand(self.subcommand);
        let flag = |key: &str| flags.and_then(|flags| find_flag(flags, key));
        let mut typed = Vec::new();
        for (key, value) in &self.settings {
            let Some(switch) = flag(key).map(is_switch) else { continue };
            let long = key.replace('_', "-");
            let text = flag_text(key, value, switch)?;
            match (switch, text.as_str()) {
                (true, "true") => typed.push(format!("--{long}").into()),
                (true, _) => {}
                (false, text) => typed.push(format!("--{long}={text}").into()),
            }
        }
        Ok(typed)
    }
}

fn in_file(file: &Path) -> String {
    format!("config file {}", file.display())
}

fn read_config(file: &Path) -> Result<Table> {
    let size = std::fs::metadata(file)?.len();
    if size > MAX_CONFIG_BYTES {
        bail!(
            "{size} bytes are too large for a configuration file; the limit is {MAX_CONFIG_BYTES}"
        );
    }
    parse_settings(&record::files::read_regular(file)?)
}

/// Parses the contents of a settings file.
pub(crate) fn parse_settings(bytes: &[u8]) -> Result<Table> {
    let text = std::str::from_utf8(bytes)
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
    // A key may also be the name of the field, as in JSON.
    let long = long.replace('_', "-");
    command.get_arguments().find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(&long) || aliases.contains(&long.as_str())
    })
}

/// Converts a TOML value to the text of a command-line argument.
fn flag_text(key: &str, value: &Value, switch: bool) -> Result<String> {
    Ok(match value {
        Value::Boolean(on) => on.to_string(),
        _ if switch => bail!("`{key}` has type {}; use true or false", value.type_str()),
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Array(items) => {
            let items: Result<Vec<String>> =
                items.iter().map(|item| flag_text(key, item, false)).collect();
            items?.join(",")
        }
        Value::Table(_) => serde_json::to_string(value)?,
        _ => bail!("`{key}` has type {}; use a string, a number or a list", value.type_str()),
    })
}

/// Parses a single value, so that the error can name the file and the key.
fn check_value(name: &str, key: &str, switch: bool, text: &str) -> Result<()> {
    let long = key.replace('_', "-");
    let value = if switch { format!("--{long}") } else { format!("--{long}={text}") };
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

/// A suggestion of the most similar flag name, if it is similar enough.
fn suggestion(command: &Command, key: &str) -> String {
    let flags = command
        .get_subcommands()
        .filter(|c| find_flag(c, "config").is_some())
        .flat_map(Command::get_arguments);
    let close = flags.filter_map(Arg::get_long).filter(|&long| long != "config");
    let scored = close.map(|long| (strsim::jaro_winkler(long, &key.replace('_', "-")), long));
    match scored.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((score, long)) if score > 0.7 => format!("; did you mean `{long}`?"),
        _ => "; keys are flag names, see `latent-tts eval --help`".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use latent_tts::SamplingOptions;
    use schema::testkit::FIELD_EXAMPLES;

    use super::*;
    use crate::args;

    fn sampling(argv: &[&str], file: Option<&str>) -> Result<SamplingOptions> {
        let argv: Vec<OsString> =
            ["latent-tts", "solve", "1 + 1?"].iter().chain(argv).map(OsString::from).collect();
        let settings = file.map(|text| parse_settings(text.as_bytes())).transpose()?;
        let layer = settings.map(|settings| ConfigLayer {
            subcommand: "solve",
            file: PathBuf::from("test.toml"),
            settings,
        });
        match parse_layers(&argv, layer.as_ref())?.command {
            args::Command::Solve(args) => Ok(args.sampling),
            _ => bail!("another command"),
        }
    }

    /// A value of each schema field means the same on the command line, in a TOML file (under the
    /// name of the flag and of the field) and as JSON, which HTTP and Python use.
    #[test]
    fn every_field_is_a_flag_and_a_key() {
        for (field, value) in FIELD_EXAMPLES {
            let json: SamplingOptions =
                serde_json::from_str(&format!("{{\"{field}\": {value}}}")).unwrap();
            let long = field.replace('_', "-");
            let flag = format!("--{long}={}", value.trim_matches('"'));
            assert_eq!(sampling(&[&flag], None).unwrap(), json, "{flag}");
            let toml: Value = serde_json::from_str(value).unwrap();
            for key in [long.as_str(), field] {
                let line = format!("{key} = {toml}");
                assert_eq!(sampling(&[], Some(&line)).unwrap(), json, "{line}");
            }
        }
    }

    #[test]
    fn an_unknown_field_gets_the_closest_name() {
        let flag = sampling(&["--latent-lenght", "4"], None).unwrap_err().to_string();
        assert!(flag.contains("--latent-length"), "{flag}");
        let key = sampling(&[], Some("latent_lenght = 4")).unwrap_err();
        assert!(format!("{key:#}").contains("did you mean `latent-length`?"), "{key:#}");
    }
}
