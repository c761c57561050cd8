//! Other settings of keys and groups, tried before they are applied.

use std::time::Duration;

use fila_proto::v1;

use crate::admin::{KeyChange, to_wire};
use crate::message::millis;
use crate::{Admin, Error};

impl Admin {
    /// Predicts what each key and each group of a queue gets, with the present settings and with changed ones. Changes
    /// nothing.
    ///
    /// The server plays the coming deliveries on a copy of the queue's state, without its messages.
    ///
    /// # Errors
    /// If there is no such queue, it has more than 100,000 keys and groups, or a change or a figure is out of range.
    pub async fn what_if(&self, queue: &str, question: &WhatIf) -> Result<Prediction, Error> {
        let request = v1::WhatIfRequest {
            queue: queue.to_owned(),
            changes: to_wire(question.changes()),
            over_ms: question.over.map_or(0, millis),
            levels: question.levels.unwrap_or(0),
            rows_max: question.rows_max.unwrap_or(0),
        };
        let answer = self.look(request, |mut admin, request| async move {
            admin.what_if(request).await
        });
        answer.await.map(Prediction::from)
    }
}

/// A question to [`Admin::what_if`]. Without changes, it asks about the present settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a question does nothing until it is asked"]
pub struct WhatIf {
    changes: Vec<(String, KeyChange)>,
    over: Option<Duration>,
    levels: Option<u32>,
    rows_max: Option<u32>,
}

impl WhatIf {
    /// Returns a question without changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes the settings of a key, or of the group of this path.
    pub fn change(mut self, path: impl Into<String>, change: KeyChange) -> Self {
        self.changes.push((path.into(), change));
        self
    }

    /// Asks for the shares and rates of this time; a minute by default, a day at most.
    pub fn over(mut self, time: Duration) -> Self {
        self.over = Some(time);
        self
    }

    /// Asks for this many levels of groups: 1, the default, for keys and groups that are in no group. Changed keys and
    /// groups are shown on every level.
    pub fn levels(mut self, levels: u32) -> Self {
        self.levels = Some(levels);
        self
    }

    /// Asks for at most this many rows; 100 by default, 1,000 at most.
    pub fn rows_max(mut self, rows: u32) -> Self {
        self.rows_max = Some(rows);
        self
    }

    /// Returns the changes, as [`Admin::update_keys`] takes them.
    pub fn changes(&self) -> impl Iterator<Item = (String, KeyChange)> {
        self.changes.iter().cloned()
    }
}

/// The answer to a [`WhatIf`].
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Prediction {
    /// The version of the settings that the server played with. [`Admin::update_keys`] takes it.
    pub version: u64,
    /// The keys and groups that would change come first, then those with the largest shares. Members follow their group.
    pub rows: Vec<PredictionRow>,
    /// How many more rows there would be.
    pub left_out: u64,
    /// The time that shares and rates are of; none with [`PaceBasis::Nothing`]. It is shorter than the time that was asked
    /// for if that has too many deliveries.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "over_ms", serialize_with = "crate::json::some_millis")
    )]
    pub over: Option<Duration>,
    /// With [`PaceBasis::Nothing`]: the number of deliveries that shares are of.
    pub over_deliveries: Option<u64>,
    /// Deliveries in a second, in the last minute.
    pub pace: Option<f64>,
    /// The basis of times.
    pub basis: PaceBasis,
    /// Whether the queue is paused. The prediction then says what happens once it is resumed.
    pub queue_paused: bool,
}

/// The basis of the times in a prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum PaceBasis {
    /// The consumers have no room: they go on as fast as in the last minute.
    Measured,
    /// The consumers have room for more: they take as much as they ask for, each message for as long as of late.
    Credit,
    /// Nothing was delivered in the last minute: deliveries are counted in place of time.
    Nothing,
    /// A basis that this version of the client does not know.
    #[default]
    Unknown,
}

/// A key or a group of a prediction.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PredictionRow {
    /// The key, or the path of the group.
    pub path: String,
    /// What it is.
    pub kind: PredictionKind,
    /// In how many groups it is.
    pub level: u32,
    /// Whether its own settings would change.
    pub changed: bool,
    /// Messages that wait only for their turn.
    pub ready: u64,
    /// Messages that consumers hold.
    pub leased: u64,
    /// Messages that wait for their time or for a token. The prediction leaves them out.
    pub held_back: u64,
    /// Messages that arrive in a second, as in the last minute.
    pub arrivals: f64,
    /// With the present settings.
    pub now: Outlook,
    /// With the changed ones.
    pub then: Outlook,
}

/// What a row of a prediction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum PredictionKind {
    /// A key.
    Key,
    /// A group, with all its members.
    Group,
    /// The messages that name the path of a group itself: a member of that group.
    OwnMessages,
    /// A kind that this version of the client does not know.
    #[default]
    Unknown,
}

/// What a key or a group gets under some settings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Outlook {
    /// The weight in force.
    pub weight: u32,
    /// Whether an operator has paused it.
    pub paused: bool,
    /// The most messages of it that consumers hold at once.
    pub cap: Option<u32>,
    /// Its part of all deliveries of the queue, in the unit that the queue charges; from 0 to 1.
    pub share: f64,
    /// Deliveries to it.
    pub deliveries: u64,
    /// Deliveries in a second; none with [`PaceBasis::Nothing`].
    pub rate: Option<f64>,
    /// Messages that still wait at the end.
    pub ready: u64,
    /// When no message of it waits any more; none if that never happens, and with [`PaceBasis::Nothing`].
    #[cfg_attr(
        feature = "serde",
        serde(rename = "drained_ms", serialize_with = "crate::json::some_millis")
    )]
    pub drained: Option<Duration>,
    /// With [`PaceBasis::Nothing`]: after how many deliveries of the queue no message of it waits any more.
    pub drained_deliveries: Option<u64>,
    /// Whether that is too far ahead to be played delivery by delivery, and so is approximate.
    pub drained_extrapolated: bool,
}

impl From<v1::WhatIfResponse> for Prediction {
    fn from(wire: v1::WhatIfResponse) -> Self {
        let basis = match wire.basis() {
            v1::PaceBasis::Measured => PaceBasis::Measured,
            v1::PaceBasis::Credit => PaceBasis::Credit,
            v1::PaceBasis::Nothing => PaceBasis::Nothing,
            v1::PaceBasis::Unspecified => PaceBasis::Unknown,
        };
        Self {
            version: wire.version,
            rows: wire.rows.into_iter().map(PredictionRow::from).collect(),
            left_out: wire.left_out,
            over: wire.over_ms.map(Duration::from_millis),
            over_deliveries: wire.over_deliveries,
            pace: wire.pace,
            basis,
            queue_paused: wire.queue_paused,
        }
    }
}

impl From<v1::WhatIfRow> for PredictionRow {
    fn from(wire: v1::WhatIfRow) -> Self {
        let kind = match wire.kind() {
            v1::WhatIfKind::Key => PredictionKind::Key,
            v1::WhatIfKind::Group => PredictionKind::Group,
            v1::WhatIfKind::OwnMessages => PredictionKind::OwnMessages,
            v1::WhatIfKind::Unspecified => PredictionKind::Unknown,
        };
        Self {
            path: wire.path,
            kind,
            level: wire.level,
            changed: wire.changed,
            ready: wire.ready,
            leased: wire.leased,
            held_back: wire.held_back,
            arrivals: wire.arrivals,
            now: wire.now.unwrap_or_default().into(),
            then: wire.then.unwrap_or_default().into(),
        }
    }
}

impl From<v1::Outlook> for Outlook {
    fn from(wire: v1::Outlook) -> Self {
        Self {
            weight: wire.weight,
            paused: wire.paused,
            cap: wire.cap,
            share: wire.share,
            deliveries: wire.deliveries,
            rate: wire.rate,
            ready: wire.ready,
            drained: wire.drained_ms.map(Duration::from_millis),
            drained_deliveries: wire.drained_deliveries,
            drained_extrapolated: wire.drained_extrapolated,
        }
    }
}
