//! The context of an attempt.

use std::fmt;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::outcome::JobId;
use crate::ticket::Ticket;

/// The circumstances of an attempt.
#[derive(Clone)]
pub struct JobContext {
    ticket: Arc<Ticket>,
    id: JobId,
    attempt: u32,
}

impl JobContext {
    pub(crate) const fn new(ticket: Arc<Ticket>, id: JobId, attempt: u32) -> Self {
        Self {
            ticket,
            id,
            attempt,
        }
    }

    /// Returns the job's id.
    #[must_use]
    pub const fn id(&self) -> JobId {
        self.id
    }

    /// Returns the job's key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.ticket.key(self.id.place)
    }

    /// Returns which attempt this is: 1 for the first.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns whether the job has been cancelled. A job that goes on regardless may still succeed; if it
    /// returns an error, it is not attempted again.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.ticket.is_cancelled()
    }

    /// Waits until the job is cancelled.
    pub async fn cancelled(&self) {
        self.token().cancelled().await;
    }

    /// Returns a token that is cancelled when the job is, to be passed on.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.ticket.token()
    }
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext")
            .field("id", &self.id)
            .field("key", &self.key())
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}
