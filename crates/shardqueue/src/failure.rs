//! How a job fails: the errors it returns, the marker that forbids a retry, and the final failure.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::outcome::JobId;

/// The error of a failed attempt: any error.
pub type JobError = Box<dyn Error + Send + Sync + 'static>;

/// How far [`is_permanent`] follows a chain of sources. A chain that leads back to itself ends here, too.
const SOURCES_MAX: usize = 64;

/// Marks an error as one that a retry cannot help: the job fails at once.
///
/// It is recognised behind any number of wrappers, as long as they name it as their [source](Error::source).
///
/// ```
/// use shardqueue::{JobError, Permanent};
///
/// fn upload(body: &str) -> Result<(), JobError> {
///     if body.is_empty() {
///         return Err(Permanent::new("the body is empty").into());
///     }
///     Ok(())
/// }
/// assert!(shardqueue::is_permanent(&*upload("").unwrap_err()));
/// ```
#[derive(Debug)]
pub struct Permanent(JobError);

impl Permanent {
    /// Marks an error.
    pub fn new(error: impl Into<JobError>) -> Self {
        Self(error.into())
    }

    /// Returns the error that was marked.
    #[must_use]
    pub fn into_inner(self) -> JobError {
        self.0
    }
}

impl fmt::Display for Permanent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Permanent {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The marker prints as the error that it marks, so its source is that error's.
        self.0.source()
    }
}

/// Returns whether the error, or one that it was caused by, is marked as [`Permanent`].
#[must_use]
pub fn is_permanent(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .take(SOURCES_MAX)
        .any(|error| error.is::<Permanent>() || error.is::<Box<Permanent>>())
}

/// The error of an attempt that panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct JobPanic {
    message: String,
}

impl JobPanic {
    pub(crate) const fn new(message: String) -> Self {
        Self { message }
    }

    /// Returns the panic's message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// The error of a job that was cancelled before its first attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cancelled before its first attempt")]
pub struct NeverBegan;

/// Why a job was not attempted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureReason {
    /// The retry policy gave up: by default, after `max_attempts`.
    Exhausted,
    /// The error is [permanent](Permanent).
    Permanent,
    /// The job was cancelled before its first attempt: its error is [`NeverBegan`].
    NeverBegan,
    /// The job was cancelled after an attempt had failed, or while one ran that then returned an error. An attempt
    /// that ends because its runtime is shut down counts as cancelled, too.
    Cancelled,
    /// The executor was stopping, so there was no time for another attempt.
    Stopped,
}

/// The final failure or cancellation of a job: its last error, and why there was no other attempt.
///
/// It prints as its error; cloning it is cheap.
#[derive(Clone)]
pub struct JobFailure(Arc<Details>);

struct Details {
    id: JobId,
    key: Arc<str>,
    attempts: u32,
    reason: FailureReason,
    error: JobError,
}

impl JobFailure {
    pub(crate) fn new(
        (id, key): (JobId, Arc<str>),
        attempts: u32,
        reason: FailureReason,
        error: JobError,
    ) -> Self {
        Self(Arc::new(Details {
            id,
            key,
            attempts,
            reason,
            error,
        }))
    }

    /// Returns the report of a job that was cancelled, with the error of its last attempt if there was one.
    pub(crate) fn cancelled(
        job: (JobId, Arc<str>),
        attempts: u32,
        error: Option<JobError>,
    ) -> Self {
        let (reason, error) = match error {
            Some(error) => (FailureReason::Cancelled, error),
            None => (FailureReason::NeverBegan, NeverBegan.into()),
        };
        Self::new(job, attempts, reason, error)
    }

    /// Returns the job's id.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.0.id
    }

    /// Returns the job's key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// Returns how often the job was attempted: zero if it [never began](FailureReason::NeverBegan).
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// Returns why there was no other attempt.
    #[must_use]
    pub fn reason(&self) -> FailureReason {
        self.0.reason
    }

    /// Returns the error of the last attempt; a [`JobPanic`] if it panicked.
    #[must_use]
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0.error
    }
}

impl fmt::Debug for JobFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobFailure")
            .field("id", &self.0.id)
            .field("key", &self.0.key)
            .field("attempts", &self.0.attempts)
            .field("reason", &self.0.reason)
            .field("error", &self.0.error)
            .finish()
    }
}

impl fmt::Display for JobFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.error.fmt(f)
    }
}

impl Error for JobFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.error.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("saving failed")]
    struct Wrapper(#[source] JobError);

    #[derive(Debug, thiserror::Error)]
    #[error("turns in circles")]
    struct Circle;

    #[derive(Debug)]
    struct Endless;

    impl fmt::Display for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("endless")
        }
    }

    impl Error for Endless {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(self)
        }
    }

    #[test]
    fn a_marker_is_found_behind_wrappers() {
        let marked: JobError = Permanent::new("no such bucket").into();
        assert!(is_permanent(&*marked));
        let wrapped: JobError = Wrapper(Wrapper(marked).into()).into();
        assert!(is_permanent(&*wrapped));
        let boxed_twice: JobError = Box::new(Wrapper(Permanent::new(Circle).into()));
        assert!(is_permanent(&*boxed_twice));
    }

    #[test]
    fn errors_without_a_marker_are_not_permanent() {
        let plain: JobError = "timeout".into();
        assert!(!is_permanent(&*plain));
        assert!(!is_permanent(&Wrapper("timeout".into())));
    }

    #[test]
    fn a_chain_that_never_ends_is_given_up() {
        assert!(!is_permanent(&Endless));
    }

    #[test]
    fn the_marker_prints_as_what_it_marks() {
        let error = Permanent::new(Wrapper(Circle.into()));
        assert_eq!(error.to_string(), "saving failed");
        assert_eq!(error.source().unwrap().to_string(), "turns in circles");
        assert_eq!(error.into_inner().to_string(), "saving failed");
    }
}
