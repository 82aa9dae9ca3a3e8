//! Hints that name the flags that help with an error of the libraries.
//!
//! Messages of the libraries name fields and files, but no flags. The printer appends these hints
//! in parentheses.

use std::error::Error as StdError;
use std::path::Path;

use data::{DatasetError, DatasetProblem};
use latent_tts::record::{RecordError, RunDir};
use latent_tts::report::ReportError;
use latent_tts::tensor::{CudaError, DeviceError, Precision};
use latent_tts::train::TrainError;
use latent_tts::train::annotate::AnnotationError;
use latent_tts::{EngineError, Error};
use model::ModelError;

/// The hint for the first error in the chain that has one, restricted to the flags of the current
/// command.
pub fn flags(error: &anyhow::Error) -> Option<String> {
    let hint = error.chain().find_map(of_error)?;
    let argv: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    fitting(hint, &crate::args::command_of(&argv))
}

/// The alternatives of a hint whose flags a command has; `None` if there are none. A hint that
/// contains another command in backticks is not changed.
fn fitting(hint: &str, command: &clap::Command) -> Option<String> {
    let has = |word: &str| {
        let flag = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        command.get_arguments().any(|arg| {
            arg.get_long_and_visible_aliases().is_some_and(|names| names.contains(&flag))
        })
    };
    let fits = |part: &&str| part.split(' ').filter(|word| word.starts_with("--")).all(has);
    if hint.contains('`') {
        return Some(hint.to_owned());
    }
    let hint = hint.replace(", or ", ", ").replace(" or ", ", ");
    let parts: Vec<&str> = hint.split(", ").filter(fits).collect();
    match &parts[..] {
        [] => None,
        [only] => Some((*only).to_owned()),
        [first @ .., last] => Some(format!("{} or {last}", first.join(", "))),
    }
}

fn of_error(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    if let Some(error) = error.downcast_ref::<Error>() {
        return of_library(error);
    }
    if let Some(error) = error.downcast_ref::<TrainError>() {
        return of_training(error);
    }
    let engine = error.downcast_ref::<EngineError>().and_then(of_engine);
    engine
        .or_else(|| error.downcast_ref::<ModelError>().and_then(of_model))
        .or_else(|| error.downcast_ref::<RecordError>().and_then(of_record))
        .or_else(|| error.downcast_ref::<AnnotationError>().and_then(of_annotations))
        .or_else(|| error.downcast_ref::<ReportError>().and_then(of_report))
        .or_else(|| error.downcast_ref::<DeviceError>().and_then(of_device))
}

fn of_library(error: &Error) -> Option<&'static str> {
    match error {
        Error::Engine(error) => of_engine(error),
        Error::RewardModel { error, .. } => of_engine(error),
        Error::Device(error) => of_device(error),
        Error::Record(error) | Error::InputsChanged(error) => of_record(error),
        Error::Annotations(error) | Error::AnnotatedInputsChanged(error) => of_annotations(error),
        Error::Report(error) => of_report(error),
        Error::Train(error) => of_training(error),
        Error::Corpus { .. } => Some("--data"),
        Error::Dataset(error) => of_dataset(error),
        Error::NotEmbedded => Some("--model, --reward-model"),
        Error::Model(error) => of_model(error),
        Error::Base { .. } => Some("--base"),
        Error::NoAdapter { .. } => Some("omit --base"),
        Error::SweepExists { .. } => Some("--resume or --out"),
        Error::SweepChanged { .. } => Some("--out"),
        Error::SweepUnfinished { .. } => Some("`sweep --resume`"),
        _ => None,
    }
}

fn of_dataset(error: &DatasetError) -> Option<&'static str> {
    match &error.problem {
        DatasetProblem::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Some("--data takes a file, owner/name on the Hugging Face Hub, or embedded:test")
        }
        _ => None,
    }
}

fn of_model(error: &ModelError) -> Option<&'static str> {
    match error {
        ModelError::PickleWeights { .. } => Some("`latent-tts convert IN OUT`"),
        ModelError::MissingConfig { .. } => Some("--base"),
        ModelError::MissingBase { .. }
        | ModelError::OtherBase { .. }
        | ModelError::UnknownModule { .. } => Some("--base"),
        ModelError::MissingWeights { dir } if dir.join(record::TRAINING_DIR).exists() => {
            Some("the training is not finished; run the same `train` command with --resume")
        }
        _ => None,
    }
}

fn of_engine(error: &EngineError) -> Option<&'static str> {
    match error {
        EngineError::Model(error) => of_model(error),
        EngineError::Device(error) => of_device(error),
        EngineError::Unrecognised { .. } => Some("--method, or --method cot for a text model"),
        EngineError::UnknownFamily { .. } => Some("--method"),
        EngineError::TooLong { .. } => Some("--too-long skip, --thoughts"),
        EngineError::LongText { .. } => Some("--too-long skip"),
        EngineError::EndlessThoughts { .. } => Some("--thoughts"),
        EngineError::NothingToPerturb { .. } => {
            Some("--sampler tokens, or --sampler dropout --scope generated")
        }
        EngineError::ParallelThoughts { .. } => Some("--aggregate without beam, or --labels final"),
        EngineError::NothingToMix { .. } => Some("--sampler dropout, --sampler noise"),
        EngineError::NothingToReplace { .. } => Some("--thoughts, --model, or omit --ablate"),
        EngineError::RewardModelAsReasoner { .. } => Some("pass it as --reward-model"),
        EngineError::NotARewardModel { .. } => Some("--reward-model requires a LatentRM directory"),
        EngineError::UnusedTensors { .. } => Some("--method; `latent-tts inspect` lists them"),
        EngineError::Memory { .. } => Some("--memory, --max-new-tokens"),
        EngineError::NothingToSearch => Some("--reward-model, or --aggregate without beam"),
        EngineError::BeamMemory { .. } => {
            Some("--memory, --beam-width, --beam-candidates, or --aggregate without beam")
        }
        EngineError::TooMany { .. } => Some("--samples, --thoughts, --rollouts"),
        EngineError::RolloutMemory { .. } => Some("--memory, --samples, --max-new-tokens"),
        _ => None,
    }
}

fn of_record(error: &RecordError) -> Option<&'static str> {
    match error {
        RecordError::Exists { .. } => Some("--resume, --overwrite or --out"),
        RecordError::Write { .. } => Some("--resume or --out"),
        RecordError::TrainingExists { .. } => Some("--resume, --overwrite or --out"),
        RecordError::ModelExists { .. } => Some("--overwrite or --out"),
        RecordError::Mismatch { .. } | RecordError::Latents { .. } => Some("--overwrite or --out"),
        RecordError::LatentsKept { .. } => Some("--latents"),
        RecordError::NotARun { path } if holds_runs(path) => {
            Some("it contains runs; pass them as DIR/*")
        }
        RecordError::OutputIsInput { .. }
        | RecordError::WeightsInDirectory { .. }
        | RecordError::Locked { .. }
        | RecordError::NotADirectory { .. }
        | RecordError::Version { .. }
        | RecordError::Json { .. }
        | RecordError::ForeignLine { .. }
        | RecordError::OtherQuestion { .. }
        | RecordError::InvalidLine { .. } => Some("--out"),
        _ => None,
    }
}

/// Whether a directory directly contains run directories.
fn holds_runs(folder: &Path) -> bool {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| RunDir::open(path).is_ok())
}

fn of_annotations(error: &AnnotationError) -> Option<&'static str> {
    match error {
        AnnotationError::Write(error) => of_record(error),
        AnnotationError::Exists { .. } => Some("--resume, --overwrite or --out"),
        AnnotationError::BadIndex { .. } => Some("`annotate --overwrite`"),
        AnnotationError::SettingsDiffer { .. } => Some("--overwrite or --out"),
        AnnotationError::MissingShards { .. } | AnnotationError::BadShard { .. } => {
            Some("`annotate --resume`")
        }
        _ => None,
    }
}

fn of_report(error: &ReportError) -> Option<&'static str> {
    match error {
        ReportError::Record(error) => of_record(error),
        ReportError::Run { source, .. } => of_report(source),
        ReportError::Empty => Some("`eval --resume`"),
        ReportError::Incomplete { .. } => Some("`eval --resume`, or --partial"),
        ReportError::Latents { .. } => Some("`eval --latents --overwrite`"),
        _ => None,
    }
}

fn of_training(error: &TrainError) -> Option<&'static str> {
    match error {
        TrainError::Device(error) => of_device(error),
        TrainError::Engine(error) => of_engine(error),
        TrainError::Model(error) => of_model(error),
        TrainError::Annotations(error) => of_annotations(error),
        TrainError::Record(error) => of_record(error),
        TrainError::Diverged { saved: Some(_), .. } => {
            Some("--lr, --warmup, --clip with --resume --change-optimizer")
        }
        TrainError::Diverged { saved: None, .. } => Some("--lr, --warmup, --clip; --save-every"),
        TrainError::ModelMemory { .. } => Some("--width, --layers, --context"),
        TrainError::Memory { .. } => Some("--recompute, --batch, --accumulate"),
        TrainError::SettingsChanged { .. } | TrainError::InputsChanged { .. } => Some("--out"),
        TrainError::OptimizerChanged { .. } => Some("--change-optimizer"),
        _ => None,
    }
}

fn of_device(error: &DeviceError) -> Option<&'static str> {
    match error {
        error if error.is_out_of_memory() => Some("--memory, --samples"),
        DeviceError::Threads { .. } | DeviceError::TooManyThreads { .. } => Some("--threads"),
        DeviceError::UnsupportedIsa(_) => None,
        DeviceError::UnsupportedPrecision { precision: Precision::Fp8, .. }
        | DeviceError::Cuda(CudaError::NoFp8 { .. }) => Some("omit --dtype"),
        _ => Some("--device cpu"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_flags_that_the_command_has() {
        let fitting = |line: &[&str], hint| {
            let line: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
            fitting(hint, &crate::args::command_of(&line))
        };
        let existing = "--resume, --overwrite or --out";
        assert_eq!(fitting(&["eval"], existing).as_deref(), Some(existing));
        assert_eq!(fitting(&["sweep", "--p", "1"], existing).as_deref(), Some("--resume or --out"));
        assert_eq!(fitting(&["train", "reward"], existing).as_deref(), Some(existing));
        assert_eq!(fitting(&["corpus"], existing).as_deref(), Some("--out"));
        assert_eq!(fitting(&["doctor"], existing), None);
        assert_eq!(fitting(&["doctor"], "`eval --resume`").as_deref(), Some("`eval --resume`"));
        let sampler = "--sampler tokens, or --sampler dropout --scope all";
        assert_eq!(
            fitting(&["solve", "text"], sampler).as_deref(),
            Some("--sampler tokens or --sampler dropout --scope all")
        );
    }
}
