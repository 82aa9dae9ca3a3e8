//! Compares every operation of the CUDA backend with a naive host computation, then times the main
//! ones.
//!
//! Prints one line per operation with its largest error; the exit status is 1 if an error exceeds
//! its tolerance, 0 without a GPU. Checks also run on a deterministic device, and on one of
//! precision fp8 if the GPU supports it. `cuda_check --check` and `--time` do only one of the two;
//! `--passes` only times whole passes, `--training` the parts of a training step; `--fp8` only
//! checks and times fp8, and with `--small` only checks it.
//!
//! For compute-sanitizer, which is slow (`runs/gpu_sanitizer.sh`): `--small` uses small shapes,
//! runs timed code once, and only uses deterministic devices, on which our kernels run at any size;
//! `--only NAME...` selects checks by name ([`checks::CHECKS`]). A final line per device lists the
//! kernels that were launched on it.

#[path = "cuda_check/attention_checks.rs"]
mod attention_checks;
#[path = "cuda_check/checks.rs"]
mod checks;
#[path = "../src/cuda/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the backend, included whole; not all of it is checked here"
)]
mod cuda;
#[path = "../src/cuda/fp8_checks/mod.rs"]
mod fp8_checks;
#[path = "cuda_check/logit_checks.rs"]
mod logit_checks;
#[path = "../src/params.rs"]
#[allow(dead_code, reason = "what the backend depends on, included whole")]
mod params;
#[path = "cuda_check/reference.rs"]
mod reference;
#[path = "../src/rng.rs"]
#[allow(dead_code, reason = "what the backend depends on, included whole")]
mod rng;
#[path = "cuda_check/row_checks.rs"]
mod row_checks;
#[path = "cuda_check/timing.rs"]
mod timing;
#[path = "cuda_check/training.rs"]
mod training;
#[path = "cuda_check/training_checks.rs"]
mod training_checks;

use checks::KernelCheck;
use cuda::{CudaDevice, CudaError, Precision};
use params::{RowPerturbation, SiteSet};
use rng::RngKey;

type CheckResult = Result<(), CudaError>;

fn main() {
    if let Err(why) = CudaDevice::availability() {
        println!("skipped: {why}");
        return;
    }
    let only = std::env::args().nth(1);
    let mut missed = 0;
    let devices: &[(Precision, bool)] = match only.as_deref() {
        Some("--fp8") => &[(Precision::Fp8, false), (Precision::Fp8, true)],
        _ if small() => &[(Precision::F32, true), (Precision::Bf16, true)],
        _ => &[
            (Precision::F32, false),
            (Precision::Bf16, false),
            (Precision::Bf16, true),
            (Precision::Fp8, false),
            (Precision::Fp8, true),
        ],
    };
    for &(precision, deterministic) in devices {
        if let Err(e) = run(precision, deterministic, only.as_deref(), &mut missed) {
            println!("MISS  {e}");
            missed += 1;
        }
    }
    println!(
        "{}",
        if missed == 0 { "all within tolerance".to_owned() } else { format!("{missed} missed") }
    );
    std::process::exit(i32::from(missed > 0));
}

/// Whether `--small` is given.
pub(crate) fn small() -> bool {
    std::env::args().any(|arg| arg == "--small")
}

/// Whether a check is to be run: all are without `--only`.
pub(crate) fn is_selected(name: &str) -> bool {
    let mut names = std::env::args().skip_while(|arg| arg != "--only").skip(1).peekable();
    names.peek().is_none() || names.take_while(|arg| !arg.starts_with("--")).any(|arg| arg == name)
}

fn run(
    precision: Precision,
    deterministic: bool,
    only: Option<&str>,
    missed: &mut usize,
) -> CheckResult {
    let started = std::time::Instant::now();
    let cuda = match CudaDevice::open(0, precision, deterministic) {
        Err(why @ CudaError::NoFp8 { .. }) => {
            println!("skipped: {why}");
            return Ok(());
        }
        opened => opened?,
    };
    let (free, total) = cuda.memory()?;
    let opened = started.elapsed().as_secs_f64();
    println!(
        "{} {:?} {precision:?}{}: opened in {opened:.2} s, {free} of {total} bytes free",
        cuda.name(),
        cuda.capability(),
        if deterministic { ", deterministic" } else { "" }
    );
    let mut check = KernelCheck::new(cuda.clone());
    if !matches!(only, Some("--time" | "--passes" | "--training")) {
        match precision {
            Precision::Fp8 => check.fp8()?,
            _ => check.all()?,
        }
    }
    *missed += check.missed();
    let timed = time(&cuda, precision, deterministic, only);
    println!("kernels: {}", cuda.launched_kernels().join(" "));
    timed
}

fn time(
    cuda: &CudaDevice,
    precision: Precision,
    deterministic: bool,
    only: Option<&str>,
) -> CheckResult {
    match only {
        Some("--training") if small() => training::all(cuda),
        // Only the default precision is timed; on a deterministic device only whole passes.
        _ if precision == Precision::F32 => Ok(()),
        Some("--check" | "--training") if precision == Precision::Fp8 => Ok(()),
        _ if precision == Precision::Fp8 && (small() || deterministic) => Ok(()),
        Some("--passes") if precision == Precision::Fp8 => timing::passes(cuda),
        _ if precision == Precision::Fp8 => timing::fp8(cuda),
        Some("--passes") if deterministic => timing::passes(cuda),
        _ if deterministic => Ok(()),
        Some("--check") => Ok(()),
        Some("--training") => training::all(cuda),
        Some("--time") => timing::all(cuda),
        Some("--passes") => timing::passes(cuda),
        _ => timing::all(cuda).and_then(|()| training::all(cuda)),
    }
}

/// Gaussian numbers, a function of the salt.
pub(crate) fn numbers(n: usize, salt: u64) -> Vec<f32> {
    let mut x = vec![0.0; n];
    let rows = x.chunks_mut(4096).enumerate();
    rows.for_each(|(i, part)| {
        RngKey { seed: salt, question: i as u32, trajectory: 0, position: 0 }.add_noise(1.0, part)
    });
    x
}

/// 64 trajectories per question, perturbed at `strength`, except for one row in five.
pub(crate) fn perturbed_rows(
    rows: usize,
    strength: f32,
    sites: SiteSet,
) -> Vec<Option<RowPerturbation>> {
    let key = |r: usize| RngKey {
        seed: 7 << 33 | 5,
        question: r as u32 / 64,
        trajectory: r as u32 % 64,
        position: 70 + r as u32 % 3,
    };
    let row = |r: usize| RowPerturbation { key: key(r), strength, sites };
    (0..rows).map(|r| (r % 5 != 3).then(|| row(r))).collect()
}
