//! Conversions of the settings and statistics of queues between the wire and the broker.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use fila_core::{
    Charge, DeduplicationScope, Delivering, GroupStats, HookFallback, KeySeparator, KeySettings,
    KeyStats, Ordering, QueueSettings, QueueStats,
};
use fila_proto::v1;
use fila_store::FairnessKey;

use super::message::key_text;
use crate::runtime::{CallError, HookFigures, HookState, QueueEntry};

/// Converts a setting. On the wire, zero or an empty text means that the setting has no value.
trait WireSetting<W>: Sized {
    /// Parses it. The error says which values are allowed. Times are at most `time_max`.
    fn from_wire(wire: &W, time_max: Duration) -> Result<Self, String>;
    fn to_wire(&self) -> W;
}

impl WireSetting<u64> for Duration {
    fn from_wire(wire: &u64, time_max: Duration) -> Result<Self, String> {
        let time = Self::from_millis(*wire);
        if time > time_max {
            return Err(times_allowed(*wire, 0, time_max));
        }
        Ok(time)
    }

    fn to_wire(&self) -> u64 {
        millis(*self)
    }
}

impl WireSetting<u64> for Option<Duration> {
    fn from_wire(wire: &u64, time_max: Duration) -> Result<Self, String> {
        Ok(Some(Duration::from_wire(wire, time_max)?).filter(|time| !time.is_zero()))
    }

    fn to_wire(&self) -> u64 {
        self.map_or(0, millis)
    }
}

impl WireSetting<u64> for Option<u64> {
    fn from_wire(wire: &u64, _: Duration) -> Result<Self, String> {
        Ok(Some(*wire).filter(|number| *number > 0))
    }

    fn to_wire(&self) -> u64 {
        self.unwrap_or(0)
    }
}

impl WireSetting<u32> for Option<NonZeroU32> {
    fn from_wire(wire: &u32, _: Duration) -> Result<Self, String> {
        Ok(NonZeroU32::new(*wire))
    }

    fn to_wire(&self) -> u32 {
        self.map_or(0, NonZeroU32::get)
    }
}

/// A percentage.
impl WireSetting<u32> for u8 {
    fn from_wire(wire: &u32, _: Duration) -> Result<Self, String> {
        let percent = Self::try_from(*wire).ok().filter(|percent| *percent <= 100);
        percent.ok_or_else(|| format!(" {wire} is out of range; 0 to 100 are allowed"))
    }

    fn to_wire(&self) -> u32 {
        (*self).into()
    }
}

impl WireSetting<String> for Option<Arc<str>> {
    fn from_wire(wire: &String, _: Duration) -> Result<Self, String> {
        Ok(Some(wire.as_str())
            .filter(|text| !text.is_empty())
            .map(Arc::from))
    }

    fn to_wire(&self) -> String {
        self.as_deref().unwrap_or_default().to_owned()
    }
}

impl WireSetting<String> for Option<KeySeparator> {
    fn from_wire(wire: &String, _: Duration) -> Result<Self, String> {
        if wire.is_empty() {
            return Ok(None);
        }
        let separator = KeySeparator::parse(wire);
        separator
            .map(Some)
            .map_err(|allowed| format!(" {wire:?} is not allowed: {allowed}; empty for none"))
    }

    fn to_wire(&self) -> String {
        self.map(|separator| separator.to_string())
            .unwrap_or_default()
    }
}

macro_rules! words {
    ($($name:ident { $($value:ident),+ })+) => {$(
        impl WireSetting<i32> for $name {
            fn from_wire(wire: &i32, _: Duration) -> Result<Self, String> {
                match v1::$name::try_from(*wire) {
                    $(Ok(v1::$name::$value) => Ok(Self::$value),)+
                    Err(_) => {
                        let names = [$(v1::$name::$value.as_str_name()),+];
                        Err(format!(" {wire} is unknown; {} are allowed", names.join(", ")))
                    }
                }
            }

            fn to_wire(&self) -> i32 {
                match self { $(Self::$value => v1::$name::$value.into(),)+ }
            }
        }
    )+};
}

words! {
    Ordering { None, Key }
    Charge { Message, Bytes, Time }
    HookFallback { Default, LastGood, Refuse }
    DeduplicationScope { Key, Queue }
}

macro_rules! conversions {
    ($(
        $name:ident: $type:ident, $field:ident, $($core:ident).+, default $default:literal, $(zero $zero:literal,)?
        $help:literal;
    )+) => {
        fn read(wire: &v1::QueueSettings, time_max: Duration, settings: &mut QueueSettings) -> Result<(), String> {
            $(if let Some(value) = &wire.$field {
                settings.$($core).+ = WireSetting::from_wire(value, time_max)
                    .map_err(|allowed| stringify!($field).to_owned() + &allowed)?;
            })+
            Ok(())
        }

        fn queue_settings(settings: &QueueSettings, detail: Detail) -> v1::QueueSettings {
            let wire = v1::QueueSettings { $($field: Some(settings.$($core).+.to_wire()),)+ };
            match detail {
                Detail::Summary => v1::QueueSettings { script: None, ..wire },
                Detail::Full => wire,
            }
        }
    };
}

fila_proto::queue_settings!(conversions);

/// Applies the settings of a request. A setting that the request leaves out keeps its value.
///
/// `time_max` is the longest time that the server allows for any setting.
pub(super) fn apply(
    wire: &v1::QueueSettings,
    time_max: Duration,
    settings: &mut QueueSettings,
) -> Result<(), CallError> {
    if wire.visibility_timeout_ms == Some(0) {
        let allowed = times_allowed(0, 1, time_max);
        return Err(CallError::Invalid(format!(
            "visibility_timeout_ms{allowed}"
        )));
    }
    read(wire, time_max, settings).map_err(CallError::Invalid)
}

fn times_allowed(millis: u64, min: u64, time_max: Duration) -> String {
    let max = time_max.as_millis();
    format!(" {millis} is out of range; {min} to {max} are allowed")
}

/// A change of a fairness key's settings. `None` keeps a setting, zero removes it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyChange {
    pub(super) paused: Option<bool>,
    pub(super) weight: Option<u32>,
    pub(super) concurrency: Option<u32>,
    pub(super) depth_max: Option<u64>,
}

impl KeyChange {
    /// Applies the change to the settings of a key or group. One without settings is removed.
    fn apply(self, key: FairnessKey, definition: &mut QueueSettings) {
        let mut settings = definition.keys.get(&key).copied().unwrap_or_default();
        if let Some(paused) = self.paused {
            settings.delivery = delivering(paused);
        }
        if let Some(weight) = self.weight {
            settings.weight = NonZeroU32::new(weight);
        }
        if let Some(concurrency) = self.concurrency {
            settings.concurrency = NonZeroU32::new(concurrency);
        }
        if let Some(depth_max) = self.depth_max {
            settings.depth_max = Some(depth_max).filter(|max| *max > 0);
        }
        if settings.is_default() {
            definition.keys.remove(&key);
        } else {
            definition.keys.insert(key, settings);
        }
    }
}

/// Applies changes in their order, if no more than `max` keys and groups have settings then. A queue that has more, since
/// the limit was lowered, accepts changes that add none.
pub(super) fn apply_keys(
    changes: impl IntoIterator<Item = (FairnessKey, KeyChange)>,
    max: usize,
    definition: &mut QueueSettings,
) -> Result<(), CallError> {
    let before = definition.keys.len();
    for (key, change) in changes {
        change.apply(key, definition);
    }
    if definition.keys.len() > max.max(before) {
        return Err(CallError::TooManyKeySettings { max });
    }
    Ok(())
}

pub(super) fn delivering(paused: bool) -> Delivering {
    if paused {
        Delivering::Paused
    } else {
        Delivering::Running
    }
}

/// Which parts of a queue to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// For lists: without the script and the settings of keys. A queue may have thousands of those.
    Summary,
    /// All parts.
    Full,
}

/// Returns a queue for the wire, with the separator in force.
pub(super) fn queue_info(
    queue: &QueueEntry,
    separator: Option<KeySeparator>,
    stats: &QueueStats,
    detail: Detail,
) -> v1::QueueInfo {
    let definition = &queue.definition;
    let settings = v1::QueueSettings {
        key_separator: Some(separator.to_wire()),
        ..queue_settings(definition, detail)
    };
    let keys = match detail {
        Detail::Summary => Vec::new(),
        Detail::Full => {
            let keys = definition.keys.iter();
            keys.map(|(key, settings)| key_settings(key, settings))
                .collect()
        }
    };
    v1::QueueInfo {
        name: queue.name.to_string(),
        settings: Some(settings),
        paused: definition.delivery == Delivering::Paused,
        version: queue.version.get(),
        stats: Some(queue_stats(stats)),
        keys,
        hooks: queue.hooks().iter().map(hook_info).collect(),
    }
}

/// Returns the figures of a hook for the wire.
fn hook_info(figures: &HookFigures) -> v1::HookInfo {
    let (state, asked_again_in) = match figures.state {
        HookState::Closed => (v1::HookState::Closed, None),
        HookState::Open { asked_again_in } => (v1::HookState::Open, Some(asked_again_in)),
        HookState::HalfOpen => (v1::HookState::HalfOpen, None),
        HookState::Broken => (v1::HookState::Broken, None),
    };
    v1::HookInfo {
        name: figures.name.to_owned(),
        state: state.into(),
        failures_in_a_row: figures.failures_in_a_row,
        calls_total: figures.calls,
        failures_total: figures.failures,
        fallbacks_total: figures.fallbacks,
        adjusted_total: figures.adjusted,
        unusable_total: figures.unusable,
        busy_us_total: u64::try_from(figures.busy.as_micros()).unwrap_or(u64::MAX),
        last_error: figures.last_error.as_deref().unwrap_or_default().to_owned(),
        asked_again_in_ms: asked_again_in.map(millis),
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Converts a statistic for the wire.
trait WireStatistic {
    fn to_wire(self) -> u64;
}

impl WireStatistic for u64 {
    fn to_wire(self) -> u64 {
        self
    }
}

impl WireStatistic for Duration {
    fn to_wire(self) -> u64 {
        millis(self)
    }
}

macro_rules! statistics {
    ($($group:ident {
        $($name:ident: $unit:ident, $field:ident, $($core:ident).+ $(($($method:tt)*))?, $help:literal;)+
    })+) => {
        fn queue_stats(stats: &QueueStats) -> v1::QueueStats {
            v1::QueueStats {
                $($($field: WireStatistic::to_wire(stats.$($core).+ $(($($method)*))?),)+)+
            }
        }
    };
}

fila_proto::queue_stats!(statistics);

/// Returns the settings of a key for the wire.
pub(super) fn key_settings(key: &FairnessKey, settings: &KeySettings) -> v1::KeySettings {
    v1::KeySettings {
        fairness_key: key_text(key),
        paused: settings.delivery == Delivering::Paused,
        weight: settings.weight.map(NonZeroU32::get),
        concurrency: settings.concurrency.map(NonZeroU32::get),
        depth_max: settings.depth_max,
    }
}

/// Returns the figures of a group for the wire.
pub(super) fn group_info(group: &GroupStats) -> v1::GroupInfo {
    v1::GroupInfo {
        path: key_text(&group.path),
        weight: group.weight,
        paused: group.is_paused,
        concurrency: group.concurrency,
        depth_max: group.depth_max,
        members: group.members.into(),
        active_keys: group.active_keys,
        ready: group.ready,
        delayed: group.delayed,
        leased: group.leased,
        throttled: group.throttled,
        delivered_total: group.delivered,
        recent_served: group.recent.served,
        recent_ideal: group.recent.ideal,
    }
}

/// Returns the figures of a key for the wire.
pub(super) fn key_info(key: &KeyStats) -> v1::KeyInfo {
    v1::KeyInfo {
        fairness_key: key_text(&key.fairness_key),
        weight: key.weight,
        paused: key.is_paused,
        ready: key.ready,
        delayed: key.delayed,
        leased: key.leased,
        delivered_total: key.delivered,
        acked_total: key.acked,
        nacked_total: key.nacked,
        first_delivered_total: key.first_delivered,
        waited_ms_total: millis(key.waited),
        head_waiting_ms: key.head_waiting.map(millis),
        throttled: key.throttled,
        recent_served: key.recent.served,
        recent_ideal: key.recent.ideal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

    #[test]
    fn what_is_shown_can_be_asked_for() {
        let asked = v1::QueueSettings {
            visibility_timeout_ms: Some(5),
            ordering: Some(v1::Ordering::Key.into()),
            key_concurrency: Some(7),
            charge: Some(v1::Charge::Time.into()),
            deduplication_window_ms: Some(8),
            depth_max: Some(9),
            key_depth_max: Some(10),
            message_ttl_ms: Some(11),
            retry_attempts_max: Some(12),
            retry_backoff_ms: Some(13),
            retry_backoff_max_ms: Some(14),
            retry_jitter_percent: Some(15),
            script: Some("function on_enqueue(msg) return {} end".to_owned()),
            hook_fallback: Some(v1::HookFallback::Refuse.into()),
            deduplication_scope: Some(v1::DeduplicationScope::Queue.into()),
            key_separator: Some(":".to_owned()),
        };
        let mut definition = QueueSettings::default();
        apply(&asked, YEAR, &mut definition).unwrap();
        assert_eq!(queue_settings(&definition, Detail::Full), asked);
        apply(&v1::QueueSettings::default(), YEAR, &mut definition).unwrap();
        assert_eq!(queue_settings(&definition, Detail::Full), asked);
        let flat = v1::QueueSettings {
            key_separator: Some(String::new()),
            ..asked
        };
        apply(&flat, YEAR, &mut definition).unwrap();
        assert_eq!(definition.key_separator, None);
        assert_eq!(queue_settings(&definition, Detail::Full), flat);
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        let settings = v1::QueueSettings::default();
        for odd in [
            v1::QueueSettings {
                visibility_timeout_ms: Some(0),
                ..settings.clone()
            },
            v1::QueueSettings {
                message_ttl_ms: Some(u64::MAX),
                ..settings.clone()
            },
            v1::QueueSettings {
                ordering: Some(9),
                ..settings.clone()
            },
            v1::QueueSettings {
                charge: Some(-1),
                ..settings.clone()
            },
            v1::QueueSettings {
                hook_fallback: Some(3),
                ..settings.clone()
            },
            v1::QueueSettings {
                retry_backoff_ms: Some(u64::MAX),
                ..settings.clone()
            },
            v1::QueueSettings {
                retry_backoff_max_ms: Some(u64::MAX),
                ..settings.clone()
            },
            v1::QueueSettings {
                retry_jitter_percent: Some(101),
                ..settings.clone()
            },
            v1::QueueSettings {
                key_separator: Some("a".to_owned()),
                ..settings.clone()
            },
            v1::QueueSettings {
                key_separator: Some("//".to_owned()),
                ..settings
            },
        ] {
            let refused = apply(&odd, YEAR, &mut QueueSettings::default());
            assert!(matches!(refused, Err(CallError::Invalid(_))), "{odd:?}");
        }
    }

    #[test]
    fn a_key_whose_settings_are_taken_back_is_not_kept() {
        let key = FairnessKey::new("a").unwrap();
        let mut definition = QueueSettings::default();
        let set = KeyChange {
            paused: Some(true),
            weight: Some(3),
            concurrency: None,
            ..KeyChange::default()
        };
        apply_keys([(key.clone(), set)], 1, &mut definition).unwrap();
        assert_eq!(definition.keys.len(), 1);
        let second = FairnessKey::new("b").unwrap();
        let refused = apply_keys([(second, set)], 1, &mut definition.clone());
        assert!(matches!(
            refused,
            Err(CallError::TooManyKeySettings { max: 1 })
        ));
        let unset = KeyChange {
            paused: Some(false),
            weight: Some(0),
            concurrency: Some(0),
            ..KeyChange::default()
        };
        apply_keys([(key, unset)], 1, &mut definition).unwrap();
        assert!(definition.keys.is_empty());
    }

    #[test]
    fn the_limit_holds_after_all_changes_and_lets_settings_be_taken_back() {
        let key = |name: &str| FairnessKey::new(name.to_owned()).unwrap();
        let set = KeyChange {
            depth_max: Some(5),
            ..KeyChange::default()
        };
        let unset = KeyChange {
            depth_max: Some(0),
            ..KeyChange::default()
        };
        let mut definition = QueueSettings::default();
        apply_keys([(key("a"), set), (key("b"), set)], 2, &mut definition).unwrap();
        // One goes and another comes.
        apply_keys([(key("c"), set), (key("a"), unset)], 2, &mut definition).unwrap();
        assert_eq!(definition.keys[&key("c")].depth_max, Some(5));
        // The limit is lower now.
        let wider = KeyChange {
            weight: Some(2),
            ..KeyChange::default()
        };
        apply_keys([(key("b"), wider)], 0, &mut definition).unwrap();
        apply_keys([(key("c"), unset)], 0, &mut definition).unwrap();
        assert_eq!(definition.keys.len(), 1);
        let refused = apply_keys([(key("d"), set)], 0, &mut definition);
        assert!(matches!(
            refused,
            Err(CallError::TooManyKeySettings { max: 0 })
        ));
    }
}
