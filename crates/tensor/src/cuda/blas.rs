//! GEMM, row-major: `out[rows, outputs] = x[rows, inputs] . W`, W stored (outputs, inputs); for
//! gradients one or both operands may be transposed, and the result accumulated.
//!
//! bf16 operands are multiplied by cuBLASLt, on a deterministic device by [`mma_gemm`] (except for
//! gradients); f32 operands by [`f32_gemm`]. cuBLASLt is column-major, so it computes `out^T = W
//! x^T`: W read (inputs, outputs) and transposed, x^T as it is in memory. Descriptors and
//! algorithms are cached by shape; a lookup costs less than a launch.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver::{CudaContext, result as driver};

use super::{CudaDevice, CudaDtype, CudaError, f32_gemm, mma_gemm};

/// Workspace for split-K algorithms; NVIDIA advises 32 MiB for Hopper.
const WORKSPACE: usize = 64 << 20;
/// Algorithms requested from the heuristic; the first supported one is used.
const CANDIDATES: usize = 8;

/// cublasOperation_t's CUBLAS_OP_N and CUBLAS_OP_T.
const OP_N: i32 = 0;
const OP_T: i32 = 1;

/// The epilogue that is fused into a GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BlasEpilogue {
    None,
    Bias,
    /// Bias, then tanh-GELU.
    BiasGelu,
}

/// The shape and dtypes of a GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GemmShape {
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    /// Elements from one row of the result to the next.
    pub(crate) stride: usize,
    pub(crate) operand: CudaDtype,
    pub(crate) out: CudaDtype,
    pub(crate) epilogue: BlasEpilogue,
}

/// The layout of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GemmOperand {
    /// x is stored (inputs, rows) instead of (rows, inputs); weights (inputs, outputs) instead of
    /// (outputs, inputs).
    pub(crate) transposed: bool,
    /// Elements from one stored row to the next.
    pub(crate) stride: usize,
}

/// The key for the choice of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gemm {
    pub(crate) shape: GemmShape,
    pub(crate) x: GemmOperand,
    pub(crate) weights: GemmOperand,
    /// `out +=` instead of `out =`.
    pub(crate) accumulate: bool,
}

impl From<GemmShape> for Gemm {
    fn from(shape: GemmShape) -> Self {
        let operand = GemmOperand { transposed: false, stride: shape.inputs };
        Self { shape, x: operand, weights: operand, accumulate: false }
    }
}

/// The matrices' addresses. `bias` has the result's dtype, and is read if the epilogue has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GemmPointers {
    pub(crate) x: u64,
    pub(crate) weights: u64,
    pub(crate) bias: u64,
    pub(crate) out: u64,
}

/// The cuBLASLt handle of one stream, its workspace, and plans by shape.
#[derive(Debug)]
pub(crate) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    workspace: u64,
    plans: Mutex<HashMap<Gemm, Option<MatmulPlan>>>, // None: not supported
}

// SAFETY: every thread may use the handle; plans are behind a lock; the workspace is used in the
// stream's order.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

#[derive(Debug)]
struct MatmulPlan {
    descriptor: sys::cublasLtMatmulDesc_t,
    weights: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl CublasLt {
    /// Creates a handle for the current context.
    pub(crate) fn new(context: &CudaContext) -> Result<Self, CudaError> {
        context.bind_to_thread().map_err(CudaError::driver("bind its context"))?;
        let handle = lt::create_handle().map_err(CudaError::blas("start cublaslt"))?;
        // SAFETY: freed once, when this is dropped.
        let workspace = unsafe { driver::malloc_sync(WORKSPACE) }
            .map_err(CudaError::driver("allocate cublaslt's workspace"))?;
        Ok(Self { handle, workspace, plans: Mutex::default() })
    }

    /// Whether there is an algorithm for this shape with its epilogue.
    pub(crate) fn supports(&self, cuda: &CudaDevice, shape: GemmShape) -> bool {
        if shape.operand == CudaDtype::F32 {
            return f32_gemm::supports(shape.epilogue);
        }
        if cuda.is_deterministic() {
            return mma_gemm::supports(shape.epilogue);
        }
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        self.plan(&mut plans, shape.into()).is_some()
    }

    /// Queues a GEMM on this thread's stream.
    ///
    /// # Safety
    /// The pointers must be valid for the shape and dtypes, in the order of this stream.
    pub(crate) unsafe fn gemm(
        &self,
        cuda: &CudaDevice,
        gemm: impl Into<Gemm>,
        at: GemmPointers,
    ) -> Result<(), CudaError> {
        let gemm = gemm.into();
        let shape = gemm.shape;
        if shape.rows == 0 || shape.outputs == 0 {
            return Ok(());
        }
        if shape.operand == CudaDtype::F32 {
            // SAFETY: guaranteed by the caller.
            return unsafe { f32_gemm::gemm(cuda, gemm, at) };
        }
        if cuda.is_deterministic() && mma_gemm::takes(&gemm) {
            // SAFETY: guaranteed by the caller.
            return unsafe { mma_gemm::gemm(cuda, gemm, at) };
        }
        let failed = |reason: String| CudaError::Matmul {
            rows: shape.rows,
            inputs: shape.inputs,
            outputs: shape.outputs,
            reason,
        };
        cuda.bind()?;
        let stream = cuda.launch_stream()?;
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(plan) = self.plan(&mut plans, gemm) else {
            return Err(failed("no algorithm".to_owned()));
        };
        let alpha = 1.0f32;
        let beta = if gemm.accumulate { 1.0f32 } else { 0.0 };
        // SAFETY: the plan is alive while the lock is held, and cuBLASLt reads it, alpha and beta
        // during the call; the matrices are guaranteed by the caller.
        unsafe {
            if shape.epilogue != BlasEpilogue::None {
                set_attribute(
                    plan.descriptor,
                    sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                    &at.bias,
                )
                .map_err(|e| failed(format!("{:?}", e.0)))?;
            }
            lt::matmul(
                self.handle,
                plan.descriptor,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                at.weights as *const c_void,
                plan.weights,
                at.x as *const c_void,
                plan.x,
                at.out as *const c_void,
                plan.out,
                at.out as *mut c_void,
                plan.out,
                &plan.algorithm,
                self.workspace as *mut c_void,
                WORKSPACE,
                stream.cast(),
            )
        }
        .map_err(|e| failed(format!("{:?}", e.0)))
    }

    fn plan<'a>(
        &self,
        plans: &'a mut HashMap<Gemm, Option<MatmulPlan>>,
        gemm: Gemm,
    ) -> Option<&'a MatmulPlan> {
        plans.entry(gemm).or_insert_with(|| MatmulPlan::new(self.handle, gemm).ok()).as_ref()
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.plans.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        // SAFETY: both were created by `new` and are freed once; freeing waits for kernels that use
        // the workspace.
        unsafe {
            driver::free_sync(self.workspace).ok();
            lt::destroy_handle(self.handle).ok();
        }
    }
}

fn data_type(dtype: CudaDtype) -> sys::cudaDataType {
    match dtype {
        CudaDtype::F32 => sys::cudaDataType::CUDA_R_32F,
        CudaDtype::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        CudaDtype::E4m3 => unreachable!("e4m3 uses the Hopper gemm"),
    }
}

/// # Safety
/// The descriptor must be alive, and the attribute of `T`'s type.
unsafe fn set_attribute<T>(
    descriptor: sys::cublasLtMatmulDesc_t,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: &T,
) -> Result<(), lt::CublasError> {
    // SAFETY: `value` has the size that is passed.
    unsafe {
        lt::set_matmul_desc_attribute(
            descriptor,
            attribute,
            std::ptr::from_ref(value).cast(),
            size_of::<T>(),
        )
    }
}

impl MatmulPlan {
    fn new(handle: sys::cublasLtHandle_t, gemm: Gemm) -> Result<Self, lt::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let GemmShape { rows, inputs, outputs, stride, operand, out, epilogue } = gemm.shape;
        // Accumulate in plain f32.
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let mut plan = Self {
            descriptor: lt::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)?,
            weights: std::ptr::null_mut(),
            x: std::ptr::null_mut(),
            out: std::ptr::null_mut(),
            // SAFETY: an array of integers, of which zeros are valid; overwritten below.
            algorithm: unsafe { std::mem::zeroed() },
        };
        // Column-major: `rows` is the contiguous dimension, unless the operand is transposed.
        let layout = |of: GemmOperand, rows: usize, cols: usize| {
            let (rows, cols) = if of.transposed { (cols, rows) } else { (rows, cols) };
            let dtype = data_type(operand);
            lt::create_matrix_layout(dtype, rows as u64, cols as u64, of.stride as i64)
        };
        plan.weights = layout(gemm.weights, inputs, outputs)?;
        plan.x = layout(gemm.x, inputs, rows)?;
        plan.out =
            lt::create_matrix_layout(data_type(out), outputs as u64, rows as u64, stride as i64)?;
        let kind = match epilogue {
            BlasEpilogue::None => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            BlasEpilogue::Bias => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            BlasEpilogue::BiasGelu => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_BIAS,
        };
        // SAFETY: the descriptor is alive; each attribute has the type that cuBLASLt documents.
        unsafe {
            let weights = if gemm.weights.transposed { OP_N } else { OP_T };
            let x = if gemm.x.transposed { OP_T } else { OP_N };
            set_attribute(plan.descriptor, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &weights)?;
            set_attribute(plan.descriptor, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &x)?;
            set_attribute(plan.descriptor, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &kind)?;
            if epilogue != BlasEpilogue::None {
                set_attribute(
                    plan.descriptor,
                    Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                    &data_type(out),
                )?;
            }
        }
        plan.algorithm = plan.choose_algorithm(handle)?;
        Ok(plan)
    }

    /// The algorithm that cuBLASLt's heuristic ranks first.
    fn choose_algorithm(
        &self,
        handle: sys::cublasLtHandle_t,
    ) -> Result<sys::cublasLtMatmulAlgo_t, lt::CublasError> {
        let preference = lt::create_matmul_pref()?;
        let attribute =
            sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let workspace = WORKSPACE as u64;
        // SAFETY: an array of plain structs, of which zeros are valid; only those reported as found
        // are read.
        let mut found: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] =
            unsafe { std::mem::zeroed() };
        let mut count = 0;
        // SAFETY: all descriptors are alive, the attribute is a 64-bit integer, and `found` holds
        // as many as are requested.
        let queried = unsafe {
            lt::set_matmul_pref_attribute(
                preference,
                attribute,
                (&raw const workspace).cast(),
                size_of::<u64>(),
            )
            .and_then(|()| {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    handle,
                    self.descriptor,
                    self.weights,
                    self.x,
                    self.out,
                    self.out,
                    preference,
                    CANDIDATES as i32,
                    found.as_mut_ptr(),
                    &mut count,
                )
                .result()
            })
        };
        // SAFETY: created above and destroyed once.
        unsafe { lt::destroy_matmul_pref(preference) }?;
        queried?;
        let runs = |f: &&sys::cublasLtMatmulHeuristicResult_t| {
            f.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS
        };
        let first = found[..usize::try_from(count).unwrap_or(0)].iter().find(runs);
        first
            .map(|f| f.algo)
            .ok_or(lt::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED))
    }
}

impl Drop for MatmulPlan {
    fn drop(&mut self) {
        // SAFETY: each was created by `new` or is null, and is destroyed once. A failure cannot be
        // returned.
        unsafe {
            lt::destroy_matmul_desc(self.descriptor).ok();
            for layout in [self.weights, self.x, self.out] {
                if !layout.is_null() {
                    lt::destroy_matrix_layout(layout).ok();
                }
            }
        }
    }
}
