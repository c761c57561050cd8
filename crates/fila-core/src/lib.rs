//! The Fila broker as a pure state machine.

mod answer;
mod broker;
mod command;
mod definition;
mod effects;
mod ids;
mod limits;
mod memory;
mod queue;
mod recovery;
mod stats;
mod wheel;

pub use answer::{Answer, EnqueueError, Enqueued, Refused, SettleError};
pub use broker::Broker;
pub use command::{Command, Credit, Demand, NewMessage, Settlement, Ttl, Verdict};
pub use definition::{Charge, Definition, DefinitionError, Delivering, KeySettings, Ordering};
pub use effects::{
    Committed, Delivery, Dismissal, Effects, Garbage, Load, LoadRequest, LoadToken, LoadedMessages,
    Round,
};
pub use ids::{ConsumerId, LeaseId};
pub use limits::{Limits, Settings};
pub use recovery::Recovery;
pub use stats::{KeyCursor, KeyStats, QueueStats, Totals};
