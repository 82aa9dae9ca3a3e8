//! Recent throughput in finished sequences, from which the wait for a full queue is estimated.

use std::time::Duration;

/// Seconds after which the weight of a measurement is halved.
const HALF_LIFE: f64 = 10.0;

/// Exponentially weighted counts of finished sequences and elapsed time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowRate {
    rows: f64,
    seconds: f64,
}

impl RowRate {
    /// Adds a step that finished `rows` sequences.
    pub(crate) fn add(&mut self, rows: usize, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        let kept = 0.5_f64.powf(seconds / HALF_LIFE);
        self.rows = kept * self.rows + rows as f64;
        self.seconds = kept * self.seconds + seconds;
    }

    /// Estimated time to finish `rows` sequences; `None` before any has finished.
    pub(crate) fn time_for(&self, rows: usize) -> Option<Duration> {
        let seconds = rows as f64 * self.seconds / self.rows;
        Duration::try_from_secs_f64(seconds).ok().filter(|_| self.rows > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let mut rate = RowRate::default();
        assert_eq!(rate.time_for(1), None);
        rate.add(0, Duration::from_millis(100));
        assert_eq!(rate.time_for(1), None);
        for _ in 0..10 {
            rate.add(10, Duration::from_secs(1));
        }
        let before = rate.time_for(100).unwrap().as_secs_f64();
        assert!((9.9..11.0).contains(&before), "{before}");
        for _ in 0..100 {
            rate.add(100, Duration::from_secs(1));
        }
        let after = rate.time_for(100).unwrap().as_secs_f64();
        assert!((0.9..1.1).contains(&after), "{after}");
    }
}
