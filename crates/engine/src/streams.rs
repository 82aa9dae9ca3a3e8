//! Jobs of a run on the streams of a device: while the host prepares or reads the results of one
//! stream, the GPU runs another's kernels.
//!
//! A job is a wave, or a group of questions whose rollouts are made together. Jobs do not depend on
//! each other, so streams change speed and nothing else. Each stream has a thread and a state of
//! its own, the caches; results are taken by the calling thread, in the order of the jobs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use model::Decoder;
use tensor::{Device, DeviceError};

use crate::reply::StageSeconds;

/// Floating-point operations of a pass over all rows from which on two streams are faster than one:
/// smaller passes beside each other each fill the GPU less well.
const MIN_FLOPS: f64 = 2e12;
/// Two streams never pay below the first number of rows, and always above the second.
const ROW_BOUNDS: [usize; 2] = [2048, 12288];

/// Rows from which on several streams pay with a decoder.
pub(crate) fn min_rows_for_streams(decoder: &Decoder) -> usize {
    ((MIN_FLOPS / decoder.flops_per_position()) as usize).clamp(ROW_BOUNDS[0], ROW_BOUNDS[1])
}

/// What a stream keeps from job to job.
pub(crate) type StreamState<S> = Mutex<S>;

/// States of `count` streams, at least one.
pub(crate) fn open<S: Default>(count: usize) -> Vec<StreamState<S>> {
    (0..count.max(1)).map(|_| Mutex::default()).collect()
}

/// Locks a stream's state. A panic while it was held has left nothing that is read again.
pub(crate) fn lock<S>(state: &StreamState<S>) -> MutexGuard<'_, S> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Jobs and the streams to run them on.
pub(crate) struct StreamJobs<'a, J, S, F> {
    pub(crate) device: &'a Device,
    pub(crate) streams: &'a [StreamState<S>],
    pub(crate) jobs: &'a [J],
    /// Runs a job with a stream's state. Deterministic: a job gives the same whatever ran before.
    pub(crate) each: F,
}

impl<J: Sync, S: Default + Send, F> StreamJobs<'_, J, S, F> {
    /// Runs all jobs and hands their results to `take`, in their order, until it fails.
    ///
    /// A job that fails is tried again when no other runs: memory that others held may be what it
    /// lacked.
    pub(crate) fn run<T, E, X>(&self, mut take: impl FnMut(&J, T) -> Result<(), X>) -> Result<(), X>
    where
        T: Send,
        E: From<DeviceError> + Send,
        X: From<E>,
        F: Fn(&J, &mut S) -> Result<T, E> + Sync,
    {
        let mut taken = 0;
        if self.jobs.len().min(self.streams.len()) > 1 {
            self.run_on_streams(&mut taken, &mut take)?;
            if taken < self.jobs.len() {
                self.streams.iter().for_each(|state| *lock(state) = S::default());
            }
        }
        for job in &self.jobs[taken..] {
            // The lock is released before `take`, which may use the stream itself.
            let done = (self.each)(job, &mut lock(&self.streams[0]))?;
            take(job, done)?;
        }
        Ok(())
    }

    /// Runs jobs on all streams until one fails; counts those whose results were taken.
    fn run_on_streams<T, E, X>(
        &self,
        taken: &mut usize,
        take: &mut impl FnMut(&J, T) -> Result<(), X>,
    ) -> Result<(), X>
    where
        T: Send,
        E: From<DeviceError> + Send,
        X: From<E>,
        F: Fn(&J, &mut S) -> Result<T, E> + Sync,
    {
        // Other streams read what this one wrote, the weights first of all.
        self.device.synchronize().map_err(E::from)?;
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            let (sender, receiver) = sync_channel(self.streams.len());
            for stream in 0..self.streams.len() {
                let (sender, next) = (sender.clone(), &next);
                scope.spawn(move || self.stream_worker(stream, next, &sender));
            }
            drop(sender);
            let mut early = BTreeMap::new();
            for (i, job) in self.jobs.iter().enumerate() {
                // Nothing comes from a worker that failed, or panicked, which the scope passes on.
                let Some(Ok(done)) = receive_in_order(i, &mut early, &receiver) else { break };
                *taken = i + 1;
                take(job, done)?;
            }
            Ok(())
        })
    }

    /// One stream: takes the next job that has not begun, until there is none, one fails, or the
    /// receiver is gone.
    fn stream_worker<T, E>(
        &self,
        stream: usize,
        next: &AtomicUsize,
        sender: &SyncSender<(usize, Result<T, E>)>,
    ) where
        E: From<DeviceError>,
        F: Fn(&J, &mut S) -> Result<T, E>,
    {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = self.jobs.get(i) else { return };
            let run = || (self.each)(job, &mut lock(&self.streams[stream]));
            let done = self.device.on_stream(stream, run).map_err(E::from).flatten();
            let failed = done.is_err();
            if sender.send((i, done)).is_err() || failed {
                return;
            }
        }
    }
}

/// The result of job `i`; keeps those that arrive before it.
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

/// Turns the times of jobs into times of the whole run. A single stream has all of the time; where
/// streams run concurrently, a job has the wall clock since the one before it was taken, and its
/// stages have their shares of that.
pub(crate) struct StageClock(Option<Instant>);

impl StageClock {
    /// Starts the clock of a run on so many streams.
    pub(crate) fn start(streams: usize) -> Self {
        Self((streams > 1).then(Instant::now))
    }

    /// Seconds of a job that was just taken.
    pub(crate) fn lap(&mut self, job: StageSeconds) -> StageSeconds {
        let Some(since) = &mut self.0 else { return job };
        let passed = std::mem::replace(since, Instant::now()).elapsed().as_secs_f64();
        if job.total > 0.0 { job.scaled(passed / job.total) } else { job }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: usize = 40;

    /// Why a test's run ended.
    #[derive(Debug, PartialEq)]
    enum RunEnd {
        Enough,
        Failed,
    }

    impl From<DeviceError> for RunEnd {
        fn from(_: DeviceError) -> Self {
            Self::Failed
        }
    }

    /// Runs 50 jobs until number 40 is taken; returns those that were taken and how it ended.
    fn run<F>(streams: usize, each: F) -> (Vec<usize>, Result<(), RunEnd>)
    where
        F: Fn(&usize, &mut usize) -> Result<usize, DeviceError> + Sync,
    {
        let (device, jobs) = (Device::cpu(None).unwrap(), Vec::from_iter(0..50));
        let (streams, mut taken) = (open(streams), Vec::new());
        let jobs = StreamJobs { device: &device, streams: &streams, jobs: &jobs, each };
        let end = jobs.run(|job, done| {
            assert_eq!(done, job * job);
            taken.push(*job);
            if *job == LAST { Err(RunEnd::Enough) } else { Ok(()) }
        });
        (taken, end)
    }

    /// Stands for an allocation that failed.
    fn failure() -> DeviceError {
        DeviceError::UnsupportedIsa(tensor::Isa::Portable)
    }

    #[test]
    fn results_come_in_order_until_the_caller_stops() {
        for streams in 1..5 {
            let expected = ((0..=LAST).collect(), Err(RunEnd::Enough));
            assert_eq!(run(streams, |job, _| Ok(job * job)), expected);
        }
    }

    /// A beam search runs on the stream of the wave before it.
    #[test]
    fn a_result_can_be_taken_with_its_streams_state() {
        let (device, jobs) = (Device::cpu(None).unwrap(), Vec::from_iter(0..3));
        let streams = open::<usize>(1);
        let each = |job: &usize, state: &mut usize| {
            *state += job;
            Ok::<_, DeviceError>(*state)
        };
        let jobs = StreamJobs { device: &device, streams: &streams, jobs: &jobs, each };
        let mut taken = Vec::new();
        let end = jobs.run(|_, done| -> Result<(), DeviceError> {
            let state = streams[0].try_lock().expect("no job holds the state");
            assert_eq!(*state, done);
            taken.push(done);
            Ok(())
        });
        assert!(end.is_ok());
        assert_eq!(taken, [0, 1, 3]);
    }

    #[test]
    fn a_job_that_fails_beside_others_is_tried_again_alone() {
        let tries = AtomicUsize::new(0);
        let fails_once = |job: &usize, state: &mut usize| {
            *state += 1;
            let fails = *job == 7 && tries.fetch_add(1, Ordering::Relaxed) == 0;
            if fails { Err(failure()) } else { Ok(job * job) }
        };
        assert_eq!(run(3, fails_once), ((0..=LAST).collect(), Err(RunEnd::Enough)));
        assert_eq!(tries.into_inner(), 2);
    }

    #[test]
    fn a_job_that_fails_alone_ends_the_run() {
        for streams in [1, 3] {
            let fails = |job: &usize, _: &mut usize| match *job {
                7 => Err(failure()),
                job => Ok(job * job),
            };
            assert_eq!(run(streams, fails), ((0..7).collect(), Err(RunEnd::Failed)));
        }
    }
}
