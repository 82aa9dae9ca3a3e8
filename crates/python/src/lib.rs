//! `latent_tts._core`: the library as Python's extension module.
//!
//! ```text
//! engine     a loaded reasoner: sampling, log-likelihoods, records and shards for a cluster
//! evaluate   a benchmark's run directory, in one process or assembled from several
//! annotate   a directory of annotations, likewise
//! sweep      the search over strengths; each point is a call of Python
//! ablate     greedy runs with replaced thoughts
//! train      the training of reasoners and reward models
//! records    run directories and annotations as columns and figures
//! trajectory trajectories and replies as objects
//! rules      voting rules that are callables
//! sampler    samplers that are callables
//! scorer     scorers that are callables
//! options    keyword arguments -> options of the library
//! command    the command line, for the console script
//! waiting    long calls: without the GIL, with Ctrl-C and progress
//! errors     the library's errors as exceptions
//! ```
//!
//! Everything here is private to the package in `python/latent_tts`, which has the documented API.
//! Functions take and return plain types: strings, numbers, tuples, JSON text and arrays.

// The package documents the purpose of classes and functions; the items here implement it.
#![allow(missing_docs, reason = "the documented API is the Python package")]

mod ablate;
mod aggregate;
mod annotate;
mod command;
mod convert;
mod download;
mod engine;
mod errors;
mod evaluate;
mod options;
mod records;
mod rules;
mod sampler;
mod scorer;
mod selection;
mod sweep;
mod train;
mod trajectory;
mod waiting;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    #[pymodule_export]
    use crate::ablate::ablate;
    #[pymodule_export]
    use crate::aggregate::{aggregate, rules, votes};
    #[pymodule_export]
    use crate::annotate::PyAnnotation;
    #[pymodule_export]
    use crate::command::run_command_line;
    #[pymodule_export]
    use crate::convert::convert;
    #[pymodule_export]
    use crate::download::fetch;
    #[pymodule_export]
    use crate::engine::{PyEngine, check_reward_model, parse_questions, read_questions};
    #[pymodule_export]
    use crate::errors::{
        DataError, DeviceError, EngineError, LatentTTSError, ModelError, RunError,
    };
    #[pymodule_export]
    use crate::evaluate::PyEvaluation;
    #[pymodule_export]
    use crate::options::sampling_fields;
    #[pymodule_export]
    use crate::records::{
        annotation_columns, rescore_run, run_columns, run_figures, run_json, run_table,
        training_figures, write_report,
    };
    #[pymodule_export]
    use crate::rules::{PyCandidate, register_rule};
    #[pymodule_export]
    use crate::sampler::register_sampler;
    #[pymodule_export]
    use crate::scorer::PyHttpScorer;
    #[pymodule_export]
    use crate::selection::{calibrate, train_probe};
    #[pymodule_export]
    use crate::sweep::{needs_rewards, sweep};
    #[pymodule_export]
    use crate::train::{train_reasoner, train_reward, train_rl, training_options};
    #[pymodule_export]
    use crate::trajectory::{PyReply, PyTrajectory};
}
