#![doc = include_str!("../README.md")]
//!
//! # How it is built
//!
//! ```text
//! FirqLayer ─ makes ─> FirqService ─ call ─> ResponseFuture:  Entering → Queued → Running → done
//!      └── Gate, shared by all           (room in the queue)  (one's turn)  (permit held)
//!           ├─ scheduler   the order of service: firq-async
//!           ├─ limit       how many may run, fixed or adaptive
//!           └─ lines       when refused clients had best come back
//! ```

mod adaptive;
mod answer;
mod builder;
mod error;
mod extractors;
mod future;
mod gate;
mod layer;
mod limit;
mod line;
mod metrics;
mod permit;
mod quota;
mod rejection;
mod service;
mod stats;
mod turn;

pub use adaptive::Adaptive;
pub use answer::{Answer, ErrorAnswer, GrpcAnswer, JsonAnswer};
pub use builder::Firq;
pub use error::{Cause, Refusal};
pub use extractors::{Extractors, IntoExtractors, NoExtractors};
pub use future::ResponseFuture;
pub use gate::Tenant;
pub use layer::FirqLayer;
pub use metrics::MetricsService;
pub use rejection::FirqHttpRejection;
pub use service::FirqService;
pub use stats::FirqStats;

pub use firq_async::{
    BackpressurePolicy, EnqueueRejectReason, PathError, Priority, SchedulerStats, TenantKey,
    TenantPath, group_by_first, group_by_slash,
};
