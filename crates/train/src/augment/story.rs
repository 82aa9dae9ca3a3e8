//! Problems from story templates: a text with slots, and steps over its numbers.
//!
//! ```text
//! {A} has {a} {i:fruit}. {A.He} [eats|sells] {b} of them. How many {i} are left?
//! = a-b
//! ? a 10-90
//! ```
//!
//! docs/augment.md describes the format. `template` parses it, `formula` is a step or one side of
//! a condition, `numbers` draws values that fit, `text` writes them down with people and things of
//! `lexicon.txt`.

mod formula;
mod lexicon;
mod numbers;
mod template;
mod text;

use std::path::Path;

pub use template::StoryTemplate;

use crate::error::TrainError;

/// The ending of a file of templates.
pub const EXTENSION: &str = "stories";

/// Reads the templates of a file.
///
/// # Errors
///
/// When the file cannot be read, holds no template, or has an invalid one, whose line is named.
pub fn read(path: &Path) -> Result<Vec<StoryTemplate>, TrainError> {
    let io = |source| TrainError::Io { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(io)?;
    let bad = |reason| TrainError::BadFile { path: path.to_owned(), reason };
    let templates = parse(&text).map_err(bad)?;
    match templates.is_empty() {
        true => Err(bad("holds no template; docs/augment.md shows one".to_owned())),
        false => Ok(templates),
    }
}

/// Parses templates, separated by empty lines. The error begins with the line's number.
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
