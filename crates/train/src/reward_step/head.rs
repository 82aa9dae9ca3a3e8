//! Reward heads: from hidden states to one reward per thought or answer.

use model::{ModelError, Parameter, TensorSource, TrainableLinear};
use serde::{Deserialize, Serialize};
use tensor::ops::{self, OutputDtype};
use tensor::{Device, DeviceError, Tensor};

/// Architecture of a reward head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum RewardHeadKind {
    /// A linear layer on the hidden state (as published)
    Linear,
    /// A two-layer head on the hidden state before a thought and the thought itself
    // A SwiGLU on the hidden state at the thought, the hidden state one position before it, and the
    // thought, so that the head can compare the predicted thought with the actual one.
    Compare,
}

/// A trainable reward head.
#[derive(Debug)]
pub enum TrainableRewardHead {
    /// width -> 1
    Linear(Box<TrainableLinear>),
    /// Three linear layers to a shared inner layer, and one from it to the reward.
    Compare(Box<TrainableCompareHead>),
}

/// The linear layers of [`TrainableRewardHead::Compare`].
#[derive(Debug)]
pub struct TrainableCompareHead {
    at: TrainableLinear,      // width -> 2 * width
    before: TrainableLinear,  // width -> 2 * width
    thought: TrainableLinear, // width -> 2 * width
    out: TrainableLinear,     // width -> 1
}

/// The inputs of a head, one row per thought or answer, each (rows, width); or their gradients.
pub(super) struct RewardHeadRows {
    /// Hidden states at the thought or at the answer's last token.
    pub(super) at: Tensor,
    /// Hidden states one position before the thought or the answer.
    pub(super) before: Tensor,
    /// The thoughts; for answers the hidden states at the last thought.
    pub(super) thought: Tensor,
}

impl TrainableRewardHead {
    /// Loads a head for process rewards.
    pub fn load(
        device: &Device,
        source: &impl TensorSource,
        kind: RewardHeadKind,
        width: usize,
    ) -> Result<Self, ModelError> {
        match kind {
            RewardHeadKind::Linear => {
                let linear = TrainableLinear::load(device, source, "classifier", width, 1)?;
                Ok(Self::Linear(Box::new(linear)))
            }
            RewardHeadKind::Compare => Self::load_compare(device, source, "compare", width),
        }
    }

    /// Loads a head for outcome rewards.
    pub fn outcome(
        device: &Device,
        source: &impl TensorSource,
        width: usize,
    ) -> Result<Self, ModelError> {
        Self::load_compare(device, source, "verdict", width)
    }

    fn load_compare(
        device: &Device,
        source: &impl TensorSource,
        name: &str,
        width: usize,
    ) -> Result<Self, ModelError> {
        let load = |part: &str, outputs| {
            TrainableLinear::load(device, source, &format!("{name}.{part}"), width, outputs)
        };
        Ok(Self::Compare(Box::new(TrainableCompareHead {
            at: load("at", 2 * width)?,
            before: load("before", 2 * width)?,
            thought: load("thought", 2 * width)?,
            out: load("out", 1)?,
        })))
    }

    fn linears(&self) -> Vec<&TrainableLinear> {
        match self {
            Self::Linear(linear) => vec![linear],
            Self::Compare(head) => vec![&head.at, &head.before, &head.thought, &head.out],
        }
    }

    fn linears_mut(&mut self) -> Vec<&mut TrainableLinear> {
        match self {
            Self::Linear(linear) => vec![linear],
            Self::Compare(head) => {
                vec![&mut head.at, &mut head.before, &mut head.thought, &mut head.out]
            }
        }
    }

    /// All parameters, in a fixed order.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.linears().into_iter().flat_map(TrainableLinear::parameters)
    }

    /// All parameters, mutably. Call [`Self::sync_weights`] after changing them.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        self.linears_mut().into_iter().flat_map(TrainableLinear::parameters_mut)
    }

    /// Copies changed parameters to the weights that the forward pass uses.
    pub fn sync_weights(&mut self, device: &Device) -> Result<(), DeviceError> {
        self.linears_mut().into_iter().try_for_each(|linear| linear.sync_weights(device))
    }

    /// Returns the rewards (rows, 1), and for the backward pass the inner layer before and after
    /// its activation.
    pub(super) fn forward(
        &self,
        device: &Device,
        x: &RewardHeadRows,
    ) -> Result<(Tensor, [Tensor; 2]), DeviceError> {
        match self {
            Self::Linear(linear) => Ok((linear.forward(device, &x.at)?, Default::default())),
            Self::Compare(head) => {
                let mut pre_activation = head.at.forward(device, &x.at)?;
                ops::add(device, &mut pre_activation, &head.before.forward(device, &x.before)?)?;
                ops::add(device, &mut pre_activation, &head.thought.forward(device, &x.thought)?)?;
                let mut inner = Tensor::default();
                ops::swiglu(device, &pre_activation, &mut inner)?;
                Ok((head.out.forward(device, &inner)?, [pre_activation, inner]))
            }
        }
    }

    /// Accumulates the head's gradients; returns those of its inputs. A linear head reads only
    /// `at`, so the gradients of the other two inputs are empty.
    pub(super) fn backward(
        &mut self,
        device: &Device,
        x: &RewardHeadRows,
        [pre_activation, inner]: &[Tensor; 2],
        drewards: &Tensor,
    ) -> Result<RewardHeadRows, DeviceError> {
        match self {
            Self::Linear(linear) => Ok(RewardHeadRows {
                at: linear.backward(device, &x.at, drewards)?,
                before: Tensor::default(),
                thought: Tensor::default(),
            }),
            Self::Compare(head) => {
                let dinner = head.out.backward(device, inner, drewards)?;
                let mut dpre = Tensor::default();
                ops::swiglu_backward(device, pre_activation, &dinner, OutputDtype::F32, &mut dpre)?;
                Ok(RewardHeadRows {
                    thought: head.thought.backward(device, &x.thought, &dpre)?,
                    at: head.at.backward(device, &x.at, &dpre)?,
                    before: head.before.backward(device, &x.before, &dpre)?,
                })
            }
        }
    }
}
