//! The directory of a ZIP archive with uncompressed entries, as written by `torch.save`. The 64-bit
//! fields (Zip64) of archives beyond 4 GB are supported.

use std::collections::BTreeMap;
use std::ops::Range;

const END: &[u8; 4] = b"PK\x05\x06";
const END_64: &[u8; 4] = b"PK\x06\x06";
const LOCATOR_64: &[u8; 4] = b"PK\x06\x07";
const DIRECTORY_ENTRY: &[u8; 4] = b"PK\x01\x02";
const LOCAL_ENTRY: &[u8; 4] = b"PK\x03\x04";
/// Size of the end record without its comment, and maximum length of the comment.
const END_BYTES: usize = 22;
const MAX_COMMENT: usize = 65_535;
/// The tag of the extra field with 64-bit sizes.
const EXTRA_64: u16 = 1;

/// The entries of an archive.
pub(super) struct Archive {
    entries: BTreeMap<String, Range<usize>>,
}

/// An entry and the range of its bytes in the file.
pub(super) struct Entry<'a> {
    pub(super) name: &'a str,
    pub(super) range: &'a Range<usize>,
}

impl Archive {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        if !bytes.starts_with(LOCAL_ENTRY) {
            return Err("not a ZIP archive (the format of torch.save since PyTorch 1.6); load it \
                        with PyTorch and save it again"
                .to_owned());
        }
        let truncated = || "the archive is truncated; download it again".to_owned();
        let (start, count) = directory(bytes).ok_or_else(truncated)?;
        let mut entries = BTreeMap::new();
        let mut at = start;
        for _ in 0..count {
            let Some((name, range, next)) = entry(bytes, at)? else { return Err(truncated()) };
            if entries.insert(name, range).is_some() {
                return Err("the archive has a duplicate entry".to_owned());
            }
            at = next;
        }
        Ok(Self { entries })
    }

    pub(super) fn get(&self, name: &str) -> Option<&Range<usize>> {
        self.entries.get(name)
    }

    /// The entry whose path ends with a file name.
    pub(super) fn find(&self, file: &str) -> Option<Entry<'_>> {
        let is_file = |name: &str| name.rsplit('/').next() == Some(file);
        let mut entries = self.entries.iter().filter(|(name, _)| is_file(name));
        entries.next().map(|(name, range)| Entry { name, range })
    }
}

/// Offset of the directory, and number of its entries.
fn directory(bytes: &[u8]) -> Option<(usize, usize)> {
    let first = bytes.len().checked_sub(END_BYTES)?;
    let last = first.saturating_sub(MAX_COMMENT);
    let end = (last..=first).rev().find(|&at| bytes[at..].starts_with(END))?;
    let count = u16_at(bytes, end + 10)?;
    let start = u32_at(bytes, end + 16)?;
    if count != u16::MAX && start != u32::MAX {
        return Some((start as usize, usize::from(count)));
    }
    let locator = end.checked_sub(20).filter(|&at| bytes[at..].starts_with(LOCATOR_64))?;
    let end = usize::try_from(u64_at(bytes, locator + 8)?).ok()?;
    bytes.get(end..)?.starts_with(END_64).then_some(())?;
    let count = usize::try_from(u64_at(bytes, end.checked_add(32)?)?).ok()?;
    let start = usize::try_from(u64_at(bytes, end.checked_add(48)?)?).ok()?;
    Some((start, count))
}

type NamedEntry = (String, Range<usize>, usize);

/// Name and byte range of the entry at `at` of the directory, and the offset of the next one;
/// `None` if the file ends before.
fn entry(bytes: &[u8], at: usize) -> Result<Option<NamedEntry>, String> {
    let Some(header) = bytes.get(at..).filter(|rest| rest.starts_with(DIRECTORY_ENTRY)) else {
        return Ok(None);
    };
    let Some(fields) = EntryFields::read(header) else { return Ok(None) };
    let EntryFields { method, name, size, offset, length } = fields;
    if method != 0 {
        return Err(format!("`{name}` is compressed, which torch.save does not do"));
    }
    let start = data_start(bytes, offset);
    let range = start.and_then(|start| Some(start..start.checked_add(size)?));
    let range = range.filter(|range| range.end <= bytes.len());
    Ok(range.map(|range| (name, range, at + length)))
}

/// Offset of the bytes of an entry, after its local header.
fn data_start(bytes: &[u8], offset: usize) -> Option<usize> {
    let header = bytes.get(offset..).filter(|rest| rest.starts_with(LOCAL_ENTRY))?;
    let name = usize::from(u16_at(header, 26)?);
    let extra = usize::from(u16_at(header, 28)?);
    offset.checked_add(30 + name + extra)
}

/// The fields of a directory entry.
struct EntryFields {
    method: u16,
    name: String,
    size: usize,
    /// Offset of the local header.
    offset: usize,
    /// Length of the directory entry.
    length: usize,
}

impl EntryFields {
    fn read(header: &[u8]) -> Option<Self> {
        let name_len = usize::from(u16_at(header, 28)?);
        let extra_len = usize::from(u16_at(header, 30)?);
        let comment_len = usize::from(u16_at(header, 32)?);
        let name = String::from_utf8(header.get(46..46 + name_len)?.to_vec()).ok()?;
        let extra = header.get(46 + name_len..46 + name_len + extra_len)?;
        let [packed, size, offset] =
            [u32_at(header, 20)?, u32_at(header, 24)?, u32_at(header, 42)?];
        let mut wide = wide_fields(extra).into_iter();
        let mut widen = |field: u32| match field {
            u32::MAX => usize::try_from(wide.next()?).ok(),
            field => Some(field as usize),
        };
        // The extra field contains the fields that do not fit, in this order.
        let size = widen(size)?;
        let packed = widen(packed)?;
        let offset = widen(offset)?;
        let length = 46 + name_len + extra_len + comment_len;
        (packed == size).then_some(())?;
        Some(Self { method: u16_at(header, 10)?, name, size, offset, length })
    }
}

/// The numbers in the extra field with 64-bit sizes.
fn wide_fields(mut extra: &[u8]) -> Vec<u64> {
    while let (Some(tag), Some(length)) = (u16_at(extra, 0), u16_at(extra, 2)) {
        let Some(field) = extra.get(4..4 + usize::from(length)) else { break };
        if tag == EXTRA_64 {
            return field
                .as_chunks::<8>()
                .0
                .iter()
                .map(|bytes| u64::from_le_bytes(*bytes))
                .collect();
        }
        extra = &extra[4 + usize::from(length)..];
    }
    Vec::new()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
