//! `latent-tts corpus`: word problems of the built-in generator as the paper's JSON.
//!
//! Problems are generated one at a time while they are serialized, so that a file may be larger
//! than memory.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use corpus::problem;
use data::TrainExample;
use serde::{Serialize, Serializer};

use crate::args::CorpusArgs;

/// Runs `corpus`.
pub fn run(args: &CorpusArgs) -> Result<ExitCode> {
    if args.offset.checked_add(args.count).is_none() {
        bail!(
            "--offset {} and --count {} go beyond the last problem, number {}",
            args.offset,
            args.count,
            u64::MAX
        );
    }
    match &args.out {
        Some(path) => record::write_document(path, &CorpusProblems(args))?,
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

impl Serialize for CorpusProblems<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let CorpusArgs { split, seed, offset, count, .. } = *self.0;
        let numbered = |idx| CorpusRecord { example: problem(split, seed, idx).into(), idx };
        serializer.collect_seq((offset..offset + count).map(numbered))
    }
}

fn print(args: &CorpusArgs) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let written =
        serde_json::to_writer_pretty(&mut out, &CorpusProblems(args)).map_err(io::Error::from);
    match written.and_then(|()| writeln!(out)).and_then(|()| out.flush()) {
        // A closed pipe (`| head`) is not an error.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}
