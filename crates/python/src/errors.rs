//! Converts the library's errors to Python exceptions with the same messages.

use std::error::Error as StdError;

use latent_tts::record::RecordError;
use latent_tts::report::ReportError;
use latent_tts::tensor::DeviceError as TensorError;
use latent_tts::train::TrainError;
use latent_tts::train::annotate::AnnotationError;
use latent_tts::{EngineError as RequestError, Error, Rule};
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::{PyErr, PyResult, Python, create_exception};

create_exception!(latent_tts, LatentTTSError, PyException, "Any error of latent_tts.");
create_exception!(latent_tts, ModelError, LatentTTSError, "A model could not be found or loaded.");
create_exception!(latent_tts, DeviceError, LatentTTSError, "A device is missing or failed.");
create_exception!(latent_tts, DataError, LatentTTSError, "Questions could not be read.");
create_exception!(latent_tts, EngineError, LatentTTSError, "A request cannot be run.");
create_exception!(
    latent_tts,
    RunError,
    LatentTTSError,
    "A run directory or annotations could not be written or read."
);

/// Converts an error to an exception.
pub fn raise(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    if let Error::Callback { error, .. } = &error
        && let Some(raised) = error.downcast_ref::<PyErr>()
    {
        return Python::attach(|py| raised.clone_ref(py));
    }
    let message = message(&error);
    match error {
        Error::Engine(RequestError::Device(_)) | Error::Device(_) => DeviceError::new_err(message),
        Error::Engine(_) | Error::LongContinuation { .. } => EngineError::new_err(message),
        Error::Dataset(_) | Error::Corpus { .. } => DataError::new_err(message),
        Error::Record(_)
        | Error::InputsChanged(_)
        | Error::Annotations(_)
        | Error::AnnotatedInputsChanged(_)
        | Error::Report(_)
        | Error::SweepExists { .. }
        | Error::SweepChanged { .. }
        | Error::SweepUnfinished { .. } => RunError::new_err(message),
        Error::Train(TrainError::Device(_)) => DeviceError::new_err(message),
        Error::Train(TrainError::Options { .. }) => PyValueError::new_err(message),
        Error::Train(_) => RunError::new_err(message),
        Error::InvalidRewards { .. } | Error::Sampling(_) | Error::EmptySweep => {
            PyValueError::new_err(message)
        }
        _ => ModelError::new_err(message),
    }
}

/// Converts an error while loading models to a `ModelError`, whatever its kind.
pub fn raise_loading(error: Error) -> PyErr {
    let device = matches!(&error, Error::Device(_) | Error::Engine(RequestError::Device(_)));
    if device { raise(error) } else { ModelError::new_err(message(&error)) }
}

pub fn raise_device(error: TensorError) -> PyErr {
    raise(Error::Device(error))
}

/// Raises the exception of a rule that is a Python callable.
pub fn check_rule(rule: Rule) -> PyResult<()> {
    let failed = rule.take_failure();
    failed
        .map_or(Ok(()), |error| Err(raise(Error::Callback { name: format!("rule {rule}"), error })))
}

pub fn raise_record(error: RecordError) -> PyErr {
    raise(Error::Record(error))
}

pub fn raise_report(error: ReportError) -> PyErr {
    raise(Error::Report(error))
}

pub fn raise_annotations(error: AnnotationError) -> PyErr {
    raise(Error::Annotations(error))
}

/// The exception for an invalid argument.
pub fn invalid(message: impl Into<String>) -> PyErr {
    PyValueError::new_err(message.into())
}

/// The message, including the messages of its causes.
fn message(error: &dyn StdError) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
