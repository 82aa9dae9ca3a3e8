//! The time of each stage of a batch, measured by events on its stream so that no stage waits for
//! the host.

use tensor::{Device, DeviceError, DeviceEvent};

use crate::reply::StageSeconds;

/// A stage of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Prefill,
    Thoughts,
    Answers,
    Scores,
}

impl Stage {
    /// Its field among the seconds of all stages.
    pub(crate) fn of(self, seconds: &mut StageSeconds) -> &mut f64 {
        match self {
            Self::Prefill => &mut seconds.prefill,
            Self::Thoughts => &mut seconds.thoughts,
            Self::Scores => &mut seconds.scores,
            Self::Answers => &mut seconds.answers,
        }
    }
}

/// Records when the device enters each stage.
#[derive(Default)]
pub(crate) struct StageTimer(Vec<(Stage, DeviceEvent)>);

impl StageTimer {
    /// Attributes all work queued from here on to a stage.
    pub(crate) fn enter(&mut self, device: &Device, stage: Stage) -> Result<(), DeviceError> {
        if self.0.last().is_none_or(|(last, _)| *last != stage) {
            self.0.push((stage, device.record_event()?));
        }
        Ok(())
    }

    /// The seconds of each stage so far.
    pub(crate) fn finish(self, device: &Device) -> Result<StageSeconds, DeviceError> {
        let end = device.record_event()?;
        let mut seconds = StageSeconds::default();
        for (i, (stage, start)) in self.0.iter().enumerate() {
            let elapsed = start.elapsed(self.0.get(i + 1).map_or(&end, |(_, next)| next))?;
            *stage.of(&mut seconds) += elapsed;
            seconds.total += elapsed;
        }
        Ok(seconds)
    }
}
