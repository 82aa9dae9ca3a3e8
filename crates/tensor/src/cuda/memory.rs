//! Device memory: raw buffers, tensors, index lists.
//!
//! Memory comes from the driver's stream-ordered pool; freed memory goes to its stream's free list
//! and is reused by the next allocation of that size. Work on a stream runs in order, so a buffer
//! may be dropped while kernels of its stream that use it are still queued.

use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::result as driver;

use super::context::{LaunchConfig, int, kernel_args};
use super::driver::is_out_of_memory;
use super::e4m3;
use super::graph::{self, GraphPool};
use super::readback::Readback;
use super::staging::StagingBuffer;
use super::stream::Stream;
use super::{CudaDevice, CudaDtype, CudaError};

impl CudaDtype {
    /// Size of an element in bytes.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
            Self::E4m3 => 1,
        }
    }

    /// The dtype's code in prelude.cuh.
    ///
    /// # Panics
    /// For e4m3, which dtype-generic kernels do not support.
    pub(crate) fn code(self) -> u64 {
        match self {
            Self::F32 => 1,
            Self::Bf16 => 2,
            Self::E4m3 => panic!("e4m3 is supported for linear maps only"),
        }
    }

    /// The dtype in which rows of `cols` elements are stored if this one is requested: e4m3
    /// requires whole groups of 16, for TMA and vector stores; other rows are bf16.
    pub(crate) fn of_rows(self, cols: usize) -> Self {
        match self {
            Self::E4m3 if !cols.is_multiple_of(E4M3_GROUP) => Self::Bf16,
            other => other,
        }
    }
}

/// Number of e4m3 elements in 16 bytes.
pub(crate) const E4M3_GROUP: usize = 16;

/// The common scale of e4m3 rows that are written before their maxima are known, with a bound on
/// their norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CommonScale {
    /// A power of two; an element is a code's value times the scale.
    pub(crate) scale: f32,
    /// Upper bound of the rows' L2 norms before rounding.
    pub(crate) max_norm: f32,
}

impl CommonScale {
    /// 1 / the scale, exactly.
    pub(crate) fn inverse(self) -> f32 {
        1.0 / self.scale
    }
}

/// The code for no tensor in prelude.cuh.
pub(crate) const DTYPE_NONE: u64 = 0;

/// Device memory, freed when dropped.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    cuda: CudaDevice,
    origin: BufferOrigin,
    pointer: u64,
    bytes: usize,
    allocated: usize, // allocated bytes, at least `bytes`
}

/// The owner to which a buffer is returned.
#[derive(Debug)]
enum BufferOrigin {
    /// The free list of its stream.
    FreeList(Arc<Stream>),
    GraphPool(Arc<GraphPool>),
    /// The staging buffers of its stream; `None` once it is returned.
    Staging(Option<Box<(Arc<Stream>, StagingBuffer)>>),
}

impl DeviceBuffer {
    /// Memory with unspecified contents.
    pub(crate) fn new(cuda: &CudaDevice, bytes: usize) -> Result<Self, CudaError> {
        Self::with_capacity(cuda, bytes, bytes)
    }

    /// Memory of which `capacity` bytes may be read, although only `bytes` are meaningful.
    fn with_capacity(cuda: &CudaDevice, bytes: usize, capacity: usize) -> Result<Self, CudaError> {
        let size = CudaDevice::allocation_size(capacity);
        let pool = graph::current_pool(cuda);
        let stream = cuda.current_stream();
        let pointer = match pool.as_ref().and_then(|pool| pool.take(size)) {
            Some(pointer) => pointer,
            None => {
                let pointer = Self::allocate(cuda, &stream, capacity, size)?;
                pool.iter().for_each(|pool| pool.adopt(size, pointer));
                pointer
            }
        };
        let origin = pool.map_or_else(|| BufferOrigin::FreeList(stream), BufferOrigin::GraphPool);
        Ok(Self { cuda: cuda.clone(), origin, pointer, bytes, allocated: size })
    }

    fn allocate(
        cuda: &CudaDevice,
        stream: &Stream,
        bytes: usize,
        size: usize,
    ) -> Result<u64, CudaError> {
        if let Some(pointer) = stream.take_cached(size) {
            return Ok(pointer);
        }
        cuda.bind()?;
        let malloc = || {
            // SAFETY: the stream is alive; contents are written before they are read, on this
            // stream.
            unsafe { driver::malloc_async(stream.raw_stream(), size) }
        };
        let allocated = match malloc() {
            Err(e) if is_out_of_memory(&e) => {
                tracing::debug!(bytes, "out of memory; releasing cached allocations");
                cuda.release_cached()?; // also waits for queued frees
                malloc()
            }
            other => other,
        };
        match allocated {
            Ok(pointer) => Ok(pointer),
            Err(e) if is_out_of_memory(&e) => {
                let (free, total) = cuda.memory()?;
                Err(CudaError::OutOfMemory { bytes, free, total })
            }
            Err(e) => Err(CudaError::driver("allocate memory")(e)),
        }
    }

    /// Zeroed memory.
    pub(crate) fn zeros(cuda: &CudaDevice, bytes: usize) -> Result<Self, CudaError> {
        let mut buffer = Self::new(cuda, bytes)?;
        buffer.clear()?;
        Ok(buffer)
    }

    /// Fills it with zeros.
    pub(crate) fn clear(&mut self) -> Result<(), CudaError> {
        self.cuda.bind()?;
        // SAFETY: the memory is that long and used in this stream's order.
        unsafe { driver::memset_d8_async(self.pointer, 0, self.bytes, self.cuda.launch_stream()?) }
            .map_err(CudaError::driver("clear memory"))
    }

    /// Memory with these contents for the next pass: copied from a pinned buffer on the staging
    /// stream, while the GPU runs the previous pass.
    pub(crate) fn stage<T: Pod>(cuda: &CudaDevice, values: &[T]) -> Result<Self, CudaError> {
        // A graph's inputs have fixed addresses, and are small.
        if graph::current_pool(cuda).is_none() {
            let stream = cuda.current_stream();
            let bytes = size_of_val(values);
            if let Some(staging) = stream.stage(values)? {
                let pointer = staging.device_ptr();
                let origin = BufferOrigin::Staging(Some(Box::new((stream, staging))));
                return Ok(Self { cuda: cuda.clone(), origin, pointer, bytes, allocated: bytes });
            }
        }
        Self::upload(cuda, values)
    }

    /// Memory with these contents, copied on this thread's stream.
    pub(crate) fn upload<T: Pod>(cuda: &CudaDevice, values: &[T]) -> Result<Self, CudaError> {
        let buffer = Self::new(cuda, size_of_val(values))?;
        if !values.is_empty() {
            assert!(graph::capture_stream(cuda).is_none(), "upload: cannot be captured in a graph");
            cuda.bind()?;
            // SAFETY: as long as `values`; the driver copies pageable memory before it returns.
            unsafe { driver::memcpy_htod_async(buffer.pointer, values, cuda.launch_stream()?) }
                .map_err(CudaError::driver("copy data to it"))?;
        }
        Ok(buffer)
    }

    /// Copies its contents from byte `from` on to the host, once all work queued so far is done.
    pub(crate) fn download<T: Pod>(&self, from: usize, into: &mut [T]) -> Result<(), CudaError> {
        assert!(
            from + size_of_val(into) <= self.bytes,
            "download: {} bytes of {}",
            from + size_of_val(into),
            self.bytes
        );
        if into.is_empty() {
            return Ok(());
        }
        assert!(
            graph::capture_stream(&self.cuda).is_none(),
            "download: cannot be captured in a graph"
        );
        self.cuda.bind()?;
        // SAFETY: inside the buffer, and `into` is not touched before the stream is synchronized.
        unsafe {
            driver::memcpy_dtoh_async(into, self.pointer + from as u64, self.cuda.launch_stream()?)
        }
        .map_err(CudaError::driver("copy data back"))?;
        self.cuda.synchronize()
    }

    /// Queues a copy of its contents to the host.
    pub(crate) fn download_async<T: Pod>(&self) -> Result<Readback<T>, CudaError> {
        assert!(
            graph::capture_stream(&self.cuda).is_none(),
            "download: cannot be captured in a graph"
        );
        // SAFETY: inside the buffer, which is used in this stream's order even when it is dropped.
        unsafe { Readback::start(&self.cuda, self.pointer, self.bytes / size_of::<T>()) }
    }

    /// Copies all of `other` to this buffer at byte `at`.
    pub(crate) fn copy_from(&mut self, at: usize, other: &Self) -> Result<(), CudaError> {
        assert!(
            at + other.bytes <= self.bytes,
            "copy: {} bytes at {at} of {}",
            other.bytes,
            self.bytes
        );
        assert!(self.cuda.same_device(&other.cuda), "copy: between two gpus");
        if other.bytes == 0 {
            return Ok(());
        }
        self.cuda.bind()?;
        // SAFETY: both reach that far and are used in this stream's order.
        unsafe {
            driver::memcpy_dtod_async(
                self.pointer + at as u64,
                other.pointer,
                other.bytes,
                self.cuda.launch_stream()?,
            )
        }
        .map_err(CudaError::driver("copy"))
    }

    pub(crate) fn pointer(&self) -> u64 {
        self.pointer
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        match &mut self.origin {
            BufferOrigin::FreeList(stream) => stream.free(self.allocated, self.pointer),
            BufferOrigin::GraphPool(pool) => pool.free(self.pointer),
            BufferOrigin::Staging(staged) => {
                if let Some((stream, staging)) = staged.take().map(|staged| *staged) {
                    stream.release_staging(staging);
                }
            }
        }
    }
}

/// Number of rows that an interleaved TMA load reads together: the last group may exceed the rows,
/// so capacity is reserved for it.
const ROW_GROUP: usize = 8;

/// A row-major matrix on the GPU. Its rows may be padded with zeros, which only GEMMs and losses
/// handle.
#[derive(Debug)]
pub(crate) struct CudaTensor {
    rows: usize,
    cols: usize,
    stride: usize, // elements from one row to the next
    dtype: CudaDtype,
    common_scale: Option<CommonScale>, // for e4m3; `None`: each row has a scale
    buffer: DeviceBuffer, // (rows, stride); for e4m3 with a scale per row followed by (rows) of f32
}

impl CudaTensor {
    /// A matrix with unspecified contents; all of it must be written.
    pub(crate) fn uninit(
        cuda: &CudaDevice,
        rows: usize,
        cols: usize,
        dtype: CudaDtype,
    ) -> Result<Self, CudaError> {
        Self::uninit_strided(cuda, rows, cols, cols, dtype)
    }

    /// The same with `stride` elements from one row to the next; the padding must be written as
    /// zeros.
    pub(crate) fn uninit_strided(
        cuda: &CudaDevice,
        rows: usize,
        cols: usize,
        stride: usize,
        dtype: CudaDtype,
    ) -> Result<Self, CudaError> {
        assert_eq!(
            dtype,
            dtype.of_rows(stride),
            "e4m3: rows of {stride} are not a multiple of the group size"
        );
        let scale = if dtype == CudaDtype::E4m3 { size_of::<f32>() } else { 0 };
        let buffer = Self::buffer_of_rows(cuda, rows, stride * dtype.size() + scale)?;
        Ok(Self { rows, cols, stride, dtype, common_scale: None, buffer })
    }

    /// A matrix of e4m3 whose rows have one scale, with unspecified contents; all of it must be
    /// written.
    pub(crate) fn uninit_scaled(
        cuda: &CudaDevice,
        rows: usize,
        cols: usize,
        by: CommonScale,
    ) -> Result<Self, CudaError> {
        let dtype = CudaDtype::E4m3;
        let common_scale = Some(by);
        assert_eq!(
            dtype,
            dtype.of_rows(cols),
            "e4m3: rows of {cols} are not a multiple of the group size"
        );
        let buffer = Self::buffer_of_rows(cuda, rows, cols)?;
        Ok(Self { rows, cols, stride: cols, dtype, common_scale, buffer })
    }

    fn buffer_of_rows(
        cuda: &CudaDevice,
        rows: usize,
        row_bytes: usize,
    ) -> Result<DeviceBuffer, CudaError> {
        let capacity = rows.next_multiple_of(ROW_GROUP) * row_bytes;
        DeviceBuffer::with_capacity(cuda, rows * row_bytes, capacity)
    }

    /// A matrix of zeros.
    pub(crate) fn zeros(
        cuda: &CudaDevice,
        rows: usize,
        cols: usize,
        dtype: CudaDtype,
    ) -> Result<Self, CudaError> {
        let mut out = Self::uninit(cuda, rows, cols, dtype)?;
        out.buffer.clear()?;
        Ok(out)
    }

    /// A matrix of f32 with these elements.
    pub(crate) fn from_host(
        cuda: &CudaDevice,
        rows: usize,
        cols: usize,
        values: &[f32],
    ) -> Result<Self, CudaError> {
        assert_eq!(values.len(), rows * cols, "a {rows} x {cols} matrix has that many elements");
        Ok(Self {
            rows,
            cols,
            stride: cols,
            dtype: CudaDtype::F32,
            common_scale: None,
            buffer: DeviceBuffer::upload(cuda, values)?,
        })
    }

    /// A matrix of e4m3 with these codes and scales.
    #[allow(dead_code, reason = "only tests know codes on the host")]
    pub(crate) fn from_codes(
        cuda: &CudaDevice,
        cols: usize,
        codes: &[u8],
        scales: &[f32],
    ) -> Result<Self, CudaError> {
        let rows = scales.len();
        assert_eq!(codes.len(), rows * cols, "a {rows} x {cols} matrix has rows * cols codes");
        let mut out = Self::uninit(cuda, rows, cols, CudaDtype::E4m3)?;
        out.buffer.copy_from(0, &DeviceBuffer::upload(cuda, codes)?)?;
        out.buffer.copy_from(rows * cols, &DeviceBuffer::upload(cuda, scales)?)?;
        Ok(out)
    }

    /// Reinterprets the elements as rows of another length.
    pub(crate) fn set_shape(&mut self, rows: usize, cols: usize) {
        assert_eq!(self.stride, self.cols, "tensor: padded rows cannot be reshaped");
        assert_ne!(self.dtype, CudaDtype::E4m3, "tensor: rows with scales cannot be reshaped");
        assert_eq!(
            self.rows * self.cols,
            rows * cols,
            "tensor: a new shape must have the same number of elements"
        );
        (self.rows, self.cols, self.stride) = (rows, cols, cols);
    }

    /// Its elements as f32, once all work queued so far is done.
    pub(crate) fn to_host(&self) -> Result<Vec<f32>, CudaError> {
        let all: Vec<f32> = match self.dtype {
            CudaDtype::F32 => {
                let mut out = vec![0.0; self.rows * self.stride];
                self.buffer.download(0, &mut out)?;
                out
            }
            CudaDtype::Bf16 => {
                let mut out = vec![half::bf16::ZERO; self.rows * self.stride];
                self.buffer.download(0, &mut out)?;
                out.into_iter().map(half::bf16::to_f32).collect()
            }
            CudaDtype::E4m3 => {
                let (codes, scales) = self.codes_to_host()?;
                let element = |(i, code)| e4m3::to_f32(code) * scales[i / self.stride];
                codes.into_iter().enumerate().map(element).collect()
            }
        };
        Ok(match self.stride == self.cols {
            true => all,
            false => all.chunks(self.stride).flat_map(|row| &row[..self.cols]).copied().collect(),
        })
    }

    /// The e4m3 codes, (rows, stride), and each row's scale, once all work queued so far is done.
    pub(crate) fn codes_to_host(&self) -> Result<(Vec<u8>, Vec<f32>), CudaError> {
        let mut codes = vec![0; self.rows * self.stride];
        self.buffer.download(0, &mut codes)?;
        let mut scales = vec![self.common_scale.map_or(0.0, |by| by.scale); self.rows];
        if self.common_scale.is_none() {
            self.buffer.download(self.scales_offset(), &mut scales)?;
        }
        Ok((codes, scales))
    }

    /// The elements as another dtype.
    pub(crate) fn cast(&self, dtype: CudaDtype) -> Result<Self, CudaError> {
        self.scaled(1.0, dtype)
    }

    /// The elements times `by`, in the given dtype.
    pub(crate) fn scaled(&self, by: f32, dtype: CudaDtype) -> Result<Self, CudaError> {
        let out = Self::uninit(self.cuda(), self.rows, self.cols, dtype)?;
        let count = (self.rows * self.cols) as u64;
        let config = LaunchConfig::for_threads((self.rows * self.cols).div_ceil(4));
        // SAFETY: `scale` reads and writes `count` elements, which both have.
        unsafe {
            self.cuda().launch(
                "scale",
                config,
                kernel_args![self.pointer(), self.dtype, out.pointer(), dtype, by, count],
            )
        }?;
        Ok(out)
    }

    /// A matrix of the same shape and dtype with unspecified contents; all of it must be written.
    pub(crate) fn uninit_like(&self) -> Result<Self, CudaError> {
        let cuda = self.cuda();
        let rows = self.rows;
        let cols = self.cols;
        match self.common_scale {
            Some(by) => Self::uninit_scaled(cuda, rows, cols, by),
            None => Self::uninit_strided(cuda, rows, cols, self.stride, self.dtype),
        }
    }

    /// A copy in new memory.
    pub(crate) fn copy(&self) -> Result<Self, CudaError> {
        let mut out = self.uninit_like()?;
        out.buffer.copy_from(0, &self.buffer)?;
        Ok(out)
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn dtype(&self) -> CudaDtype {
        self.dtype
    }

    /// Its address, for kernels that expect rows without padding.
    pub(crate) fn pointer(&self) -> u64 {
        self.buffer().pointer
    }

    /// The common scale of e4m3 rows, if they have one.
    pub(crate) fn common_scale(&self) -> Option<CommonScale> {
        self.common_scale
    }

    /// The scales of e4m3 rows as kernel arguments: the address of per-row scales, or null, and a
    /// common factor.
    pub(crate) fn scales(&self) -> (u64, f32) {
        self.common_scale.map_or_else(|| (self.scales_pointer(), 1.0), |by| (0, by.scale))
    }

    /// The address of the scales of its rows.
    ///
    /// # Panics
    /// If it is not e4m3 with a scale for each row.
    pub(crate) fn scales_pointer(&self) -> u64 {
        self.buffer.pointer + self.scales_offset() as u64
    }

    /// Offset of the scales in bytes: e4m3 rows are whole groups, so that scales are aligned.
    fn scales_offset(&self) -> usize {
        assert_eq!(
            (self.dtype, self.common_scale),
            (CudaDtype::E4m3, None),
            "these rows have no scale each"
        );
        self.rows * self.stride
    }

    /// Its address, and the elements from one row to the next.
    pub(crate) fn ptr_and_stride(&self) -> (u64, usize) {
        (self.buffer.pointer, self.stride)
    }

    pub(crate) fn cuda(&self) -> &CudaDevice {
        &self.buffer.cuda
    }

    /// The number of groups of [`ROW_GROUP`] rows that may be read.
    pub(crate) fn row_groups(&self) -> usize {
        let groups = self.rows.div_ceil(ROW_GROUP);
        assert!(
            groups * ROW_GROUP * self.stride * self.dtype.size() <= self.buffer.allocated,
            "these rows have no capacity for whole groups"
        );
        groups
    }

    /// Fills it with zeros.
    pub(crate) fn clear(&mut self) -> Result<(), CudaError> {
        self.buffer.clear()
    }

    pub(crate) fn buffer_mut(&mut self) -> &mut DeviceBuffer {
        &mut self.buffer
    }

    pub(crate) fn buffer(&self) -> &DeviceBuffer {
        assert_eq!(self.stride, self.cols, "padded rows are only for gemms and losses");
        &self.buffer
    }
}

/// Unsigned integers on the GPU: positions, slots, tokens, gathered rows.
#[derive(Debug)]
pub(crate) struct CudaIndices {
    len: usize,
    max: u32,
    buffer: DeviceBuffer,
}

impl CudaIndices {
    pub(crate) fn new(cuda: &CudaDevice, values: &[u32]) -> Result<Self, CudaError> {
        int(values.len());
        Ok(Self {
            len: values.len(),
            max: values.iter().copied().max().unwrap_or(0),
            buffer: DeviceBuffer::stage(cuda, values)?,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether all are below `limit`.
    pub(crate) fn all_below(&self, limit: usize) -> bool {
        self.len == 0 || (self.max as usize) < limit
    }

    pub(crate) fn pointer(&self) -> u64 {
        self.buffer.pointer
    }
}
