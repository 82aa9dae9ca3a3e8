//! What comes back from the GPU while the host does other things.
//!
//! Copies into memory that is not page-locked make the host wait at once. Locking takes long, so pages are kept by the lane
//! ([`Lane`]) and used again.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaContext, result as driver};

use super::lane::{Event, Lane};
use super::{Cuda, CudaError};

/// The smallest page: locking costs the same for fewer bytes.
const SMALLEST: usize = 64 << 10;

/// Page-locked memory of the host.
#[derive(Debug)]
pub(crate) struct Page {
    address: *mut c_void,
    bytes: usize,
    context: Arc<CudaContext>,
}

// SAFETY: memory that one owner at a time reads, on any thread.
unsafe impl Send for Page {}

impl Page {
    /// A page of at least so many bytes.
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, CudaError> {
        let failed = || CudaError::driver("lock memory of the host");
        let bytes = bytes.next_power_of_two().max(SMALLEST);
        context.bind_to_thread().map_err(failed())?;
        // SAFETY: freed once, when this is dropped.
        let address = unsafe { driver::malloc_host(bytes, 0) }.map_err(failed())?;
        // SAFETY: just taken, as long as that; from here on its contents are specified.
        unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { address, bytes, context: context.clone() })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: taken by `new` and freed once; a lane waits for its copies before it drops its pages. A failure has nobody
            // to be told to.
            unsafe { driver::free_host(self.address) }.ok();
        }
    }
}

/// Numbers that were asked for and come when everything asked for before them is done.
#[derive(Debug)]
pub(crate) struct Later<T> {
    lane: Arc<Lane>, // that the page goes back to
    page: Option<Page>,
    count: usize,
    here: Event,
    numbers: PhantomData<T>,
}

impl<T: Pod> Later<T> {
    /// Asks for `count` numbers from `from` on.
    ///
    /// # Safety
    /// There must be as many on the GPU, in memory that is used in the order of this thread's lane.
    pub(crate) unsafe fn ask(cuda: &Cuda, from: u64, count: usize) -> Result<Self, CudaError> {
        let lane = cuda.lane();
        let page = lane.take_page(count * size_of::<T>())?;
        if count > 0 {
            // SAFETY: the page is that long, and nobody looks at it before `here`; the caller vouches for `from`.
            let copied = unsafe {
                let into = std::slice::from_raw_parts_mut(page.address.cast::<T>(), count);
                driver::memcpy_dtoh_async(into, from, lane.stream())
            };
            copied.map_err(CudaError::driver("bring data back"))?;
        }
        let here = lane.moment()?;
        Ok(Self { lane, page: Some(page), count, here, numbers: PhantomData })
    }

    /// The numbers, once they are here.
    pub(crate) fn read(self) -> Result<Vec<T>, CudaError> {
        self.here.wait()?;
        let Some(page) = &self.page else { return Ok(Vec::new()) };
        // SAFETY: the page begins at a multiple of every alignment and holds as many numbers, which any bits are.
        Ok(unsafe { std::slice::from_raw_parts(page.address.cast::<T>(), self.count) }.to_vec())
    }
}

impl<T> Drop for Later<T> {
    fn drop(&mut self) {
        if let Some(page) = self.page.take() {
            self.lane.give_page(page);
        }
    }
}
