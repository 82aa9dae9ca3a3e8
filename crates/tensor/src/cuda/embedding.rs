//! Rows gathered from tables, concatenated and scattered.

use super::context::{LaunchConfig, int, kernel_args};
use super::linear::CudaLinear;
use super::topk::PendingRowTokens;
use super::{CudaDtype, CudaError, CudaIndices, CudaTensor};

/// The embeddings of tokens, as f32. A table is a linear map's weights, so that a tied head can be
/// used as one.
pub(crate) fn lookup(table: &CudaLinear, tokens: &CudaIndices) -> Result<CudaTensor, CudaError> {
    assert!(
        tokens.all_below(table.outputs()),
        "lookup: a token beyond a vocabulary of {}",
        table.outputs()
    );
    let matrix = table.matrix();
    let out = CudaTensor::uninit(matrix.cuda(), tokens.len(), matrix.cols(), CudaDtype::F32)?;
    // SAFETY: every token was checked against the table; out is (tokens, width).
    unsafe { gather(&[matrix], tokens.pointer(), 1, &out) }?;
    Ok(out)
}

/// The embeddings of argmax tokens that the host has not read yet, as f32.
pub(crate) fn lookup_pending(
    table: &CudaLinear,
    pending: &PendingRowTokens,
) -> Result<CudaTensor, CudaError> {
    assert!(
        pending.outputs() <= table.outputs(),
        "lookup: of {} in a vocabulary of {}",
        pending.outputs(),
        table.outputs()
    );
    let out = CudaTensor::uninit(
        table.matrix().cuda(),
        pending.rows(),
        table.matrix().cols(),
        CudaDtype::F32,
    )?;
    // SAFETY: a token is below the outputs, of which the table has as many; out is (rows, width).
    unsafe { gather(&[table.matrix()], pending.indices(), 2, &out) }?;
    Ok(out)
}

/// Maximum tensors that one kernel gathers from, as in embedding.cu.
const MAX_PARTS: usize = 16;

/// Fills `out` with rows of some matrices, which are indexed as if they were concatenated.
/// Consecutive indices are `stride` words apart.
///
/// # Safety
/// There must be an index for each row of `out`, within the parts, which must have its width and
/// the same dtype.
unsafe fn gather(
    parts: &[&CudaTensor],
    picked: u64,
    stride: u32,
    out: &CudaTensor,
) -> Result<(), CudaError> {
    let cols = int(out.cols());
    let count = int(parts.len());
    let scalars =
        kernel_args![picked, stride, out.pointer(), out.dtype(), parts[0].dtype(), cols, count];
    let mut at = [0; MAX_PARTS];
    let mut firsts = [0; MAX_PARTS];
    let mut first = 0;
    for (part, (at, firsts)) in parts.iter().zip(at.iter_mut().zip(&mut firsts)) {
        (*at, *firsts) = (part.pointer(), first);
        first += part.rows() as u64;
    }
    // SAFETY: the last parameter, a struct, consists of all words after the others; the rest is
    // guaranteed by the caller.
    unsafe { out.cuda().launch("gather", config(out), &mut [&scalars[..], &at, &firsts].concat()) }
}

/// Gathers rows of at least one matrix, which are indexed as if they were concatenated.
pub(crate) fn select(parts: &[&CudaTensor], picked: &CudaIndices) -> Result<CudaTensor, CudaError> {
    if parts.len() > MAX_PARTS {
        return select(&[&concat(parts)?], picked);
    }
    let first = parts[0];
    let rows = parts.iter().map(|p| p.rows()).sum();
    assert!(
        parts.iter().all(|p| (p.cols(), p.dtype()) == (first.cols(), first.dtype())),
        "select: rows of different widths or dtypes"
    );
    assert!(picked.all_below(rows), "select: a row beyond {rows}");
    let out = CudaTensor::uninit(first.cuda(), picked.len(), first.cols(), first.dtype())?;
    // SAFETY: every index and the parts were checked; out is (picked, width).
    unsafe { gather(parts, picked.pointer(), 1, &out) }?;
    Ok(out)
}

/// Concatenates the rows of at least one matrix, all of one width and dtype.
pub(crate) fn concat(parts: &[&CudaTensor]) -> Result<CudaTensor, CudaError> {
    let first = parts[0];
    let rows = parts.iter().map(|p| p.rows()).sum();
    let mut out = CudaTensor::uninit(first.cuda(), rows, first.cols(), first.dtype())?;
    let mut at = 0;
    for part in parts {
        assert_eq!(
            (part.cols(), part.dtype()),
            (first.cols(), first.dtype()),
            "concat: rows of different widths or dtypes"
        );
        out.buffer_mut().copy_from(at, part.buffer())?;
        at += part.buffer().bytes();
    }
    Ok(out)
}

/// `to[picked[r]] += x[r]`: x of any dtype, to of f32.
pub(crate) fn scatter_add(
    x: &CudaTensor,
    picked: &CudaIndices,
    to: &mut CudaTensor,
) -> Result<(), CudaError> {
    assert_eq!(
        (x.rows(), x.cols()),
        (picked.len(), to.cols()),
        "scatter_add: {} rows of {}",
        picked.len(),
        to.cols()
    );
    assert!(picked.all_below(to.rows()), "scatter_add: a row beyond {}", to.rows());
    assert_eq!(to.dtype(), CudaDtype::F32, "scatter_add: sums are f32");
    let arguments =
        kernel_args![x.pointer(), x.dtype(), picked.pointer(), to.pointer(), int(x.cols())];
    // SAFETY: every index was checked; both are equally wide.
    unsafe { x.cuda().launch("scatter_add", config(x), arguments) }
}

fn config(x: &CudaTensor) -> LaunchConfig {
    LaunchConfig::per_row(x.rows(), x.cols().div_ceil(4))
}
