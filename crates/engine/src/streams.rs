//! Runs jobs on several streams of a device: while the host prepares or reads the results of one
//! stream, the GPU runs another's kernels.
//!
//! A job is a batch, or a group of questions whose rollouts run together. Jobs are independent, so
//! streams affect only speed. Each stream has its own thread and state (the caches); results are
//! consumed by the calling thread, in job order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use model::Decoder;
use tensor::{Device, DeviceError};

use crate::reply::StageSeconds;

/// Floating-point operations of a forward pass over all sequences above which two streams are
/// faster than one: smaller concurrent passes utilize the GPU less well.
const MIN_FLOPS: f64 = 2e12;
/// Bounds on the number of sequences: below the first two streams are never faster, above the
/// second always.
const ROW_BOUNDS: [usize; 2] = [2048, 12288];

/// Number of sequences from which on several streams are faster.
pub(crate) fn min_rows_for_streams(decoder: &Decoder) -> usize {
    ((MIN_FLOPS / decoder.flops_per_position()) as usize).clamp(ROW_BOUNDS[0], ROW_BOUNDS[1])
}

/// A stream's state between jobs.
pub(crate) type StreamState<S> = Mutex<S>;

/// Creates the states of `count` streams, at least one.
pub(crate) fn open<S: Default>(count: usize) -> Vec<StreamState<S>> {
    (0..count.max(1)).map(|_| Mutex::default()).collect()
}

/// Locks a stream's state. After a panic of its holder, nothing in it is read again.
pub(crate) fn lock<S>(state: &StreamState<S>) -> MutexGuard<'_, S> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Jobs and the streams to run them on.
pub(crate) struct StreamJobs<'a, J, S, F> {
    pub(crate) device: &'a Device,
    pub(crate) streams: &'a [StreamState<S>],
    pub(crate) jobs: &'a [J],
    /// Runs a job with a stream's state. Deterministic: the result does not depend on previous
    /// jobs.
    pub(crate) each: F,
}

impl<J: Sync, S: Default + Send, F> StreamJobs<'_, J, S, F> {
    /// Runs all jobs and passes their results to `take`, in order, until it fails.
    ///
    /// A failed job is retried once no other job runs, because it may have lacked memory that
    /// others held.
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
            // Release the lock before `take`, which may use the stream itself.
            let done = (self.each)(job, &mut lock(&self.streams[0]))?;
            take(job, done)?;
        }
        Ok(())
    }

    /// Runs jobs on all streams until one fails; returns the number of consumed results.
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
        // Other streams read data written by this one, first of all the weights.
        self.device.synchronize().map_err(E::from)?;
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            let (sender, receiver) = sync_channel(self.streams.len());
            for stream in 0..self.streams.len() {
                let sender = sender.clone();
                let next = &next;
                scope.spawn(move || self.stream_worker(stream, next, &sender));
            }
            drop(sender);
            let mut early = BTreeMap::new();
            for (i, job) in self.jobs.iter().enumerate() {
                // A worker that failed or panicked sends no result; the scope propagates panics.
                let Some(Ok(done)) = receive_in_order(i, &mut early, &receiver) else { break };
                *taken = i + 1;
                take(job, done)?;
            }
            Ok(())
        })
    }

    /// The worker of one stream: runs the next unstarted job until there are none, one fails, or
    /// the receiver is gone.
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

/// The result of job `i`; buffers later ones that arrive first.
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

/// Converts the times of jobs into times of the whole run. A single stream has all of the time;
/// with concurrent streams, a job is attributed the wall-clock time since the previous job was
/// consumed, divided in proportion to its stages.
pub(crate) struct StageClock(Option<Instant>);

impl StageClock {
    /// Starts the clock of a run on `streams` streams.
    pub(crate) fn start(streams: usize) -> Self {
        Self((streams > 1).then(Instant::now))
    }

    /// The seconds attributed to a job that was just consumed.
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

    /// The reason that a test's run ended.
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

    /// Runs 50 jobs until number 40 is consumed; returns the consumed ones and how the run ended.
    fn run<F>(streams: usize, each: F) -> (Vec<usize>, Result<(), RunEnd>)
    where
        F: Fn(&usize, &mut usize) -> Result<usize, DeviceError> + Sync,
    {
        let device = Device::cpu(None).unwrap();
        let jobs = Vec::from_iter(0..50);
        let streams = open(streams);
        let mut taken = Vec::new();
        let jobs = StreamJobs { device: &device, streams: &streams, jobs: &jobs, each };
        let end = jobs.run(|job, done| {
            assert_eq!(done, job * job);
            taken.push(*job);
            if *job == LAST { Err(RunEnd::Enough) } else { Ok(()) }
        });
        (taken, end)
    }

    /// Simulates a failed allocation.
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

    /// A beam search runs on the stream of the batch before it.
    #[test]
    fn a_result_can_be_taken_with_its_streams_state() {
        let device = Device::cpu(None).unwrap();
        let jobs = Vec::from_iter(0..3);
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
