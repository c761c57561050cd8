//! Handlers by the names of their jobs.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use fila_sdk::{MessageId, Received};
use shardqueue::JobError;

use crate::{DurableJob, JobRejection};

/// The header with a job's name.
pub(crate) const NAME_HEADER: &str = "job";

/// The circumstances of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DurableContext {
    /// The job's id, the same in all attempts.
    pub id: MessageId,
    /// The job's key.
    pub key: String,
    /// Which attempt this is: 1 for the first.
    pub attempt: u32,
}

type Attempt = Pin<Box<dyn Future<Output = Result<(), JobRejection>> + Send>>;
type Handler = Arc<dyn Fn(Received) -> Attempt + Send + Sync>;
type ErrorHandler = Arc<dyn Fn(&DurableContext, &JobRejection) + Send + Sync>;

/// The handlers of a worker, by the names of their jobs.
#[derive(Clone, Default)]
#[must_use = "handlers do nothing without a worker"]
pub struct JobRegistry {
    handlers: HashMap<&'static str, Handler>,
    on_error: Option<ErrorHandler>,
}

impl JobRegistry {
    /// Returns a registry without handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the handler of a type of job. It replaces one of the same name.
    pub fn handle<J, F, E>(
        mut self,
        handler: impl Fn(J, DurableContext) -> F + Send + Sync + 'static,
    ) -> Self
    where
        J: DurableJob,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<JobError>,
    {
        let attempt = move |received: Received| -> Attempt {
            let name = || J::NAME.to_owned();
            match serde_json::from_slice(&received.payload) {
                Err(source) => Box::pin(ready(Err(JobRejection::Decode {
                    name: name(),
                    source,
                }))),
                Ok(job) => {
                    let attempt = handler(job, context(&received));
                    Box::pin(async move {
                        attempt.await.map_err(|error| JobRejection::Failed {
                            name: J::NAME.to_owned(),
                            error: error.into(),
                        })
                    })
                }
            }
        };
        self.handlers.insert(J::NAME, Arc::new(attempt));
        self
    }

    /// Sets a function that is told of every attempt that failed. The broker attempts the job again, or makes it a dead
    /// letter after the queue's `retry_attempts_max`.
    pub fn with_error_handler(
        mut self,
        handler: impl Fn(&DurableContext, &JobRejection) + Send + Sync + 'static,
    ) -> Self {
        self.on_error = Some(Arc::new(handler));
        self
    }

    /// Makes an attempt of the job in a message.
    pub(crate) fn attempt(
        &self,
        received: Received,
    ) -> impl Future<Output = Result<(), JobRejection>> + Send + use<> {
        let (context, on_error) = (context(&received), self.on_error.clone());
        let attempt = match received.header(NAME_HEADER) {
            None => Err(JobRejection::NoName {
                header: NAME_HEADER,
            }),
            Some(name) => match self.handlers.get(name) {
                Some(handler) => Ok(Arc::clone(handler)),
                None => Err(JobRejection::Unknown {
                    name: name.to_owned(),
                }),
            },
        };
        async move {
            let result = match attempt {
                Ok(handler) => handler(received).await,
                Err(rejection) => Err(rejection),
            };
            if let Err(rejection) = &result {
                tracing::debug!(id = %context.id, error = %rejection, "an attempt failed");
                if let Some(handler) = on_error {
                    handler(&context, rejection);
                }
            }
            result
        }
    }
}

fn context(received: &Received) -> DurableContext {
    DurableContext {
        id: received.id.clone(),
        key: received.key.clone(),
        attempt: received.attempt,
    }
}

impl fmt::Debug for JobRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<_> = self.handlers.keys().collect();
        names.sort_unstable();
        f.debug_tuple("JobRegistry").field(&names).finish()
    }
}
