//! Parses the header of a GGUF file: metadata by key, tensors with their byte ranges.
//!
//! Values stay in the mapped file and are decoded on demand; the header is parsed once. Every step
//! consumes bytes, so a count in the file cannot make a loop longer than the file.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::blocks::GgmlType;
use crate::error::ModelError;
use crate::model_files::{FileBytes, ModelFiles};

const MAGIC: &[u8; 4] = b"GGUF";
/// The supported versions; version 3 only adds big-endian files.
const VERSIONS: [u32; 2] = [2, 3];
/// Used if `general.alignment` is absent.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Limit of ggml.
const MAX_DIMENSIONS: u32 = 4;
/// Far above any real count; the product of two does not overflow a u64.
const MAX_COUNT: u64 = 1 << 31;

/// A mapped GGUF file with its parsed header.
pub(crate) struct GgufFile {
    pub(crate) path: PathBuf,
    bytes: FileBytes,
    metadata: BTreeMap<String, MetadataValue>,
    pub(crate) tensors: Vec<GgufTensor>,
}

/// A tensor's entry in the header.
#[derive(Debug, Clone)]
pub(crate) struct GgufTensor {
    pub(crate) name: String,
    pub(crate) kind: GgmlType,
    /// Row-major: the last dimension is contiguous (the file lists them in reverse).
    pub(crate) shape: Vec<usize>,
    /// Its byte range in the file, checked to lie inside.
    pub(crate) range: Range<usize>,
}

/// A metadata value; strings and lists are ranges of the file.
#[derive(Debug, Clone)]
enum MetadataValue {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(Range<usize>),
    List { element: u32, count: usize, range: Range<usize> },
}

/// The value types of the format.
mod value_type {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const TEXT: u32 = 8;
    pub const LIST: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;
}

impl GgufFile {
    /// Maps a file and parses its header.
    pub(crate) fn open(path: &Path) -> Result<GgufFile, ModelError> {
        let bytes = ModelFiles::Gguf(path.to_owned()).map(path)?;
        let mut cursor = Cursor { path, bytes: &bytes, at: 0 };
        let (tensor_count, value_count) = cursor.preamble()?;
        let mut metadata = BTreeMap::new();
        for _ in 0..value_count {
            let key = cursor.text()?;
            let value = cursor.value_type()?;
            let value = cursor.value(value)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(cursor.bad(format!("duplicate key `{key}`")));
            }
        }
        let tensors =
            (0..tensor_count).map(|_| cursor.tensor()).collect::<Result<Vec<_>, ModelError>>()?;
        let tensors = cursor.place(tensors, alignment(path, &metadata)?)?;
        Ok(GgufFile { path: path.to_owned(), bytes, metadata, tensors })
    }

    /// The whole file.
    pub(crate) fn into_bytes(self) -> FileBytes {
        self.bytes
    }

    /// The bytes of a tensor.
    pub(crate) fn tensor_bytes(&self, tensor: &GgufTensor) -> &[u8] {
        self.bytes.get(tensor.range.clone()).unwrap_or_default()
    }

    /// The tensor of this name.
    pub(crate) fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// A count from 1 to 2^31.
    pub(crate) fn opt_count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        match self.opt_integer(key)? {
            None => Ok(None),
            Some(n) if (1..=MAX_COUNT).contains(&n) => Ok(Some(n as usize)),
            Some(n) => {
                let why = format!("is {n}; it must be a whole number from 1 to {MAX_COUNT}");
                Err(self.bad_value(key, why))
            }
        }
    }

    pub(crate) fn count(&self, key: &str) -> Result<usize, ModelError> {
        self.opt_count(key)?.ok_or_else(|| self.missing(key))
    }

    /// A non-negative integer.
    pub(crate) fn opt_integer(&self, key: &str) -> Result<Option<u64>, ModelError> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(MetadataValue::Unsigned(n)) => Ok(Some(*n)),
            Some(MetadataValue::Signed(n)) if *n >= 0 => Ok(Some(*n as u64)),
            Some(_) => Err(self.bad_value(key, "must be a whole number of at least 0")),
        }
    }

    /// A number; the format stores f32.
    pub(crate) fn opt_number(&self, key: &str) -> Result<Option<f32>, ModelError> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(MetadataValue::Float(x)) => Ok(Some(*x as f32)),
            Some(MetadataValue::Unsigned(n)) => Ok(Some(*n as f32)),
            Some(_) => Err(self.bad_value(key, "must be a number")),
        }
    }

    pub(crate) fn opt_bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(MetadataValue::Bool(b)) => Ok(Some(*b)),
            Some(_) => Err(self.bad_value(key, "must be true or false")),
        }
    }

    pub(crate) fn opt_text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(MetadataValue::Text(range)) => self.utf8(range.clone()).map(Some),
            Some(_) => Err(self.bad_value(key, "must be a string")),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<&str, ModelError> {
        self.opt_text(key)?.ok_or_else(|| self.missing(key))
    }

    /// A list of strings.
    pub(crate) fn texts(&self, key: &str) -> Result<Vec<&str>, ModelError> {
        let (element, count, range) = self.list(key)?.ok_or_else(|| self.missing(key))?;
        if element != value_type::TEXT {
            return Err(self.bad_value(key, "must be a list of strings"));
        }
        let mut cursor = self.cursor(range);
        // Each string takes at least 8 bytes, so the count is at most an eighth of the file.
        let mut texts = Vec::with_capacity(count);
        for _ in 0..count {
            texts.push(self.utf8(cursor.text_range()?)?);
        }
        Ok(texts)
    }

    /// A list of 32-bit integers.
    pub(crate) fn opt_integers(&self, key: &str) -> Result<Option<Vec<i32>>, ModelError> {
        let Some((element, _, range)) = self.list(key)? else { return Ok(None) };
        if ![value_type::I32, value_type::U32].contains(&element) {
            return Err(self.bad_value(key, "must be a list of 32-bit integers"));
        }
        let (values, _) = self.bytes[range].as_chunks::<4>();
        Ok(Some(values.iter().map(|v| i32::from_le_bytes(*v)).collect()))
    }

    fn list(&self, key: &str) -> Result<Option<(u32, usize, Range<usize>)>, ModelError> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(MetadataValue::List { element, count, range }) => {
                Ok(Some((*element, *count, range.clone())))
            }
            Some(_) => Err(self.bad_value(key, "must be a list")),
        }
    }

    fn cursor(&self, range: Range<usize>) -> Cursor<'_> {
        Cursor { path: &self.path, bytes: &self.bytes[..range.end], at: range.start }
    }

    fn utf8(&self, range: Range<usize>) -> Result<&str, ModelError> {
        utf8(&self.path, &self.bytes, range)
    }

    pub(crate) fn missing(&self, key: &str) -> ModelError {
        ModelError::MissingMetadata { file: self.path.clone(), key: key.to_owned() }
    }

    pub(crate) fn bad_value(&self, key: &str, why: impl Into<String>) -> ModelError {
        let file = self.path.clone();
        let field = key.to_owned();
        ModelError::BadField { file, field, why: why.into() }
    }

    pub(crate) fn unsupported(&self, key: &str, found: &str, supported: &str) -> ModelError {
        ModelError::Unsupported {
            file: self.path.clone(),
            field: key.to_owned(),
            found: found.to_owned(),
            supported: supported.to_owned(),
        }
    }
}

fn utf8<'a>(path: &Path, bytes: &'a [u8], range: Range<usize>) -> Result<&'a str, ModelError> {
    let start = range.start;
    std::str::from_utf8(&bytes[range])
        .map_err(|e| ModelError::NotUtf8 { file: path.to_owned(), at: start + e.valid_up_to() })
}

fn alignment(path: &Path, metadata: &BTreeMap<String, MetadataValue>) -> Result<u64, ModelError> {
    let key = "general.alignment";
    match metadata.get(key) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(MetadataValue::Unsigned(n)) if n.is_power_of_two() && *n <= MAX_COUNT => Ok(*n),
        Some(_) => Err(ModelError::BadField {
            file: path.to_owned(),
            field: key.to_owned(),
            why: "must be a power of two".to_owned(),
        }),
    }
}

/// A tensor's entry before the start of the data is known.
struct UnplacedTensor {
    tensor: GgufTensor,
    offset: u64,
    size: u64,
}

/// A position in the header.
struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Magic and version, then the numbers of tensors and of metadata values.
    fn preamble(&mut self) -> Result<(u64, u64), ModelError> {
        if self.take(4)? != MAGIC {
            return Err(ModelError::NotGguf { file: self.path.to_owned() });
        }
        let version = self.u32()?;
        if !VERSIONS.contains(&version) {
            let swapped = VERSIONS.contains(&version.swap_bytes());
            let found = if swapped { "big-endian".to_owned() } else { version.to_string() };
            return Err(ModelError::GgufVersion { file: self.path.to_owned(), found });
        }
        Ok((self.u64()?, self.u64()?))
    }

    fn take(&mut self, size: u64) -> Result<&'a [u8], ModelError> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(size).ok().and_then(|size| rest.get(..size));
        let taken = taken.ok_or_else(|| self.truncated((self.at as u64).saturating_add(size)))?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ModelError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32, ModelError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, ModelError> {
        self.array().map(u64::from_le_bytes)
    }

    fn text_range(&mut self) -> Result<Range<usize>, ModelError> {
        let size = self.u64()?;
        let start = self.at;
        self.take(size)?;
        Ok(start..self.at)
    }

    fn text(&mut self) -> Result<String, ModelError> {
        let range = self.text_range()?;
        utf8(self.path, self.bytes, range).map(str::to_owned)
    }

    fn value_type(&mut self) -> Result<u32, ModelError> {
        self.u32()
    }

    fn value(&mut self, kind: u32) -> Result<MetadataValue, ModelError> {
        use MetadataValue::{Bool, Float, List, Signed, Text, Unsigned};
        Ok(match kind {
            value_type::U8 => Unsigned(u8::from_le_bytes(self.array()?).into()),
            value_type::I8 => Signed(i8::from_le_bytes(self.array()?).into()),
            value_type::U16 => Unsigned(u16::from_le_bytes(self.array()?).into()),
            value_type::I16 => Signed(i16::from_le_bytes(self.array()?).into()),
            value_type::U32 => Unsigned(self.u32()?.into()),
            value_type::I32 => Signed(i32::from_le_bytes(self.array()?).into()),
            value_type::F32 => Float(f32::from_le_bytes(self.array()?).into()),
            value_type::BOOL => Bool(self.array::<1>()? != [0]),
            value_type::TEXT => Text(self.text_range()?),
            value_type::LIST => {
                let element = self.u32()?;
                let count = self.u64()?;
                let start = self.at;
                self.skip_list(element, count)?;
                List { element, count: count as usize, range: start..self.at }
            }
            value_type::U64 => Unsigned(self.u64()?),
            value_type::I64 => Signed(i64::from_le_bytes(self.array()?)),
            value_type::F64 => Float(f64::from_le_bytes(self.array()?)),
            other => return Err(self.bad(format!("unknown value type {other}"))),
        })
    }

    fn skip_list(&mut self, element: u32, count: u64) -> Result<(), ModelError> {
        let size: u64 = match element {
            value_type::U8 | value_type::I8 | value_type::BOOL => 1,
            value_type::U16 | value_type::I16 => 2,
            value_type::U32 | value_type::I32 | value_type::F32 => 4,
            value_type::U64 | value_type::I64 | value_type::F64 => 8,
            value_type::TEXT => {
                return (0..count).try_for_each(|_| self.text_range().map(|_| ()));
            }
            value_type::LIST => return Err(self.bad("nested lists are not supported".to_owned())),
            other => return Err(self.bad(format!("unknown value type {other}"))),
        };
        self.take(count.saturating_mul(size)).map(|_| ())
    }

    fn tensor(&mut self) -> Result<UnplacedTensor, ModelError> {
        let name = self.text()?;
        let dimensions = self.u32()?;
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
            let why = format!("tensor `{name}` has {dimensions} dimensions");
            return Err(self.bad(why));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = self.u64()?;
            let size = usize::try_from(size).ok().filter(|_| (1..=MAX_COUNT).contains(&size));
            let size = size.ok_or_else(|| {
                self.bad(format!("a dimension of tensor `{name}` is not between 1 and {MAX_COUNT}"))
            })?;
            shape.insert(0, size);
        }
        let number = self.u32()?;
        let offset = self.u64()?;
        let kind = GgmlType::from_number(number).ok_or_else(|| ModelError::GgufTensorType {
            file: self.path.to_owned(),
            tensor: name.clone(),
            found: GgmlType::name_of_number(number),
            supported: GgmlType::ALL.map(GgmlType::name).join(", "),
        })?;
        let size = kind.bytes_of(&shape).ok_or_else(|| {
            let (kind, block) = (kind.name(), kind.block());
            let why =
                format!("which is too large or not a multiple of the {kind} block size {block}");
            self.bad(format!("tensor `{name}` has shape {shape:?}, {why}"))
        })?;
        let tensor = GgufTensor { name, kind, shape, range: 0..0 };
        Ok(UnplacedTensor { tensor, offset, size })
    }

    /// Converts offsets, relative to the aligned end of the header, to ranges of the file.
    fn place(
        &self,
        tensors: Vec<UnplacedTensor>,
        alignment: u64,
    ) -> Result<Vec<GgufTensor>, ModelError> {
        let data = (self.at as u64).next_multiple_of(alignment);
        let mut names = HashSet::new();
        for UnplacedTensor { tensor, offset, .. } in &tensors {
            if !names.insert(tensor.name.as_str()) {
                return Err(self.bad(format!("duplicate tensor `{}`", tensor.name)));
            }
            if !offset.is_multiple_of(alignment) {
                let why = format!("tensor `{}` is not aligned to {alignment} bytes", tensor.name);
                return Err(self.bad(why));
            }
        }
        let place = |UnplacedTensor { tensor, offset, size }| {
            let start = data.saturating_add(offset);
            let end = start.saturating_add(size);
            match end <= self.bytes.len() as u64 {
                true => Ok(GgufTensor { range: start as usize..end as usize, ..tensor }),
                false => Err(self.truncated(end)),
            }
        };
        tensors.into_iter().map(place).collect()
    }

    fn truncated(&self, need: u64) -> ModelError {
        let file = self.path.to_owned();
        let have = self.bytes.len() as u64;
        ModelError::Truncated { file, have, need }
    }

    fn bad(&self, why: String) -> ModelError {
        ModelError::BadGguf { file: self.path.to_owned(), why }
    }
}
