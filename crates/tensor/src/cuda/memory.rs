//! Memory on the GPU: raw buffers, matrices of numbers, lists of indices.
//!
//! Memory comes from the driver's stream-ordered pool, and what is dropped is kept for the next in
//! its lane who asks for that size. Work in a lane runs in order, so a dropped buffer is safe while
//! kernels of its lane that use it are still to run.

use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::result as driver;

use super::context::{LaunchConfig, int, kernel_args};
use super::driver::is_out_of_memory;
use super::graph::{self, GraphPool};
use super::readback::Readback;
use super::staging::StagingBuffer;
use super::stream::Stream;
use super::{CudaDevice, CudaDtype, CudaError};

impl CudaDtype {
    /// Bytes of one number.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// What kernels call it (prelude.cuh).
    pub(crate) fn code(self) -> u64 {
        match self {
            Self::F32 => 1,
            Self::Bf16 => 2,
        }
    }
}

/// What kernels call the absence of an array.
pub(crate) const DTYPE_NONE: u64 = 0;

/// Memory, given back when dropped.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    cuda: CudaDevice,
    origin: BufferOrigin,
    pointer: u64,
    bytes: usize,
    allocated: usize, // bytes that were taken
}

/// Where memory goes back to.
#[derive(Debug)]
enum BufferOrigin {
    /// What is spare in its lane.
    FreeList(Arc<Stream>),
    GraphPool(Arc<GraphPool>),
    /// It was sent ahead of that lane's work; none when it has gone back.
    Staging(Option<Box<(Arc<Stream>, StagingBuffer)>>),
}

impl DeviceBuffer {
    /// Fresh memory with unspecified contents.
    pub(crate) fn new(cuda: &CudaDevice, bytes: usize) -> Result<Self, CudaError> {
        Self::with_capacity(cuda, bytes, bytes)
    }

    /// The same, where up to `room` bytes may be read, whatever they are.
    fn with_capacity(cuda: &CudaDevice, bytes: usize, room: usize) -> Result<Self, CudaError> {
        let (piece, pool, lane) =
            (CudaDevice::allocation_size(room), graph::current_pool(cuda), cuda.current_stream());
        let pointer = match pool.as_ref().and_then(|pool| pool.take(piece)) {
            Some(pointer) => pointer,
            None => {
                let pointer = Self::allocate(cuda, &lane, (room, piece))?;
                pool.iter().for_each(|pool| pool.adopt(piece, pointer));
                pointer
            }
        };
        let home = pool.map_or_else(|| BufferOrigin::FreeList(lane), BufferOrigin::GraphPool);
        Ok(Self { cuda: cuda.clone(), origin: home, pointer, bytes, allocated: piece })
    }

    fn allocate(
        cuda: &CudaDevice,
        lane: &Stream,
        (bytes, piece): (usize, usize),
    ) -> Result<u64, CudaError> {
        if let Some(pointer) = lane.take_cached(piece) {
            return Ok(pointer);
        }
        cuda.bind()?;
        let take = || {
            // SAFETY: the stream is alive; contents are written before they are read, in this lane.
            unsafe { driver::malloc_async(lane.raw_stream(), piece) }
        };
        let taken = match take() {
            Err(e) if is_out_of_memory(&e) => {
                cuda.release_cached()?; // this, and what was dropped but was still in use, may suffice
                take()
            }
            other => other,
        };
        match taken {
            Ok(pointer) => Ok(pointer),
            Err(e) if is_out_of_memory(&e) => {
                let (free, total) = cuda.memory()?;
                Err(CudaError::OutOfMemory { bytes, free, total })
            }
            Err(e) => Err(CudaError::driver("give memory")(e)),
        }
    }

    /// Memory filled with zeros.
    pub(crate) fn zeros(cuda: &CudaDevice, bytes: usize) -> Result<Self, CudaError> {
        let mut buffer = Self::new(cuda, bytes)?;
        buffer.clear()?;
        Ok(buffer)
    }

    /// Fills it with zeros.
    pub(crate) fn clear(&mut self) -> Result<(), CudaError> {
        self.cuda.bind()?;
        // SAFETY: the memory is as long and used in this lane's order.
        unsafe { driver::memset_d8_async(self.pointer, 0, self.bytes, self.cuda.launch_stream()?) }
            .map_err(CudaError::driver("clear memory"))
    }

    /// Memory with these contents, for what is needed soon and not for long: they go ahead of the
    /// work that needs them.
    pub(crate) fn stage<T: Pod>(cuda: &CudaDevice, values: &[T]) -> Result<Self, CudaError> {
        // A recording's inputs have their places, and are few.
        if graph::current_pool(cuda).is_none() {
            let (lane, bytes) = (cuda.current_stream(), size_of_val(values));
            if let Some(berth) = lane.stage(values)? {
                let (pointer, home) =
                    (berth.device_ptr(), BufferOrigin::Staging(Some(Box::new((lane, berth)))));
                return Ok(Self {
                    cuda: cuda.clone(),
                    origin: home,
                    pointer,
                    bytes,
                    allocated: bytes,
                });
            }
        }
        Self::upload(cuda, values)
    }

    /// Memory with these contents.
    pub(crate) fn upload<T: Pod>(cuda: &CudaDevice, values: &[T]) -> Result<Self, CudaError> {
        let buffer = Self::new(cuda, size_of_val(values))?;
        if !values.is_empty() {
            assert!(
                graph::capture_stream(cuda).is_none(),
                "upload: not part of what can be recorded"
            );
            cuda.bind()?;
            // SAFETY: as long as `values`; the driver copies pageable memory before it returns.
            unsafe { driver::memcpy_htod_async(buffer.pointer, values, cuda.launch_stream()?) }
                .map_err(CudaError::driver("take data"))?;
        }
        Ok(buffer)
    }

    /// Its contents from byte `from` on, once everything asked for so far is done.
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
            "download: not part of what can be recorded"
        );
        self.cuda.bind()?;
        // SAFETY: inside the buffer, and `into` is not touched until the stream has been waited
        // for.
        unsafe {
            driver::memcpy_dtoh_async(into, self.pointer + from as u64, self.cuda.launch_stream()?)
        }
        .map_err(CudaError::driver("bring data back"))?;
        self.cuda.synchronize()
    }

    /// Asks for its contents, and lets the host go on.
    pub(crate) fn download_async<T: Pod>(&self) -> Result<Readback<T>, CudaError> {
        assert!(
            graph::capture_stream(&self.cuda).is_none(),
            "download: not part of what can be recorded"
        );
        // SAFETY: inside the buffer, which is used in this lane's order even when it is dropped.
        unsafe { Readback::start(&self.cuda, self.pointer, self.bytes / size_of::<T>()) }
    }

    /// Copies all of `other` to byte `at` of this.
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
        // SAFETY: both reach that far and are used in this lane's order.
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
            BufferOrigin::FreeList(lane) => lane.free(self.allocated, self.pointer),
            BufferOrigin::GraphPool(pool) => pool.free(self.pointer),
            BufferOrigin::Staging(sent) => {
                if let Some((lane, berth)) = sent.take().map(|sent| *sent) {
                    lane.release_staging(berth);
                }
            }
        }
    }
}

/// Rows that the copy engine reads at a time: there is room for as many where they are read so,
/// even if the last are not there.
const ROW_GROUP: usize = 8;

/// A row-major matrix on the GPU. There may be zeros between its rows: only products and losses
/// know of these.
#[derive(Debug)]
pub(crate) struct CudaTensor {
    rows: usize,
    cols: usize,
    stride: usize, // numbers from one row to the next
    dtype: CudaDtype,
    buffer: DeviceBuffer, // (rows, stride)
}

impl CudaTensor {
    /// A matrix with unspecified contents, to be written whole.
    pub(crate) fn uninit(
        cuda: &CudaDevice,
        rows: usize,
        cols: usize,
        dtype: CudaDtype,
    ) -> Result<Self, CudaError> {
        Self::uninit_strided(cuda, rows, (cols, cols), dtype)
    }

    /// The same with `stride` numbers from one row to the next. What is between rows must be
    /// written as zeros.
    pub(crate) fn uninit_strided(
        cuda: &CudaDevice,
        rows: usize,
        (cols, stride): (usize, usize),
        dtype: CudaDtype,
    ) -> Result<Self, CudaError> {
        let bytes = |rows: usize| rows * stride * dtype.size();
        let buffer = DeviceBuffer::with_capacity(
            cuda,
            bytes(rows),
            bytes(rows.next_multiple_of(ROW_GROUP)),
        )?;
        Ok(Self { rows, cols, stride, dtype, buffer })
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

    /// A matrix of f32 from its numbers.
    pub(crate) fn from_host(
        cuda: &CudaDevice,
        rows: usize,
        cols: usize,
        values: &[f32],
    ) -> Result<Self, CudaError> {
        assert_eq!(values.len(), rows * cols, "a {rows} x {cols} matrix needs that many numbers");
        Ok(Self {
            rows,
            cols,
            stride: cols,
            dtype: CudaDtype::F32,
            buffer: DeviceBuffer::upload(cuda, values)?,
        })
    }

    /// Sees the same numbers in rows of another length.
    pub(crate) fn set_shape(&mut self, rows: usize, cols: usize) {
        assert_eq!(self.stride, self.cols, "array: rows that are apart keep their shape");
        assert_eq!(self.rows * self.cols, rows * cols, "array: as many numbers in another shape");
        (self.rows, self.cols, self.stride) = (rows, cols, cols);
    }

    /// Its numbers, once everything asked for so far is done.
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
        };
        Ok(match self.stride == self.cols {
            true => all,
            false => all.chunks(self.stride).flat_map(|row| &row[..self.cols]).copied().collect(),
        })
    }

    /// The same numbers in another format.
    pub(crate) fn cast(&self, dtype: CudaDtype) -> Result<Self, CudaError> {
        self.scaled(1.0, dtype)
    }

    /// `by` times the numbers, in a format.
    pub(crate) fn scaled(&self, by: f32, dtype: CudaDtype) -> Result<Self, CudaError> {
        let out = Self::uninit(self.cuda(), self.rows, self.cols, dtype)?;
        let count = (self.rows * self.cols) as u64;
        let grid = LaunchConfig::for_threads((self.rows * self.cols).div_ceil(4));
        // SAFETY: `scale` reads and writes `count` elements, which both have.
        unsafe {
            self.cuda().launch(
                "scale",
                grid,
                kernel_args![self.pointer(), self.dtype, out.pointer(), dtype, by, count],
            )
        }?;
        Ok(out)
    }

    /// A matrix of the same shape with unspecified contents, to be written whole.
    pub(crate) fn uninit_like(&self) -> Result<Self, CudaError> {
        Self::uninit_strided(self.cuda(), self.rows, (self.cols, self.stride), self.dtype)
    }

    /// A copy.
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

    /// Where it begins, for those who expect row after row.
    pub(crate) fn pointer(&self) -> u64 {
        self.buffer().pointer
    }

    /// Where it begins, and how many numbers there are from one row to the next.
    pub(crate) fn ptr_and_stride(&self) -> (u64, usize) {
        (self.buffer.pointer, self.stride)
    }

    pub(crate) fn cuda(&self) -> &CudaDevice {
        &self.buffer.cuda
    }

    /// How many eights of rows may be read.
    pub(crate) fn row_groups(&self) -> usize {
        let eights = self.rows.div_ceil(ROW_GROUP);
        assert!(
            eights * ROW_GROUP * self.stride * self.dtype.size() <= self.buffer.allocated,
            "these rows do not come in eights"
        );
        eights
    }

    /// Fills it with zeros.
    pub(crate) fn clear(&mut self) -> Result<(), CudaError> {
        self.buffer.clear()
    }

    pub(crate) fn buffer_mut(&mut self) -> &mut DeviceBuffer {
        &mut self.buffer
    }

    pub(crate) fn buffer(&self) -> &DeviceBuffer {
        assert_eq!(
            self.stride, self.cols,
            "these rows are apart: they are for products and losses alone"
        );
        &self.buffer
    }
}

/// Whole numbers on the GPU: positions, slots, tokens, picked rows. Uploaded once, used by every
/// layer.
#[derive(Debug)]
pub(crate) struct CudaIndices {
    len: usize,
    max: u32,
    buffer: DeviceBuffer,
}

impl CudaIndices {
    /// Uploads them.
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
