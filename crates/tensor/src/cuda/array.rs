//! Memory on the GPU: raw buffers, matrices of numbers, lists of indices.
//!
//! Memory comes from the driver's stream-ordered pool, and what is dropped is kept for the next in its lane who asks for that
//! size. Work in a lane runs in order, so a dropped buffer is safe while kernels of its lane that use it are still to run.

use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::result as driver;

use super::ahead::Berth;
use super::context::{Grid, int, slots};
use super::error::is_out_of_memory;
use super::lane::Lane;
use super::later::Later;
use super::replay::{self, Pool};
use super::{Cuda, CudaError};

/// A format of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Dtype {
    F32,
    Bf16,
}

impl Dtype {
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
pub(crate) const NOTHING: u64 = 0;

/// Memory, given back when dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    cuda: Cuda,
    home: Home,
    pointer: u64,
    bytes: usize,
    piece: usize, // bytes that were taken
}

/// Where memory goes back to.
#[derive(Debug)]
enum Home {
    /// What is spare in its lane.
    Lane(Arc<Lane>),
    Pool(Arc<Pool>),
    /// It was sent ahead of that lane's work; none when it has gone back.
    Berth(Option<Box<(Arc<Lane>, Berth)>>),
}

impl Buffer {
    /// Fresh memory with unspecified contents.
    pub(crate) fn new(cuda: &Cuda, bytes: usize) -> Result<Self, CudaError> {
        Self::with_room(cuda, bytes, bytes)
    }

    /// The same, where up to `room` bytes may be read, whatever they are.
    fn with_room(cuda: &Cuda, bytes: usize, room: usize) -> Result<Self, CudaError> {
        let (piece, pool, lane) = (Cuda::piece(room), replay::pool(cuda), cuda.lane());
        let pointer = match pool.as_ref().and_then(|pool| pool.take(piece)) {
            Some(pointer) => pointer,
            None => {
                let pointer = Self::take(cuda, &lane, (room, piece))?;
                pool.iter().for_each(|pool| pool.adopt(piece, pointer));
                pointer
            }
        };
        let home = pool.map_or_else(|| Home::Lane(lane), Home::Pool);
        Ok(Self { cuda: cuda.clone(), home, pointer, bytes, piece })
    }

    fn take(cuda: &Cuda, lane: &Lane, (bytes, piece): (usize, usize)) -> Result<u64, CudaError> {
        if let Some(pointer) = lane.take_spare(piece) {
            return Ok(pointer);
        }
        cuda.bind()?;
        let take = || {
            // SAFETY: the stream is alive; contents are written before they are read, in this lane.
            unsafe { driver::malloc_async(lane.bare_stream(), piece) }
        };
        let taken = match take() {
            Err(e) if is_out_of_memory(&e) => {
                cuda.release_spare()?; // this, and what was dropped but was still in use, may suffice
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
    pub(crate) fn zeros(cuda: &Cuda, bytes: usize) -> Result<Self, CudaError> {
        let mut buffer = Self::new(cuda, bytes)?;
        buffer.clear()?;
        Ok(buffer)
    }

    /// Fills it with zeros.
    pub(crate) fn clear(&mut self) -> Result<(), CudaError> {
        self.cuda.bind()?;
        // SAFETY: the memory is as long and used in this lane's order.
        unsafe { driver::memset_d8_async(self.pointer, 0, self.bytes, self.cuda.stream()?) }
            .map_err(CudaError::driver("clear memory"))
    }

    /// Memory with these contents, for what is needed soon and not for long: they go ahead of the work that needs them.
    pub(crate) fn send<T: Pod>(cuda: &Cuda, values: &[T]) -> Result<Self, CudaError> {
        // A recording's inputs have their places, and are few.
        if replay::pool(cuda).is_none() {
            let (lane, bytes) = (cuda.lane(), size_of_val(values));
            if let Some(berth) = lane.send_ahead(values)? {
                let (pointer, home) = (berth.pointer(), Home::Berth(Some(Box::new((lane, berth)))));
                return Ok(Self { cuda: cuda.clone(), home, pointer, bytes, piece: bytes });
            }
        }
        Self::upload(cuda, values)
    }

    /// Memory with these contents.
    pub(crate) fn upload<T: Pod>(cuda: &Cuda, values: &[T]) -> Result<Self, CudaError> {
        let buffer = Self::new(cuda, size_of_val(values))?;
        if !values.is_empty() {
            assert!(replay::stream(cuda).is_none(), "upload: not part of what can be recorded");
            cuda.bind()?;
            // SAFETY: as long as `values`; the driver copies pageable memory before it returns.
            unsafe { driver::memcpy_htod_async(buffer.pointer, values, cuda.stream()?) }
                .map_err(CudaError::driver("take data"))?;
        }
        Ok(buffer)
    }

    /// Its contents from byte `from` on, once everything asked for so far is done.
    pub(crate) fn download<T: Pod>(&self, from: usize, into: &mut [T]) -> Result<(), CudaError> {
        assert!(from + size_of_val(into) <= self.bytes, "download: {} bytes of {}", from + size_of_val(into), self.bytes);
        if into.is_empty() {
            return Ok(());
        }
        assert!(replay::stream(&self.cuda).is_none(), "download: not part of what can be recorded");
        self.cuda.bind()?;
        // SAFETY: inside the buffer, and `into` is not touched until the stream has been waited for.
        unsafe { driver::memcpy_dtoh_async(into, self.pointer + from as u64, self.cuda.stream()?) }
            .map_err(CudaError::driver("bring data back"))?;
        self.cuda.synchronize()
    }

    /// Asks for its contents, and lets the host go on.
    pub(crate) fn download_later<T: Pod>(&self) -> Result<Later<T>, CudaError> {
        assert!(replay::stream(&self.cuda).is_none(), "download: not part of what can be recorded");
        // SAFETY: inside the buffer, which is used in this lane's order even when it is dropped.
        unsafe { Later::ask(&self.cuda, self.pointer, self.bytes / size_of::<T>()) }
    }

    /// Copies all of `other` to byte `at` of this.
    pub(crate) fn copy_from(&mut self, at: usize, other: &Self) -> Result<(), CudaError> {
        assert!(at + other.bytes <= self.bytes, "copy: {} bytes at {at} of {}", other.bytes, self.bytes);
        assert!(self.cuda.is(&other.cuda), "copy: between two gpus");
        if other.bytes == 0 {
            return Ok(());
        }
        self.cuda.bind()?;
        // SAFETY: both reach that far and are used in this lane's order.
        unsafe { driver::memcpy_dtod_async(self.pointer + at as u64, other.pointer, other.bytes, self.cuda.stream()?) }
            .map_err(CudaError::driver("copy"))
    }

    pub(crate) fn pointer(&self) -> u64 {
        self.pointer
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &mut self.home {
            Home::Lane(lane) => lane.give_back(self.piece, self.pointer),
            Home::Pool(pool) => pool.put(self.pointer),
            Home::Berth(sent) => {
                if let Some((lane, berth)) = sent.take().map(|sent| *sent) {
                    lane.take_back(berth);
                }
            }
        }
    }
}

/// Rows that the copy engine reads at a time: there is room for as many where they are read so, even if the last are not there.
const EIGHT: usize = 8;

/// A row-major matrix on the GPU. There may be zeros between its rows: only products and losses know of these.
#[derive(Debug)]
pub(crate) struct Array {
    rows: usize,
    cols: usize,
    stride: usize, // numbers from one row to the next
    dtype: Dtype,
    buffer: Buffer, // (rows, stride)
}

impl Array {
    /// A matrix with unspecified contents, to be written whole.
    pub(crate) fn uninit(cuda: &Cuda, rows: usize, cols: usize, dtype: Dtype) -> Result<Self, CudaError> {
        Self::uninit_apart(cuda, rows, (cols, cols), dtype)
    }

    /// The same with `stride` numbers from one row to the next. What is between rows must be written as zeros.
    pub(crate) fn uninit_apart(
        cuda: &Cuda,
        rows: usize,
        (cols, stride): (usize, usize),
        dtype: Dtype,
    ) -> Result<Self, CudaError> {
        let bytes = |rows: usize| rows * stride * dtype.size();
        let buffer = Buffer::with_room(cuda, bytes(rows), bytes(rows.next_multiple_of(EIGHT)))?;
        Ok(Self { rows, cols, stride, dtype, buffer })
    }

    /// A matrix of zeros.
    pub(crate) fn zeros(cuda: &Cuda, rows: usize, cols: usize, dtype: Dtype) -> Result<Self, CudaError> {
        let mut out = Self::uninit(cuda, rows, cols, dtype)?;
        out.buffer.clear()?;
        Ok(out)
    }

    /// A matrix of f32 from its numbers.
    pub(crate) fn from_host(cuda: &Cuda, rows: usize, cols: usize, values: &[f32]) -> Result<Self, CudaError> {
        assert_eq!(values.len(), rows * cols, "a {rows} x {cols} matrix needs that many numbers");
        Ok(Self { rows, cols, stride: cols, dtype: Dtype::F32, buffer: Buffer::upload(cuda, values)? })
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
            Dtype::F32 => {
                let mut out = vec![0.0; self.rows * self.stride];
                self.buffer.download(0, &mut out)?;
                out
            }
            Dtype::Bf16 => {
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
    pub(crate) fn cast(&self, dtype: Dtype) -> Result<Self, CudaError> {
        self.scaled(1.0, dtype)
    }

    /// `by` times the numbers, in a format.
    pub(crate) fn scaled(&self, by: f32, dtype: Dtype) -> Result<Self, CudaError> {
        let out = Self::uninit(self.cuda(), self.rows, self.cols, dtype)?;
        let count = (self.rows * self.cols) as u64;
        let grid = Grid::over((self.rows * self.cols).div_ceil(4));
        // SAFETY: `scale` reads and writes `count` elements, which both have.
        unsafe { self.cuda().launch("scale", grid, slots![self.pointer(), self.dtype, out.pointer(), dtype, by, count]) }?;
        Ok(out)
    }

    /// A matrix of the same shape with unspecified contents, to be written whole.
    pub(crate) fn alike(&self) -> Result<Self, CudaError> {
        Self::uninit_apart(self.cuda(), self.rows, (self.cols, self.stride), self.dtype)
    }

    /// A copy.
    pub(crate) fn copy(&self) -> Result<Self, CudaError> {
        let mut out = self.alike()?;
        out.buffer.copy_from(0, &self.buffer)?;
        Ok(out)
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Where it begins, for those who expect row after row.
    pub(crate) fn pointer(&self) -> u64 {
        self.buffer().pointer
    }

    /// Where it begins, and how many numbers there are from one row to the next.
    pub(crate) fn rows_at(&self) -> (u64, usize) {
        (self.buffer.pointer, self.stride)
    }

    pub(crate) fn cuda(&self) -> &Cuda {
        &self.buffer.cuda
    }

    /// How many eights of rows may be read.
    pub(crate) fn eights(&self) -> usize {
        let eights = self.rows.div_ceil(EIGHT);
        assert!(eights * EIGHT * self.stride * self.dtype.size() <= self.buffer.piece, "these rows do not come in eights");
        eights
    }

    pub(crate) fn buffer_mut(&mut self) -> &mut Buffer {
        &mut self.buffer
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        assert_eq!(self.stride, self.cols, "these rows are apart: they are for products and losses alone");
        &self.buffer
    }
}

/// Whole numbers on the GPU: positions, slots, tokens, picked rows. Uploaded once, used by every layer.
#[derive(Debug)]
pub(crate) struct Indices {
    len: usize,
    most: u32,
    buffer: Buffer,
}

impl Indices {
    /// Uploads them.
    pub(crate) fn new(cuda: &Cuda, values: &[u32]) -> Result<Self, CudaError> {
        int(values.len());
        Ok(Self { len: values.len(), most: values.iter().copied().max().unwrap_or(0), buffer: Buffer::send(cuda, values)? })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether all are below `limit`.
    pub(crate) fn all_below(&self, limit: usize) -> bool {
        self.len == 0 || (self.most as usize) < limit
    }

    pub(crate) fn pointer(&self) -> u64 {
        self.buffer.pointer
    }
}
