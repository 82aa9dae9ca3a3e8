//! An interpreter of pickle opcodes on plain values.
//!
//! Values live in an arena and refer to each other by index, so sharing is free, cycles are
//! harmless and dropping does not recurse. Each opcode adds at most one value. A class is a name:
//! the constructors of the classes listed below are emulated, all others yield an opaque value.

use safetensors::Dtype;

/// Index into the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value(usize);

/// A storage of numbers in an archive entry.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StorageValue {
    pub(super) dtype: Dtype,
    pub(super) key: String,
}

/// A tensor: a view of a storage.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TensorValue {
    pub(super) storage: StorageValue,
    /// Offset of its first element.
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

/// A value of a pickle.
enum Object {
    /// None, non-integers, bytes, sets: nothing that names or shapes a tensor.
    Opaque,
    Int(i64),
    Text(String),
    /// Lists and tuples.
    Sequence(Vec<Value>),
    Dictionary(Vec<(Value, Value)>),
    Class(Class),
    Storage(StorageValue),
    Tensor(TensorValue),
}

/// A class or function, by how it is emulated.
#[derive(Clone, Copy)]
enum Class {
    OrderedDict,
    Storage(Dtype),
    RebuildTensor,
    RebuildParameter,
    Size,
    Other,
}

/// The supported classes; all others yield opaque values.
const CLASSES: [(&str, Class); 16] = [
    ("collections OrderedDict", Class::OrderedDict),
    ("torch._utils _rebuild_tensor_v2", Class::RebuildTensor),
    ("torch._utils _rebuild_parameter", Class::RebuildParameter),
    ("torch Size", Class::Size),
    ("torch FloatStorage", Class::Storage(Dtype::F32)),
    ("torch DoubleStorage", Class::Storage(Dtype::F64)),
    ("torch HalfStorage", Class::Storage(Dtype::F16)),
    ("torch BFloat16Storage", Class::Storage(Dtype::BF16)),
    ("torch LongStorage", Class::Storage(Dtype::I64)),
    ("torch IntStorage", Class::Storage(Dtype::I32)),
    ("torch ShortStorage", Class::Storage(Dtype::I16)),
    ("torch CharStorage", Class::Storage(Dtype::I8)),
    ("torch ByteStorage", Class::Storage(Dtype::U8)),
    ("torch BoolStorage", Class::Storage(Dtype::BOOL)),
    ("torch.storage BFloat16Storage", Class::Storage(Dtype::BF16)),
    ("torch.storage FloatStorage", Class::Storage(Dtype::F32)),
];

/// The values of an executed pickle.
pub(super) struct PickleValues {
    objects: Vec<Object>,
    /// The unpickled object.
    pub(super) result: Value,
    /// Classes whose objects became opaque values, as `module.name`.
    pub(super) skipped_classes: Vec<String>,
}

impl PickleValues {
    /// The entries of a dictionary.
    pub(super) fn entries(&self, value: Value) -> Option<&[(Value, Value)]> {
        match &self.objects[value.0] {
            Object::Dictionary(entries) => Some(entries),
            _ => None,
        }
    }

    pub(super) fn text(&self, value: Value) -> Option<&str> {
        match &self.objects[value.0] {
            Object::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn tensor(&self, value: Value) -> Option<&TensorValue> {
        match &self.objects[value.0] {
            Object::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }
}

/// Runs a pickle to its end.
pub(super) fn run(code: &[u8]) -> Result<PickleValues, String> {
    let mut machine = Machine { code, at: 0, ..Machine::default() };
    loop {
        let at = machine.at;
        match machine.step() {
            Ok(None) => {}
            Ok(Some(result)) => {
                let Machine { objects, skipped_classes, .. } = machine;
                return Ok(PickleValues { objects, result, skipped_classes });
            }
            Err(flaw) => return Err(format!("the pickle {} at byte {at}", flaw.describe())),
        }
    }
}

/// The reason that a pickle is invalid.
enum Flaw {
    /// It ends before its end opcode.
    CutOff,
    /// An opcode found too few values on the stack, or values of the wrong kind.
    Malformed,
    /// An unsupported opcode.
    Opcode(u8),
}

impl Flaw {
    fn describe(&self) -> String {
        match self {
            Self::CutOff => "is truncated".to_owned(),
            Self::Malformed => "is damaged".to_owned(),
            Self::Opcode(code) => format!("has the unsupported opcode 0x{code:02x}"),
        }
    }
}

#[derive(Default)]
struct Machine<'a> {
    code: &'a [u8],
    at: usize,
    objects: Vec<Object>,
    stack: Vec<Value>,
    /// Heights of the stack at open marks.
    marks: Vec<usize>,
    memo: std::collections::HashMap<u64, Value>,
    skipped_classes: Vec<String>,
}

type Step<T> = Result<T, Flaw>;

impl Machine<'_> {
    /// Runs the next opcode; returns the result at the end.
    fn step(&mut self) -> Step<Option<Value>> {
        match self.byte()? {
            b'.' => return self.pop().map(Some),
            0x80 => drop(self.take(1)?), // PROTO
            0x95 => drop(self.take(8)?), // FRAME
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_mark()?),
            b'2' => {
                let top = *self.stack.last().ok_or(Flaw::Malformed)?;
                self.stack.push(top);
            }
            code => self.value(code)?,
        }
        Ok(None)
    }

    /// Opcodes that create a value.
    fn value(&mut self, code: u8) -> Step<()> {
        match code {
            // NONE, and true and false.
            b'N' | 0x88 | 0x89 => self.push(Object::Opaque),
            b'K' => {
                let number = i64::from(self.byte()?);
                self.push(Object::Int(number));
            }
            b'M' => {
                let number = self.unsigned(2)? as i64;
                self.push(Object::Int(number));
            }
            b'J' => {
                let number = self.unsigned(4)? as u32;
                self.push(Object::Int(i64::from(number as i32)));
            }
            0x8a => {
                let length = usize::from(self.byte()?);
                self.long(length)?;
            }
            0x8b => {
                let length = self.unsigned(4)? as usize;
                self.long(length)?;
            }
            b'G' => {
                self.take(8)?; // BINFLOAT
                self.push(Object::Opaque);
            }
            b'X' | 0x8c | 0x8d => {
                let length = self.length(code, [b'X', 0x8c, 0x8d])?;
                let text = std::str::from_utf8(self.take(length)?).map_err(|_| Flaw::Malformed)?;
                let text = text.to_owned();
                self.push(Object::Text(text));
            }
            b'B' | b'C' | 0x8e => {
                let length = self.length(code, [b'B', b'C', 0x8e])?;
                self.take(length)?;
                self.push(Object::Opaque);
            }
            code => self.container(code)?,
        }
        Ok(())
    }

    /// Opcodes of containers and of the memo.
    fn container(&mut self, code: u8) -> Step<()> {
        match code {
            b'}' => self.push(Object::Dictionary(Vec::new())),
            b']' | b')' => self.push(Object::Sequence(Vec::new())),
            0x8f => self.push(Object::Opaque), // EMPTY_SET
            b't' | b'l' => {
                let items = self.pop_mark()?;
                self.push(Object::Sequence(items));
            }
            b'd' => {
                let items = self.pop_mark()?;
                let entries = pairs(&items)?;
                self.push(Object::Dictionary(entries));
            }
            0x91 => {
                self.pop_mark()?; // FROZENSET
                self.push(Object::Opaque);
            }
            0x85..=0x87 => {
                let count = usize::from(code - 0x84); // TUPLE1 to TUPLE3
                let start = self.stack.len().checked_sub(count).ok_or(Flaw::Malformed)?;
                let items = self.stack.split_off(start);
                self.push(Object::Sequence(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            b'e' | 0x90 => {
                let items = self.pop_mark()?; // APPENDS, ADDITEMS
                self.append(&items)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(&[(key, value)])?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set(&pairs(&items)?)?;
            }
            code => self.memo_or_object(code)?,
        }
        Ok(())
    }

    fn memo_or_object(&mut self, code: u8) -> Step<()> {
        match code {
            b'q' | b'r' | 0x94 => {
                let slot = match code {
                    b'q' => u64::from(self.byte()?),
                    b'r' => self.unsigned(4)?,
                    _ => self.memo.len() as u64,
                };
                let top = *self.stack.last().ok_or(Flaw::Malformed)?;
                self.memo.insert(slot, top);
            }
            b'h' | b'j' => {
                let slot = self.unsigned(if code == b'h' { 1 } else { 4 })?;
                let value = *self.memo.get(&slot).ok_or(Flaw::Malformed)?;
                self.stack.push(value);
            }
            b'c' => {
                let module = self.line()?;
                let name = self.line()?;
                self.class(&module, &name);
            }
            0x93 => {
                let name = self.pop()?;
                let module = self.pop()?;
                let (Object::Text(name), Object::Text(module)) =
                    (&self.objects[name.0], &self.objects[module.0])
                else {
                    return Err(Flaw::Malformed);
                };
                let module = module.clone();
                let name = name.clone();
                self.class(&module, &name);
            }
            b'R' | 0x81 => {
                let arguments = self.pop()?; // REDUCE, NEWOBJ
                let class = self.pop()?;
                self.construct(class, arguments)?;
            }
            0x92 => {
                self.pop()?; // NEWOBJ_EX: the keyword arguments
                let arguments = self.pop()?;
                let class = self.pop()?;
                self.construct(class, arguments)?;
            }
            // BUILD: the state of an object, which is ignored.
            b'b' => drop(self.pop()?),
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push(storage);
            }
            other => return Err(Flaw::Opcode(other)),
        }
        Ok(())
    }

    fn push(&mut self, object: Object) {
        self.objects.push(object);
        self.stack.push(Value(self.objects.len() - 1));
    }

    /// Pops the top of the stack, which must not be below an open mark.
    fn pop(&mut self) -> Step<Value> {
        match self.marks.last() {
            Some(&mark) if self.stack.len() <= mark => Err(Flaw::Malformed),
            _ => self.stack.pop().ok_or(Flaw::Malformed),
        }
    }

    fn pop_mark(&mut self) -> Step<Vec<Value>> {
        let mark = self.marks.pop().ok_or(Flaw::Malformed)?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn byte(&mut self) -> Step<u8> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, count: usize) -> Step<&[u8]> {
        let end = self.at.checked_add(count).ok_or(Flaw::CutOff)?;
        let bytes = self.code.get(self.at..end).ok_or(Flaw::CutOff)?;
        self.at = end;
        Ok(bytes)
    }

    /// A little-endian number of `count` bytes, at most 8.
    fn unsigned(&mut self, count: usize) -> Step<u64> {
        Ok(self.take(count)?.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte)))
    }

    /// The length prefix of a string or bytes object, whose size depends on which of the three
    /// opcodes is used.
    fn length(&mut self, code: u8, [four, one, _eight]: [u8; 3]) -> Step<usize> {
        let count = if code == four {
            4
        } else if code == one {
            1
        } else {
            8
        };
        usize::try_from(self.unsigned(count)?).map_err(|_| Flaw::CutOff)
    }

    /// A signed integer of `length` bytes; one of more than 8 bytes is opaque.
    fn long(&mut self, length: usize) -> Step<()> {
        let bytes = self.take(length)?;
        let sign = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
        let object = if bytes.len() <= 8 {
            let mut wide = [sign; 8];
            wide[..bytes.len()].copy_from_slice(bytes);
            Object::Int(i64::from_le_bytes(wide))
        } else {
            Object::Opaque
        };
        self.push(object);
        Ok(())
    }

    /// A line of text, without its terminator.
    fn line(&mut self) -> Step<String> {
        let rest = &self.code[self.at..];
        let length = rest.iter().position(|&byte| byte == b'\n').ok_or(Flaw::CutOff)?;
        let text = std::str::from_utf8(&rest[..length]).map_err(|_| Flaw::Malformed)?.to_owned();
        self.at += length + 1;
        Ok(text)
    }

    fn class(&mut self, module: &str, name: &str) {
        let full = format!("{module} {name}");
        let known = CLASSES.iter().find(|(known, _)| *known == full).map(|(_, class)| *class);
        if known.is_none() {
            self.skipped_classes.push(format!("{module}.{name}"));
        }
        self.push(Object::Class(known.unwrap_or(Class::Other)));
    }

    /// Adds items to the list on top of the stack; other objects ignore them.
    fn append(&mut self, items: &[Value]) -> Step<()> {
        let top = *self.stack.last().ok_or(Flaw::Malformed)?;
        if let Object::Sequence(list) = &mut self.objects[top.0] {
            list.extend_from_slice(items);
        }
        Ok(())
    }

    /// Adds entries to the dictionary on top of the stack; other objects ignore them.
    fn set(&mut self, entries: &[(Value, Value)]) -> Step<()> {
        let top = *self.stack.last().ok_or(Flaw::Malformed)?;
        if let Object::Dictionary(dictionary) = &mut self.objects[top.0] {
            dictionary.extend_from_slice(entries);
        }
        Ok(())
    }

    /// The result of a supported constructor; opaque values for all others.
    fn construct(&mut self, class: Value, arguments: Value) -> Step<()> {
        let Object::Class(class) = self.objects[class.0] else {
            self.push(Object::Opaque);
            return Ok(());
        };
        let Object::Sequence(arguments) = &self.objects[arguments.0] else {
            return Err(Flaw::Malformed);
        };
        let object = match class {
            Class::OrderedDict => Object::Dictionary(Vec::new()),
            Class::RebuildTensor => Object::Tensor(self.tensor(arguments)?),
            Class::RebuildParameter | Class::Size => {
                let inner = *arguments.first().ok_or(Flaw::Malformed)?;
                self.stack.push(inner);
                return Ok(());
            }
            Class::Storage(_) | Class::Other => Object::Opaque,
        };
        self.push(object);
        Ok(())
    }

    /// `_rebuild_tensor_v2(storage, offset, size, stride, ...)`.
    fn tensor(&self, arguments: &[Value]) -> Step<TensorValue> {
        let [storage, offset, shape, strides, ..] = arguments else { return Err(Flaw::Malformed) };
        let Object::Storage(storage) = &self.objects[storage.0] else {
            return Err(Flaw::Malformed);
        };
        let count = |value: &Value| match self.objects[value.0] {
            Object::Int(number) => usize::try_from(number).map_err(|_| Flaw::Malformed),
            _ => Err(Flaw::Malformed),
        };
        let counts = |value: &Value| match &self.objects[value.0] {
            Object::Sequence(items) => items.iter().map(count).collect::<Step<Vec<usize>>>(),
            _ => Err(Flaw::Malformed),
        };
        Ok(TensorValue {
            storage: storage.clone(),
            offset: count(offset)?,
            shape: counts(shape)?,
            strides: counts(strides)?,
        })
    }

    /// The persistent id `('storage', class, key, location, count)`.
    fn storage(&self, id: Value) -> Step<Object> {
        let Object::Sequence(parts) = &self.objects[id.0] else { return Err(Flaw::Malformed) };
        let [_, class, key, ..] = parts.as_slice() else { return Err(Flaw::Malformed) };
        match (&self.objects[class.0], &self.objects[key.0]) {
            (Object::Class(Class::Storage(dtype)), Object::Text(key)) => {
                Ok(Object::Storage(StorageValue { dtype: *dtype, key: key.clone() }))
            }
            (Object::Class(_), Object::Text(_)) => Ok(Object::Opaque),
            _ => Err(Flaw::Malformed),
        }
    }
}

fn pairs(items: &[Value]) -> Step<Vec<(Value, Value)>> {
    let (pairs, rest) = items.as_chunks::<2>();
    match rest {
        [] => Ok(pairs.iter().map(|&[key, value]| (key, value)).collect()),
        _ => Err(Flaw::Malformed),
    }
}
