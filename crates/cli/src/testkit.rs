//! Setting layers without files and processes, for fuzzing.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::args::layers::{self, ConfigLayer};

/// The commands that read a settings file, with their required arguments.
const COMMANDS: [&[&str]; 4] =
    [&["eval"], &["solve", "1 + 1?"], &["sweep"], &["annotate", "--out", "labels"]];

/// Parses bytes as a settings file. A command given the file and one given the same values as
/// arguments must produce the same settings, and every key must have an environment variable.
/// Returns whether both were accepted.
///
/// # Panics
///
/// If the two differ or a variable is unknown.
pub fn check_settings(bytes: &[u8]) -> bool {
    let Ok(settings) = layers::parse_settings(bytes) else { return false };
    let variables = settings.keys().map(|key| layers::env_var(key));
    let unknown = layers::unknown_variables(variables).len();
    let words = COMMANDS[bytes.len() % COMMANDS.len()];
    let argv: Vec<OsString> = ["latent-tts"].iter().chain(words).map(OsString::from).collect();
    let config = ConfigLayer { subcommand: words[0], file: PathBuf::from("settings"), settings };
    let Ok(layered) = layers::parse_layers(&argv, Some(&config)) else { return false };
    assert_eq!(unknown, 0, "every key of a file that is read is a flag, and has a variable");
    let typed = config.typed().expect("values that were read are texts of flags");
    // Mutually exclusive flags are allowed in a file, where they are defaults.
    let typed = layers::parse_layers(&[argv, typed].concat(), None);
    if let Ok(typed) = &typed {
        assert_eq!(
            format!("{layered:?}"),
            format!("{typed:?}"),
            "a file is read like the command line"
        );
    }
    typed.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_reads_a_file_as_it_is_typed() {
        for bytes in 0..COMMANDS.len() {
            let file = format!("p = 0.3\nquiet = true\n{}", "\n".repeat(bytes));
            assert!(check_settings(file.as_bytes()), "{:?}", COMMANDS[file.len() % 4]);
            assert!(!check_settings(format!("{file}samples = -1").as_bytes()));
        }
    }
}
