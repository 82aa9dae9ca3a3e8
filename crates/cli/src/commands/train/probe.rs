//! `latent-tts train probe`: samples problems and trains a probe on their hidden states.

use std::num::NonZeroU32;
use std::process::ExitCode;

use anyhow::Result;
use corpus::Split;
use latent_tts::training::{ProbeData, ProbeObserver, ProbeProgress, ProbeReport, ProbeTrainer};
use latent_tts::{CancelToken, EMBEDDED, Error, Question, SamplingOptions, grade};
use serde_json::json;

use super::{check_gradients, with_flags};
use crate::args::{ModelArgs, ProbeArgs};
use crate::interrupt::{self, shell_quoted};
use crate::load::{NO_REWARD_MODEL, load_models, select_models};
use crate::printer::{Printer, Progress, format_duration};
use crate::{settings, too_long};

/// Default of `--samples`.
const DEFAULT_SAMPLES: NonZeroU32 = NonZeroU32::new(16).unwrap();
/// Default number of problems of the embedded corpus.
const DEFAULT_QUESTIONS: usize = 1000;

/// Runs `train probe`.
pub fn run(args: &ProbeArgs, printer: &Printer) -> Result<ExitCode> {
    settings::refuse_aggregation(&args.sampling)?;
    let trainer = ProbeTrainer::new(&args.out, args.options.clone())
        .map_err(with_flags)?
        .overwriting(args.overwrite);
    let models = select_models(&ModelArgs {
        model: args.model.clone(),
        reward_model: Some(NO_REWARD_MODEL.to_owned()),
        probe: None,
        base: args.base.clone(),
        method: args.method,
    })?;
    let sampling = settings::sampling(&args.sampling, SamplingOptions::new(DEFAULT_SAMPLES))?;
    let source = settings::data_source(args.data.as_deref(), &args.fields, Split::Train)?;
    let questions = source.read(args.limit, DEFAULT_QUESTIONS)?;
    let device = args.machine.device.open(printer)?;
    check_gradients(&args.machine.device, &device)?;
    let model = load_models(&models, &device, printer)?;
    let engine = args.machine.engine(&model)?;
    let params = sampling.resolve(&model.reasoner().method).map_err(settings::flag_error)?;
    let check = |question: &Question| -> Result<(), Error> {
        Ok(engine.check(&[grade::request(question, params)])?)
    };
    let (questions, _) = too_long::fitting(args.too_long, questions, check, printer)?;
    let cancel = CancelToken::default();
    interrupt::cancel_on_signal(&cancel)?;
    let mut progress = ProbeOutput { printer, sampling: None };
    let data = ProbeData { questions: &questions, params };
    let report = trainer.run(&engine, data, &mut progress, &cancel).map_err(with_flags)?;
    let document = json!({
        "out": report.out,
        "questions": report.questions,
        "mixed_questions": report.mixed_questions,
        "step": report.kept.step,
        "auc": report.kept.auc,
        "sampling_seconds": report.sampling_seconds,
        "training_seconds": report.training_seconds,
    });
    printer.result(&document, || finished_text(args, &report))?;
    Ok(ExitCode::SUCCESS)
}

fn finished_text(args: &ProbeArgs, report: &ProbeReport) -> String {
    let auc = report.kept.auc.map(|auc| format!(" (held-out ranking accuracy {auc:.3})"));
    let model = shell_quoted(args.model.as_deref().unwrap_or(EMBEDDED));
    let out = shell_quoted(&report.out.display().to_string());
    format!(
        "sampled {} problems in {}; {} have both correct and incorrect trajectories\n\
         trained in {}; saved step {}{}\n\
         next: latent-tts eval --model {model} --probe {out}",
        report.questions,
        format_duration(report.sampling_seconds),
        report.mixed_questions,
        format_duration(report.training_seconds),
        report.kept.step,
        auc.unwrap_or_default(),
    )
}

/// Prints progress.
struct ProbeOutput<'a> {
    printer: &'a Printer,
    sampling: Option<Progress>,
}

impl ProbeObserver for ProbeOutput<'_> {
    fn sampled(&mut self, done: usize, total: usize) {
        let bar = self.sampling.get_or_insert_with(|| self.printer.progress(0, total));
        bar.set(done);
        if done == total {
            self.sampling = None;
        }
    }

    fn evaluated(&mut self, progress: ProbeProgress) {
        let auc = progress.auc.map(|auc| format!(", held-out ranking accuracy {auc:.3}"));
        let kept = if progress.is_kept { ", saved" } else { "" };
        self.printer.note(&format!(
            "step {}: loss {:.4}{}{kept}",
            progress.step,
            progress.loss,
            auc.unwrap_or_default()
        ));
    }
}
