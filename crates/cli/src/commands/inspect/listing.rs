//! Every tensor of a checkpoint under what becomes of it.

use std::collections::BTreeMap;

use model::Checkpoint;
use model::checkpoint::TensorInfo;
use serde_json::{Value, json};

use super::expected::ExpectedTensor;

/// Tensors by their fate.
pub struct TensorListing<'a> {
    used: Vec<TensorInfo<'a>>,
    ignored: Vec<TensorInfo<'a>>,
    unknown: Vec<TensorInfo<'a>>,
    mismatched: Vec<(TensorInfo<'a>, &'a ExpectedTensor)>,
    missing: Vec<&'a ExpectedTensor>,
}

impl<'a> TensorListing<'a> {
    /// Compares what is there with what the decoder expects. Tensors that were read already, the
    /// heads', count as used.
    pub fn new(checkpoint: &'a Checkpoint, expected: &'a [ExpectedTensor]) -> Self {
        let wanted: BTreeMap<&str, &ExpectedTensor> =
            expected.iter().map(|e| (e.name.as_str(), e)).collect();
        let missing = expected.iter().filter(|e| !checkpoint.has(&e.name)).collect();
        let mut listing = Self {
            used: Vec::new(),
            ignored: Vec::new(),
            unknown: Vec::new(),
            mismatched: Vec::new(),
            missing,
        };
        for entry in checkpoint.tensors() {
            match (wanted.get(base_weight(&entry.canonical).as_str()), entry.ignored) {
                (_, Some(_)) => listing.ignored.push(entry),
                (Some(e), _) if e.name == entry.canonical && e.shape != entry.shape => {
                    listing.mismatched.push((entry, e))
                }
                (Some(_), _) => listing.used.push(entry),
                (None, _) if entry.used => listing.used.push(entry),
                (None, _) => listing.unknown.push(entry),
            }
        }
        listing
    }

    /// Tensors that the decoder needs and no file has.
    pub fn missing(&self) -> &[&'a ExpectedTensor] {
        &self.missing
    }

    /// Tensors of another shape than config.json asks for.
    pub fn mismatched(&self) -> &[(TensorInfo<'a>, &'a ExpectedTensor)] {
        &self.mismatched
    }

    /// Tensors that nobody asks for.
    pub fn unknown(&self) -> &[TensorInfo<'a>] {
        &self.unknown
    }

    /// Numbers in the tensors that are used.
    pub fn parameters(&self) -> usize {
        self.used.iter().map(|entry| entry.shape.iter().product::<usize>()).sum()
    }

    /// Bytes of the tensors that are used.
    pub fn bytes(&self) -> u64 {
        self.used.iter().map(|entry| entry.bytes as u64).sum()
    }

    /// Number formats of the tensors that are used.
    pub fn dtypes(&self) -> Vec<String> {
        let mut dtypes: Vec<String> = self.used.iter().map(|entry| entry.dtype.clone()).collect();
        dtypes.sort();
        dtypes.dedup();
        dtypes
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let entry = |e: &TensorInfo<'_>| json!({ "name": e.canonical, "original": e.original, "file": e.file, "dtype": e.dtype, "shape": e.shape, "why": e.ignored });
        let entries = |some: &[TensorInfo<'_>]| some.iter().map(entry).collect::<Vec<_>>();
        let mismatched = self.mismatched.iter().map(|(e, expected)| {
            json!({ "name": e.canonical, "original": e.original, "file": e.file, "shape": e.shape, "expected": expected.shape })
        });
        json!({
            "used": entries(&self.used),
            "ignored": entries(&self.ignored),
            "unknown": entries(&self.unknown),
            "misshapen": mismatched.collect::<Vec<_>>(),
            "missing": self.missing.iter().map(|e| json!({ "name": e.name, "shape": e.shape })).collect::<Vec<_>>(),
        })
    }

    /// For people: what needs a look first.
    pub fn text(&self) -> String {
        let mut text = format!(
            "tensors     {} used, {} ignored, {} unknown, {} of another shape, {} missing\n",
            self.used.len(),
            self.ignored.len(),
            self.unknown.len(),
            self.mismatched.len(),
            self.missing.len()
        );
        let mut section = |title: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                text.push_str(&format!("\n{title}\n  {}\n", lines.join("\n  ")));
            }
        };
        section(
            "missing",
            self.missing.iter().map(|e| format!("{} {:?}", e.name, e.shape)).collect(),
        );
        let expected = |(e, x): &(TensorInfo<'_>, &ExpectedTensor)| {
            format!("{}, {:?} expected", entry_line(e), x.shape)
        };
        section("of another shape", self.mismatched.iter().map(expected).collect());
        section("unknown", self.unknown.iter().map(entry_line).collect());
        section(
            "ignored",
            self.ignored
                .iter()
                .map(|e| format!("{}: {}", entry_line(e), e.ignored.unwrap_or_default()))
                .collect(),
        );
        section("used", self.used.iter().map(entry_line).collect());
        text
    }
}

/// The weight that a tensor is, or that a low-rank factor changes.
fn base_weight(canonical: &str) -> String {
    let module = canonical
        .strip_suffix(".lora_A.weight")
        .or_else(|| canonical.strip_suffix(".lora_B.weight"));
    module.map_or_else(|| canonical.to_owned(), |module| format!("{module}.weight"))
}

fn entry_line(entry: &TensorInfo<'_>) -> String {
    format!("{} {} {:?}", entry.original, entry.dtype, entry.shape)
}
