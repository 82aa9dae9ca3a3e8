//! A loss on thoughts: a linear map reads the digits of step t's result from thought t. It is thrown away after training.

use model::{LearnedLinear, TensorSource};
use tensor::ops::{self, Indices};
use tensor::{Device, DeviceError, Tensor};

/// Digits that are read, the last one of a number first.
pub const PLACES: usize = 5;
/// Ten digits, and the blank before a number's first.
const CLASSES: usize = 11;

/// Reads numbers from vectors.
#[derive(Debug)]
pub struct Digits {
    /// width -> PLACES * CLASSES
    pub map: LearnedLinear,
}

/// What reading gave.
#[derive(Debug)]
pub struct Read {
    /// The loss of each digit, unweighted: (rows * PLACES, 1).
    pub losses: Tensor,
    /// The gradient of the vectors, (rows, width), of the weighted loss.
    pub gradient: Tensor,
}

impl Digits {
    /// A fresh reader called `name`.
    pub fn new(device: &Device, source: &impl TensorSource, name: &str, width: usize) -> Result<Self, model::Error> {
        Ok(Self { map: LearnedLinear::load(device, source, name, (width, PLACES * CLASSES))? })
    }

    /// The loss of reading `numbers` from x (rows, width), each digit weighted by `weight`. Adds to the reader's gradients.
    pub fn learn(&mut self, device: &Device, x: &Tensor, numbers: &[i64], weight: f32) -> Result<Read, DeviceError> {
        assert_eq!(x.rows(), numbers.len(), "digits: {} vectors for {} numbers", x.rows(), numbers.len());
        let logits = self.map.forward(device, x)?.with_shape(numbers.len() * PLACES, CLASSES)?;
        let targets = Indices::new(device, numbers.iter().flat_map(|&n| classes(n)).collect())?;
        let mut dlogits = Tensor::default();
        let losses = ops::cross_entropy(device, &logits, &targets, &vec![weight; logits.rows()], &mut dlogits)?;
        let dlogits = dlogits.with_shape(numbers.len(), PLACES * CLASSES)?;
        Ok(Read { losses, gradient: self.map.backward(device, x, &dlogits)? })
    }
}

/// A number's digits, the last one first, blanks after the first. Signs are not read; longer numbers lose their front.
fn classes(number: i64) -> [u32; PLACES] {
    let mut left = number.unsigned_abs();
    std::array::from_fn(|place| {
        if left == 0 && place > 0 {
            return 10;
        }
        let digit = (left % 10) as u32;
        left /= 10;
        digit
    })
}

#[cfg(test)]
mod tests {
    use super::classes;

    #[test]
    fn digits_come_last_first() {
        assert_eq!(classes(0), [0, 10, 10, 10, 10]);
        assert_eq!(classes(105), [5, 0, 1, 10, 10]);
        assert_eq!(classes(-1234567), [7, 6, 5, 4, 3]);
    }
}
