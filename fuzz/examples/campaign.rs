//! A fuzz campaign on stable Rust: every target in turn, on mutations of its corpus.
//!
//! `cargo run -p latent-tts-fuzz --example campaign -- [SECONDS] [SEED] [TARGET]...`
//!
//! Use the `dev` profile, which is optimized and has overflow checks, instead of `--release`.
//!
//! Each target runs for SECONDS (60). The counts go to stdout. Failing inputs are saved in
//! `fuzz/found/`, and the campaign continues. Inputs that take longer than a second are saved as
//! `slow-*`.

#![expect(clippy::unwrap_used, reason = "a broken campaign should fail loudly")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use latent_tts_fuzz::{FuzzTarget, Mutator, TARGETS};

/// Maximum number of saved inputs per target.
const MAX_FOUND: usize = 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| args.get(at).map_or(default, |arg| arg.parse().unwrap());
    let seconds = number(0, 60);
    let seed = number(1, 0);
    let named: Vec<FuzzTarget> =
        args.iter().skip(2).map(|name| FuzzTarget::find(name).unwrap()).collect();
    // Panics are counted and saved; caught panics of libraries would flood the terminal.
    std::panic::set_hook(Box::new(|_| {}));
    println!("{:<12} {:>12} {:>10} {:>7}", "target", "executions", "a second", "broken");
    let mut total = 0;
    for target in if named.is_empty() { TARGETS.to_vec() } else { named } {
        total += run(target, seed, Duration::from_secs(seconds));
    }
    println!("{:<12} {total:>12}", "all");
}

/// Returns the number of executions.
fn run(target: FuzzTarget, seed: u64, duration: Duration) -> u64 {
    let corpus = target.corpus().unwrap();
    // Initializes the fixtures shared by the bodies before memory is counted.
    corpus.iter().for_each(|(_, input)| drop(catch_unwind(|| target.run(input))));
    let mut mutator = Mutator::new(seed);
    let mut input = Vec::new();
    let mut count = 0_u64;
    let mut broken = 0;
    let start = Instant::now();
    while start.elapsed() < duration {
        for _ in 0..64 {
            mutator.mutate(&corpus, target.words, &mut input);
            let before = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| target.run(&input)));
            count += 1;
            match outcome {
                Err(panic) => {
                    let message = panic.downcast_ref::<String>().map_or("", String::as_str);
                    eprintln!("{}: {message}", target.name);
                    keep(target, &format!("{broken}"), &input);
                    broken += 1;
                }
                Ok(()) if before.elapsed() > Duration::from_secs(1) => {
                    keep(target, &format!("slow-{count}"), &input);
                }
                Ok(()) => {}
            }
            if broken >= MAX_FOUND {
                break;
            }
        }
        if broken >= MAX_FOUND {
            break;
        }
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    println!("{:<12} {count:>12} {rate:>10.0} {broken:>7}", target.name);
    count
}

fn keep(target: FuzzTarget, name: &str, input: &[u8]) {
    let dir = Path::new("fuzz/found").join(target.name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join(name), input).unwrap();
}
