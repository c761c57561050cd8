//! Extractors, and the types that keep extractors of different requests apart.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use firq_async::Priority;

type Extractor<Req, V> = Arc<dyn Fn(&Req) -> V + Send + Sync>;

/// No extractor has been given: a builder that has this takes extractors for any request.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoExtractors;

/// Extractors for requests of type `Req`, and no other.
pub struct Extractors<Req> {
    pub(crate) deadline: Option<Extractor<Req, Option<Instant>>>,
    pub(crate) priority: Option<Extractor<Req, Priority>>,
    pub(crate) cost: Option<Extractor<Req, u64>>,
}

/// Is implemented by what a builder has if extractors for requests of type `Req` fit in with it.
#[diagnostic::on_unimplemented(
    message = "this builder has extractors for another type of request than `{Req}`",
    label = "extractors of one layer read one type of request"
)]
pub trait IntoExtractors<Req>: sealed::Sealed {
    #[doc(hidden)]
    fn into_extractors(self) -> Extractors<Req>;
}

impl<Req> IntoExtractors<Req> for NoExtractors {
    fn into_extractors(self) -> Extractors<Req> {
        Extractors {
            deadline: None,
            priority: None,
            cost: None,
        }
    }
}

impl<Req> IntoExtractors<Req> for Extractors<Req> {
    fn into_extractors(self) -> Self {
        self
    }
}

impl<Req> fmt::Debug for Extractors<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extractors")
            .field("deadline", &self.deadline.is_some())
            .field("priority", &self.priority.is_some())
            .field("cost", &self.cost.is_some())
            .finish()
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::NoExtractors {}
    impl<Req> Sealed for super::Extractors<Req> {}
}
