//! Parquet, the format of most datasets on the Hub: each row becomes a record of its known columns.
//!
//! Other columns are not decoded. A few bytes of a compressed file can expand to any number of
//! rows, so the total size of the decoded data is limited like the size of other files.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::CompressionCodec;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::Type;

use super::fields::FieldNames;
use super::record::{DataRecord, FieldValue, ListBuilder};
use super::shape::is_header;
use super::{DatasetProblem, MAX_BYTES, Question};

/// Passes the records of a file to `each`, one at a time, until it breaks.
pub(super) fn rows(
    content: Vec<u8>,
    fields: &FieldNames,
    each: impl FnMut(DataRecord) -> ControlFlow<()>,
) -> Result<(), DatasetProblem> {
    // The crate panics on some corrupt files, such as one with a missing dictionary. Its state is
    // not used afterwards.
    let outcome = catch_unwind(AssertUnwindSafe(|| checked_rows(content, fields, each)));
    outcome.unwrap_or_else(|_| Err(DatasetProblem::Parquet("corrupt pages".to_owned())))
}

fn checked_rows(
    content: Vec<u8>,
    fields: &FieldNames,
    mut each: impl FnMut(DataRecord) -> ControlFlow<()>,
) -> Result<(), DatasetProblem> {
    let reader = SerializedFileReader::new(Bytes::from(content))?;
    let projection = known_columns(&reader, fields)?;
    check_compression(&reader)?;
    let mut bytes = 0;
    for row in RowIter::from_file_into(Box::new(reader)).project(Some(projection))? {
        let record = record(row?).map_err(DatasetProblem::Parquet)?;
        bytes += (record.text_len() + size_of::<Question>()) as u64;
        if bytes > MAX_BYTES {
            return Err(DatasetProblem::TooLarge);
        }
        if each(record).is_break() {
            break;
        }
    }
    Ok(())
}

/// The file's schema, restricted to the known columns.
fn known_columns(reader: &impl FileReader, fields: &FieldNames) -> Result<Type, DatasetProblem> {
    let schema = reader.metadata().file_metadata().schema();
    let columns = schema.get_fields();
    let names: Vec<String> = columns.iter().map(|column| column.name().to_owned()).collect();
    if !is_header(fields, &names) {
        let start: String = names.join(", ").chars().take(80).collect();
        return Err(DatasetProblem::Unrecognised(format!("Parquet with the columns {start}")));
    }
    let known = columns.iter().filter(|column| fields.reads(column.name())).map(Arc::clone);
    Ok(Type::group_type_builder(schema.name()).with_fields(known.collect()).build()?)
}

/// Rejects unsupported codecs. Only codecs that writers use by default and that need no C library
/// are compiled in.
fn check_compression(reader: &impl FileReader) -> Result<(), DatasetProblem> {
    let groups = reader.metadata().row_groups().iter();
    let mut codecs =
        groups.flat_map(|group| group.columns()).map(|column| column.compression_codec());
    const READ: [CompressionCodec; 3] =
        [CompressionCodec::UNCOMPRESSED, CompressionCodec::SNAPPY, CompressionCodec::GZIP];
    match codecs.find(|codec| !READ.contains(codec)) {
        Some(codec) => Err(DatasetProblem::Compression(format!("{codec:?}"))),
        None => Ok(()),
    }
}

fn record(row: Row) -> Result<DataRecord, String> {
    let mut record = DataRecord::default();
    for (name, field) in row.into_columns() {
        if let Some(value) = value(field) {
            record.insert(&name, value)?;
        }
    }
    Ok(record)
}

/// The value of a field; `None` for a null.
fn value(field: Field) -> Option<FieldValue> {
    let number = |number: &dyn ToString| Some(FieldValue::Number(number.to_string()));
    match field {
        Field::Null => None,
        Field::Byte(n) => number(&n),
        Field::Short(n) => number(&n),
        Field::Int(n) => number(&n),
        Field::Long(n) => number(&n),
        Field::UByte(n) => number(&n),
        Field::UShort(n) => number(&n),
        Field::UInt(n) => number(&n),
        Field::ULong(n) => number(&n),
        // As in JSON, adding zero turns -0.0 into 0.
        Field::Float(x) => number(&(x + 0.0)),
        Field::Double(x) => number(&(x + 0.0)),
        Field::Str(text) => Some(FieldValue::Text(text)),
        Field::Bytes(bytes) => Some(match std::str::from_utf8(bytes.data()) {
            Ok(text) => FieldValue::Text(text.to_owned()),
            Err(_) => FieldValue::Other("bytes that are not UTF-8"),
        }),
        Field::ListInternal(list) => {
            let mut built = ListBuilder::default();
            for element in list.elements() {
                built.push(value(element.clone()).unwrap_or(FieldValue::Other("null")));
            }
            Some(built.finish())
        }
        Field::Bool(truth) => Some(FieldValue::Truth(truth)),
        Field::Group(group) => Some(choice_texts(group)),
        Field::MapInternal(_) => Some(FieldValue::Other("an object")),
        _ => Some(FieldValue::Other("a date, a time or a decimal")),
    }
}

/// The texts of choices in the form of CommonsenseQA and ARC, a group of labels and texts.
fn choice_texts(group: Row) -> FieldValue {
    let texts = group.into_columns().into_iter().find(|(name, _)| name == "text");
    match texts.and_then(|(_, field)| value(field)) {
        Some(list @ FieldValue::List(_)) => list,
        _ => FieldValue::Other("an object"),
    }
}

impl From<ParquetError> for DatasetProblem {
    fn from(error: ParquetError) -> Self {
        let message = error.to_string();
        let reason = message.strip_prefix("Parquet error: ").unwrap_or(&message);
        Self::Parquet(reason.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use parquet::basic::Compression;
    use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
    use parquet::schema::parser::parse_message_type;
    use proptest::prelude::*;

    use super::*;
    use crate::{DatasetError, parse};

    const SCHEMA: &str = "message dataset {
        required binary id (UTF8);
        required binary question (UTF8);
        optional int64 answer;
        optional group steps (LIST) { repeated group list { optional binary element (UTF8); } }
    }";

    fn texts(texts: &[&str]) -> Vec<ByteArray> {
        texts.iter().map(|text| ByteArray::from(*text)).collect()
    }

    /// Writes one column: its values, and the levels at which they are defined and repeated.
    fn column<T: parquet::data_type::DataType>(
        group: &mut SerializedRowGroupWriter<'_, &mut Vec<u8>>,
        values: &[T::T],
        levels: Option<(&[i16], &[i16])>,
    ) {
        let mut writer = group.next_column().unwrap().unwrap();
        let (defined, repeated) = levels.unzip();
        writer.typed::<T>().write_batch(values, defined, repeated).unwrap();
        writer.close().unwrap();
    }

    /// Three questions: with two steps, with one, without any and without an answer.
    fn file(compression: Compression) -> Vec<u8> {
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let properties = WriterProperties::builder().set_compression(compression).build();
        let mut content = Vec::new();
        let mut writer =
            SerializedFileWriter::new(&mut content, schema, Arc::new(properties)).unwrap();
        let mut group = writer.next_row_group().unwrap();
        column::<ByteArrayType>(&mut group, &texts(&["a", "b", "c"]), None);
        column::<ByteArrayType>(&mut group, &texts(&["One?", " Two?", "Three?"]), None);
        column::<Int64Type>(&mut group, &[7, -8], Some((&[1, 1, 0], &[0, 0, 0])));
        let steps = texts(&["<<3+4=7>>", "<<7*1=7>>", "<<0-8=-8>>"]);
        column::<ByteArrayType>(&mut group, &steps, Some((&[3, 3, 3, 0], &[0, 1, 0, 0])));
        group.close().unwrap();
        writer.close().unwrap();
        content
    }

    fn read(content: &[u8], limit: Option<usize>) -> Result<Vec<Question>, DatasetError> {
        parse(Path::new("a.parquet"), content, limit)
    }

    #[test]
    fn rows_are_the_questions_of_the_same_json() {
        let json = br#"[{"question": "One?", "answer": 7, "steps": ["<<3+4=7>>", "<<7*1=7>>"]},
            {"question": " Two?", "answer": -8, "steps": ["<<0-8=-8>>"]}]"#;
        let expected = parse(Path::new("a.json"), &json[..], None).unwrap();
        for codec in
            [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::GZIP(Default::default())]
        {
            assert_eq!(read(&file(codec), Some(2)).unwrap(), expected, "{codec:?}");
        }
        let error = read(&file(Compression::SNAPPY), None).unwrap_err().to_string();
        assert!(error.contains("row 3 (counted from 1): no \"answer\" field"), "{error}");
    }

    #[test]
    fn other_columns_are_named() {
        let schema = Arc::new(parse_message_type("message d { required int64 label; }").unwrap());
        let mut content = Vec::new();
        let mut writer =
            SerializedFileWriter::new(&mut content, schema, Default::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        column::<Int64Type>(&mut group, &[1], None);
        group.close().unwrap();
        writer.close().unwrap();
        let error = read(&content, None).unwrap_err().to_string();
        assert!(error.contains("Parquet with the columns label"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn damaged_files_are_errors(
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
            end in any::<proptest::sample::Index>(),
            cut in proptest::bool::weighted(0.1),
        ) {
            let mut content = file(Compression::SNAPPY);
            for (place, byte) in changes {
                let place = place.index(content.len());
                content[place] = byte;
            }
            if cut {
                content.truncate(end.index(content.len()));
            }
            // Reading ends, with questions or an error.
            let _ = read(&content, Some(2));
        }
    }
}
