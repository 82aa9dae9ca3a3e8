//! What `--data` names: a file, or problems of the corpus that this program can make itself.
//!
//! Both become the same questions. A problem's number in its split is its id, whatever part is taken, since all randomness is
//! keyed by it.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use engine::Question;
use engine::question::{self, GoldKind};
use train::corpus::{Split, problem};
use train::dataset::Example;

/// What stands before the name of a split.
const EMBEDDED: &str = "embedded:";
/// The corpus has no end; this many problems at once fill some gigabytes.
const MOST: usize = 10_000_000;
/// The corpus that everybody means. Others are made by `corpus --seed`.
const SEED: u64 = 0;

/// Where questions come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A benchmark's own file.
    File(PathBuf),
    /// Problems of the corpus: those of a range, or as many as are asked for.
    Corpus(Split, Option<Range<u32>>),
}

impl Source {
    /// What the flag says; where it says nothing, the problems of `otherwise`.
    pub fn of(name: Option<&str>, otherwise: Split) -> Result<Self> {
        let Some(name) = name else { return Ok(Self::Corpus(otherwise, None)) };
        match name.strip_prefix(EMBEDDED) {
            None => Ok(Self::File(name.into())),
            Some(part) => part_of_corpus(part).with_context(|| format!("--data {name}")),
        }
    }

    /// The questions, at most the first `limit`. A corpus without a range has no end: then `usual` where there is no limit.
    pub fn read(&self, limit: Option<NonZeroUsize>, usual: usize) -> Result<Vec<Question>> {
        let limit = limit.map(NonZeroUsize::get);
        let (split, range) = match self {
            Self::File(path) => return Ok(question::read(path, limit)?),
            Self::Corpus(split, range) => (*split, range),
        };
        let (first, count) = match range {
            None => (0, limit.unwrap_or(usual)),
            Some(range) => (range.start, range.len().min(limit.unwrap_or(usize::MAX))),
        };
        if count > MOST {
            bail!(
                "{self}: {count} problems are more than the {MOST} that are taken at once; give a range, {EMBEDDED}train:0..1000"
            );
        }
        Ok((first..).take(count).map(|index| made(split, index)).collect())
    }

    /// The part of its name that is worth repeating in the name of a folder.
    pub fn stem(&self) -> String {
        match self {
            Self::File(path) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            Self::Corpus(..) => self.to_string().split_off(EMBEDDED.len()),
        }
    }
}

/// As the flag takes it.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Corpus(split, None) => write!(f, "{EMBEDDED}{}", split.name()),
            Self::Corpus(split, Some(range)) => write!(f, "{EMBEDDED}{}:{}..{}", split.name(), range.start, range.end),
        }
    }
}

/// `SPLIT` or `SPLIT:FIRST..END`.
fn part_of_corpus(text: &str) -> Result<Source> {
    let (split, range) = text.split_once(':').map_or((text, None), |(split, range)| (split, Some(range)));
    let split: Split = split.parse()?;
    let Some(range) = range else { return Ok(Source::Corpus(split, None)) };
    let numbers = range.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    match numbers {
        Some(range) if range.is_empty() => bail!("the range {}..{} is empty", range.start, range.end),
        Some(range) => Ok(Source::Corpus(split, Some(range))),
        None => bail!("{range:?} is no range of problems; write it as {EMBEDDED}{}:0..1000", split.name()),
    }
}

fn made(split: Split, index: u32) -> Question {
    let Example { question: text, steps, answer: gold } = problem(split, SEED, u64::from(index)).into();
    Question { id: index, text, gold, kind: GoldKind::Number, steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str) -> Result<Source, String> {
        Source::of(Some(name), Split::Test).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn names_read_back() {
        for name in ["embedded:test", "embedded:ood", "embedded:train:5..90", "embedded.json", "./x/embedded:test"] {
            assert_eq!(source(name).unwrap().to_string(), name);
        }
        assert_eq!(source("embedded:train:5..90").unwrap().stem(), "train:5..90");
        assert_eq!(source("a/b.c.json").unwrap().stem(), "b.c");
        assert_eq!(Source::of(None, Split::Hard).unwrap(), Source::Corpus(Split::Hard, None));
    }

    #[test]
    fn what_is_no_part_of_the_corpus_is_refused() {
        for (name, word) in [
            ("embedded:nope", "train, valid, test, hard and ood"),
            ("embedded:", "train, valid"),
            ("embedded:test:5", "embedded:test:0..1000"),
            ("embedded:test:a..b", "embedded:test:0..1000"),
            ("embedded:test:0..99999999999", "embedded:test:0..1000"),
            ("embedded:test:5..5", "5..5 is empty"),
            ("embedded:test:9..5", "9..5 is empty"),
        ] {
            let error = source(name).unwrap_err();
            assert!(error.contains(word) && error.contains(name), "{error}");
        }
    }

    #[test]
    fn a_part_is_a_part_of_the_whole() {
        let read = |name: &str, limit| source(name).unwrap().read(NonZeroUsize::new(limit), 12).unwrap();
        let whole = read("embedded:ood", 0);
        assert_eq!(whole.len(), 12);
        assert_eq!(read("embedded:ood:3..9", 0), whole[3..9]);
        assert_eq!(read("embedded:ood:3..9", 2), whole[3..5]);
        assert_eq!(read("embedded:ood", 20)[..12], whole);
        assert!(whole.iter().all(|q| q.steps.len() == 2 && q.steps[0].starts_with("<<")));
        assert!(source("embedded:ood:0..4000000000").unwrap().read(None, 1).unwrap_err().to_string().contains("10000000"));
    }
}
