//! Matrix products through cuBLASLt, row-major: `out[rows, outputs] = x[rows, inputs] . W`, W
//! stored (outputs, inputs); and those of gradients, where one or both are stored the other way and
//! the result is added to what is there.
//!
//! cuBLASLt counts columns first, so it is asked for `out^T = W x^T`: W read (inputs, outputs) and
//! transposed, x^T as it lies. Descriptions and chosen algorithms are kept by shape; looking them
//! up costs less than a launch.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver::{CudaContext, result as driver};

use super::{CudaDevice, CudaDtype, CudaError};

/// Scratch memory for algorithms that split sums; 32 MiB is what NVIDIA advises for Hopper.
const WORKSPACE: usize = 64 << 20;
/// Algorithms asked for; the first that runs is kept.
const CANDIDATES: usize = 8;

/// cublasOperation_t's CUBLAS_OP_N and CUBLAS_OP_T.
const OP_N: i32 = 0;
const OP_T: i32 = 1;

/// What a product does with its result before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BlasEpilogue {
    None,
    Bias,
    /// Bias, then GELU in its tanh form.
    BiasGelu,
}

/// The shape and formats of a product with weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GemmShape {
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    /// Numbers from one row of the result to the next.
    pub(crate) stride: usize,
    pub(crate) operand: CudaDtype,
    pub(crate) out: CudaDtype,
    pub(crate) epilogue: BlasEpilogue,
}

/// How an operand lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GemmOperand {
    /// x as (inputs, rows) instead of (rows, inputs); weights as (inputs, outputs) instead of
    /// (outputs, inputs).
    pub(crate) transposed: bool,
    /// Numbers from one of its rows to the next.
    pub(crate) stride: usize,
}

/// Any product: everything that an algorithm depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gemm {
    pub(crate) shape: GemmShape,
    pub(crate) x: GemmOperand,
    pub(crate) weights: GemmOperand,
    /// Whether the result is added to what is there.
    pub(crate) accumulate: bool,
}

impl From<GemmShape> for Gemm {
    fn from(shape: GemmShape) -> Self {
        let side = GemmOperand { transposed: false, stride: shape.inputs };
        Self { shape, x: side, weights: side, accumulate: false }
    }
}

/// Where the matrices are. `bias` is in the result's format, and is read if the epilogue has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GemmPointers {
    pub(crate) x: u64,
    pub(crate) weights: u64,
    pub(crate) bias: u64,
    pub(crate) out: u64,
}

/// cuBLASLt for one lane, its scratch memory, and what is known of shapes.
#[derive(Debug)]
pub(crate) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    workspace: u64,
    plans: Mutex<HashMap<Gemm, Option<MatmulPlan>>>, // None: cuBLASLt cannot
}

// SAFETY: the handle may be used by every thread; plans are behind a lock; the workspace is used in
// the lane's order.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

#[derive(Debug)]
struct MatmulPlan {
    description: sys::cublasLtMatmulDesc_t,
    weights: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl CublasLt {
    /// Opens cuBLASLt for the current context.
    pub(crate) fn new(context: &CudaContext) -> Result<Self, CudaError> {
        context.bind_to_thread().map_err(CudaError::driver("be used from this thread"))?;
        let handle = lt::create_handle().map_err(CudaError::blas("start cublaslt"))?;
        // SAFETY: freed once, when this is dropped.
        let workspace = unsafe { driver::malloc_sync(WORKSPACE) }
            .map_err(CudaError::driver("give cublaslt its workspace"))?;
        Ok(Self { handle, workspace, plans: Mutex::default() })
    }

    /// Whether cuBLASLt can compute a product of this shape.
    pub(crate) fn supports(&self, shape: GemmShape) -> bool {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        self.plan(&mut plans, shape.into()).is_some()
    }

    /// Computes a product.
    ///
    /// # Safety
    /// The pointers must reach as far as the shape says, in its formats, in this lane.
    pub(crate) unsafe fn gemm(
        &self,
        cuda: &CudaDevice,
        product: impl Into<Gemm>,
        at: GemmPointers,
    ) -> Result<(), CudaError> {
        let product = product.into();
        let shape = product.shape;
        if shape.rows == 0 || shape.outputs == 0 {
            return Ok(());
        }
        let refused = |reason: String| CudaError::Matmul {
            rows: shape.rows,
            inputs: shape.inputs,
            outputs: shape.outputs,
            reason,
        };
        cuda.bind()?;
        let stream = cuda.launch_stream()?;
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(plan) = self.plan(&mut plans, product) else {
            return Err(refused("no algorithm".to_owned()));
        };
        let (one, kept) = (1.0f32, if product.accumulate { 1.0f32 } else { 0.0 });
        // SAFETY: the plan's parts live while the lock is held, and cuBLASLt reads them, alpha and
        // beta during the call; the matrices are the caller's promise.
        unsafe {
            if shape.epilogue != BlasEpilogue::None {
                set_attribute(
                    plan.description,
                    sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                    &at.bias,
                )
                .map_err(|e| refused(format!("{:?}", e.0)))?;
            }
            lt::matmul(
                self.handle,
                plan.description,
                (&raw const one).cast(),
                (&raw const kept).cast(),
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
        .map_err(|e| refused(format!("{:?}", e.0)))
    }

    fn plan<'a>(
        &self,
        plans: &'a mut HashMap<Gemm, Option<MatmulPlan>>,
        product: Gemm,
    ) -> Option<&'a MatmulPlan> {
        plans.entry(product).or_insert_with(|| MatmulPlan::new(self.handle, product).ok()).as_ref()
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        self.plans.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        // SAFETY: both were made by `new` and are given back once; freeing waits for what still
        // uses the workspace.
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
    }
}

/// # Safety
/// The description must be alive, and the attribute of `T`'s type.
unsafe fn set_attribute<T>(
    description: sys::cublasLtMatmulDesc_t,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: &T,
) -> Result<(), lt::CublasError> {
    // SAFETY: `value` is as long as is said.
    unsafe {
        lt::set_matmul_desc_attribute(
            description,
            attribute,
            std::ptr::from_ref(value).cast(),
            size_of::<T>(),
        )
    }
}

impl MatmulPlan {
    fn new(handle: sys::cublasLtHandle_t, product: Gemm) -> Result<Self, lt::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let GemmShape { rows, inputs, outputs, stride, operand, out, epilogue } = product.shape;
        // Plain 32F: neither TF32 nor bf16 splitting, whatever the operands.
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let mut plan = Self {
            description: lt::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)?,
            weights: std::ptr::null_mut(),
            x: std::ptr::null_mut(),
            out: std::ptr::null_mut(),
            // SAFETY: an array of integers, of which zeros are valid; overwritten below.
            algorithm: unsafe { std::mem::zeroed() },
        };
        let layout = |side: GemmOperand, (tall, wide): (usize, usize)| {
            let (tall, wide) = if side.transposed { (wide, tall) } else { (tall, wide) };
            lt::create_matrix_layout(
                data_type(operand),
                tall as u64,
                wide as u64,
                side.stride as i64,
            )
        };
        plan.weights = layout(product.weights, (inputs, outputs))?;
        plan.x = layout(product.x, (inputs, rows))?;
        plan.out =
            lt::create_matrix_layout(data_type(out), outputs as u64, rows as u64, stride as i64)?;
        let kind = match epilogue {
            BlasEpilogue::None => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            BlasEpilogue::Bias => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            BlasEpilogue::BiasGelu => sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_BIAS,
        };
        // SAFETY: the description is alive; each attribute has the type that cuBLASLt's manual
        // gives it.
        unsafe {
            let (weights, x) = (
                if product.weights.transposed { OP_N } else { OP_T },
                if product.x.transposed { OP_T } else { OP_N },
            );
            set_attribute(plan.description, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &weights)?;
            set_attribute(plan.description, Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &x)?;
            set_attribute(plan.description, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &kind)?;
            if epilogue != BlasEpilogue::None {
                set_attribute(
                    plan.description,
                    Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                    &data_type(out),
                )?;
            }
        }
        plan.algorithm = plan.choose_algorithm(handle)?;
        Ok(plan)
    }

    /// The algorithm that cuBLASLt expects to be fastest.
    fn choose_algorithm(
        &self,
        handle: sys::cublasLtHandle_t,
    ) -> Result<sys::cublasLtMatmulAlgo_t, lt::CublasError> {
        let preference = lt::create_matmul_pref()?;
        let attribute =
            sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let workspace = WORKSPACE as u64;
        // SAFETY: an array of plain structures, of which zeros are valid; only those reported as
        // found are read.
        let mut found: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] =
            unsafe { std::mem::zeroed() };
        let mut count = 0;
        // SAFETY: all parts are alive, the attribute is a 64-bit number, and `found` holds as many
        // as are asked for.
        let asked = unsafe {
            lt::set_matmul_pref_attribute(
                preference,
                attribute,
                (&raw const workspace).cast(),
                size_of::<u64>(),
            )
            .and_then(|()| {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    handle,
                    self.description,
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
        // SAFETY: made above and destroyed once.
        unsafe { lt::destroy_matmul_pref(preference) }?;
        asked?;
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
        // SAFETY: each was made by `new` or is null, and is destroyed once. A failure has nobody to
        // be told to.
        unsafe {
            lt::destroy_matmul_desc(self.description).ok();
            for layout in [self.weights, self.x, self.out] {
                if !layout.is_null() {
                    lt::destroy_matrix_layout(layout).ok();
                }
            }
        }
    }
}
