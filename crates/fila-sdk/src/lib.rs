#![doc = include_str!("../README.md")]

mod admin;
mod backoff;
mod client;
mod config;
mod consumer;
mod error;
mod explanation;
mod history;
#[cfg(feature = "serde")]
mod json;
mod message;
mod moment;
mod peek;
mod probe;
mod producer;
mod queue;
mod receive;
mod redrive;
mod settings;
#[cfg(feature = "testing")]
pub mod testing;
mod tls;
mod tls_fault;
mod whatif;
mod worker;

pub use admin::{
    Admin, Charge, DeduplicationScope, GroupInfo, HookFallback, HookInfo, HookState, KeyChange,
    KeyInfo, KeySettings, Ordering, QueueInfo, QueueSettings, QueueStats, QueueTotals, ServerInfo,
    Setting, SettingKind, SettingValue, SettingWord, Statistic, StatisticUnit,
};
pub use client::{Client, ClientBuilder};
pub use config::{ConfigEntry, Expected};
pub use consumer::{Consumer, ConsumerBuilder, Delivery, Received, Verdict};
pub use error::{Error, ErrorCode, Quota, QuotaPool, Refusal};
pub use explanation::{Estimate, EstimateBasis, Explanation, LevelExplanation, Waiting};
pub use history::{Death, DeathReason, History};
pub use message::{Message, MessageId, Sent};
pub use peek::{PeekBuilder, PeekPage, PeekPlace, Peeked, PeekedState};
pub use queue::{Queue, Receipt};
pub use receive::{LeaseId, Leased, ReceiveBuilder};
pub use redrive::{Redrive, RedriveBuilder, RedriveProgress};
pub use settings::{Profile, Profiles, Settings, SettingsError, SettingsFlags};
pub use tls_fault::TlsFault;
pub use whatif::{Outlook, PaceBasis, Prediction, PredictionKind, PredictionRow, WhatIf};
pub use worker::{Failure, Report, WorkerBuilder};

/// The quick start, whose Rust is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/quickstart.md")]
mod quickstart {}
