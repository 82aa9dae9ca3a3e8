//! `latent-tts doctor`: what this machine can do, and what is not as fast as it could be.

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

/// Words that each thread reads to measure memory: beyond any cache, and done in a blink.
const BANDWIDTH_WORDS: usize = 16 << 20;
/// Below this even a small model is tight.
const LOW_MEMORY: u64 = 2 << 30;

/// Runs the command.
pub fn run(args: &DoctorArgs, printer: &Printer) -> Result<ExitCode> {
    let device = args.device.open()?;
    let report = MachineReport::measure(&device)?;
    let advice = report.advice();
    let document = json!({
        "device": report.device,
        "processor": report.processor,
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

/// What was found.
struct MachineReport {
    device: String,
    /// Whether a GPU can be used; if not, why.
    cuda: Result<(), String>,
    /// A GPU's free memory and all of it, if it is the device.
    gpu_memory: Option<(usize, usize)>,
    processor: Option<String>,
    cores: usize,
    isa: Isa,
    threads: usize,
    /// Bytes that a new process can have.
    memory: Option<u64>,
    /// Operations per second on registers.
    flops: f64,
    /// Bytes per second read by all threads.
    bandwidth: f64,
    /// Mean number of running processes over the last minute, before measuring.
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
            ("processor", self.processor.clone().unwrap_or_else(unknown)),
            ("cores", self.cores.to_string()),
            ("instructions", self.isa.to_string()),
            ("threads", self.threads.to_string()),
            (
                "memory",
                self.memory
                    .map_or_else(unknown, |bytes| format!("{} available", format_bytes(bytes))),
            ),
            ("arithmetic", format!("{:.1} GFLOP/s at most, measured", self.flops / 1e9)),
            ("bandwidth", format!("{:.1} GB/s read, measured", self.bandwidth / 1e9)),
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
            [] => text.push_str("nothing found that would make it faster\n"),
            some => some.iter().for_each(|line| text.push_str(&format!("- {line}\n"))),
        }
        text
    }

    fn gpu_memory_text(&self) -> String {
        match self.gpu_memory {
            Some((free, all)) => {
                format!("{} of {} free", format_bytes(free as u64), format_bytes(all as u64))
            }
            None => "found, and left alone".to_owned(),
        }
    }

    fn advice(&self) -> Vec<String> {
        let (threads, cores) = (self.threads, self.cores);
        let busy = self.load.filter(|load| *load > 0.5 * cores as f64);
        let little = self.memory.filter(|memory| *memory < LOW_MEMORY);
        let all = [
            cfg!(debug_assertions).then(|| "this is a debug build; build with `cargo build --release`".to_owned()),
            (self.isa == Isa::Portable)
                .then(|| "no AVX2 or AVX-512 was found, so the portable kernels run, several times slower".to_owned()),
            (threads > cores).then(|| format!("{threads} threads share {cores} cores; leave --threads out")),
            (threads < cores).then(|| format!("{threads} of {cores} cores are used; leave --threads out to use all")),
            busy.map(|load| {
                format!("other work keeps the cores busy (load average {load:.1}); figures will be lower than they could be")
            }),
            (self.cuda.is_ok() && self.gpu_memory.is_none())
                .then(|| "there is a gpu; leave --device, --threads and --isa out to use it".to_owned()),
            little.map(|memory| format!("only {} of memory are available; pass a smaller --memory", format_bytes(memory))),
        ];
        all.into_iter().flatten().collect()
    }
}

/// Whether a GPU could be used; if not, why.
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

/// The best of three, since other load can only lower it.
fn memory_bandwidth(threads: usize) -> f64 {
    let words: Vec<u64> = (0..BANDWIDTH_WORDS as u64).collect();
    let pass = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let share = words.len().div_ceil(threads.max(1));
            words.chunks(share).for_each(|part| {
                scope.spawn(move || {
                    black_box(part.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)))
                });
            });
        });
        size_of_val(words.as_slice()) as f64 / start.elapsed().as_secs_f64()
    };
    (0..3).map(|_| pass()).fold(0.0, f64::max)
}
