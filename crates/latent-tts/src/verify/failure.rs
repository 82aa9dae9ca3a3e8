//! Errors of a dump: the file or part, followed by the problem.

use std::fmt::Display;

use crate::Error;

pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns an error of a dump.
macro_rules! bail {
    ($($reason:tt)*) => {
        return Err($crate::Error::Dump { reason: format!($($reason)*) })
    };
}

/// Returns an error of a dump unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($reason:tt)*) => {
        if !$condition {
            bail!($($reason)*);
        }
    };
}

/// Adds context to an error or a missing value.
pub(super) trait Context<T> {
    fn with_context(self, context: impl FnOnce() -> String) -> Result<T>;

    fn context(self, context: &str) -> Result<T>
    where
        Self: Sized,
    {
        self.with_context(|| context.to_owned())
    }
}

impl<T> Context<T> for Option<T> {
    fn with_context(self, context: impl FnOnce() -> String) -> Result<T> {
        self.ok_or_else(|| Error::Dump { reason: context() })
    }
}

impl<T, E: Display> Context<T> for std::result::Result<T, E> {
    fn with_context(self, context: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Dump { reason: format!("{}: {error}", context()) })
    }
}
