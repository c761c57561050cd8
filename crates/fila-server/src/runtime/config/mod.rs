//! The runtime configuration: read by all, changed by one writer, followed by the throttles.

pub(super) mod calls;
pub(super) mod shared_buckets;
pub(super) mod throttles;
pub(super) mod writer;
