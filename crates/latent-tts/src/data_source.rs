//! Sources of questions: a benchmark file, or problems of the embedded corpus.
//!
//! Both produce the same question type. The id of a problem is its index in its split, whatever
//! range is read, because all randomness is keyed by it.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;

use corpus::{Split, problem};
use data::{AnswerKind, FieldNames, Question, TrainExample};

use crate::{Error, source};

/// The prefix in the name of a corpus split.
const EMBEDDED_PREFIX: &str = "embedded:";
/// Maximum number of problems read at once; this many take some gigabytes. The corpus itself is
/// unbounded.
const MAX_PROBLEMS: usize = 10_000_000;
/// The seed of the published splits.
const CORPUS_SEED: u64 = 0;

/// A source of questions. Its [`fmt::Display`] prints the name that [`DataSource::parse`] accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSource {
    /// A benchmark file, with optional field names.
    File(PathBuf, FieldNames),
    /// Problems of the corpus: a range, or a prefix whose length is determined when reading.
    Corpus(Split, Option<Range<u32>>),
}

impl DataSource {
    /// Parses a path, a Hugging Face Hub id (`owner/name`, `owner/name/file.jsonl`),
    /// `embedded:SPLIT`, or `embedded:SPLIT:FIRST..END`.
    pub fn parse(name: &str) -> Result<Self, Error> {
        match name.strip_prefix(EMBEDDED_PREFIX) {
            None => Ok(Self::File(source::data_file(name)?, FieldNames::default())),
            Some(part) => parse_corpus_part(part)
                .map_err(|problem| Error::Corpus { name: name.to_owned(), problem }),
        }
    }

    /// The same source with the given field names for question, answer and steps. The corpus does
    /// not accept field names.
    pub fn with_fields(self, fields: FieldNames) -> Result<Self, Error> {
        match self {
            Self::File(path, _) => Ok(Self::File(path, fields)),
            Self::Corpus(..) if fields.is_empty() => Ok(self),
            Self::Corpus(..) => {
                let problem = "the embedded corpus has no field names; omit question_field, \
                               answer_field and steps_field, or pass a file";
                Err(Error::Corpus { name: self.to_string(), problem: problem.to_owned() })
            }
        }
    }

    /// Reads at most the first `limit` questions. Without a limit, a corpus without a range returns
    /// `default_count` questions, because it is unbounded.
    pub fn read(
        &self,
        limit: Option<NonZeroUsize>,
        default_count: usize,
    ) -> Result<Vec<Question>, Error> {
        let limit = limit.map(NonZeroUsize::get);
        let (split, range) = match self {
            Self::File(path, fields) => return Ok(data::read_fields(path, fields, limit)?),
            Self::Corpus(split, range) => (*split, range),
        };
        let (first, count) = match range {
            None => (0, limit.unwrap_or(default_count)),
            Some(range) => (range.start, range.len().min(limit.unwrap_or(usize::MAX))),
        };
        if count > MAX_PROBLEMS {
            let problem = format!(
                "{count} problems exceed the maximum of {MAX_PROBLEMS}; pass a smaller range, e.g. \
                 {EMBEDDED_PREFIX}train:0..1000"
            );
            return Err(Error::Corpus { name: self.to_string(), problem });
        }
        Ok((first..).take(count).map(|index| corpus_question(split, index)).collect())
    }

    /// A short form of the name, for use in directory names.
    pub fn stem(&self) -> String {
        match self {
            Self::File(path, _) => {
                path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
            }
            Self::Corpus(..) => self.to_string().split_off(EMBEDDED_PREFIX.len()),
        }
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, _) => path.display().fmt(f),
            Self::Corpus(split, None) => write!(f, "{EMBEDDED_PREFIX}{}", split.name()),
            Self::Corpus(split, Some(Range { start, end })) => {
                write!(f, "{EMBEDDED_PREFIX}{}:{start}..{end}", split.name())
            }
        }
    }
}

/// Parses `SPLIT` or `SPLIT:FIRST..END`.
fn parse_corpus_part(text: &str) -> Result<DataSource, String> {
    let (split, range) =
        text.split_once(':').map_or((text, None), |(split, range)| (split, Some(range)));
    let split: Split = split.parse().map_err(|error| format!("{error}"))?;
    let Some(range) = range else { return Ok(DataSource::Corpus(split, None)) };
    let numbers = range.split_once("..");
    let numbers = numbers.and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    match numbers {
        Some(range) if range.is_empty() => {
            Err(format!("range {}..{} is empty", range.start, range.end))
        }
        Some(range) => Ok(DataSource::Corpus(split, Some(range))),
        None => Err(format!(
            "invalid range {range:?}: write it as {EMBEDDED_PREFIX}{}:0..1000",
            split.name()
        )),
    }
}

fn corpus_question(split: Split, index: u32) -> Question {
    let problem = problem(split, CORPUS_SEED, u64::from(index));
    let TrainExample { question: text, steps, answer: gold } = problem.into();
    Question { id: index, text, gold, kind: AnswerKind::Number, steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str) -> Result<DataSource, String> {
        DataSource::parse(name).map_err(|error| error.to_string())
    }

    #[test]
    fn names_round_trip() {
        for name in [
            "embedded:test",
            "embedded:ood",
            "embedded:train:5..90",
            "embedded.json",
            "./x/embedded:test",
        ] {
            assert_eq!(parse(name).unwrap().to_string(), name);
        }
        assert_eq!(parse("embedded:train:5..90").unwrap().stem(), "train:5..90");
        assert_eq!(parse("a/b.c.json").unwrap().stem(), "b.c");
    }

    #[test]
    fn only_files_have_fields_to_name() {
        let fields = FieldNames { answer_field: Some("gold".into()), ..FieldNames::default() };
        let named = |name| parse(name).unwrap().with_fields(fields.clone());
        let error = named("embedded:test").unwrap_err().to_string();
        assert!(error.contains("embedded:test") && error.contains("answer_field"), "{error}");
        assert_eq!(named("a.json").unwrap(), DataSource::File("a.json".into(), fields.clone()));
        assert!(parse("embedded:test").unwrap().with_fields(FieldNames::default()).is_ok());
    }

    #[test]
    fn malformed_corpus_ranges_are_rejected() {
        for (name, word) in [
            ("embedded:nope", "train, valid, test, hard and ood"),
            ("embedded:", "train, valid"),
            ("embedded:test:5", "embedded:test:0..1000"),
            ("embedded:test:a..b", "embedded:test:0..1000"),
            ("embedded:test:0..99999999999", "embedded:test:0..1000"),
            ("embedded:test:5..5", "5..5 is empty"),
            ("embedded:test:9..5", "9..5 is empty"),
        ] {
            let error = parse(name).unwrap_err();
            assert!(error.contains(word) && error.contains(name), "{error}");
        }
    }

    #[test]
    fn a_range_selects_the_same_problems() {
        let read =
            |name: &str, limit| parse(name).unwrap().read(NonZeroUsize::new(limit), 12).unwrap();
        let whole = read("embedded:ood", 0);
        assert_eq!(whole.len(), 12);
        assert_eq!(read("embedded:ood:3..9", 0), whole[3..9]);
        assert_eq!(read("embedded:ood:3..9", 2), whole[3..5]);
        assert_eq!(read("embedded:ood", 20)[..12], whole);
        assert!(whole.iter().all(|q| q.steps.len() == 2 && q.steps[0].starts_with("<<")));
        assert!(
            parse("embedded:ood:0..4000000000")
                .unwrap()
                .read(None, 1)
                .unwrap_err()
                .to_string()
                .contains("10000000")
        );
    }
}
