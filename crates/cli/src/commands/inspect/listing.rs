//! The tensors of a checkpoint by status: used, ignored, unknown, mismatched, missing.

use std::collections::BTreeMap;

use model::Checkpoint;
use model::checkpoint::{ExpectedTensor, TensorInfo};
use serde_json::{Value, json};

/// The tensors of a checkpoint by status.
pub struct TensorListing<'a> {
    used: Vec<TensorInfo<'a>>,
    ignored: Vec<TensorInfo<'a>>,
    unknown: Vec<TensorInfo<'a>>,
    mismatched: Vec<(TensorInfo<'a>, &'a ExpectedTensor)>,
    missing: Vec<ExpectedTensor>,
}

impl<'a> TensorListing<'a> {
    /// Compares a checkpoint with the tensors that its decoder needs. Tensors of the heads, which
    /// were already read, count as used, or as missing if they were not found.
    pub fn new(checkpoint: &'a Checkpoint, expected: &'a [ExpectedTensor]) -> Self {
        let wanted: BTreeMap<&str, &ExpectedTensor> =
            expected.iter().map(|e| (e.name.as_str(), e)).collect();
        let mut missing: Vec<ExpectedTensor> =
            expected.iter().filter(|e| !checkpoint.has(&e.name)).cloned().collect();
        for (name, shape) in checkpoint.missing_tensors() {
            if missing.iter().all(|known| known.name != name) {
                missing.push(ExpectedTensor { name, shape });
            }
        }
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
                // A table whose last rows come from an adapter has fewer rows in the checkpoint.
                (Some(e), _)
                    if e.name == entry.canonical
                        && e.shape != entry.shape
                        && !checkpoint.has_new_rows(&e.name) =>
                {
                    listing.mismatched.push((entry, e))
                }
                (Some(_), _) => listing.used.push(entry),
                (None, _) if entry.used || entry.of_base => listing.used.push(entry),
                (None, _) => listing.unknown.push(entry),
            }
        }
        listing
    }

    /// Tensors that the decoder or a head needs and that the checkpoint lacks.
    pub fn missing(&self) -> &[ExpectedTensor] {
        &self.missing
    }

    /// Tensors whose shape differs from the shape implied by config.json.
    pub fn mismatched(&self) -> &[(TensorInfo<'a>, &'a ExpectedTensor)] {
        &self.mismatched
    }

    /// Tensors that no part of the model uses.
    pub fn unknown(&self) -> &[TensorInfo<'a>] {
        &self.unknown
    }

    /// Number of elements of the used tensors.
    pub fn parameters(&self) -> usize {
        self.used.iter().map(|entry| entry.shape.iter().product::<usize>()).sum()
    }

    /// Size of the used tensors in bytes.
    pub fn bytes(&self) -> u64 {
        self.used.iter().map(|entry| entry.bytes as u64).sum()
    }

    /// Data types of the used tensors.
    pub fn dtypes(&self) -> Vec<String> {
        let mut dtypes: Vec<String> = self.used.iter().map(|entry| entry.dtype.clone()).collect();
        dtypes.sort();
        dtypes.dedup();
        dtypes
    }

    /// Number and total bytes of all tensors of each data type.
    pub fn by_dtype(&self) -> BTreeMap<&str, (usize, u64)> {
        let all = self.used.iter().chain(&self.ignored).chain(&self.unknown);
        let all = all.chain(self.mismatched.iter().map(|(entry, _)| entry));
        let mut types = BTreeMap::new();
        for entry in all {
            let (count, bytes) = types.entry(entry.dtype.as_str()).or_default();
            (*count, *bytes) = (*count + 1, *bytes + entry.bytes as u64);
        }
        types
    }

    /// The listing, for `--json`.
    pub fn to_json(&self) -> Value {
        let entry = |e: &TensorInfo<'_>| {
            json!({
                "name": e.canonical,
                "original": e.original,
                "file": e.file,
                "dtype": e.dtype,
                "shape": e.shape,
                "why": e.ignored,
            })
        };
        let entries = |some: &[TensorInfo<'_>]| some.iter().map(entry).collect::<Vec<_>>();
        let mismatched = self.mismatched.iter().map(|(e, expected)| {
            json!({
                "name": e.canonical,
                "original": e.original,
                "file": e.file,
                "shape": e.shape,
                "expected": expected.shape,
            })
        });
        let missing = self.missing.iter().map(|e| json!({ "name": e.name, "shape": e.shape }));
        json!({
            "used": entries(&self.used),
            "ignored": entries(&self.ignored),
            "unknown": entries(&self.unknown),
            "misshapen": mismatched.collect::<Vec<_>>(),
            "missing": missing.collect::<Vec<_>>(),
        })
    }

    /// The listing as text: problems only, or also used and ignored tensors if `all` is set.
    pub fn text(&self, all: bool) -> String {
        let mut text = format!(
            "tensors     {} used, {} ignored, {} unknown, {} mismatched, {} missing\n",
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
            format!("{}, expected {:?}", entry_line(e), x.shape)
        };
        section("mismatched", self.mismatched.iter().map(expected).collect());
        section("unknown", self.unknown.iter().map(entry_line).collect());
        if !all {
            return text;
        }
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

/// The canonical name itself, or the weight that a LoRA factor or additional rows belong to.
fn base_weight(canonical: &str) -> String {
    let canonical = canonical.strip_prefix("new_rows.").unwrap_or(canonical);
    let module = canonical
        .strip_suffix(".lora_A.weight")
        .or_else(|| canonical.strip_suffix(".lora_B.weight"));
    module.map_or_else(|| canonical.to_owned(), |module| format!("{module}.weight"))
}

fn entry_line(entry: &TensorInfo<'_>) -> String {
    format!("{} {} {:?}", entry.original, entry.dtype, entry.shape)
}
