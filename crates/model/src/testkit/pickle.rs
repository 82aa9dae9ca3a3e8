//! Files as `torch.save` writes them: a ZIP archive of a pickle and one entry per storage.

use safetensors::{Dtype, SafeTensors};

/// The content of a file with the tensors of a safetensors file under other names; those for which
/// `rename` returns `None` are omitted.
pub fn pickle_file(tensors: &[u8], rename: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let Ok(read) = SafeTensors::deserialize(tensors) else { return Vec::new() };
    let mut named: Vec<_> =
        read.iter().filter_map(|(name, view)| Some((rename(name)?, view))).collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    // PROTO 2, EMPTY_DICT, MARK
    let mut code = b"\x80\x02}(".to_vec();
    let mut archive = ArchiveWriter::default();
    for (key, (name, view)) in named.iter().enumerate() {
        text(&mut code, name);
        tensor(&mut code, key, view.dtype(), view.shape());
        archive.add(&format!("archive/data/{key}"), view.data());
    }
    // SETITEMS, STOP
    code.extend(b"u.");
    archive.add("archive/data.pkl", &code);
    archive.add("archive/byteorder", b"little");
    archive.finish()
}

/// `_rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict())`
fn tensor(code: &mut Vec<u8>, key: usize, dtype: Dtype, shape: &[usize]) {
    let storage = match dtype {
        Dtype::BF16 => "BFloat16Storage",
        Dtype::F16 => "HalfStorage",
        Dtype::F64 => "DoubleStorage",
        _ => "FloatStorage",
    };
    code.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
    text(code, "storage");
    code.extend(format!("ctorch\n{storage}\n").into_bytes());
    text(code, &key.to_string());
    text(code, "cpu");
    number(code, shape.iter().product());
    // TUPLE, BINPERSID
    code.extend(b"tQ");
    number(code, 0);
    tuple(code, shape);
    let mut strides: Vec<usize> = Vec::new();
    for i in 0..shape.len() {
        strides.push(shape[i + 1..].iter().product());
    }
    tuple(code, &strides);
    // NEWFALSE, an empty OrderedDict, TUPLE, REDUCE
    code.extend(b"\x89ccollections\nOrderedDict\n)RtR");
}

fn text(code: &mut Vec<u8>, text: &str) {
    code.push(b'X');
    code.extend((text.len() as u32).to_le_bytes());
    code.extend(text.as_bytes());
}

fn number(code: &mut Vec<u8>, number: usize) {
    code.push(b'J');
    code.extend((number as u32).to_le_bytes());
}

fn tuple(code: &mut Vec<u8>, numbers: &[usize]) {
    code.push(b'(');
    numbers.iter().for_each(|&n| number(code, n));
    code.push(b't');
}

/// A ZIP archive of stored entries; checksums, which are not read, are 0.
#[derive(Default)]
struct ArchiveWriter {
    bytes: Vec<u8>,
    directory: Vec<u8>,
    count: u16,
}

impl ArchiveWriter {
    fn add(&mut self, name: &str, content: &[u8]) {
        let offset = self.bytes.len() as u32;
        let size = content.len() as u32;
        let name_len = name.len() as u16;
        let mut fields = vec![0; 12]; // version, flags, method, time, date, part of the checksum
        fields.extend([0, 0]);
        fields.extend(size.to_le_bytes());
        fields.extend(size.to_le_bytes());
        fields.extend(name_len.to_le_bytes());
        fields.extend([0, 0]);
        self.bytes.extend(b"PK\x03\x04");
        self.bytes.extend(&fields);
        self.bytes.extend(name.as_bytes());
        self.bytes.extend(content);
        self.directory.extend(b"PK\x01\x02\0\0");
        self.directory.extend(&fields);
        // Comment, disk and attributes.
        self.directory.extend([0; 10]);
        self.directory.extend(offset.to_le_bytes());
        self.directory.extend(name.as_bytes());
        self.count += 1;
    }

    fn finish(mut self) -> Vec<u8> {
        let start = self.bytes.len() as u32;
        let length = self.directory.len() as u32;
        self.bytes.append(&mut self.directory);
        self.bytes.extend(b"PK\x05\x06\0\0\0\0");
        self.bytes.extend(self.count.to_le_bytes());
        self.bytes.extend(self.count.to_le_bytes());
        self.bytes.extend(length.to_le_bytes());
        self.bytes.extend(start.to_le_bytes());
        self.bytes.extend([0, 0]);
        self.bytes
    }
}
