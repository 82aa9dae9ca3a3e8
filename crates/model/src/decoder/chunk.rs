//! The inputs of a forward pass on the device: slot mapping, attention metadata and dropout of a
//! chunk of rows.
//!
//! A [`PassChunk`] is either staged ahead (all inputs are copied before the first kernel) or lazily
//! (inputs that the first kernels do not need are copied while they run). After the last layer's
//! keys and values, only the [`OutputRows`] are computed.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use tensor::ops::{self, AttentionMetadata, AttentionSpans, Indices, QkvRows, SlotMapping};
use tensor::{Device, DeviceError, Tensor};

use super::chunk_dropout::ChunkDropout;
use super::{ChunkActivations, Dropout};
use crate::cache::Pass;

/// A range of rows of a pass, on the host.
pub(super) struct ChunkRows<'a> {
    pub(super) range: Range<usize>,
    pub(super) spans: Cow<'a, AttentionSpans>, // of all rows
    pub(super) output_rows: Vec<usize>,        // relative to the start of the range
    output_spans: OnceLock<AttentionSpans>,    // of the output rows
}

impl<'a> ChunkRows<'a> {
    pub(super) fn new(pass: &'a Pass, range: Range<usize>) -> Self {
        let spans = if range.len() == pass.rows() {
            Cow::Borrowed(&pass.attention)
        } else {
            Cow::Owned(pass.attention.select(range.clone()))
        };
        let outputs = pass.output_rows.iter().filter(|row| range.contains(row));
        let output_rows = outputs.map(|row| row - range.start).collect();
        Self { range, spans, output_rows, output_spans: OnceLock::new() }
    }

    /// Whether some rows are not output rows.
    pub(super) fn drops_rows(&self) -> bool {
        self.output_rows.len() < self.range.len()
    }

    pub(super) fn output_spans(&self) -> &AttentionSpans {
        self.output_spans.get_or_init(|| self.spans.select(self.output_rows.iter().copied()))
    }
}

/// Positions and slots of a range of rows, on the device.
pub(super) fn slot_mapping(
    device: &Device,
    pass: &Pass,
    range: Range<usize>,
) -> Result<SlotMapping, DeviceError> {
    Ok(SlotMapping {
        positions: Indices::new(device, pass.positions[range.clone()].to_vec())?,
        slots: Indices::new(device, pass.slots[range].to_vec())?,
    })
}

/// A range of rows of a pass with its inputs on the device.
pub(super) struct PassChunk<'a> {
    pub(super) x: Tensor, // (rows, width): the input vectors, then the residual stream
    pub(super) work: ChunkActivations,
    pub(super) slot_mapping: SlotMapping,
    rows: &'a ChunkRows<'a>,
    dropout: Option<Dropout<'a>>, // of all rows of the pass
    pub(super) metadata: Option<ChunkMetadata<'a>>, // once it is on the device
    output: Option<OutputRows<'a>>, // if staged ahead
}

/// The inputs of a layer after its QKV projection: attention metadata and dropout.
#[derive(Debug)]
pub(super) struct ChunkMetadata<'a> {
    pub(super) attention: AttentionMetadata<'a>,
    pub(super) dropout: ChunkDropout,
}

/// The output rows of a chunk, with their attention metadata and dropout.
#[derive(Debug)]
pub(super) struct OutputRows<'a> {
    pub(super) rows: Indices, // relative to the start of the chunk
    pub(super) attention: AttentionMetadata<'a>,
    pub(super) dropout: ChunkDropout,
}

impl<'a> OutputRows<'a> {
    /// `spans` are those of the output rows, `dropout` covers all rows of the chunk.
    pub(super) fn new(
        device: &Device,
        rows: &ChunkRows<'_>,
        spans: Cow<'a, AttentionSpans>,
        dropout: &ChunkDropout,
        width: usize,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            rows: Indices::new(device, rows.output_rows.iter().map(|&r| r as u32).collect())?,
            attention: AttentionMetadata::new(device, spans)?,
            dropout: dropout.select(device, &rows.output_rows, width)?,
        })
    }
}

impl<'a> ChunkMetadata<'a> {
    fn new(
        device: &Device,
        rows: &'a ChunkRows<'_>,
        dropout: Option<Dropout<'_>>,
        width: usize,
    ) -> Result<Self, DeviceError> {
        let dropout = ChunkDropout::cut(device, dropout, width, rows.range.clone())?;
        let attention = AttentionMetadata::new(device, Cow::Borrowed(&*rows.spans))?;
        Ok(Self { attention, dropout })
    }
}

impl<'a> PassChunk<'a> {
    /// A chunk without input vectors: `x` is set once they are known.
    pub(super) fn new(
        device: &Device,
        pass: &Pass,
        rows: &'a ChunkRows<'a>,
        dropout: Option<Dropout<'a>>,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            x: Tensor::default(),
            work: ChunkActivations::default(),
            slot_mapping: slot_mapping(device, pass, rows.range.clone())?,
            rows,
            dropout,
            metadata: None,
            output: None,
        })
    }

    /// Copies the metadata to the device now instead of while the first kernels run.
    pub(super) fn stage(&mut self, device: &Device, width: usize) -> Result<(), DeviceError> {
        let metadata = ChunkMetadata::new(device, self.rows, self.dropout, width)?;
        if self.rows.drops_rows() {
            self.output = Some(self.output_rows(device, &metadata, width)?);
        }
        self.metadata = Some(metadata);
        Ok(())
    }

    /// The chunk with its input vectors and metadata.
    pub(super) fn staged(mut self, device: &Device, x: Tensor) -> Result<Self, DeviceError> {
        self.stage(device, x.cols())?;
        self.x = x;
        Ok(self)
    }

    fn output_rows(
        &self,
        device: &Device,
        metadata: &ChunkMetadata<'_>,
        width: usize,
    ) -> Result<OutputRows<'a>, DeviceError> {
        let spans = Cow::Borrowed(self.rows.output_spans());
        OutputRows::new(device, self.rows, spans, &metadata.dropout, width)
    }

    /// The metadata, copied to the device if it has not been yet.
    pub(super) fn take_metadata(
        &mut self,
        device: &Device,
    ) -> Result<ChunkMetadata<'a>, DeviceError> {
        match self.metadata.take() {
            Some(metadata) => Ok(metadata),
            None => ChunkMetadata::new(device, self.rows, self.dropout, self.x.cols()),
        }
    }

    /// The rows that the QKV projection reads and writes.
    pub(super) fn qkv_rows(&mut self) -> QkvRows<'_> {
        let ChunkActivations { normed, qkv, .. } = &mut self.work;
        QkvRows { x: normed, slot_mapping: &self.slot_mapping, qkv }
    }

    /// Reduces `x` and the queries to the output rows; returns their metadata.
    pub(super) fn select_output(
        &mut self,
        device: &Device,
        metadata: ChunkMetadata<'a>,
    ) -> Result<ChunkMetadata<'a>, DeviceError> {
        if !self.rows.drops_rows() {
            return Ok(metadata);
        }
        let output = match self.output.take() {
            Some(output) => output,
            None => self.output_rows(device, &metadata, self.x.cols())?,
        };
        self.x = ops::gather(device, &self.x, &output.rows)?;
        self.work.qkv = ops::gather(device, &self.work.qkv, &output.rows)?;
        Ok(ChunkMetadata { attention: output.attention, dropout: output.dropout })
    }
}
