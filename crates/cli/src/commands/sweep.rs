//! `latent-tts sweep`: runs an eval for each perturbation strength and finds the best.

mod table;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use latent_tts::record::RunDir;
use latent_tts::report::{self, BestRun, ReportOptions};
use latent_tts::sweep::{
    self, PointRunner, SUMMARY_FILE, Sweep, SweepGrid, SweepOutput, SweepSpec,
};
use latent_tts::{Engine, Question, SamplingOptions};

use super::eval::EvalJob;
use crate::args::{EvalArgs, SweepArgs, SweepSamplerKind, default_eval_args};
use crate::load::{NO_REWARD_MODEL, load_models};
use crate::printer::Printer;
use crate::settings;

/// Default of `--samples`.
const DEFAULT_SAMPLES: NonZeroU32 = NonZeroU32::new(64).unwrap();
/// Default number of questions of the embedded corpus.
const DEFAULT_QUESTIONS: usize = 200;

/// Runs `sweep`.
pub fn run(args: &SweepArgs, printer: &Printer) -> Result<ExitCode> {
    let spec = sweep_spec(args)?;
    let ks = ks(args)?;
    let base = EvalJob::from_args(&base_eval_args(args, &spec))?;
    if spec.needs_rewards() && base.models.reward_model.is_none() {
        bail!("--metric {} needs rewards; pass --reward-model", value_name(args.metric));
    }
    let questions = base.data.read(args.limit, DEFAULT_QUESTIONS)?;
    let device = args.run.machine.device.open(printer)?;
    let model = load_models(&base.models, &device, printer)?;
    let engine = args.run.machine.engine(&model)?;
    let (questions, _) = base.fitting(args.run.too_long, questions, &engine, printer)?;
    let architecture = engine.reasoner().decoder.config().architecture;
    let evaluation = base.evaluation(&engine)?.manifest(&engine, &questions)?;
    let (evaluation, resume) = (&evaluation, args.run.resume);
    let out = Path::new("");
    let sweep = Sweep { spec: &spec, out, ks, architecture, evaluation, resume };
    let default_out = || sweep::default_out(base.models.reasoner.path(), &base.data, &sweep);
    let out = args.out.clone().unwrap_or_else(default_out);
    let sweep = Sweep { out: &out, ..sweep };
    let mut points = LocalPoints { engine: &engine, questions: &questions, base: &base, printer };
    let SweepOutput { summary, runs } = sweep.run(&mut points)?;
    let page = match args.run.no_report {
        true => None,
        false => {
            let best_run = Some(summary.best_run());
            let options = ReportOptions { best_run, ..ReportOptions::default() };
            Some(report::write(&runs, &out, options)?.page)
        }
    };
    printer.result(&summary, || {
        let page =
            page.map(|page| format!("\nHTML report: {}", page.display())).unwrap_or_default();
        format!(
            "{}\n{} and the runs are in {}{page}",
            table::render(&summary),
            SUMMARY_FILE,
            out.display()
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The run directories of the sweep in `dir` and the best of them; `None` if there is no sweep.
pub fn read(dir: &Path) -> Result<Option<(Vec<PathBuf>, BestRun)>> {
    let Some(summary) = sweep::read_summary(dir)? else { return Ok(None) };
    let best_run = summary.best_run();
    Ok(Some((summary.points.into_iter().map(|point| dir.join(point.run)).collect(), best_run)))
}

fn value_name(kind: impl clap::ValueEnum) -> String {
    kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn sweep_spec(args: &SweepArgs) -> Result<SweepSpec> {
    let [p, sigma, tau] = grids(args)?;
    Ok(SweepSpec {
        p,
        sigma,
        tau,
        sites: args.sites.iter().flatten().copied().collect(),
        scopes: args.scope.iter().flatten().copied().collect(),
        masks: args.mask.iter().flatten().copied().collect(),
        tolerance: args.tolerance,
        evaluations: args.evaluations,
        metric: Some(args.metric.name()),
    })
}

/// The strengths of dropout, noise and mixtures: the given ones, or the default of `--sampler` if
/// none are given. Strengths of samplers other than `--sampler` are an error.
fn grids(args: &SweepArgs) -> Result<[Option<SweepGrid>; 3]> {
    let Some(sampler) = args.sampler else {
        return Ok([args.dropout_p.clone(), args.noise_std.clone(), args.gumbel_tau.clone()]);
    };
    let flags = [
        ("--dropout-p", SweepSamplerKind::Dropout, args.dropout_p.is_some()),
        ("--sites", SweepSamplerKind::Dropout, args.sites.is_some()),
        ("--scope", SweepSamplerKind::Dropout, args.scope.is_some()),
        ("--mask", SweepSamplerKind::Dropout, args.mask.is_some()),
        ("--noise-std", SweepSamplerKind::Noise, args.noise_std.is_some()),
        ("--gumbel-tau", SweepSamplerKind::Gumbel, args.gumbel_tau.is_some()),
    ];
    if let Some((flag, ..)) = flags.iter().find(|(_, of, given)| *given && *of != sampler) {
        bail!("{flag} has no effect with --sampler {}; omit one of them", value_name(sampler));
    }
    let grid = |of: SweepSamplerKind, given: &Option<SweepGrid>, default: SweepGrid| {
        (of == sampler).then(|| given.clone().unwrap_or(default))
    };
    Ok([
        grid(SweepSamplerKind::Dropout, &args.dropout_p, sweep::DEFAULT_DROPOUT_GRID),
        grid(SweepSamplerKind::Noise, &args.noise_std, sweep::DEFAULT_NOISE_GRID),
        grid(SweepSamplerKind::Gumbel, &args.gumbel_tau, sweep::DEFAULT_GUMBEL_GRID),
    ])
}

/// The numbers of trajectories in the table: the values of `--k`, otherwise powers of four and N.
fn ks(args: &SweepArgs) -> Result<Vec<usize>> {
    let samples = args.samples.unwrap_or(DEFAULT_SAMPLES);
    Ok(sweep::ks(&settings::ks(args.k.as_deref(), samples)?, settings::to_usize(samples)))
}

/// The arguments that the evals of all points share: all except the sampler and the directory.
fn base_eval_args(args: &SweepArgs, spec: &SweepSpec) -> EvalArgs {
    let mut eval = default_eval_args();
    eval.model = args.model.clone();
    eval.data = args.data.clone();
    eval.limit = args.limit;
    eval.fields = args.fields.clone();
    // Coverage and majority need no rewards, so none are computed unless a reward model is given.
    if !spec.needs_rewards() {
        eval.model.reward_model.get_or_insert_with(|| NO_REWARD_MODEL.to_owned());
    }
    eval.run = args.run.clone();
    eval.sampling = SamplingOptions {
        samples: args.samples,
        seed: args.seed,
        latent_length: args.latent_length,
        max_new_tokens: args.max_new_tokens,
        ..SamplingOptions::default()
    };
    eval
}

/// Evaluates points in this process.
struct LocalPoints<'a> {
    engine: &'a Engine,
    questions: &'a [Question],
    /// The evaluation that all points share, except for the sampler and the directory.
    base: &'a EvalJob,
    printer: &'a Printer,
}

impl PointRunner for LocalPoints<'_> {
    type Error = anyhow::Error;

    fn evaluate(&mut self, out: &Path, sampling: SamplingOptions) -> Result<RunDir> {
        let mut job = EvalJob { out: Some(out.to_owned()), ..self.base.clone() };
        job.sampling = sampling.or(job.sampling);
        let name = || format!("point {}", out.file_name().unwrap_or_default().display());
        Ok(job.evaluate(self.engine, self.questions, self.printer).with_context(name)?.run)
    }

    fn note(&mut self, text: &str) {
        self.printer.note(text);
    }
}
