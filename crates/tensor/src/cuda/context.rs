//! An open GPU: its context, kernels, streams and kernel launches.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, DriverError, result as driver, sys};

use super::blas::CublasLt;
use super::module::{FP8_OPT_IN_SHARED, Kernel, Kernels, OPT_IN_SHARED};
use super::stream::{self, CudaEvent, MAX_CACHED_BLOCK, Stream};
use super::{CudaDtype, CudaError, Precision, graph};

/// A handle on a GPU; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct CudaDevice(Arc<CudaHandle>);

/// There may be handles of several precisions for one GPU.
#[derive(Debug)]
struct CudaHandle {
    gpu: Arc<OpenGpu>,
    precision: Precision,
}

#[derive(Debug)]
struct OpenGpu {
    // Fields are dropped in this order: users of the context first.
    extra_streams: Mutex<Vec<Arc<Stream>>>, // created on first use
    main_stream: Arc<Stream>,
    kernels: Kernels,
    context: Arc<CudaContext>,
    deterministic: bool,
    name: String,
    capability: (i32, i32),
}

/// The grid of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchConfig {
    pub(crate) blocks: (usize, usize, usize),
    pub(crate) threads: usize,
    /// Bytes of dynamic shared memory.
    pub(crate) shared_bytes: usize,
}

impl LaunchConfig {
    pub(crate) fn new(blocks: usize, threads: usize) -> Self {
        Self { blocks: (blocks, 1, 1), threads, shared_bytes: 0 }
    }

    /// Enough blocks of 256 threads for `threads` in all.
    pub(crate) fn for_threads(threads: usize) -> Self {
        Self::new(threads.div_ceil(256), 256)
    }

    /// One block per row, of at least `per_row` threads, at most 256.
    pub(crate) fn per_row(rows: usize, per_row: usize) -> Self {
        Self::new(rows, per_row.next_multiple_of(32).clamp(32, 256))
    }
}

/// Upper bound of the static shared memory of the kernels in [`OPT_IN_SHARED`].
const STATIC_SHARED: i32 = 1024;

/// The compute capability whose tensor cores the fp8 kernels are written for.
const FP8_CAPABILITY: (i32, i32) = (9, 0);

/// Maximum number of kernel arguments.
const MAX_KERNEL_ARGS: usize = 80;

/// A kernel argument as eight bytes, of which the kernel reads as many as its parameter's size.
pub(crate) trait KernelArg {
    fn word(self) -> u64;
}

impl KernelArg for u64 {
    fn word(self) -> u64 {
        self
    }
}

impl KernelArg for u32 {
    fn word(self) -> u64 {
        u64::from(self)
    }
}

impl KernelArg for f32 {
    fn word(self) -> u64 {
        u64::from(self.to_bits())
    }
}

impl KernelArg for CudaDtype {
    fn word(self) -> u64 {
        self.code()
    }
}

impl KernelArg for bool {
    fn word(self) -> u64 {
        u64::from(self)
    }
}

/// The arguments of a kernel, in the order of its parameters.
macro_rules! kernel_args {
    ($($value:expr),+ $(,)?) => { &mut [$($crate::cuda::context::KernelArg::word($value)),+] };
}
pub(crate) use kernel_args;

/// Converts a size to the 32 bits that kernels take.
///
/// # Panics
/// If it does not fit 32 bits.
pub(crate) fn int(n: usize) -> u32 {
    u32::try_from(n).unwrap_or_else(|_| panic!("{n} does not fit a kernel's 32-bit size"))
}

impl CudaDevice {
    /// Whether there are a GPU and the libraries to use it; if not, the reason.
    pub(crate) fn availability() -> Result<(), String> {
        // SAFETY: only tries to open the libraries.
        let libraries = unsafe {
            [
                ("the driver (libcuda)", sys::is_culib_present()),
                ("libnvrtc", cudarc::nvrtc::sys::is_culib_present()),
                ("libcublasLt", cudarc::cublaslt::sys::is_culib_present()),
            ]
        };
        if let Some((name, _)) = libraries.iter().find(|(_, present)| !present) {
            return Err(format!("{name} is not on the library path"));
        }
        match CudaContext::device_count() {
            Ok(0) => Err("the driver found no gpu".to_owned()),
            Ok(_) => Ok(()),
            Err(e) => Err(format!("the driver failed to initialize: {:?}", e.0)),
        }
    }

    /// Opens GPU `ordinal`. If `deterministic`, a row's result never depends on other rows.
    pub(crate) fn open(
        ordinal: usize,
        precision: Precision,
        deterministic: bool,
    ) -> Result<Self, CudaError> {
        Self::availability().map_err(CudaError::Unavailable)?;
        let context = CudaContext::new(ordinal).map_err(CudaError::driver("open the gpu"))?;
        // SAFETY: the events only order uses of cudarc's own memory, which is not used.
        unsafe { context.disable_event_tracking() };
        let name = context.name().map_err(CudaError::driver("query its name"))?;
        let capability = context
            .compute_capability()
            .map_err(CudaError::driver("query its compute capability"))?;
        if capability < (8, 0) {
            return Err(CudaError::UnsupportedCapability {
                name,
                major: capability.0,
                minor: capability.1,
            });
        }
        if precision == Precision::Fp8 && capability != FP8_CAPABILITY {
            return Err(CudaError::NoFp8 { name, major: capability.0, minor: capability.1 });
        }
        if !context.has_async_alloc() {
            return Err(CudaError::Unavailable(format!("{name} has no memory pools")));
        }
        configure_mem_pool(&context)?;
        let fp8 = precision == Precision::Fp8;
        let kernels = Kernels::load(capability, fp8)?;
        raise_shared_limit(&context, &kernels, OPT_IN_SHARED)?;
        if fp8 {
            raise_shared_limit(&context, &kernels, FP8_OPT_IN_SHARED)?;
        }
        let main = Stream::open(&context)?;
        let gpu = OpenGpu {
            extra_streams: Mutex::default(),
            main_stream: main,
            kernels,
            context,
            deterministic,
            name,
            capability,
        };
        Ok(Self(Arc::new(CudaHandle { gpu: Arc::new(gpu), precision })))
    }

    /// For a handle of precision fp8, a handle on the same GPU in bf16.
    pub(crate) fn without_fp8(&self) -> Option<Self> {
        let bf16 = || CudaHandle { gpu: self.0.gpu.clone(), precision: Precision::Bf16 };
        (self.0.precision == Precision::Fp8).then(|| Self(Arc::new(bf16())))
    }

    /// The GPU's name.
    pub(crate) fn name(&self) -> &str {
        &self.0.gpu.name
    }

    /// The number of streaming multiprocessors.
    pub(crate) fn sm_count(&self) -> Result<usize, CudaError> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let count = self
            .0
            .gpu
            .context
            .attribute(attribute)
            .map_err(CudaError::driver("query its multiprocessor count"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Its compute capability, major and minor.
    pub(crate) fn capability(&self) -> (i32, i32) {
        self.0.gpu.capability
    }

    pub(crate) fn precision(&self) -> Precision {
        self.0.precision
    }

    /// Whether kernels are selected only by the shape of a map, so that a row's result does not
    /// depend on the number of rows.
    pub(crate) fn is_deterministic(&self) -> bool {
        self.0.gpu.deterministic
    }

    /// The dtype of weights, keys, values and of activations that are multiplied.
    pub(crate) fn compute_dtype(&self) -> CudaDtype {
        match self.0.precision {
            Precision::Bf16 | Precision::Fp8 => CudaDtype::Bf16,
            // `Device::cuda` has rejected int8.
            Precision::F32 | Precision::Int8 => CudaDtype::F32,
        }
    }

    /// The dtype of activations that are only read by a linear map.
    pub(crate) fn operand_dtype(&self) -> CudaDtype {
        match self.0.precision {
            Precision::Fp8 => CudaDtype::E4m3,
            _ => self.compute_dtype(),
        }
    }

    /// An attribute of the memory pool, in bytes.
    fn mem_pool_bytes(&self, attribute: sys::CUmemPool_attribute) -> Result<usize, DriverError> {
        let mut value = 0u64;
        // SAFETY: the device is open; the attribute is a 64-bit integer that outlives the call.
        unsafe {
            let pool = driver::device::get_default_mem_pool(self.0.gpu.context.cu_device())?;
            driver::mem_pool::get_attribute(pool, attribute, (&raw mut value).cast())?;
        }
        Ok(value as usize)
    }

    /// Memory in bytes: free, including the memory cached for reuse, and total.
    pub(crate) fn memory(&self) -> Result<(usize, usize), CudaError> {
        let failed = || CudaError::driver("query its free memory");
        let (free, total) = self.0.gpu.context.mem_get_info().map_err(failed())?;
        let read = |attribute| self.mem_pool_bytes(attribute).map_err(failed());
        let reserved = read(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used = read(sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        let cached: usize = self
            .extra_streams()
            .iter()
            .chain([&self.0.gpu.main_stream])
            .map(|stream| stream.cached_bytes())
            .sum();
        Ok((free + reserved.saturating_sub(used) + cached, total))
    }

    /// Peak of allocated bytes so far, including the memory cached for reuse, and excluding memory
    /// used by the driver and cuBLASLt.
    pub(crate) fn peak_memory(&self) -> Result<usize, CudaError> {
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        self.mem_pool_bytes(attribute).map_err(CudaError::driver("query its memory pool"))
    }

    /// Restarts the measurement of [`Self::peak_memory`].
    pub(crate) fn reset_peak_memory(&self) -> Result<(), CudaError> {
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        let mut zero = 0u64;
        // SAFETY: the device is open; the attribute is a 64-bit integer that outlives the call.
        unsafe {
            driver::device::get_default_mem_pool(self.0.gpu.context.cu_device()).and_then(|pool| {
                driver::mem_pool::set_attribute(pool, attribute, (&raw mut zero).cast())
            })
        }
        .map_err(CudaError::driver("reset its memory pool"))
    }

    /// Waits until everything queued so far on this thread's stream is done; returns its errors.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        self.current_stream().synchronize()
    }

    /// The stream used by this thread.
    pub(crate) fn current_stream(&self) -> Arc<Stream> {
        stream::current(&self.0.gpu.context).unwrap_or_else(|| self.0.gpu.main_stream.clone())
    }

    /// Identifies the stream used by this thread.
    pub(crate) fn stream_id(&self) -> usize {
        self.current_stream().raw_stream() as usize
    }

    /// An event that completes when everything queued so far on this thread's stream has.
    pub(crate) fn record_event(&self) -> Result<CudaEvent, CudaError> {
        self.current_stream().record_event()
    }

    /// The cuBLASLt handle of this thread's stream.
    pub(crate) fn blas(&self) -> Arc<CublasLt> {
        self.current_stream().blas()
    }

    /// Runs `work` on stream `index`, where 0 is the main one. Other streams whose data it reads
    /// must have been synchronized.
    pub(crate) fn on_stream<T>(
        &self,
        index: usize,
        work: impl FnOnce() -> T,
    ) -> Result<T, CudaError> {
        let Some(index) = index.checked_sub(1) else {
            return Ok(stream::with_stream(self.0.gpu.main_stream.clone(), work));
        };
        let mut streams = self.extra_streams();
        while streams.len() <= index {
            streams.push(Stream::open(&self.0.gpu.context)?);
        }
        let stream = streams[index].clone();
        drop(streams);
        Ok(stream::with_stream(stream, work))
    }

    fn extra_streams(&self) -> MutexGuard<'_, Vec<Arc<Stream>>> {
        self.0.gpu.extra_streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream on which this thread's operations are queued: its current stream, or the one that
    /// it captures.
    pub(crate) fn launch_stream(&self) -> Result<sys::CUstream, CudaError> {
        graph::capture_stream(self).map_or_else(|| self.current_stream().staged_stream(), Ok)
    }

    /// Whether both are handles on the same open GPU.
    pub(crate) fn same_device(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.gpu, &other.0.gpu)
    }

    /// The kernels launched so far, sorted by name.
    #[allow(dead_code, reason = "the example cuda_check asks for them")]
    pub(crate) fn launched_kernels(&self) -> Vec<&'static str> {
        self.0.gpu.kernels.launched()
    }

    /// Binds the context to the current thread.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        self.0.gpu.context.bind_to_thread().map_err(CudaError::driver("bind its context"))
    }

    /// Launches a kernel; does nothing if the grid is empty.
    ///
    /// # Safety
    /// The arguments must match the kernel's parameters, its pointers must be valid for its
    /// accesses in the order of this stream, and its outputs must not be accessed by anything that
    /// does not wait for the stream.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &str,
        config: LaunchConfig,
        arguments: &mut [u64],
    ) -> Result<(), CudaError> {
        if config.blocks.0 == 0 || config.blocks.1 == 0 || config.blocks.2 == 0 {
            return Ok(());
        }
        self.bind()?;
        let Kernel { function, pdl } = self.0.gpu.kernels.launch(kernel);
        // A kernel reads the low bytes of each argument, which come first: every host with CUDA is
        // little-endian.
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_KERNEL_ARGS];
        assert!(arguments.len() <= MAX_KERNEL_ARGS, "{kernel} takes too many arguments");
        pointers.iter_mut().zip(arguments).for_each(|(p, a)| *p = (&raw mut *a).cast());
        let mut pdl_attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: int(config.blocks.0),
            gridDimY: int(config.blocks.1),
            gridDimZ: int(config.blocks.2),
            blockDimX: int(config.threads),
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: int(config.shared_bytes),
            hStream: self.launch_stream()?,
            attrs: &raw mut pdl_attribute,
            numAttrs: u32::from(pdl),
        };
        // SAFETY: the function was loaded into this context, and the attribute outlives the call;
        // the rest is guaranteed by the caller.
        unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                function,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
        .map_err(CudaError::driver("launch a kernel"))
    }

    /// Returns the free lists of all streams to the driver and waits until queued frees are done.
    pub(crate) fn release_cached(&self) -> Result<(), CudaError> {
        let streams: Vec<Arc<Stream>> =
            self.extra_streams().iter().chain([&self.0.gpu.main_stream]).cloned().collect();
        streams.iter().try_for_each(|stream| stream.release_cached())
    }

    /// The allocation size for a number of bytes: rounded up by an eighth at most, so that similar
    /// sizes reuse each other's memory.
    pub(crate) fn allocation_size(bytes: usize) -> usize {
        if bytes > MAX_CACHED_BLOCK {
            return bytes;
        }
        let bytes = bytes.max(512);
        bytes.next_multiple_of((bytes.next_power_of_two() / 16).max(512))
    }
}

/// Makes the pool retain freed memory, so that allocations do not synchronize, and prevents streams
/// from waiting for memory that another stream still uses.
fn configure_mem_pool(context: &CudaContext) -> Result<(), CudaError> {
    let mut threshold = u64::MAX;
    let mut reuse_waits = 0i32;
    // SAFETY: the device is open; the attributes are a 64-bit and a 32-bit integer that outlive the
    // calls.
    unsafe {
        let pool = driver::device::get_default_mem_pool(context.cu_device())
            .map_err(CudaError::driver("get its memory pool"))?;
        let attributes = [
            (
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut threshold).cast(),
            ),
            (
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                (&raw mut reuse_waits).cast(),
            ),
        ];
        attributes.into_iter().try_for_each(|(attribute, value)| {
            driver::mem_pool::set_attribute(pool, attribute, value)
        })
    }
    .map_err(CudaError::driver("set up its memory pool"))
}

/// Allows the named kernels to use all shared memory of this GPU.
fn raise_shared_limit(
    context: &CudaContext,
    kernels: &Kernels,
    names: &[&str],
) -> Result<(), CudaError> {
    let max_shared = context
        .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        .map_err(CudaError::driver("query its shared memory"))?;
    let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    for kernel in names {
        // SAFETY: the function was loaded into the current context.
        unsafe {
            driver::function::set_function_attribute(
                kernels.get(kernel).function,
                attribute,
                max_shared - STATIC_SHARED,
            )
        }
        .map_err(CudaError::driver("set a kernel's shared memory"))?;
    }
    Ok(())
}
