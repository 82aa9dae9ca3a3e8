//! The program: its allocator and the call of its command line.

use std::ffi::OsString;
use std::process::ExitCode;

use latent_tts_cli::CheckedAllocator;

#[global_allocator]
static ALLOCATOR: CheckedAllocator = CheckedAllocator;

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    latent_tts_cli::run_command_line(&argv)
}
