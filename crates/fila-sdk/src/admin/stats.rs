//! The statistics of a queue, generated from the rows of [`fila_proto::queue_stats`].

use std::time::Duration;

use fila_proto::v1;

use crate::message::millis;

/// A statistic of a queue as a row of a table, for programs that show all of them, like the command line.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Statistic {
    /// The name, as `waited`.
    pub name: &'static str,
    /// The field on the wire and in JSON, as `waited_ms_total`.
    pub field: &'static str,
    /// The unit of the value.
    pub unit: StatisticUnit,
    /// The quantity that it counts, in one sentence without a full stop.
    pub help: &'static str,
    /// Returns its value.
    pub get: fn(&QueueStats) -> u64,
}

/// The unit of a [`Statistic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatisticUnit {
    /// A number of messages, keys, consumers or events.
    Count,
    /// Bytes.
    Bytes,
    /// Milliseconds.
    Time,
}

macro_rules! field_type {
    (count) => {
        u64
    };
    (bytes) => {
        u64
    };
    (time) => {
        Duration
    };
}

macro_rules! unit {
    (count) => {
        StatisticUnit::Count
    };
    (bytes) => {
        StatisticUnit::Bytes
    };
    (time) => {
        StatisticUnit::Time
    };
}

macro_rules! from_wire {
    (time, $value:expr) => {
        Duration::from_millis($value)
    };
    ($unit:ident, $value:expr) => {
        $value
    };
}

macro_rules! to_number {
    (time, $value:expr) => {
        millis($value)
    };
    ($unit:ident, $value:expr) => {
        $value
    };
}

macro_rules! define {
    (
        now { $($now:ident: $now_unit:ident, $now_field:ident, $now_core:ident $(())?, $now_help:literal;)+ }
        totals { $($total:ident: $unit:ident, $field:ident, $($core:ident).+, $help:literal;)+ }
    ) => {
        /// The statistics of a queue: the state of its messages now, and totals.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct QueueStats {
            $(#[doc = concat!($now_help, ".")] pub $now: field_type!($now_unit),)+
            /// Totals since the server's start.
            pub totals: QueueTotals,
        }

        /// Totals of a queue since the server's start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct QueueTotals {
            $(#[doc = concat!($help, ".")] pub $total: field_type!($unit),)+
        }

        impl QueueStats {
            /// The statistics of the current state, in display order.
            pub const NOW: &'static [Statistic] = &[$(Statistic {
                name: stringify!($now),
                field: stringify!($now_field),
                unit: unit!($now_unit),
                help: $now_help,
                get: |stats| to_number!($now_unit, stats.$now),
            }),+];

            /// The totals, in display order.
            pub const TOTALS: &'static [Statistic] = &[$(Statistic {
                name: stringify!($total),
                field: stringify!($field),
                unit: unit!($unit),
                help: $help,
                get: |stats| to_number!($unit, stats.totals.$total),
            }),+];
        }

        impl From<v1::QueueStats> for QueueStats {
            fn from(wire: v1::QueueStats) -> Self {
                Self {
                    $($now: from_wire!($now_unit, wire.$now_field),)+
                    totals: QueueTotals { $($total: from_wire!($unit, wire.$field),)+ },
                }
            }
        }
    };
}

fila_proto::queue_stats!(define);

#[cfg(feature = "serde")]
impl serde::Serialize for QueueStats {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = Self::NOW.iter().chain(Self::TOTALS);
        serializer.collect_map(rows.map(|row| (row.field, (row.get)(self))))
    }
}
