//! `latent-tts doctor`: describes and measures this machine, and suggests how to run faster.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use serde_json::json;
use tensor::{Device, Isa, Precision};

use latent_tts::manifest::cpu_name;

use crate::args::DoctorArgs;
use crate::args::values::format_bytes;
use crate::printer::Printer;

/// 64-bit words read to measure bandwidth: 128 MiB, which exceeds the caches and takes
/// milliseconds.
const BANDWIDTH_WORDS: usize = 16 << 20;
/// Available memory, in bytes, below which even a small model may not fit.
const LOW_MEMORY: u64 = 2 << 30;

/// Runs `doctor`.
pub fn run(args: &DoctorArgs, printer: &Printer) -> Result<ExitCode> {
    let device = args.device.open(&Printer::silent())?;
    let report = MachineReport::measure(&device)?;
    let advice = report.advice();
    let document = json!({
        "device": report.device,
        "cpu": report.processor,
        "cores": report.cores,
        "isa": report.isa.to_string(),
        "threads": report.threads,
        "memory_available": report.memory,
        "peak_flops": report.flops,
        "memory_bandwidth": report.bandwidth,
        "load": report.load,
        "cuda": report.cuda.as_ref().err(),
        "version": env!("CARGO_PKG_VERSION"),
        "advice": advice,
    });
    printer.result(&document, || report.text(&advice))?;
    Ok(ExitCode::SUCCESS)
}

/// Properties and measurements of the machine.
struct MachineReport {
    device: String,
    /// Whether a GPU can be used; otherwise the reason.
    cuda: Result<(), String>,
    /// Free and total bytes of the GPU, if it is the device.
    gpu_memory: Option<(usize, usize)>,
    processor: Option<String>,
    cores: usize,
    isa: Isa,
    threads: usize,
    /// Available memory in bytes.
    memory: Option<u64>,
    /// Measured peak in FLOP/s.
    flops: f64,
    /// Read bandwidth of all threads together in bytes per second.
    bandwidth: f64,
    /// Load average of the last minute, before the measurement.
    load: Option<f64>,
}

impl MachineReport {
    fn measure(device: &Device) -> Result<Self> {
        let load = load_average();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            device: device.describe(),
            cuda: if device.is_cuda() { Ok(()) } else { probe_cuda() },
            gpu_memory: device.memory()?,
            processor: cpu_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            isa: device.isa().unwrap_or_else(Isa::detect),
            threads: if device.is_cuda() { threads } else { device.threads() },
            memory: memory_available(),
            load,
            bandwidth: memory_bandwidth(threads),
            flops: tensor::peak_flops(device)?,
        })
    }

    fn text(&self, advice: &[String]) -> String {
        let unknown = || "unknown".to_owned();
        let lines = [
            ("device", self.device.clone()),
            ("cpu", self.processor.clone().unwrap_or_else(unknown)),
            ("cores", self.cores.to_string()),
            ("instructions", self.isa.to_string()),
            ("threads", self.threads.to_string()),
            (
                "memory",
                self.memory
                    .map_or_else(unknown, |bytes| format!("{} available", format_bytes(bytes))),
            ),
            ("arithmetic", format!("{:.1} GFLOP/s peak (measured)", self.flops / 1e9)),
            ("bandwidth", format!("{:.1} GB/s read (measured)", self.bandwidth / 1e9)),
            (
                "cuda",
                self.cuda
                    .clone()
                    .map_or_else(|why| format!("not used: {why}"), |()| self.gpu_memory_text()),
            ),
        ];
        let mut text: String =
            lines.iter().map(|(name, value)| format!("{name:<13} {value}\n")).collect();
        text.push('\n');
        match advice {
            [] => text.push_str("no recommendations\n"),
            some => some.iter().for_each(|line| text.push_str(&format!("- {line}\n"))),
        }
        text
    }

    fn gpu_memory_text(&self) -> String {
        match self.gpu_memory {
            Some((free, all)) => {
                format!("{} of {} free", format_bytes(free as u64), format_bytes(all as u64))
            }
            None => "available, not used".to_owned(),
        }
    }

    fn advice(&self) -> Vec<String> {
        let (threads, cores) = (self.threads, self.cores);
        let busy = self.load.filter(|load| *load > 0.5 * cores as f64);
        let little = self.memory.filter(|memory| *memory < LOW_MEMORY);
        let unused_gpu = self.cuda.is_ok() && self.gpu_memory.is_none();
        let when = |condition: bool, advice: &str| condition.then(|| advice.to_owned());
        let all = [
            when(
                cfg!(debug_assertions),
                "this is a debug build; build with `cargo build --release`",
            ),
            when(
                self.isa == Isa::Portable,
                "no AVX2, AVX-512 or NEON detected; the portable kernels are several times slower",
            ),
            when(
                threads > cores,
                &format!("{threads} threads share {cores} cores; omit --threads"),
            ),
            when(
                threads < cores,
                &format!("only {threads} of {cores} cores are used; omit --threads to use all"),
            ),
            busy.map(|load| {
                format!(
                    "other processes are using the cores (load average {load:.1}); measurements \
                     are lower than on an idle machine"
                )
            }),
            when(unused_gpu, "a GPU is available; omit --device, --threads and --isa to use it"),
            little.map(|memory| {
                let available = format_bytes(memory);
                format!("only {available} of memory available; pass a smaller --memory")
            }),
        ];
        all.into_iter().flatten().collect()
    }
}

/// Whether the first GPU can be opened; otherwise the reason.
fn probe_cuda() -> Result<(), String> {
    Device::cuda_availability()?;
    Device::cuda(0, Precision::Bf16).map(drop).map_err(|e| e.to_string())
}

fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Read bandwidth in bytes per second: the best of three runs, because other load only lowers it.
fn memory_bandwidth(threads: usize) -> f64 {
    let words: Vec<u64> = (0..BANDWIDTH_WORDS as u64).collect();
    let pass = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let share = words.len().div_ceil(threads.max(1));
            words.chunks(share).for_each(|part| {
                let read =
                    move || black_box(part.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
                // If the system cannot start another thread, this one reads the part.
                if std::thread::Builder::new().spawn_scoped(scope, read).is_err() {
                    read();
                }
            });
        });
        size_of_val(words.as_slice()) as f64 / start.elapsed().as_secs_f64()
    };
    (0..3).map(|_| pass()).fold(0.0, f64::max)
}
