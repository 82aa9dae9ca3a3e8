//! One record of a data file, restricted to the fields that a known benchmark uses.
//!
//! Other fields are skipped without being stored, so that a record's memory is bounded by the text
//! of its known fields. Duplicates of known fields are errors, because either value could be wrong.

use std::fmt;
use std::io::Read;
use std::ops::ControlFlow;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::fields::FieldNames;

/// Maximum number of steps or choices in a list. A string can take many times the memory of its
/// two bytes in the file, so longer lists are not stored.
const MAX_LIST: usize = 4096;

/// A list under construction.
#[derive(Default)]
pub(super) struct ListBuilder {
    list: Vec<String>,
    flaw: Option<&'static str>,
}

impl ListBuilder {
    pub(super) fn push(&mut self, element: FieldValue) {
        match element {
            _ if self.flaw.is_some() => {}
            FieldValue::Text(text) | FieldValue::Number(text) if self.list.len() < MAX_LIST => {
                self.list.push(text)
            }
            FieldValue::Text(_) | FieldValue::Number(_) => self.flaw = Some("a list of thousands"),
            _ => self.flaw = Some("a list with elements other than strings and numbers"),
        }
    }

    pub(super) fn finish(self) -> FieldValue {
        self.flaw.map_or(FieldValue::List(self.list), FieldValue::Other)
    }
}

/// The known fields of one record, in the order of the file.
#[derive(Debug, Default)]
pub(super) struct DataRecord(Vec<(String, FieldValue)>);

/// The value of a field.
#[derive(Debug, PartialEq)]
pub(super) enum FieldValue {
    /// A string.
    Text(String),
    /// A JSON number, in shortest decimal form.
    Number(String),
    /// A list of strings or numbers.
    List(Vec<String>),
    /// True or false.
    Truth(bool),
    /// An unsupported value, described for the error message.
    Other(&'static str),
}

impl DataRecord {
    /// The field called `name`. A JSON `null` counts as absent.
    pub(super) fn get(&self, name: &str) -> Option<&FieldValue> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, field)| field)
    }

    /// The record of a CSV row. Empty cells count as absent.
    pub(super) fn from_row(
        fields: &FieldNames,
        header: &[String],
        row: Vec<String>,
    ) -> Result<Self, String> {
        if row.len() != header.len() {
            let found = row.len();
            let expected = header.len();
            return Err(format!("the row has {found} cells, the header has {expected}"));
        }
        let mut record = DataRecord::default();
        for (name, cell) in header.iter().zip(row) {
            if fields.reads(name) && !cell.is_empty() {
                record.insert(name, FieldValue::Text(cell))?;
            }
        }
        Ok(record)
    }

    /// Size of the texts in bytes.
    #[cfg(feature = "parquet")]
    pub(super) fn text_len(&self) -> usize {
        let len = |(_, field): &(_, FieldValue)| match field {
            FieldValue::Text(text) | FieldValue::Number(text) => text.len(),
            FieldValue::List(list) => {
                list.iter().map(|text| text.len() + size_of::<String>()).sum()
            }
            FieldValue::Truth(_) | FieldValue::Other(_) => 0,
        };
        self.0.iter().map(len).sum()
    }

    /// Adds a field.
    pub(super) fn insert(&mut self, name: &str, field: FieldValue) -> Result<(), String> {
        if self.get(name).is_some() {
            return Err(format!("the field {name:?} occurs twice"));
        }
        self.0.push((name.to_owned(), field));
        Ok(())
    }
}

/// Passes the records of a JSON array to `each`, one at a time, until it breaks. The rest of the
/// array is then not parsed.
pub(super) fn array(
    input: impl Read,
    fields: &FieldNames,
    each: impl FnMut(DataRecord) -> ControlFlow<()>,
) -> Result<(), serde_json::Error> {
    let mut stopped = false;
    let mut json = serde_json::Deserializer::from_reader(input);
    let elements = ArrayVisitor { fields, each, stopped: &mut stopped };
    let outcome = elements.deserialize(&mut json);
    // After a break the array is incomplete, which the deserializer reports as an error.
    if stopped {
        return Ok(());
    }
    outcome?;
    json.end()
}

/// The record of one line of JSON.
pub(super) fn line(bytes: &[u8], fields: &FieldNames) -> Result<DataRecord, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let record = RecordSeed(fields).deserialize(&mut json)?;
    json.end()?;
    Ok(record)
}

struct ArrayVisitor<'a, F> {
    fields: &'a FieldNames,
    each: F,
    stopped: &'a mut bool,
}

impl<'de, F: FnMut(DataRecord) -> ControlFlow<()>> DeserializeSeed<'de> for ArrayVisitor<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(DataRecord) -> ControlFlow<()>> Visitor<'de> for ArrayVisitor<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of questions")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
        while let Some(record) = elements.next_element_seed(RecordSeed(self.fields))? {
            if (self.each)(record).is_break() {
                *self.stopped = true;
                break;
            }
        }
        Ok(())
    }
}

/// Deserializes the known fields of a record.
struct RecordSeed<'a>(&'a FieldNames);

impl<'de> DeserializeSeed<'de> for RecordSeed<'_> {
    type Value = DataRecord;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<DataRecord, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RecordSeed<'_> {
    type Value = DataRecord;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a question and an answer")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<DataRecord, A::Error> {
        let mut record = DataRecord::default();
        while let Some(name) = fields.next_key::<String>()? {
            if !self.0.reads(&name) {
                fields.next_value::<IgnoredAny>()?;
            } else if let Some(field) = fields.next_value::<Option<FieldValue>>()? {
                record.insert(&name, field).map_err(A::Error::custom)?;
            }
        }
        Ok(record)
    }
}

impl<'de> Deserialize<'de> for FieldValue {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(FieldVisitor)
    }
}

struct FieldVisitor;

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = FieldValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a number or a list of them")
    }

    fn visit_str<E>(self, text: &str) -> Result<FieldValue, E> {
        Ok(FieldValue::Text(text.to_owned()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<FieldValue, E> {
        Ok(FieldValue::Number(number.to_string()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<FieldValue, E> {
        Ok(FieldValue::Number(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<FieldValue, E> {
        // Adding zero turns -0.0, which some targets contain, into 0.
        Ok(FieldValue::Number((number + 0.0).to_string()))
    }

    fn visit_bool<E>(self, truth: bool) -> Result<FieldValue, E> {
        Ok(FieldValue::Truth(truth))
    }

    fn visit_unit<E>(self) -> Result<FieldValue, E> {
        Ok(FieldValue::Other("null"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<FieldValue, A::Error> {
        let mut list = ListBuilder::default();
        while let Some(element) = elements.next_element::<FieldValue>()? {
            list.push(element);
        }
        Ok(list.finish())
    }

    /// Choices in the form of CommonsenseQA and ARC, an object of labels and texts.
    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<FieldValue, A::Error> {
        let mut texts = None;
        while let Some(name) = fields.next_key::<String>()? {
            match fields.next_value::<FieldValue>()? {
                list @ FieldValue::List(_) if name == "text" => texts = Some(list),
                _ => {}
            }
        }
        Ok(texts.unwrap_or(FieldValue::Other("an object")))
    }
}
