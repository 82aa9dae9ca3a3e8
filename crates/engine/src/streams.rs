//! Jobs of a run in the lanes of a device: while the host prepares or reads what one lane does, the
//! GPU does another's work.
//!
//! A job is a wave, or a group of questions whose rollouts are made together. Jobs do not depend on
//! each other, so lanes change speed and nothing else. Each lane has a thread and a state of its
//! own, the caches; results are taken by the thread that asked, in the order of the jobs.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use model::Decoder;
use record::Seconds;
use tensor::{Device, DeviceError};

/// Operations of a pass over all rows from which on two lanes pay: fewer are faster in one pass
/// than in two beside each other, which fill a GPU less well each.
const MIN_FLOPS: f64 = 2e12;
/// Fewer rows never pay, and more always do, whatever the model.
const ROW_BOUNDS: [usize; 2] = [2048, 12288];

/// Rows from which on lanes pay with a decoder.
pub(crate) fn min_rows_for_streams(decoder: &Decoder) -> usize {
    ((MIN_FLOPS / decoder.flops_per_position()) as usize).clamp(ROW_BOUNDS[0], ROW_BOUNDS[1])
}

/// What a lane keeps from job to job.
pub(crate) type StreamState<S> = Mutex<S>;

/// Lanes in their first state.
pub(crate) fn open<S: Default>(count: usize) -> Vec<StreamState<S>> {
    (0..count.max(1)).map(|_| Mutex::default()).collect()
}

/// The state of a lane.
pub(crate) fn lock<S>(lane: &StreamState<S>) -> MutexGuard<'_, S> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is to be done, and by whom.
pub(crate) struct StreamJobs<'a, J, S, F> {
    pub(crate) device: &'a Device,
    pub(crate) lanes: &'a [StreamState<S>],
    pub(crate) jobs: &'a [J],
    /// Does a job with a lane's state. Again the same of the same job, whatever was done before.
    pub(crate) each: F,
}

impl<J: Sync, S: Default + Send, F> StreamJobs<'_, J, S, F> {
    /// Does all jobs and hands what they give to `take`, in their order, until it breaks.
    ///
    /// A job that fails is tried again when no other runs: memory that others had may be what it
    /// lacked.
    pub(crate) fn run<T, E>(
        &self,
        mut take: impl FnMut(&J, T) -> Result<ControlFlow<()>, E>,
    ) -> Result<(), E>
    where
        T: Send,
        E: From<DeviceError> + Send,
        F: Fn(&J, &mut S) -> Result<T, E> + Sync,
    {
        let mut taken = 0;
        if self.jobs.len().min(self.lanes.len()) > 1 {
            if self.run_on_streams(&mut taken, &mut take)?.is_break() {
                return Ok(());
            }
            if taken < self.jobs.len() {
                self.lanes.iter().for_each(|lane| *lock(lane) = S::default());
            }
        }
        for job in &self.jobs[taken..] {
            let done = (self.each)(job, &mut lock(&self.lanes[0]))?;
            if take(job, done)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Does jobs in all lanes until one fails; counts those that were taken.
    fn run_on_streams<T, E>(
        &self,
        taken: &mut usize,
        take: &mut impl FnMut(&J, T) -> Result<ControlFlow<()>, E>,
    ) -> Result<ControlFlow<()>, E>
    where
        T: Send,
        E: From<DeviceError> + Send,
        F: Fn(&J, &mut S) -> Result<T, E> + Sync,
    {
        self.device.synchronize()?; // what was made in this lane, the weights first of all, is there for the others
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            let (sender, receiver) = sync_channel(self.lanes.len());
            for lane in 0..self.lanes.len() {
                let (sender, next) = (sender.clone(), &next);
                scope.spawn(move || self.stream_worker(lane, next, &sender));
            }
            drop(sender);
            let mut early = BTreeMap::new();
            for (i, job) in self.jobs.iter().enumerate() {
                // Nothing comes where a lane panicked, which the scope passes on, or failed.
                let Some(Ok(done)) = receive_in_order(i, &mut early, &receiver) else { break };
                *taken = i + 1;
                if take(job, done)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// One lane: the next job that nobody has begun, until there is none, one fails, or nobody
    /// listens any more.
    fn stream_worker<T, E>(
        &self,
        lane: usize,
        next: &AtomicUsize,
        sender: &SyncSender<(usize, Result<T, E>)>,
    ) where
        E: From<DeviceError>,
        F: Fn(&J, &mut S) -> Result<T, E>,
    {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = self.jobs.get(i) else { return };
            let done =
                self.device.on_stream(lane, || (self.each)(job, &mut lock(&self.lanes[lane])));
            let done = done.map_err(E::from).flatten();
            let failed = done.is_err();
            if sender.send((i, done)).is_err() || failed {
                return;
            }
        }
    }
}

/// What job `i` gave; keeps what comes before it.
fn receive_in_order<T>(
    i: usize,
    early: &mut BTreeMap<usize, T>,
    receiver: &Receiver<(usize, T)>,
) -> Option<T> {
    loop {
        if let Some(done) = early.remove(&i) {
            return Some(done);
        }
        let (j, done) = receiver.recv().ok()?;
        early.insert(j, done);
    }
}

/// Turns the times of jobs into times of the whole. A lane alone has all of the time; where lanes
/// run beside each other, a job has what passed since the one before it was taken, and its stages
/// have their shares of that.
pub(crate) struct StageClock(Option<Instant>);

impl StageClock {
    /// Starts to count, with so many lanes.
    pub(crate) fn start(lanes: usize) -> Self {
        Self((lanes > 1).then(Instant::now))
    }

    /// Seconds of a job that was just taken.
    pub(crate) fn lap(&mut self, of_job: Seconds) -> Seconds {
        let Some(since) = &mut self.0 else { return of_job };
        let passed = std::mem::replace(since, Instant::now()).elapsed().as_secs_f64();
        if of_job.total > 0.0 { of_job.scaled(passed / of_job.total) } else { of_job }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work<F: Fn(&usize, &mut usize) -> Result<usize, DeviceError> + Sync>(
        lanes: usize,
        each: F,
    ) -> (Vec<usize>, bool) {
        let (device, jobs) = (Device::cpu(None).unwrap(), Vec::from_iter(0..50));
        let (lanes, mut taken) = (open(lanes), Vec::new());
        let run =
            StreamJobs { device: &device, lanes: &lanes, jobs: &jobs, each }.run(|job, done| {
                assert_eq!(done, job * job);
                taken.push(*job);
                Ok(if *job == 40 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            });
        (taken, run.is_ok())
    }

    /// Stands for memory that could not be had.
    fn failure() -> DeviceError {
        DeviceError::UnsupportedIsa(tensor::Isa::Portable)
    }

    #[test]
    fn results_come_in_order_until_nobody_wants_more() {
        for lanes in 1..5 {
            assert_eq!(work(lanes, |job, _| Ok(job * job)), ((0..=40).collect(), true));
        }
    }

    #[test]
    fn what_fails_beside_others_is_tried_again_alone() {
        let tries = AtomicUsize::new(0);
        let fails_once = |job: &usize, state: &mut usize| {
            *state += 1;
            if *job == 7 && tries.fetch_add(1, Ordering::Relaxed) == 0 {
                Err(failure())
            } else {
                Ok(job * job)
            }
        };
        assert_eq!(work(3, fails_once), ((0..=40).collect(), true));
        assert_eq!(tries.into_inner(), 2);
    }

    #[test]
    fn what_fails_alone_ends_the_run() {
        for lanes in [1, 3] {
            let fails =
                |job: &usize, _: &mut usize| if *job == 7 { Err(failure()) } else { Ok(job * job) };
            assert_eq!(work(lanes, fails), ((0..7).collect(), false));
        }
    }
}
