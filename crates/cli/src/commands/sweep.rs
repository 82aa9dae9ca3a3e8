//! `latent-tts sweep`: runs an eval for each strength of the perturbation and finds the best.

mod table;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use latent_tts::record::{self, RunDir};
use latent_tts::report::{self, ReportOptions};
use latent_tts::sweep::{self, PointRunner, SUMMARY_FILE, Sweep, SweepOutput, SweepSpec};
use latent_tts::{Engine, PerturbationOptions, Question};
use serde_json::Value;

use super::eval::EvalJob;
use crate::args::{EvalArgs, SweepArgs, default_eval_args};
use crate::load::{NO_REWARD_MODEL, load_models};
use crate::printer::Printer;
use crate::settings;

/// Default of `--samples`.
const DEFAULT_SAMPLES: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Default number of questions of the built-in corpus.
const DEFAULT_QUESTIONS: usize = 200;

/// Runs `sweep`.
pub fn run(args: &SweepArgs, printer: &Printer) -> Result<ExitCode> {
    let (spec, ks) = (sweep_spec(args), ks(args)?);
    let base = EvalJob::from_args(&base_eval_args(args))?;
    let questions = base.data.read(args.limit, DEFAULT_QUESTIONS)?;
    let device = args.run.machine.device.open()?;
    let model = load_models(&base.models, &device, printer)?;
    let engine = args.run.machine.engine(&model)?;
    let default_out = || sweep::default_out(base.models.reasoner.path(), &base.data);
    let out = args.out.clone().unwrap_or_else(default_out);

    let architecture = engine.reasoner().decoder.config().architecture;
    let sweep = Sweep { spec: &spec, out: &out, ks, architecture };
    let mut points = LocalPoints { engine: &engine, questions: &questions, base: &base, printer };
    let SweepOutput { summary, runs } = sweep.run(&mut points)?;
    let page = match args.run.no_report {
        true => None,
        false => Some(report::write(&runs, &out, ReportOptions::default())?.page),
    };
    printer.result(&summary, || {
        let page = page.map(|page| format!("\nthe page is {}", page.display())).unwrap_or_default();
        format!(
            "{}\n{} and the runs are in {}{page}",
            table::render(&summary),
            SUMMARY_FILE,
            out.display()
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The run directories of the sweep in `dir`; `None` if `dir` is not a sweep's.
pub fn run_dirs(dir: &Path) -> Result<Option<Vec<PathBuf>>> {
    let path = dir.join(SUMMARY_FILE);
    if !path.is_file() {
        return Ok(None);
    }
    let read = || -> Result<sweep::SweepSummary> {
        let summary: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        match summary["version"].as_u64() {
            Some(version) if version == u64::from(record::FORMAT) => {
                Ok(serde_json::from_value(summary)?)
            }
            _ => bail!("it is not of format version {}", record::FORMAT),
        }
    };
    let summary = read()
        .with_context(|| format!("cannot use {}; sweep again with --resume", path.display()))?;
    Ok(Some(summary.points.into_iter().map(|point| dir.join(point.run)).collect()))
}

fn sweep_spec(args: &SweepArgs) -> SweepSpec {
    SweepSpec {
        p: args.p.clone(),
        sigma: args.sigma.clone(),
        tau: args.tau.clone(),
        sites: args.sites.iter().flatten().copied().map(settings::sites).collect(),
        scopes: args.scope.iter().flatten().copied().map(settings::scope).collect(),
        masks: args.mask.iter().flatten().copied().map(settings::mask).collect(),
        tolerance: args.tolerance,
        evaluations: args.evaluations,
    }
}

/// The numbers of trajectories in the table: those of `--k`, else powers of four and N.
fn ks(args: &SweepArgs) -> Result<Vec<usize>> {
    let samples = args.samples.map_or(DEFAULT_SAMPLES, settings::to_usize);
    Ok(sweep::ks(&settings::ks(args.k.as_deref(), samples)?, samples))
}

/// The arguments that the evals of all points share: all but the sampler and the directory.
fn base_eval_args(args: &SweepArgs) -> EvalArgs {
    let mut eval = default_eval_args();
    (eval.model, eval.data, eval.limit) = (args.model.clone(), args.data.clone(), args.limit);
    // Coverage needs no rewards, so none are computed unless a reward model is named.
    eval.model.reward_model.get_or_insert_with(|| NO_REWARD_MODEL.to_owned());
    eval.run = args.run.clone();
    (eval.sampling.samples, eval.sampling.seed) = (args.samples, args.seed);
    (eval.sampling.thoughts, eval.sampling.max_new_tokens) = (args.thoughts, args.max_new_tokens);
    eval
}

/// Evaluates the points in this process.
struct LocalPoints<'a> {
    engine: &'a Engine,
    questions: &'a [Question],
    /// The evaluation that all points share, but for the sampler and the directory.
    base: &'a EvalJob,
    printer: &'a Printer,
}

impl PointRunner for LocalPoints<'_> {
    type Error = anyhow::Error;

    fn evaluate(&mut self, out: &Path, perturbation: PerturbationOptions) -> Result<RunDir> {
        let mut job = EvalJob { out: Some(out.to_owned()), ..self.base.clone() };
        job.sampling.perturbation = Some(perturbation);
        let name = || format!("point {}", out.file_name().unwrap_or_default().display());
        Ok(job.evaluate(self.engine, self.questions, self.printer).with_context(name)?.run)
    }

    fn note(&mut self, text: &str) {
        self.printer.note(text);
    }
}
