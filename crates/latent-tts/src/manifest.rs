//! The settings of a run as its manifest records them.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::{Method, SamplingParams};
use record::{Fingerprint, Manifest};
use schema::SamplingOptions;
use serde_json::{Value, json};
use tensor::{Device, Precision};

use crate::data_source::DataSource;

/// Every setting that changes results, and no others. Includes the device if results are bit-exact,
/// and its number format if that differs by more than rounding.
pub fn settings_json(
    method: &Method,
    params: &SamplingParams,
    has_reward_model: bool,
    device: &Device,
) -> Value {
    let mut document = json!({
        "method": method.family.name(),
        "sampling": recorded_sampling(params),
        "rewards": has_reward_model,
    });
    add_numerics(&mut document, device);
    document
}

/// The parameters that determine the samples: without the seed, which the manifest lists, and
/// without the voting rule, which is applied to recorded samples.
pub fn recorded_sampling(params: &SamplingParams) -> SamplingOptions {
    SamplingOptions {
        seed: None,
        rule: None,
        vote_temperature: None,
        likelihood_weight: None,
        lcb_coefficient: None,
        calibration: None,
        ..SamplingOptions::from(*params)
    }
}

/// Adds 8-bit weight formats, so that their records are not continued in another format, and the
/// properties that determine the bits of a deterministic GPU, so that no other device continues its
/// records.
pub fn add_numerics(settings: &mut Value, device: &Device) {
    let precision = device.precision();
    if matches!(precision, Precision::Int8 | Precision::Fp8) {
        settings["dtype"] = json!(precision.to_string());
    }
    if let Some(numerics) = device.deterministic_numerics() {
        settings["deterministic"] = json!(numerics);
    }
}

/// The host, which changes results only by rounding.
pub fn host_json(device: &Device, memory: usize) -> Value {
    json!({
        "device": device.describe(),
        "threads": device.threads(),
        "memory": memory,
        "cpu": cpu_name(),
        "os": std::env::consts::OS,
    })
}

/// The name of the CPU, if the system reports it.
pub fn cpu_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The commit that this program was built from, if known.
pub fn commit() -> Option<String> {
    option_env!("LATENT_TTS_COMMIT").map(str::to_owned)
}

/// The name and version of this program.
pub fn program() -> String {
    format!("latent-tts {}", env!("CARGO_PKG_VERSION"))
}

/// A directory name that is a function of inputs and settings, so that a resumed run finds it.
pub fn default_run_name(model: &Path, data: &DataSource, manifest: &Manifest) -> String {
    let settings =
        json!([manifest.settings, manifest.seeds, manifest.questions, manifest.fingerprint])
            .to_string();
    name_with_digest(model, data, &settings)
}

/// A name from the model, the data and the prefix of a digest of the settings.
pub(crate) fn name_with_digest(model: &Path, data: &DataSource, settings: &str) -> String {
    let digest = Fingerprint::default().with("run", settings.as_bytes()).finish();
    format!(
        "{}-{}-{}",
        sanitize(report::run_data::model_name(model)),
        sanitize(data.stem()),
        &digest[..8]
    )
}

/// Replaces all characters except letters, digits, `.`, `_` and `-`.
pub fn sanitize(name: impl AsRef<str>) -> String {
    name.as_ref()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' })
        .collect()
}

/// The current time in RFC 3339 format.
pub fn now() -> String {
    rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Converts seconds since 1970 to a date. The calendar repeats every 400 years, counted from March.
fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + carry;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use data::FieldNames;

    use super::*;

    #[test]
    fn rfc3339_dates() {
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
    fn default_run_names_start_with_model_and_data() {
        let name = |model, data: &str| {
            default_run_name(
                Path::new(model),
                &DataSource::File(data.into(), FieldNames::default()),
                &Manifest::default(),
            )
        };
        assert!(name("/x/coconut", "test 1.json").starts_with("coconut-test-1-"));
        assert!(name("/c/models--org--codi/snapshots/ab12", "d").starts_with("org--codi-d-"));
    }
}
