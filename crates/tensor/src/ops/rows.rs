//! Moving rows about: gathering, stacking, adding.

use super::Linear;
use crate::rng::{Draw, MAX_ELEMENTS};
use crate::{Device, DeviceError, Tensor};

/// The rows `picked`, in that order; a row may be picked more than once.
pub fn select(_device: &Device, x: &Tensor, picked: &[usize]) -> Result<Tensor, DeviceError> {
    Ok(x.select(picked.iter().copied()))
}

/// All rows of all parts, one part after the other.
pub fn concat(_device: &Device, parts: &[&Tensor], cols: usize) -> Result<Tensor, DeviceError> {
    let mut out = Tensor::zeros(0, cols);
    parts.iter().for_each(|part| out.extend(part));
    Ok(out)
}

/// The weights of some outputs of a map, a row each, in the order of the inputs: embeddings from a tied head.
pub fn lookup(_device: &Device, map: &Linear, outputs: &[u32]) -> Result<Tensor, DeviceError> {
    let mut out = Tensor::zeros(outputs.len(), map.inputs());
    outputs.iter().enumerate().for_each(|(r, &j)| map.output_weights(j as usize, out.row_mut(r)));
    Ok(out)
}

/// `x += y`, both (rows, columns).
pub fn add(_device: &Device, x: &mut Tensor, y: &Tensor) -> Result<(), DeviceError> {
    assert_eq!((x.rows(), x.cols()), (y.rows(), y.cols()), "add: unlike shapes");
    x.data_mut().iter_mut().zip(y.data()).for_each(|(x, y)| *x += y);
    Ok(())
}

/// `x *= by`.
pub fn scale(_device: &Device, x: &mut Tensor, by: f32) -> Result<(), DeviceError> {
    x.data_mut().iter_mut().for_each(|x| *x *= by);
    Ok(())
}

/// `x[r] += table[rows[r]]`: x is (rows, columns), the table (any, columns).
pub fn add_rows(_device: &Device, x: &mut Tensor, table: &Tensor, rows: &[u32]) -> Result<(), DeviceError> {
    assert_eq!((x.rows(), x.cols()), (rows.len(), table.cols()), "add_rows: {} rows of {} columns", rows.len(), table.cols());
    for (r, &row) in rows.iter().enumerate() {
        x.row_mut(r).iter_mut().zip(table.row(row as usize)).for_each(|(x, y)| *x += y);
    }
    Ok(())
}

/// Adds normal noise of standard deviation `std` to each row that has a draw.
pub fn add_noise(_device: &Device, x: &mut Tensor, draws: &[Option<Draw>], std: f32) -> Result<(), DeviceError> {
    assert_eq!(x.rows(), draws.len(), "add_noise: {} draws for {} rows", draws.len(), x.rows());
    assert!(x.cols() <= MAX_ELEMENTS, "add_noise: {} elements cannot be named", x.cols());
    for (r, draw) in draws.iter().enumerate() {
        if let Some(draw) = draw {
            draw.add_noise(std, x.row_mut(r));
        }
    }
    Ok(())
}
