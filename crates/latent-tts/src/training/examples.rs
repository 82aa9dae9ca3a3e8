//! The training data of a reasoner: files and the embedded corpus, mixed by weight. Problems with
//! the data are reported before the first step.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use corpus::Split;
use data::{FieldNames, TrainExample, examples};
use model::Tokenizer;
use report::table::count;
use train::TrainError;
use train::data_loader::{ExampleMixture, ExampleSource};
use train::vocabulary::UNKNOWN;

use super::{ReasonerMode, TrainObserver, TrainerOptions, WeightedData};
use crate::Error;
use crate::source::data_file;

/// Number of examples that are checked: enough to estimate a fraction, few enough to be fast.
const CHECKED: usize = 10_000;
/// Maximum fraction of unknown tokens in training data.
const MAX_UNKNOWN: f64 = 0.05;

/// The training data with these names.
pub(super) fn source(
    names: &[WeightedData],
    fields: &FieldNames,
    seed: u64,
) -> Result<ExampleSource, Error> {
    let mut sources = Vec::new();
    for data in names {
        let (source, size) = open(data, fields, seed)?;
        let weight = data.weight.or(size);
        let weight = match names.len() {
            1 => 1.0,
            _ => weight.ok_or_else(|| {
                invalid("`data`: corpus is unbounded; give it a weight, such as corpus:5000")
            })?,
        };
        sources.push((source, weight));
    }
    match sources.len() {
        0 => Ok(ExampleSource::Corpus { seed }),
        1 => Ok(sources.remove(0).0),
        _ => {
            let mixture = ExampleMixture::new(sources, seed);
            Ok(ExampleSource::Mixture(mixture.ok_or_else(|| invalid("`data`: too many sources"))?))
        }
    }
}

/// The examples, and their number unless it is unbounded.
fn open(
    data: &WeightedData,
    fields: &FieldNames,
    seed: u64,
) -> Result<(ExampleSource, Option<f64>), Error> {
    let Some(file) = data.file() else { return Ok((ExampleSource::Corpus { seed }, None)) };
    let file = data_file(&file.to_string_lossy())?;
    let examples = examples::read_fields(&file, fields, None)?;
    if examples.is_empty() {
        return Err(invalid(&format!("{}: no examples", file.display())));
    }
    let size = examples.len() as f64;
    Ok((ExampleSource::List { examples: Arc::new(examples), seed }, Some(size)))
}

/// The data files named in the options.
pub(super) fn files(data: &[WeightedData]) -> Result<Vec<PathBuf>, Error> {
    let names = data.iter().filter_map(WeightedData::file);
    names.map(|file| data_file(&file.to_string_lossy())).collect()
}

/// At most `count` held-out examples of a file. Without a file they come from the corpus, if the
/// training data is only the corpus.
pub(super) fn held_out(
    data: &[WeightedData],
    fields: &FieldNames,
    file: Option<&Path>,
    count: usize,
) -> Result<Vec<TrainExample>, Error> {
    let only_corpus = data.iter().all(|data| data.file().is_none());
    match file {
        Some(file) => Ok(examples::read_fields(file, fields, Some(count))?),
        None if only_corpus => {
            Ok((0..count as u64).map(|i| corpus::problem(Split::Valid, 0, i).into()).collect())
        }
        None => Ok(Vec::new()),
    }
}

/// Reports statistics of the data, and fails if the data cannot be learned from.
pub(super) fn check(
    options: &TrainerOptions,
    tokenizer: &Tokenizer,
    source: &ExampleSource,
    observer: &mut dyn TrainObserver,
) -> Result<(), Error> {
    let lists = source.lists();
    let examples: Vec<&TrainExample> =
        lists.iter().flat_map(|list| list.iter().take(CHECKED)).collect();
    if examples.is_empty() {
        return Ok(());
    }
    let with_steps = examples.iter().filter(|example| !example.steps.is_empty()).count();
    if with_steps == 0 && options.thinking.mode != ReasonerMode::NoCot {
        return Err(invalid(
            "`data`: no example has steps such as <<12*3=36>>, which a chain of thought requires; \
             pass data with steps, or pass `mode` no-cot",
        ));
    }
    let unknown = unknown_share(tokenizer, &examples)?;
    let total: usize = lists.iter().map(|list| list.len()).sum();
    observer.note(&format!(
        "training data: {}, {:.1}% with steps, {:.1}% of tokens unknown to the model",
        count(total, "example"),
        100.0 * with_steps as f64 / examples.len() as f64,
        100.0 * unknown
    ));
    let (vocabulary, option) = match options.init {
        Some(_) => ("the initial model's vocabulary", "init"),
        None => ("the built-in vocabulary, which only contains the words of the corpus", "init"),
    };
    refuse_unknown(unknown, vocabulary, option)
}

/// Reports the number of questions, and fails if the reasoner does not know their words.
pub(super) fn check_questions(
    tokenizer: &Tokenizer,
    source: &ExampleSource,
    observer: &mut dyn TrainObserver,
) -> Result<(), Error> {
    let lists = source.lists();
    let examples: Vec<&TrainExample> =
        lists.iter().flat_map(|list| list.iter().take(CHECKED)).collect();
    if examples.is_empty() {
        return Ok(());
    }
    let unknown = unknown_share(tokenizer, &examples)?;
    let total: usize = lists.iter().map(|list| list.len()).sum();
    observer.note(&format!(
        "training data: {}, {:.1}% of tokens unknown to the model",
        count(total, "question"),
        100.0 * unknown
    ));
    refuse_unknown(unknown, "the reasoner's vocabulary", "model")
}

/// Fails for data with too many unknown tokens; `option` is the option that selects the model.
fn refuse_unknown(unknown: f64, vocabulary: &str, option: &str) -> Result<(), Error> {
    if unknown <= MAX_UNKNOWN {
        return Ok(());
    }
    Err(invalid(&format!(
        "`data`: {:.1}% of its tokens are not in {vocabulary}; pass `{option}` with a GPT-2, Llama \
         or Qwen model, whose tokenizer covers all words, or omit `data` to train on the corpus",
        100.0 * unknown
    )))
}

/// The fraction of unknown tokens among the tokens of questions, steps and answers.
fn unknown_share(tokenizer: &Tokenizer, examples: &[&TrainExample]) -> Result<f64, Error> {
    let Some(unknown) = tokenizer.token_to_id(UNKNOWN) else { return Ok(0.0) };
    let mut found = 0_usize;
    let mut all = 0;
    for example in examples {
        let text = format!("{} {} {}", example.question, example.steps.join(" "), example.answer);
        let tokens = tokenizer.encode(&text)?;
        found += tokens.iter().filter(|token| **token == unknown).count();
        all += tokens.len();
    }
    Ok(found as f64 / all.max(1) as f64)
}

fn invalid(reason: &str) -> Error {
    TrainError::Options { reason: reason.to_owned() }.into()
}
