//! A loss on thoughts: a linear map reads the digits of step t's result from thought t. It is
//! thrown away after training.

use model::{TensorSource, TrainableLinear};
use tensor::ops::{self, Indices};
use tensor::{Device, DeviceError, Tensor};

/// Digits that are read, the last one of a number first.
pub const DIGITS: usize = 5;
/// Ten digits, and the blank before a number's first.
const CLASSES: usize = 11;

/// Reads numbers from vectors.
#[derive(Debug)]
pub struct DigitHead {
    /// width -> PLACES * CLASSES
    pub linear: TrainableLinear,
}

/// What reading gave.
#[derive(Debug)]
pub struct DigitLoss {
    /// The loss of each digit, unweighted: (rows * PLACES, 1).
    pub losses: Tensor,
    /// The gradient of the vectors, (rows, width), of the weighted loss.
    pub gradient: Tensor,
}

impl DigitHead {
    /// A fresh reader called `name`.
    pub fn new(
        device: &Device,
        source: &impl TensorSource,
        name: &str,
        width: usize,
    ) -> Result<Self, model::ModelError> {
        Ok(Self { linear: TrainableLinear::load(device, source, name, width, DIGITS * CLASSES)? })
    }

    /// The loss of reading `numbers` from x (rows, width), each digit weighted by `weight`. Adds to
    /// the reader's gradients.
    pub fn accumulate_gradients(
        &mut self,
        device: &Device,
        x: &Tensor,
        numbers: &[i64],
        weight: f32,
    ) -> Result<DigitLoss, DeviceError> {
        assert_eq!(
            x.rows(),
            numbers.len(),
            "digits: {} vectors for {} numbers",
            x.rows(),
            numbers.len()
        );
        let logits = self.linear.forward(device, x)?.with_shape(numbers.len() * DIGITS, CLASSES)?;
        let targets =
            Indices::new(device, numbers.iter().flat_map(|&n| digit_classes(n)).collect())?;
        let mut dlogits = Tensor::default();
        let losses = ops::cross_entropy(
            device,
            &logits,
            &targets,
            &vec![weight; logits.rows()],
            &mut dlogits,
        )?;
        let dlogits = dlogits.with_shape(numbers.len(), DIGITS * CLASSES)?;
        Ok(DigitLoss { losses, gradient: self.linear.backward(device, x, &dlogits)? })
    }
}

/// A number's digits, the last one first, blanks after the first. Signs are not read; longer
/// numbers lose their front.
fn digit_classes(number: i64) -> [u32; DIGITS] {
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
    use super::digit_classes;

    #[test]
    fn digits_come_last_first() {
        assert_eq!(digit_classes(0), [0, 10, 10, 10, 10]);
        assert_eq!(digit_classes(105), [5, 0, 1, 10, 10]);
        assert_eq!(digit_classes(-1234567), [7, 6, 5, 4, 3]);
    }
}
