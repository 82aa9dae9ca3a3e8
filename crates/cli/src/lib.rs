//! `latent-tts`: the command line of the library with the same name. It is a library so that
//! fuzzing parses settings exactly as the program does.
//!
//! ```text
//! args (flags) -> settings, aggregation, load (options, models) -> commands -> printer
//! ```

mod aggregation;
mod args;
mod commands;
#[cfg(feature = "hub")]
mod download;
mod hints;
mod interrupt;
mod load;
mod memory;
mod printer;
pub mod reference;
mod scorer;
mod settings;
#[cfg(feature = "testkit")]
pub mod testkit;
mod too_long;

use std::ffi::OsString;
use std::process::ExitCode;

use args::{Cli, Command};
use printer::Printer;

pub use memory::CheckedAllocator;

/// Exit code of invalid usage or input.
const BAD_INPUT: u8 = 2;

/// Runs a command line, including the program name.
pub fn run_command_line(argv: &[OsString]) -> ExitCode {
    let result = args::parse(argv).and_then(|cli| run(&cli));
    result.unwrap_or_else(|error| fail(&error))
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let resumable = matches!(
        cli.command,
        Command::Eval(_) | Command::Sweep(_) | Command::Annotate(_) | Command::Train(_)
    );
    interrupt::report_file_limit()?;
    if resumable {
        interrupt::listen()?;
    }
    #[cfg(feature = "hub")]
    download::fetch(&cli.command)?;
    dispatch(cli)
}

fn dispatch(Cli { command }: &Cli) -> anyhow::Result<ExitCode> {
    match command {
        Command::Eval(args) => commands::eval::run(args, &Printer::new(&args.output)),
        Command::Solve(args) => commands::solve::run(args, &Printer::new(&args.output)),
        #[cfg(feature = "serve")]
        Command::Serve(args) => commands::serve::run(args, &Printer::new(&args.output)),
        Command::Sweep(args) => commands::sweep::run(args, &Printer::new(&args.output)),
        Command::Report(args) => commands::report::run(args, &Printer::new(&args.output)),
        Command::Train(command) => commands::train::run(command),
        Command::Annotate(args) => commands::annotate::run(args, &Printer::new(&args.output)),
        Command::Calibrate(args) => commands::calibrate::run(args, &Printer::new(&args.output)),
        Command::Inspect(args) => commands::inspect::run(args, &Printer::new(&args.output)),
        Command::Convert(args) => commands::convert::run(args, &Printer::new(&args.output)),
        Command::Doctor(args) => commands::doctor::run(args, &Printer::new(&args.output)),
        Command::Verify(args) => commands::verify::run(args, &Printer::new(&args.output)),
        Command::Corpus(args) => commands::corpus::run(args),
        Command::Augment(args) => commands::augment::run(args, &Printer::new(&args.output)),
        Command::Bench(args) => commands::bench::run(args, &Printer::new(&args.output)),
    }
}

/// The standard library's message for 0 as the value of a nonzero count.
const ZERO_COUNT: &str = "number would be zero for non-zero type";

/// Prints the error and returns the exit code.
fn fail(error: &anyhow::Error) -> ExitCode {
    if let Some(usage) = error.downcast_ref::<clap::Error>() {
        // clap reports --help and --version as errors with exit code 0. A failure to print cannot
        // be reported anywhere.
        let text = usage.render().to_string();
        if text.contains(ZERO_COUNT) {
            printer::stderr_line(text.replace(ZERO_COUNT, "must be at least 1").trim_end());
        } else {
            let _ = usage.print();
        }
        if let Some(variable) = args::variable_of(usage) {
            printer::stderr_line(&format!(
                "the value comes from the environment variable {variable}"
            ));
        }
        return ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(BAD_INPUT));
    }
    printer::print_error(error);
    if interrupt::file_limit_reached() && interrupt::is_listening() {
        printer::stderr_line(&interrupt::message("a file reached the file size limit"));
        return ExitCode::from(interrupt::INTERRUPTED);
    }
    ExitCode::from(BAD_INPUT)
}
