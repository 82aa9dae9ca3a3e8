//! `latent-tts augment`: generates variants of problems with annotated steps, and problems from
//! story templates.
//!
//! Variants are written during generation; only the input and one hash per question are kept in
//! memory. The table is printed on standard output, or on standard error if the data is written to
//! standard output.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use corpus::augment::{
    AugmentOptions, AugmentReport, AugmentSource, AugmentedExample, OverlapIndex, Refusal,
    VariantCount, augment, story,
};
use latent_tts::FieldNames;
use serde_json::{Value, json};

use record::RecordError;
use record::files::{self, InputPaths};

use crate::args::AugmentArgs;
use crate::printer::Printer;

/// Runs `augment`.
pub fn run(args: &AugmentArgs, printer: &Printer) -> Result<ExitCode> {
    let inputs: InputPaths = args.files.iter().chain(&args.decontaminate).collect();
    args.out.iter().try_for_each(|out| inputs.check_output(out))?;
    tensor::start_global_threads(None)?;
    let problems = read_sources(&args.files, &args.fields)?;
    let options = AugmentOptions {
        seed: args.seed,
        count: match args.total {
            Some(total) => VariantCount::Total(total.get()),
            None => VariantCount::PerProblem(args.count.get()),
        },
        keep_original: args.keep_original,
        without: overlap_index(&args.decontaminate)?,
    };
    let start = Instant::now();
    let job = AugmentJob { problems: &problems, options: &options, printer };
    match args.out.as_ref().filter(|path| !files::is_standard_output(path)) {
        Some(path) => {
            let mut report = None;
            files::write_output(path, |out| {
                report = Some(job.write(out)?);
                Ok(())
            })
            .map_err(|source| RecordError::Write { path: path.clone(), source })?;
            let summary = RunSummary::new(report.unwrap_or_default(), start);
            printer.result(&summary.to_json(), || summary.text())?;
        }
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            let written = job.write(&mut out).and_then(|report| out.flush().map(|()| report));
            match written {
                Ok(report) => printer.note(&RunSummary::new(report, start).text()),
                // A closed pipe (`| head`) is not an error.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) => return Err(error).context("cannot write to standard output"),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read_sources(files: &[PathBuf], fields: &FieldNames) -> Result<Vec<AugmentSource>> {
    let mut sources = Vec::new();
    for file in files {
        if file.extension().is_some_and(|ending| ending == story::EXTENSION) {
            let templates = story::read(file)?.into_iter();
            sources.extend(templates.map(|template| AugmentSource::Story(Box::new(template))));
        } else {
            let examples = data::examples::read_fields(file, fields, None)?;
            sources.extend(examples.into_iter().map(AugmentSource::Problem));
        }
    }
    Ok(sources)
}

fn overlap_index(files: &[PathBuf]) -> Result<OverlapIndex> {
    let mut index = OverlapIndex::default();
    for file in files {
        // Benchmarks need not have worked steps, so they are not read as training data.
        data::read(file, None)?.iter().for_each(|question| index.add(&question.text));
    }
    Ok(index)
}

struct AugmentJob<'a> {
    problems: &'a [AugmentSource],
    options: &'a AugmentOptions,
    printer: &'a Printer,
}

impl AugmentJob<'_> {
    fn write(&self, out: &mut impl Write) -> io::Result<AugmentReport> {
        let mut progress = self.printer.progress(0, self.problems.len());
        let mut written = 0;
        let report = augment(self.problems, self.options, |outcome| {
            outcome.examples.iter().try_for_each(|example| write_line(out, example))?;
            written += outcome.examples.len();
            progress.advance();
            progress.report(&format!("problems, {written} written"));
            io::Result::Ok(())
        })?;
        match written {
            0 => Err(io::Error::new(io::ErrorKind::InvalidData, nothing_written(&report))),
            _ => Ok(report),
        }
    }
}

/// The error message if no variant was generated.
fn nothing_written(report: &AugmentReport) -> String {
    let refused: usize = report.refused.values().sum();
    format!(
        "no variants: {refused} of {} problems were rejected, and {} variants overlap with the \
         files of --decontaminate",
        report.problems, report.overlapping
    )
}

fn write_line(out: &mut impl Write, example: &AugmentedExample) -> io::Result<()> {
    serde_json::to_writer(&mut *out, example)?;
    out.write_all(b"\n")
}

/// The counts of a run and its speed.
struct RunSummary {
    report: AugmentReport,
    seconds: f64,
}

impl RunSummary {
    fn new(report: AugmentReport, start: Instant) -> Self {
        Self { report, seconds: start.elapsed().as_secs_f64() }
    }

    fn rate(&self) -> f64 {
        self.report.variants as f64 / self.seconds.max(1e-9)
    }

    fn to_json(&self) -> Value {
        let mut value = json!(self.report);
        value["seconds"] = json!(self.seconds);
        value["variants_per_second"] = json!(self.rate().round());
        value
    }

    fn text(&self) -> String {
        let report = &self.report;
        let mut rows = vec![
            (report.problems, "problems".to_owned()),
            (report.with_graph, "with steps traced to the question's numbers".to_owned()),
        ];
        for reason in Refusal::ALL {
            if let Some(count) = report.refused.get(&reason) {
                rows.push((*count, format!("rejected: {}", reason.describe())));
            }
        }
        rows.push((report.duplicates, "duplicates dropped".to_owned()));
        rows.push((report.overlapping, "variants dropped for overlapping text".to_owned()));
        rows.push((report.originals, "originals written".to_owned()));
        let rate = format!("variants written, {:.0} per second", self.rate());
        rows.push((report.variants, rate));
        let line = |(count, what): &(usize, String)| format!("{count:>9}  {what}");
        rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}
