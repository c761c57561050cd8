//! Why a fairness key waits.

use std::time::{Duration, SystemTime};

use fila_proto::v1;

use crate::moment::at as moment;
use crate::{Admin, Error};

impl Admin {
    /// Tells why a fairness key waits, what it gets of the queue, and when its next message will be delivered, as far as
    /// one can tell. Changes nothing.
    ///
    /// A key that the queue does not know has no messages: it is [empty](Waiting::Empty).
    ///
    /// # Errors
    /// If there is no such queue, or the store takes no more writes.
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

/// How a fairness key is, and why its next message has not been delivered yet. From [`Admin::explain`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// When this was so, by the server's clock.
    pub now: SystemTime,
    /// What its next message waits for.
    pub waiting: Waiting,
    /// In force.
    pub weight: u32,
    /// Messages that could be delivered now, if nothing held the key up.
    pub ready: u64,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// Messages that a consumer has.
    pub leased: u64,
    /// How long `share` and `ideal_share` are about: the last 50 to 60 seconds, or less if the queue has not been in memory
    /// for so long.
    pub recent: Duration,
    /// Its part of what was delivered in that time, by what the queue charges for; from 0 to 1. None if nothing was.
    pub share: Option<f64>,
    /// The part that it should have had: of each of these deliveries that was made while the key could run, its weight out
    /// of the weights of all keys that could run then.
    pub ideal_share: Option<f64>,
    /// By how much it is ahead of its share, in messages: what it pays off by waiting.
    pub debt: f64,
    /// The most messages that others get before its next one, once nothing else holds it up, with the keys that can run
    /// now. Where the queue charges for bytes or time, what is worth as much as messages. None for a key that is not
    /// known.
    pub bound: Option<u64>,
    /// When its next message will be delivered, if there is something to go by.
    pub estimate: Option<Estimate>,
}

/// What the next message of a fairness key waits for. Of several things, the first that applies is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// Nothing: no message of the key waits. Some may be with consumers.
    Empty,
    /// Its messages are being stored, or others of it are being removed from the store first.
    Storing,
    /// The queue is paused.
    QueuePaused,
    /// The key is paused.
    KeyPaused,
    /// As many of its messages are with consumers as may be at once.
    AtCap {
        /// How many that is.
        cap: u32,
    },
    /// Its messages wait for their time: a delay they were sent with, or one after a failed delivery.
    BackingOff {
        /// When the first of them is due.
        until: SystemTime,
    },
    /// It has nothing to deliver but what waits for a token of a throttle key.
    Throttled {
        /// Which one.
        key: String,
        /// When there will be a token for it; none if the rate is zero.
        until: Option<SystemTime>,
    },
    /// Its messages have failed, and it is being decided what becomes of them.
    Judging,
    /// A message of it has failed when as many of the queue's messages waited for their time as may.
    TooManyDelayed,
    /// Its messages could not be read from the store.
    ReadFailed {
        /// When that is tried again.
        until: SystemTime,
    },
    /// Its turn has come, and its message is being read from the store.
    Reading,
    /// Nobody consumes from the queue.
    NoConsumers,
    /// There are consumers, but they have been sent nothing for a minute and can take nothing.
    NoCredit,
    /// It waits for its turn.
    Runnable {
        /// How many deliveries to other keys come before, if keys neither come nor go.
        position: u64,
        /// Whether they were foreseen one by one. Beyond 1,000 it is about that many.
        is_exact: bool,
    },
    /// Something that this version of the client does not know.
    Unknown,
}

/// When a message will be delivered, as far as one can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// When, by the server's clock.
    pub at: SystemTime,
    /// What tells.
    pub basis: EstimateBasis,
}

/// What an estimate goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EstimateBasis {
    /// How many come before, and how fast the queue has delivered of late.
    QueuePace,
    /// How fast the key itself has been delivered of late.
    KeyPace,
    /// When what it waits for is over.
    Due,
    /// It is being read, which takes as long as the store takes.
    Store,
    /// Something that this version of the client does not know.
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
