//! Streams random tensors into safetensors files; memory use does not depend on the model's size.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use half::{bf16, f16};
use serde_json::{Map, Value, json};

use super::layout::{InitKind, TensorSpec};
use super::{CheckpointSpec, WeightDtype};
use crate::error::ModelError;

/// Writes the model as one file, or as shards with an index.
pub(super) fn write_model(
    dir: &Path,
    base_name: &str,
    tensors: &[TensorSpec],
    spec: &CheckpointSpec,
) -> Result<(), ModelError> {
    if spec.shards <= 1 {
        return write_tensors(&dir.join(format!("{base_name}.safetensors")), tensors, spec);
    }
    let mut map = Map::new();
    let shards = tensors.chunks(tensors.len().div_ceil(spec.shards));
    let count = shards.len();
    for (i, shard) in shards.enumerate() {
        let name = format!("{base_name}-{:05}-of-{count:05}.safetensors", i + 1);
        write_tensors(&dir.join(&name), shard, spec)?;
        map.extend(shard.iter().map(|t| (t.name.clone(), json!(name))));
    }
    let index = json!({ "metadata": {}, "weight_map": map });
    write_json(&dir.join(format!("{base_name}.safetensors.index.json")), &index)
}

/// Writes one file.
pub(super) fn write_tensors(
    path: &Path,
    tensors: &[TensorSpec],
    spec: &CheckpointSpec,
) -> Result<(), ModelError> {
    let write = || -> std::io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let header = header(tensors, spec.dtype);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        for tensor in tensors {
            write_values(&mut out, tensor, spec)?;
        }
        out.flush()
    };
    write().map_err(|e| ModelError::io(path, e))
}

/// Writes a JSON file.
pub(super) fn write_json(path: &Path, value: &Value) -> Result<(), ModelError> {
    std::fs::write(path, format!("{value:#}")).map_err(|e| ModelError::io(path, e))
}

fn header(tensors: &[TensorSpec], dtype: WeightDtype) -> String {
    let (name, size) = match dtype {
        WeightDtype::F32 => ("F32", 4),
        WeightDtype::F16 => ("F16", 2),
        WeightDtype::Bf16 => ("BF16", 2),
    };
    let mut map = Map::new();
    map.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.shape.iter().product::<usize>() * size;
        let info = json!({ "dtype": name, "shape": tensor.shape, "data_offsets": [start, end] });
        map.insert(tensor.name.clone(), info);
        start = end;
    }
    let mut text = Value::Object(map).to_string();
    // Pads the header so that the data is aligned, as the format recommends.
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    text
}

fn write_values(
    out: &mut impl Write,
    tensor: &TensorSpec,
    spec: &CheckpointSpec,
) -> std::io::Result<()> {
    let mut random = NamedRng::new(spec.seed, &tensor.rng_name);
    let width = tensor.shape.last().copied().unwrap_or(1).max(1);
    for index in 0..tensor.shape.iter().product::<usize>() {
        let value = value(tensor.kind, random.normal(), index / width);
        match spec.dtype {
            WeightDtype::F32 => out.write_all(&value.to_le_bytes())?,
            WeightDtype::F16 => out.write_all(&f16::from_f32(value).to_le_bytes())?,
            WeightDtype::Bf16 => out.write_all(&bf16::from_f32(value).to_le_bytes())?,
        }
    }
    Ok(())
}

fn value(kind: InitKind, normal: f32, row: usize) -> f32 {
    match kind {
        InitKind::NormWeight => 1.0 + 0.2 * normal,
        InitKind::Bias => 0.2 * normal,
        InitKind::Matrix { inputs } => 1.6 * normal / (inputs as f32).sqrt(),
        InitKind::Factor { inputs } => normal / (inputs as f32).sqrt(),
        InitKind::Table { row: Some((scaled, factor)) } if scaled == row => 0.12 * normal * factor,
        InitKind::Table { .. } => 0.12 * normal,
    }
}

/// SplitMix64, seeded by the seed and a name.
pub(super) struct NamedRng(u64);

impl NamedRng {
    pub(super) fn new(seed: u64, name: &str) -> NamedRng {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        });
        NamedRng(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Approximately normal: the sum of four 16-bit uniform numbers, of mean 2 and variance 1/3.
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
        (sum as f32 / 65536.0 - 2.0) * 3f32.sqrt()
    }
}
