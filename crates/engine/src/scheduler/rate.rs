//! How fast rows leave the batch, lately: what says when a full queue has room again.

use std::time::Duration;

/// Seconds after which a measurement counts half.
const HALF_LIFE: f64 = 10.0;

/// Rows that were finished and the time that it took, the past fading.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowRate {
    rows: f64,
    seconds: f64,
}

impl RowRate {
    /// Adds a pass.
    pub(crate) fn add(&mut self, rows: usize, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        let kept = 0.5_f64.powf(seconds / HALF_LIFE);
        self.rows = kept * self.rows + rows as f64;
        self.seconds = kept * self.seconds + seconds;
    }

    /// The time in which so many rows will be finished; `None` before any was.
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
