//! Rows picked from tables and put together.

use super::context::{Grid, int, slots};
use super::linear::Weights;
use super::topk::Found;
use super::{Array, CudaError, Dtype, Indices};

/// The tokens' rows of a table, as f32, plus the learned positions' rows if there are any.
///
/// A table is a linear map's weights, so that a tied head serves as one. `positions` is a table (context, width) of f32
/// and each token's place in it.
pub(crate) fn lookup(table: &Weights, tokens: &Indices, positions: Option<(&Array, &Indices)>) -> Result<Array, CudaError> {
    assert!(tokens.all_below(table.outputs()), "lookup: a token beyond a vocabulary of {}", table.outputs());
    let matrix = table.matrix();
    let out = Array::uninit(matrix.cuda(), tokens.len(), matrix.cols(), Dtype::F32)?;
    let (learned, places) = positions.map_or((0, 0), |(learned, places)| {
        check_positions(&out, learned, places);
        (learned.pointer(), places.pointer())
    });
    // SAFETY: every index was checked against its table; out is (tokens, width).
    unsafe { gather(matrix, (tokens.pointer(), 1), (learned, places), &out) }?;
    Ok(out)
}

/// The rows of a table, as f32, that were found to be the likeliest, before the host knows which.
pub(crate) fn lookup_found(table: &Weights, found: &Found) -> Result<Array, CudaError> {
    assert!(found.outputs() <= table.outputs(), "lookup: of {} in a vocabulary of {}", found.outputs(), table.outputs());
    let out = Array::uninit(table.matrix().cuda(), found.rows(), table.matrix().cols(), Dtype::F32)?;
    // SAFETY: what was found is an output, and the table has as many; out is (rows, width).
    unsafe { gather(table.matrix(), (found.indices(), 2), (0, 0), &out) }?;
    Ok(out)
}

/// Fills `out` with rows of a table, plus rows of another unless that is at 0. Indices of the first are `apart` from each other.
///
/// # Safety
/// There must be an index for each row of `out`, inside its table, and tables must be as wide.
unsafe fn gather(
    table: &Array,
    (picked, apart): (u64, u32),
    (learned, places): (u64, u64),
    out: &Array,
) -> Result<(), CudaError> {
    let (from, to, cols) = ((table.pointer(), table.dtype()), (out.pointer(), out.dtype()), int(out.cols()));
    let arguments = slots![from.0, from.1, picked, apart, learned, places, to.0, to.1, cols];
    // SAFETY: the caller's promise.
    unsafe { out.cuda().launch("gather", grid(out), arguments) }
}

/// `x[r] += learned[places[r]]`; both are f32.
pub(crate) fn add_positions(x: &mut Array, learned: &Array, places: &Indices) -> Result<(), CudaError> {
    check_positions(x, learned, places);
    assert_eq!(x.dtype(), Dtype::F32, "positions: they are added in f32");
    let arguments = slots![x.pointer(), learned.pointer(), places.pointer(), int(x.cols())];
    // SAFETY: every place was checked against the table; x is as wide.
    unsafe { x.cuda().launch("add_rows", grid(x), arguments) }
}

fn check_positions(x: &Array, learned: &Array, places: &Indices) {
    assert_eq!(x.rows(), places.len(), "positions: {} rows, {} places", x.rows(), places.len());
    assert_eq!((x.cols(), learned.dtype()), (learned.cols(), Dtype::F32), "positions: rows of another width or format");
    assert!(places.all_below(learned.rows()), "positions: one beyond a context of {}", learned.rows());
}

/// The rows `picked`, in that order, as a matrix of their own in the same format.
pub(crate) fn select(x: &Array, picked: &Indices) -> Result<Array, CudaError> {
    assert!(picked.all_below(x.rows()), "select: a row beyond {}", x.rows());
    let out = Array::uninit(x.cuda(), picked.len(), x.cols(), x.dtype())?;
    // SAFETY: every index was checked against x; out is (picked, width).
    unsafe { gather(x, (picked.pointer(), 1), (0, 0), &out) }?;
    Ok(out)
}

/// The rows of all parts, one part after another. There must be one at least, all of one width and format.
pub(crate) fn concat(parts: &[&Array]) -> Result<Array, CudaError> {
    let first = parts[0];
    let rows = parts.iter().map(|p| p.rows()).sum();
    let mut out = Array::uninit(first.cuda(), rows, first.cols(), first.dtype())?;
    let mut at = 0;
    for part in parts {
        assert_eq!((part.cols(), part.dtype()), (first.cols(), first.dtype()), "concat: parts of unlike rows");
        out.buffer_mut().copy_from(at, part.buffer())?;
        at += part.buffer().bytes();
    }
    Ok(out)
}

/// `to[picked[r]] += x[r]`: x in any format, to f32.
pub(crate) fn scatter_add(x: &Array, picked: &Indices, to: &mut Array) -> Result<(), CudaError> {
    assert_eq!((x.rows(), x.cols()), (picked.len(), to.cols()), "scatter_add: {} rows of {}", picked.len(), to.cols());
    assert!(picked.all_below(to.rows()), "scatter_add: a row beyond {}", to.rows());
    assert_eq!(to.dtype(), Dtype::F32, "scatter_add: sums are f32");
    let arguments = slots![x.pointer(), x.dtype(), picked.pointer(), to.pointer(), int(x.cols())];
    // SAFETY: every place was checked; both are as wide.
    unsafe { x.cuda().launch("scatter_add", grid(x), arguments) }
}

fn grid(x: &Array) -> Grid {
    Grid::rows(x.rows(), x.cols().div_ceil(4))
}
