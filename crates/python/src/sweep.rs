//! Sweeps over strengths. A Python callable evaluates each point, in this process or on a cluster.

use std::path::{Path, PathBuf};

use latent_tts::record::{Manifest, RunDir};
use latent_tts::sweep::{self as library, PointRunner, Sweep, SweepGrid, SweepSpec};
use latent_tts::{CancelToken, Error, SamplingOptions};
use pyo3::prelude::*;

use crate::engine::PyEngine;
use crate::errors::{invalid, raise, raise_record};
use crate::evaluate::PyEvaluation;
use crate::options::{self, positive};
use crate::waiting::wait_for;

/// The keyword arguments of a sweep.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct SweepArguments {
    ks: Vec<usize>,
    out: Option<PathBuf>,
    resume: bool,
    /// Grids as text: values, a range, or an interval.
    dropout_p: Option<String>,
    noise_std: Option<String>,
    gumbel_tau: Option<String>,
    sites: Vec<String>,
    scope: Vec<String>,
    mask: Vec<String>,
    tolerance: Option<f64>,
    evaluations: Option<usize>,
    metric: String,
}

impl SweepArguments {
    fn spec(&self) -> PyResult<SweepSpec> {
        type Parse = fn(&str) -> Result<SweepGrid, String>;
        let grid = |name: &str, text: &Option<String>, parse: Parse| {
            let parse = |text: &String| parse(text).map_err(|e| invalid(format!("{name}: {e}")));
            text.as_ref().map(parse).transpose()
        };
        let tolerance = self.tolerance.filter(|width| !(width.is_finite() && *width > 0.0));
        if let Some(width) = tolerance {
            return Err(invalid(format!("tolerance={width} must be larger than 0")));
        }
        Ok(SweepSpec {
            p: grid("dropout_p", &self.dropout_p, SweepGrid::shares)?,
            sigma: grid("noise_std", &self.noise_std, SweepGrid::deviations)?,
            tau: grid("gumbel_tau", &self.gumbel_tau, SweepGrid::temperatures)?,
            sites: self.sites.iter().map(|s| options::sites(s)).collect::<PyResult<_>>()?,
            scopes: self.scope.iter().map(|s| options::scope(s)).collect::<PyResult<_>>()?,
            masks: self.mask.iter().map(|s| options::mask(s)).collect::<PyResult<_>>()?,
            tolerance: self.tolerance,
            evaluations: self.evaluations.map(|n| positive("evaluations", n)).transpose()?,
            metric: Some(options::metric(&self.metric)?),
        })
    }
}

/// Whether a sweep with this metric needs a reward model.
#[pyfunction]
pub fn needs_rewards(metric: &str) -> PyResult<bool> {
    let metric = Some(options::metric(metric)?);
    Ok(SweepSpec { metric, ..SweepSpec::default() }.needs_rewards())
}

/// Runs a sweep over points that share `evaluation`, except for the sampler and the directory.
/// `evaluate(out, sampler)` writes a point's run directory; `note(text)` receives progress. Returns
/// the sweep's directory.
#[pyfunction]
pub fn sweep(
    py: Python<'_>,
    engine: &PyEngine,
    evaluation: &PyEvaluation,
    arguments: SweepArguments,
    evaluate: Py<PyAny>,
    note: Py<PyAny>,
) -> PyResult<PathBuf> {
    let spec = arguments.spec()?;
    if spec.needs_rewards() && engine.selection.reward_model.is_none() {
        let metric = &arguments.metric;
        return Err(invalid(format!("metric={metric:?} needs rewards; pass a reward_model")));
    }
    let ks = library::ks(&arguments.ks, evaluation.samples());
    let model = engine.selection.reasoner.path();
    let data = evaluation.data();
    let architecture = engine.engine.reasoner().decoder.config().architecture;
    let shared: Manifest =
        wait_for(py, &CancelToken::default(), None, |_| evaluation.manifest(engine))?
            .map_err(raise)?;
    let (evaluation, resume) = (&shared, arguments.resume);
    let sweep = Sweep { spec: &spec, out: Path::new(""), ks, architecture, evaluation, resume };
    let default_out = || library::default_out(model, data, &sweep);
    let out = arguments.out.unwrap_or_else(default_out);
    let sweep = Sweep { out: &out, ..sweep };
    py.detach(|| sweep.run(&mut PythonPoints { evaluate, note })).map_err(|error| error.0)?;
    Ok(out)
}

struct PythonPoints {
    evaluate: Py<PyAny>,
    note: Py<PyAny>,
}

/// A Python exception, possibly from an error of the library.
struct Raised(PyErr);

impl From<Error> for Raised {
    fn from(error: Error) -> Self {
        Self(raise(error))
    }
}

impl PointRunner for PythonPoints {
    type Error = Raised;

    fn evaluate(&mut self, out: &Path, sampling: SamplingOptions) -> Result<RunDir, Raised> {
        Python::attach(|py| {
            self.evaluate.call1(py, (out, options::keywords(py, &sampling)?)).map(drop)
        })
        .map_err(Raised)?;
        RunDir::open(out).map_err(|error| Raised(raise_record(error)))
    }

    fn note(&mut self, text: &str) {
        // A failing note does not end the sweep; if the callable keeps failing, its next call
        // raises.
        let _ = Python::attach(|py| self.note.call1(py, (text,)).map(drop));
    }
}
