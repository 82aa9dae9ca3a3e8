//! `latent-tts corpus`: word problems from the built-in generator in the paper's JSON format, or as
//! JSON lines in a file named `.jsonl`.
//!
//! Problems are generated one at a time during serialization, so the output may be larger than
//! memory.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use corpus::problem;
use data::TrainExample;
use record::RecordError;
use record::files;
use serde::{Serialize, Serializer};

use crate::args::CorpusArgs;

/// Runs `corpus`.
pub fn run(args: &CorpusArgs) -> Result<ExitCode> {
    if args.offset.checked_add(args.count).is_none() {
        bail!(
            "--offset {} and --count {} exceed the last problem, which has index {}",
            args.offset,
            args.count,
            u64::MAX
        );
    }
    match args.out.as_ref().filter(|path| !files::is_standard_output(path)) {
        Some(path) => {
            let lines = path.extension().is_some_and(|ending| ending == "jsonl");
            files::write_output(path, |out| write(args, lines, out))
                .map_err(|source| RecordError::Write { path: path.clone(), source })?;
        }
        None => print(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The requested problems, serialized as a list.
struct CorpusProblems<'a>(&'a CorpusArgs);

/// One problem in the format of the paper's files.
#[derive(Serialize)]
struct CorpusRecord {
    #[serde(flatten)]
    example: TrainExample,
    idx: u64,
}

impl CorpusProblems<'_> {
    fn records(&self) -> impl Iterator<Item = CorpusRecord> {
        let CorpusArgs { split, seed, offset, count, .. } = *self.0;
        let numbered = move |idx| CorpusRecord { example: problem(split, seed, idx).into(), idx };
        (offset..offset + count).map(numbered)
    }
}

impl Serialize for CorpusProblems<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.records())
    }
}

/// Writes one problem per line, or an array.
fn write(args: &CorpusArgs, lines: bool, out: &mut impl Write) -> io::Result<()> {
    let problems = CorpusProblems(args);
    if !lines {
        serde_json::to_writer_pretty(&mut *out, &problems)?;
        return writeln!(out);
    }
    for record in problems.records() {
        serde_json::to_writer(&mut *out, &record)?;
        writeln!(out)?;
    }
    Ok(())
}

fn print(args: &CorpusArgs) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    match write(args, false, &mut out).and_then(|()| out.flush()) {
        // A closed pipe (`| head`) is not an error.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}
