//! Probe scores and host copies of the hidden states of finished sequences.

use model::StateCounts;
use tensor::{DeviceError, Tensor};

use crate::batch::BatchContext;
use crate::executor::{Gather, HiddenRef};

/// Results from the hidden states of a sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probed {
    /// The probe's score, if there is a probe.
    pub(crate) score: Option<f32>,
    /// The states on the host, (positions, width), if they are returned.
    pub(crate) states: Option<Tensor>,
}

impl BatchContext<'_> {
    /// Scores and copies the states of sequences with the given numbers of thoughts. Empty if
    /// neither is requested.
    pub(crate) fn read_states(
        &self,
        states: &[&[HiddenRef]],
        thoughts: &[usize],
    ) -> Result<Vec<Probed>, DeviceError> {
        if !self.keeps_states() {
            return Ok(Vec::new());
        }
        let count = |(states, &thoughts): (&&[HiddenRef], &usize)| StateCounts {
            thoughts: thoughts.min(states.len()),
            answer: states.len() - thoughts.min(states.len()),
        };
        let counts: Vec<StateCounts> = states.iter().zip(thoughts).map(count).collect();
        let config = self.model.decoder.config();
        let gather = Gather::of_states(states.iter().flat_map(|states| states.iter()));
        if gather.is_empty() {
            return Ok(counts.iter().map(|_| Probed::default()).collect());
        }
        let all = gather.select(self.model.decoder.device())?;
        let scores = self.probe.map(|probe| probe.scores(&all, &counts)).transpose()?;
        let host = if self.return_states { Some(all.to_host()?) } else { None };
        debug_assert!(host.as_ref().is_none_or(|host| host.cols() == config.width));
        let mut scores = scores.map(Vec::into_iter);
        let mut start = 0;
        let of = |counts: StateCounts| {
            let own = start..start + counts.total();
            start = own.end;
            Probed {
                score: scores.as_mut().and_then(Iterator::next).filter(|score| score.is_finite()),
                states: host.as_ref().map(|host| host.select(own)),
            }
        };
        Ok(counts.into_iter().map(of).collect())
    }
}
