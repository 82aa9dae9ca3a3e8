//! Tensor maps: descriptors of matrices for the Tensor Memory Accelerator (TMA) of Hopper.

use cudarc::driver::sys;

use super::{CudaDtype, CudaError, CudaTensor};

/// Number of 64-bit words of a tensor map, which is part of the kernels' parameter.
pub(crate) const TENSOR_MAP_WORDS: usize = 16;

/// A tensor map of a matrix in boxes of `columns` columns (128 bytes) and `rows` rows, with
/// the 128-byte swizzle that wgmma reads.
pub(crate) fn tensor_map(
    matrix: &CudaTensor,
    [columns, rows]: [u32; 2],
) -> Result<[u64; TENSOR_MAP_WORDS], CudaError> {
    let (at, stride) = row_bytes(matrix);
    encode_tensor_map(matrix.dtype(), at, [matrix.cols(), matrix.rows()], [stride], [columns, rows])
}

/// The same in boxes of groups of eight rows, each group in the order of rows 0, 2, 4, 6, 1, 3, 5,
/// 7.
pub(crate) fn tensor_map_interleaved(
    matrix: &CudaTensor,
    [columns, groups]: [u32; 2],
) -> Result<[u64; TENSOR_MAP_WORDS], CudaError> {
    let (at, stride) = row_bytes(matrix);
    let shape = [matrix.cols(), 4, 2, matrix.row_groups()];
    let strides = [2 * stride, stride, 8 * stride];
    encode_tensor_map(matrix.dtype(), at, shape, strides, [columns, 4, 2, groups])
}

/// A matrix's address, and the bytes from one row to the next.
fn row_bytes(matrix: &CudaTensor) -> (u64, usize) {
    let (at, stride) = matrix.ptr_and_stride();
    (at, stride * matrix.dtype().size())
}

fn encode_tensor_map<const D: usize, const S: usize>(
    dtype: CudaDtype,
    at: u64,
    shape: [usize; D],
    strides: [usize; S],
    box_shape: [u32; D],
) -> Result<[u64; TENSOR_MAP_WORDS], CudaError> {
    use sys::{
        CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
        CUtensorMapL2promotion, CUtensorMapSwizzle,
    };
    const { assert!(S + 1 == D, "elements are contiguous, every other dimension has a stride") };
    let kind = match dtype {
        CudaDtype::F32 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        CudaDtype::Bf16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        CudaDtype::E4m3 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
    };
    let mut map = sys::CUtensorMap { opaque: [0; TENSOR_MAP_WORDS] };
    let shape = shape.map(|n| n as u64);
    let strides = strides.map(|n| n as u64);
    // SAFETY: the memory has that shape; all arrays have an element per dimension (strides: one
    // less).
    unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut map,
            kind,
            D as u32,
            at as *mut _,
            shape.as_ptr(),
            strides.as_ptr(),
            box_shape.as_ptr(),
            [1u32; D].as_ptr(),
            CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    }
    .result()
    .map_err(CudaError::driver("encode a tensor map"))?;
    Ok(map.opaque)
}
