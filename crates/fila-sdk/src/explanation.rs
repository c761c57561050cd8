//! Why a fairness key or a group of keys waits.

use std::time::{Duration, SystemTime};

use fila_proto::v1;

use crate::moment::at as moment;
use crate::{Admin, Error};

impl Admin {
    /// Explains why a fairness key waits, which share of the queue it gets, and an estimate of its next delivery.
    /// Changes nothing.
    ///
    /// The path of a group is explained as a whole, with all its members. A key that the queue does not know has no
    /// messages: it is [empty](Waiting::Empty).
    ///
    /// # Errors
    /// If there is no such queue, or the store accepts no more writes.
    pub async fn explain(&self, queue: &str, key: &str) -> Result<Explanation, Error> {
        let request = v1::ExplainKeyRequest {
            queue: queue.to_owned(),
            fairness_key: key.to_owned(),
        };
        let answer = self.look(request, |mut admin, request| async move {
            admin.explain_key(request).await
        });
        answer.await.map(Explanation::from)
    }
}

/// The state of a fairness key, and the reason why its next message still waits. From [`Admin::explain`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The moment of this state, by the server's clock.
    pub now: SystemTime,
    /// The reason why its next message waits.
    pub waiting: Waiting,
    /// The weight in force, among the keys and groups beside it.
    pub weight: u32,
    /// Messages that could be delivered now, if nothing blocked the key.
    pub ready: u64,
    /// Messages that wait for the end of their delay.
    pub delayed: u64,
    /// Messages that are leased to a consumer.
    pub leased: u64,
    /// The time that `share` and `ideal_share` cover: the last 50 to 60 seconds, or less if the queue has been in
    /// memory for less.
    pub recent: Duration,
    /// Its share of the deliveries in that time, in the unit that the queue charges; from 0 to 1. None without
    /// deliveries.
    pub share: Option<f64>,
    /// The share that it should have had. Of each delivery that was made while the key could run, it counts the key's
    /// weight divided by the weights of all keys that could run then. For a key in groups, the product over its levels.
    pub ideal_share: Option<f64>,
    /// By how many messages it is ahead of the keys and groups beside it. It waits until it has paid them off.
    pub debt: f64,
    /// The most messages that other keys get before its next one, once nothing else blocks it, among the keys that can
    /// run now. If the queue charges for bytes or time, the equivalent in messages. The sum of the bounds of all levels.
    /// None for an unknown key.
    pub bound: Option<u64>,
    /// An estimate of the delivery of its next message, if the broker has data for one.
    pub estimate: Option<Estimate>,
    /// The groups that it is in, from the top down, and itself at the end. Empty if the server is of a version without
    /// groups.
    pub levels: Vec<LevelExplanation>,
    /// Whether the path is that of a group: then everything here is about all its members together.
    pub is_group: bool,
}

impl Explanation {
    /// Returns the level that makes the next message wait: a paused group, a group at its cap, or the key itself. None if
    /// no message waits, or if it waits for its turn, for a consumer or for the queue.
    #[must_use]
    pub fn held_up_by(&self) -> Option<&LevelExplanation> {
        self.levels.iter().find(|level| level.holds_up)
    }
}

/// One level of an [`Explanation`]: a group, or the key.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LevelExplanation {
    /// The path of the group, or the key.
    pub path: String,
    /// The weight in force, among the keys and groups beside it.
    pub weight: u32,
    /// Whether it is this level that makes the next message wait.
    pub holds_up: bool,
    /// Whether this level is paused.
    pub is_paused: bool,
    /// The most messages of this level that are leased at once; none without a limit.
    pub cap: Option<u32>,
    /// Messages of this level that are leased to a consumer.
    pub leased: u64,
    /// Its part of the deliveries to the level above, or of all deliveries of the queue; from 0 to 1. None without
    /// deliveries.
    pub share: Option<f64>,
    /// The part of them that it should have had.
    pub ideal_share: Option<f64>,
    /// By how many messages it is ahead of the keys and groups beside it.
    pub debt: f64,
    /// The part of the bound that the keys and groups beside it add. None for an unknown key.
    pub bound: Option<u64>,
}

/// The reason why the next message of a fairness key waits. If several apply, the first of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// No message of the key waits. Some may be leased to consumers.
    Empty,
    /// The broker is storing its messages, or is removing other messages of the key from the store first.
    Storing,
    /// The queue is paused.
    QueuePaused,
    /// The key is paused, or a group that it is in: see [`Explanation::held_up_by`].
    KeyPaused,
    /// Consumers hold as many of its messages as its concurrency limit allows, or that of a group that it is in: see
    /// [`Explanation::held_up_by`].
    AtCap {
        /// The limit.
        cap: u32,
    },
    /// Its messages wait for the end of a delay: their own, or the one after a failed delivery.
    BackingOff {
        /// When the first delay ends.
        until: SystemTime,
    },
    /// All its ready messages wait for a token of a throttle key.
    Throttled {
        /// The throttle key.
        key: String,
        /// When a token is available; none if the rate is zero.
        until: Option<SystemTime>,
    },
    /// Its messages have failed, and the broker is deciding how to go on with them.
    Judging,
    /// A message of the key has failed, and the queue has reached its limit of delayed messages.
    TooManyDelayed,
    /// The broker could not read its messages from the store.
    ReadFailed {
        /// When the broker tries again.
        until: SystemTime,
    },
    /// Groups only: every member that has messages waits for something of its own. Explain a member to see for what.
    MembersWait,
    /// Its turn has come, and the broker is reading its message from the store.
    Reading,
    /// The queue has no consumers.
    NoConsumers,
    /// There are consumers, but for a minute they have received nothing and had no credit.
    NoCredit,
    /// It waits for its turn.
    Runnable {
        /// How many deliveries to other keys come before, if keys neither come nor go.
        position: u64,
        /// Whether the broker has simulated these deliveries one by one. Beyond 1,000 the position is approximate.
        is_exact: bool,
    },
    /// A reason that this version of the client does not know.
    Unknown,
}

/// The estimated time of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// The estimate, by the server's clock.
    pub at: SystemTime,
    /// The basis of the estimate.
    pub basis: EstimateBasis,
}

/// The basis of an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EstimateBasis {
    /// The deliveries that come before, and the queue's recent rate of deliveries.
    QueuePace,
    /// The key's own recent rate of deliveries.
    KeyPace,
    /// The end of the delay or the throttle that the message waits for.
    Due,
    /// The broker is reading the message from the store.
    Store,
    /// A basis that this version of the client does not know.
    Unknown,
}

impl From<v1::ExplainKeyResponse> for Explanation {
    fn from(wire: v1::ExplainKeyResponse) -> Self {
        let basis = match wire.estimate_basis() {
            v1::EstimateBasis::QueuePace => EstimateBasis::QueuePace,
            v1::EstimateBasis::KeyPace => EstimateBasis::KeyPace,
            v1::EstimateBasis::Due => EstimateBasis::Due,
            v1::EstimateBasis::Store => EstimateBasis::Store,
            v1::EstimateBasis::Unspecified => EstimateBasis::Unknown,
        };
        Self {
            now: moment(wire.now_ms),
            waiting: Waiting::from(&wire),
            weight: wire.weight,
            ready: wire.ready,
            delayed: wire.delayed,
            leased: wire.leased,
            recent: Duration::from_millis(wire.recent_ms),
            share: wire.share,
            ideal_share: wire.ideal_share,
            debt: wire.debt as f64 / 1000.0,
            bound: wire.bound,
            estimate: wire.estimate_ms.map(|at| Estimate {
                at: moment(at),
                basis,
            }),
            is_group: wire.group,
            levels: wire
                .levels
                .into_iter()
                .map(LevelExplanation::from)
                .collect(),
        }
    }
}

impl From<v1::ExplainLevel> for LevelExplanation {
    fn from(wire: v1::ExplainLevel) -> Self {
        let v1::ExplainLevel {
            path,
            weight,
            holds_up,
            paused,
            cap,
            leased,
            share,
            ideal_share,
            debt,
            bound,
        } = wire;
        Self {
            path,
            weight,
            holds_up,
            is_paused: paused,
            cap,
            leased,
            share,
            ideal_share,
            debt: debt as f64 / 1000.0,
            bound,
        }
    }
}

impl From<&v1::ExplainKeyResponse> for Waiting {
    fn from(wire: &v1::ExplainKeyResponse) -> Self {
        let until = moment(wire.until_ms.unwrap_or(wire.now_ms));
        match wire.reason() {
            v1::WaitReason::Empty => Self::Empty,
            v1::WaitReason::Storing => Self::Storing,
            v1::WaitReason::QueuePaused => Self::QueuePaused,
            v1::WaitReason::KeyPaused => Self::KeyPaused,
            v1::WaitReason::AtCap => Self::AtCap { cap: wire.cap },
            v1::WaitReason::BackingOff => Self::BackingOff { until },
            v1::WaitReason::Throttled => Self::Throttled {
                key: wire.throttle_key.clone(),
                until: wire.until_ms.map(moment),
            },
            v1::WaitReason::Judging => Self::Judging,
            v1::WaitReason::TooManyDelayed => Self::TooManyDelayed,
            v1::WaitReason::ReadFailed => Self::ReadFailed { until },
            v1::WaitReason::MembersWait => Self::MembersWait,
            v1::WaitReason::Reading => Self::Reading,
            v1::WaitReason::NoConsumers => Self::NoConsumers,
            v1::WaitReason::NoCredit => Self::NoCredit,
            v1::WaitReason::Runnable => Self::Runnable {
                position: wire.position.unwrap_or_default(),
                is_exact: wire.position_exact,
            },
            v1::WaitReason::Unspecified => Self::Unknown,
        }
    }
}
