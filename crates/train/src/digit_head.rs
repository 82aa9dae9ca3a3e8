//! Auxiliary digit heads: a linear layer predicts the decimal digits of numbers from a vector. They
//! are used only during training and are not part of the saved model.

use model::{ModelError, Parameter, TensorSource, TrainableLinear};
use tensor::ops::{self, Indices};
use tensor::{Device, DeviceError, Tensor};

/// Number of predicted digits per number, the least significant first.
pub const DIGITS: usize = 5;
/// The ten digits, and a blank for leading positions.
const CLASSES: usize = 11;

/// Target of a thought: the numbers of a worked step that are predicted from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThoughtTarget {
    /// The two operands and the operator, encoded as a number.
    Operands([i64; 3]),
    /// The result.
    Result(i64),
}

/// Predicts the digits of numbers from vectors.
#[derive(Debug)]
pub struct DigitHead {
    linear: TrainableLinear, // width -> numbers * DIGITS * CLASSES
    numbers: usize,
    loss_weight: f32,
}

/// The result of [`DigitHead::accumulate_gradients`].
#[derive(Debug)]
pub struct DigitLoss {
    /// The unweighted cross entropy of each digit: (rows * numbers * DIGITS, 1).
    pub losses: Tensor,
    /// The gradient of the weighted loss with respect to the vectors: (rows, width).
    pub gradient: Tensor,
}

impl DigitHead {
    /// A head with the tensors `name` of `source` that predicts one number from each vector. The
    /// mean loss over digits is weighted by `loss_weight`.
    pub fn new(
        device: &Device,
        source: &impl TensorSource,
        name: &str,
        width: usize,
        loss_weight: f32,
    ) -> Result<Self, ModelError> {
        Self::with_numbers(device, source, name, width, 1, loss_weight)
    }

    /// As [`Self::new`], for `numbers` numbers from each vector.
    pub fn with_numbers(
        device: &Device,
        source: &impl TensorSource,
        name: &str,
        width: usize,
        numbers: usize,
        loss_weight: f32,
    ) -> Result<Self, ModelError> {
        let outputs = numbers * DIGITS * CLASSES;
        let linear = TrainableLinear::load(device, source, name, width, outputs)?;
        Ok(Self { linear, numbers, loss_weight })
    }

    /// Accumulates the head's gradients for predicting `numbers` (row-major) from x (rows, width).
    /// Each digit has the weight `loss_weight / digits`, where `digits` is the number of digits in
    /// the batch.
    pub fn accumulate_gradients(
        &mut self,
        device: &Device,
        x: &Tensor,
        numbers: &[i64],
        digits: usize,
    ) -> Result<DigitLoss, DeviceError> {
        assert_eq!(x.rows() * self.numbers, numbers.len(), "digit head: numbers per row");
        let logits = self.linear.forward(device, x)?.with_shape(numbers.len() * DIGITS, CLASSES)?;
        let targets = numbers.iter().flat_map(|&n| digit_classes(n)).collect();
        let targets = Indices::new(device, targets)?;
        let weights = vec![self.loss_weight / digits as f32; logits.rows()];
        let mut dlogits = Tensor::default();
        let losses = ops::cross_entropy(device, &logits, &targets, &weights, &mut dlogits)?;
        let dlogits = dlogits.with_shape(x.rows(), self.numbers * DIGITS * CLASSES)?;
        Ok(DigitLoss { losses, gradient: self.linear.backward(device, x, &dlogits)? })
    }

    /// All parameters, in a fixed order.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.linear.parameters()
    }

    /// All parameters, mutably. Call [`Self::sync_weights`] after changing them.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.linear.parameters_mut()
    }

    /// Copies changed parameters to the weights that `forward` uses.
    pub fn sync_weights(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.linear.sync_weights(device)
    }
}

/// A number's digits, the least significant first, then blanks. The sign is ignored, as are digits
/// beyond the last [`DIGITS`].
fn digit_classes(number: i64) -> [u32; DIGITS] {
    let mut rest = number.unsigned_abs();
    std::array::from_fn(|place| {
        if rest == 0 && place > 0 {
            return 10;
        }
        let digit = (rest % 10) as u32;
        rest /= 10;
        digit
    })
}

#[cfg(test)]
mod tests {
    use super::digit_classes;

    #[test]
    fn digits_are_least_significant_first() {
        assert_eq!(digit_classes(0), [0, 10, 10, 10, 10]);
        assert_eq!(digit_classes(105), [5, 0, 1, 10, 10]);
        assert_eq!(digit_classes(-1234567), [7, 6, 5, 4, 3]);
    }
}
