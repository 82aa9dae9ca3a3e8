//! Problems from story templates: a text with slots, and steps over its numbers.
//!
//! ```text
//! {A} has {a} {i:fruit}. {A.He} [eats|sells] {b} of them. How many {i} are left?
//! = a-b
//! ? a 10-90
//! ```
//!
//! docs/how-to/augment-data.md describes the format. `template` parses it, `formula` is a step or
//! one side of a condition, `numbers` samples values, and `text` writes them with people and things
//! from `lexicon.txt`.

mod formula;
mod lexicon;
mod numbers;
mod template;
mod text;

use std::path::{Path, PathBuf};

pub use template::StoryTemplate;

/// Errors of template files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoryError {
    /// The file cannot be read.
    #[error("cannot read {}; check that the file exists", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file contains an invalid template.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The first error, with its line.
        reason: String,
    },
}

/// File extension of template files.
pub const EXTENSION: &str = "stories";

/// Reads the templates of a file.
///
/// # Errors
///
/// If the file cannot be read, contains no template, or has an invalid template, whose line is
/// reported.
pub fn read(path: &Path) -> Result<Vec<StoryTemplate>, StoryError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| StoryError::Io { path: path.to_owned(), source })?;
    let bad = |reason| StoryError::Invalid { path: path.to_owned(), reason };
    let templates = parse(&text).map_err(bad)?;
    match templates.is_empty() {
        true => Err(bad("contains no template; see docs/how-to/augment-data.md".to_owned())),
        false => Ok(templates),
    }
}

/// Parses templates separated by empty lines. The error starts with the line number.
fn parse(text: &str) -> Result<Vec<StoryTemplate>, String> {
    let mut templates = Vec::new();
    let mut block: Vec<&str> = Vec::new();
    for (number, line) in text.lines().chain([""]).enumerate() {
        let line = line.trim();
        if line.starts_with('#') {
            continue;
        }
        if !line.is_empty() {
            block.push(line);
        } else if !block.is_empty() {
            let template = StoryTemplate::parse(&block);
            templates.push(
                template.map_err(|reason| {
                    format!("the template before line {}: {reason}", number + 1)
                })?,
            );
            block.clear();
        }
    }
    Ok(templates)
}

#[cfg(test)]
mod tests;
