//! Rows picked from tables and put together.

use super::context::{LaunchConfig, int, kernel_args};
use super::linear::CudaLinear;
use super::topk::PendingArgmax;
use super::{CudaDtype, CudaError, CudaIndices, CudaTensor};

/// The tokens' rows of a table, as f32. A table is a linear map's weights, so that a tied head
/// serves as one.
pub(crate) fn lookup(table: &CudaLinear, tokens: &CudaIndices) -> Result<CudaTensor, CudaError> {
    assert!(
        tokens.all_below(table.outputs()),
        "lookup: a token beyond a vocabulary of {}",
        table.outputs()
    );
    let matrix = table.matrix();
    let out = CudaTensor::uninit(matrix.cuda(), tokens.len(), matrix.cols(), CudaDtype::F32)?;
    // SAFETY: every token was checked against the table; out is (tokens, width).
    unsafe { gather(&[matrix], (tokens.pointer(), 1), &out) }?;
    Ok(out)
}

/// The rows of a table, as f32, that were found to be the likeliest, before the host knows which.
pub(crate) fn lookup_pending(
    table: &CudaLinear,
    found: &PendingArgmax,
) -> Result<CudaTensor, CudaError> {
    assert!(
        found.outputs() <= table.outputs(),
        "lookup: of {} in a vocabulary of {}",
        found.outputs(),
        table.outputs()
    );
    let out = CudaTensor::uninit(
        table.matrix().cuda(),
        found.rows(),
        table.matrix().cols(),
        CudaDtype::F32,
    )?;
    // SAFETY: what was found is an output, and the table has as many; out is (rows, width).
    unsafe { gather(&[table.matrix()], (found.indices(), 2), &out) }?;
    Ok(out)
}

/// Parts that rows are picked from at once, as in embedding.cu.
const MAX_PARTS: usize = 16;

/// Fills `out` with rows of some matrices, counted through. Their indices are `apart` from each
/// other.
///
/// # Safety
/// There must be an index for each row of `out`, inside the parts, which must be as wide and all of
/// one format.
unsafe fn gather(
    parts: &[&CudaTensor],
    (picked, apart): (u64, u32),
    out: &CudaTensor,
) -> Result<(), CudaError> {
    let (cols, count) = (int(out.cols()), int(parts.len()));
    let single =
        kernel_args![picked, apart, out.pointer(), out.dtype(), parts[0].dtype(), cols, count];
    let (mut at, mut firsts, mut first) = ([0; MAX_PARTS], [0; MAX_PARTS], 0);
    for (part, (at, firsts)) in parts.iter().zip(at.iter_mut().zip(&mut firsts)) {
        (*at, *firsts) = (part.pointer(), first);
        first += part.rows() as u64;
    }
    // SAFETY: the last parameter is made of all words after the others; the rest is the caller's
    // promise.
    unsafe { out.cuda().launch("gather", grid(out), &mut [&single[..], &at, &firsts].concat()) }
}

/// The rows `picked` of all parts, counted through, in that order, as a matrix of their own in the
/// same format. There must be one part at least.
pub(crate) fn select(parts: &[&CudaTensor], picked: &CudaIndices) -> Result<CudaTensor, CudaError> {
    if parts.len() > MAX_PARTS {
        return select(&[&concat(parts)?], picked);
    }
    let (first, rows) = (parts[0], parts.iter().map(|p| p.rows()).sum());
    assert!(
        parts.iter().all(|p| (p.cols(), p.dtype()) == (first.cols(), first.dtype())),
        "select: parts of unlike rows"
    );
    assert!(picked.all_below(rows), "select: a row beyond {rows}");
    let out = CudaTensor::uninit(first.cuda(), picked.len(), first.cols(), first.dtype())?;
    // SAFETY: every index was checked, and so were the parts; out is (picked, width).
    unsafe { gather(parts, (picked.pointer(), 1), &out) }?;
    Ok(out)
}

/// The rows of all parts, one part after another. There must be one at least, all of one width and
/// format.
pub(crate) fn concat(parts: &[&CudaTensor]) -> Result<CudaTensor, CudaError> {
    let first = parts[0];
    let rows = parts.iter().map(|p| p.rows()).sum();
    let mut out = CudaTensor::uninit(first.cuda(), rows, first.cols(), first.dtype())?;
    let mut at = 0;
    for part in parts {
        assert_eq!(
            (part.cols(), part.dtype()),
            (first.cols(), first.dtype()),
            "concat: parts of unlike rows"
        );
        out.buffer_mut().copy_from(at, part.buffer())?;
        at += part.buffer().bytes();
    }
    Ok(out)
}

/// `to[picked[r]] += x[r]`: x in any format, to f32.
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
    // SAFETY: every place was checked; both are as wide.
    unsafe { x.cuda().launch("scatter_add", grid(x), arguments) }
}

fn grid(x: &CudaTensor) -> LaunchConfig {
    LaunchConfig::per_row(x.rows(), x.cols().div_ceil(4))
}
