//! What a run was asked to do, in the words of the manifest.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::{Adaptive, BeamSize, Method, Perturbation, Scope, Settings, Sites};
use record::{Fingerprint, Manifest};
use serde_json::{Value, json};
use tensor::Device;

use crate::args::values::show_thoughts;
use crate::data::Source;

/// Every setting that changes results, and only those.
pub fn settings(method: &Method, settings: &Settings, judged: bool) -> Value {
    let mut said = json!({
        "method": method.family.name(),
        "samples": settings.samples,
        "greedy": settings.greedy,
        "sampler": sampler(settings.perturbation),
        "thoughts": show_thoughts(settings.length),
        "max_new_tokens": settings.max_new_tokens,
        "rewards": judged,
    });
    if let Some(BeamSize { width, candidates }) = settings.beam {
        said["beam"] = json!({ "width": width, "candidates": candidates });
    }
    if let Some(Adaptive { confidence }) = settings.adaptive {
        said["adaptive"] = json!({ "confidence": confidence.get() });
    }
    said
}

/// What makes trajectories differ.
pub fn sampler(perturbation: Perturbation) -> Value {
    match perturbation {
        Perturbation::None => json!({ "kind": "none" }),
        Perturbation::Gaussian { std } => json!({ "kind": "noise", "sigma": exact(std) }),
        Perturbation::Tokens(from) => {
            json!({ "kind": "tokens", "temperature": exact(from.temperature()), "top_p": exact(from.top_p()) })
        }
        Perturbation::Dropout { p, sites, scope } => {
            json!({ "kind": "dropout", "p": exact(p.get()), "sites": show_sites(sites), "scope": show_scope(scope) })
        }
    }
}

/// The number that was typed: an f32 written as an f64 would gain digits that nobody gave.
pub fn exact(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// Sites as `--sites` takes them.
pub fn show_sites(sites: Sites) -> &'static str {
    match (sites.attn_out, sites.mlp_out) {
        (true, true) => "both",
        (true, false) => "attn",
        (false, true) => "mlp",
        (false, false) => "none",
    }
}

fn show_scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Thoughts => "thoughts",
        Scope::Prompt => "prompt",
        Scope::All => "all",
    }
}

/// The machine, which changes no result beyond rounding.
pub fn host(device: &Device, memory: usize) -> Value {
    json!({
        "device": device.describe(),
        "threads": device.threads(),
        "memory": memory,
        "cpu": crate::commands::doctor::processor(),
        "os": std::env::consts::OS,
    })
}

/// The commit that this program was built from, where the build said so.
pub fn commit() -> Option<String> {
    option_env!("LATENT_TTS_COMMIT").map(str::to_owned)
}

/// This program and its version.
pub fn program() -> String {
    format!("latent-tts {}", env!("CARGO_PKG_VERSION"))
}

/// A name for a run that the same inputs and settings always get, so that `--resume` finds it.
pub fn default_name(model: &Path, data: &Source, manifest: &Manifest) -> String {
    let settings = json!([manifest.settings, manifest.seeds, manifest.questions, manifest.fingerprint]).to_string();
    let digest = Fingerprint::default().with("run", settings.as_bytes()).finish();
    format!("{}-{}-{}", plain(report::study::model_name(model)), plain(data.stem()), &digest[..8])
}

/// A name without signs that a shell or a file system might take amiss.
pub fn plain(name: impl AsRef<str>) -> String {
    name.as_ref().chars().map(|c| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' }).collect()
}

/// Now, in RFC 3339.
pub fn now() -> String {
    rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Seconds since 1970 as a date; the calendar repeats every 400 years, which start in March.
fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + carry;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        let known = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        known.iter().for_each(|&(seconds, date)| assert_eq!(rfc3339(seconds), date));
    }

    #[test]
    fn runs_are_named_by_what_they_are() {
        let name = |model, data: &str| default_name(Path::new(model), &Source::File(data.into()), &Manifest::default());
        assert!(name("/x/coconut", "test 1.json").starts_with("coconut-test-1-"));
        assert!(name("/c/models--org--codi/snapshots/ab12", "d").starts_with("org--codi-d-"));
    }
}
