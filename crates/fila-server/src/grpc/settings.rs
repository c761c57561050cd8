//! Definitions of queues at the edge: what a request asks for, and how a queue is shown.

use std::num::NonZeroU32;
use std::time::Duration;

use fila_core::{
    Charge, Definition, Delivering, HookFallback, KeySettings, KeyStats, Ordering, QueueStats,
};
use fila_proto::v1;
use fila_store::FairnessKey;

use super::message::key_text;
use crate::runtime::{CallError, HookFigures, HookState, QueueEntry};

/// Changes a definition as a request asks for: what is absent keeps its value.
///
/// `longest` is the longest time that the server allows for anything.
pub(super) fn apply(
    settings: &v1::QueueSettings,
    longest: Duration,
    definition: &mut Definition,
) -> Result<(), CallError> {
    if let Some(millis) = settings.visibility_timeout_ms {
        definition.visibility_timeout = time("visibility_timeout_ms", millis, 1, longest)?;
    }
    if settings.ordering.is_some() {
        let unknown = || CallError::Invalid("ordering is ORDERING_NONE or ORDERING_KEY".to_owned());
        let ordering = settings
            .ordering
            .and_then(|n| v1::Ordering::try_from(n).ok());
        definition.ordering = match ordering.ok_or_else(unknown)? {
            v1::Ordering::None => Ordering::None,
            v1::Ordering::Key => Ordering::Key,
        };
    }
    if let Some(concurrency) = settings.key_concurrency {
        definition.key_concurrency = NonZeroU32::new(concurrency);
    }
    if settings.charge.is_some() {
        let allowed = "charge is CHARGE_MESSAGE, CHARGE_BYTES or CHARGE_TIME";
        let unknown = || CallError::Invalid(allowed.to_owned());
        let charge = settings.charge.and_then(|n| v1::Charge::try_from(n).ok());
        definition.charge = match charge.ok_or_else(unknown)? {
            v1::Charge::Message => Charge::Message,
            v1::Charge::Bytes => Charge::Bytes,
            v1::Charge::Time => Charge::Time,
        };
    }
    if let Some(millis) = settings.deduplication_window_ms {
        definition.deduplication_window = time("deduplication_window_ms", millis, 0, longest)?;
    }
    if let Some(depth) = settings.depth_max {
        definition.depth_max = (depth > 0).then_some(depth);
    }
    if let Some(depth) = settings.key_depth_max {
        definition.key_depth_max = (depth > 0).then_some(depth);
    }
    if let Some(millis) = settings.message_ttl_ms {
        let ttl = time("message_ttl_ms", millis, 0, longest)?;
        definition.message_ttl = (!ttl.is_zero()).then_some(ttl);
    }
    if let Some(attempts) = settings.retry_attempts_max {
        definition.retry.attempts_max = NonZeroU32::new(attempts);
    }
    if let Some(millis) = settings.retry_backoff_ms {
        definition.retry.backoff = time("retry_backoff_ms", millis, 0, longest)?;
    }
    if let Some(millis) = settings.retry_backoff_max_ms {
        definition.retry.backoff_max = time("retry_backoff_max_ms", millis, 0, longest)?;
    }
    if let Some(percent) = settings.retry_jitter_percent {
        let percent = u8::try_from(percent).ok().filter(|percent| *percent <= 100);
        definition.retry.jitter_percent = percent.ok_or_else(|| {
            CallError::Invalid("retry_jitter_percent is out of range; 0 to 100 are allowed".into())
        })?;
    }
    if let Some(script) = &settings.script {
        definition.script = (!script.is_empty()).then(|| script.as_str().into());
    }
    if settings.hook_fallback.is_some() {
        let allowed = "hook_fallback is HOOK_FALLBACK_DEFAULT, HOOK_FALLBACK_LAST_GOOD or \
                       HOOK_FALLBACK_REFUSE";
        let unknown = || CallError::Invalid(allowed.to_owned());
        let fallback = settings.hook_fallback;
        let fallback = fallback.and_then(|n| v1::HookFallback::try_from(n).ok());
        definition.hook_fallback = match fallback.ok_or_else(unknown)? {
            v1::HookFallback::Default => HookFallback::Default,
            v1::HookFallback::LastGood => HookFallback::LastGood,
            v1::HookFallback::Refuse => HookFallback::Refuse,
        };
    }
    Ok(())
}

fn time(what: &str, millis: u64, least: u64, longest: Duration) -> Result<Duration, CallError> {
    let duration = Duration::from_millis(millis);
    if millis < least || duration > longest {
        let longest = longest.as_millis();
        return Err(CallError::Invalid(format!(
            "{what} {millis} is out of range; {least} to {longest} are allowed"
        )));
    }
    Ok(duration)
}

/// What an operator asks for a fairness key: what is absent keeps its value, zero takes it back.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyChange {
    pub(super) paused: Option<bool>,
    pub(super) weight: Option<u32>,
    pub(super) concurrency: Option<u32>,
}

impl KeyChange {
    /// Changes the settings of a key. A key without any is not kept.
    pub(super) fn apply(
        self,
        key: FairnessKey,
        max: usize,
        definition: &mut Definition,
    ) -> Result<(), CallError> {
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
        if settings.is_default() {
            definition.keys.remove(&key);
        } else {
            definition.keys.insert(key, settings);
        }
        match definition.keys.len() > max {
            true => Err(CallError::TooManyKeySettings { max }),
            false => Ok(()),
        }
    }
}

pub(super) fn delivering(paused: bool) -> Delivering {
    match paused {
        true => Delivering::Paused,
        false => Delivering::Running,
    }
}

/// Which parts of a queue to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// In a list: all but the settings of keys, of which every queue may have thousands.
    Summary,
    /// All of it.
    Full,
}

/// Returns a queue as it is shown.
pub(super) fn queue_info(queue: &QueueEntry, stats: &QueueStats, detail: Detail) -> v1::QueueInfo {
    let definition = &queue.definition;
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
        settings: Some(queue_settings(definition, detail)),
        paused: definition.delivery == Delivering::Paused,
        version: queue.version.get(),
        stats: Some(queue_stats(stats)),
        keys,
        hooks: queue.hooks().iter().map(hook_info).collect(),
    }
}

fn queue_settings(definition: &Definition, detail: Detail) -> v1::QueueSettings {
    let ordering = match definition.ordering {
        Ordering::None => v1::Ordering::None,
        Ordering::Key => v1::Ordering::Key,
    };
    let charge = match definition.charge {
        Charge::Message => v1::Charge::Message,
        Charge::Bytes => v1::Charge::Bytes,
        Charge::Time => v1::Charge::Time,
    };
    let fallback = match definition.hook_fallback {
        HookFallback::Default => v1::HookFallback::Default,
        HookFallback::LastGood => v1::HookFallback::LastGood,
        HookFallback::Refuse => v1::HookFallback::Refuse,
    };
    v1::QueueSettings {
        visibility_timeout_ms: Some(millis(definition.visibility_timeout)),
        ordering: Some(ordering.into()),
        key_concurrency: Some(definition.key_concurrency.map_or(0, NonZeroU32::get)),
        charge: Some(charge.into()),
        deduplication_window_ms: Some(millis(definition.deduplication_window)),
        depth_max: Some(definition.depth_max.unwrap_or(0)),
        key_depth_max: Some(definition.key_depth_max.unwrap_or(0)),
        message_ttl_ms: Some(definition.message_ttl.map_or(0, millis)),
        retry_attempts_max: Some(definition.retry.attempts_max.map_or(0, NonZeroU32::get)),
        retry_backoff_ms: Some(millis(definition.retry.backoff)),
        retry_backoff_max_ms: Some(millis(definition.retry.backoff_max)),
        retry_jitter_percent: Some(definition.retry.jitter_percent.into()),
        script: match detail {
            Detail::Summary => None,
            Detail::Full => Some(definition.script.as_deref().unwrap_or_default().to_owned()),
        },
        hook_fallback: Some(fallback.into()),
    }
}

/// Returns how a hook fares, as it is shown.
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
        busy_us_total: u64::try_from(figures.busy.as_micros()).unwrap_or(u64::MAX),
        last_error: figures.last_error.as_deref().unwrap_or_default().to_owned(),
        asked_again_in_ms: asked_again_in.map(millis),
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn queue_stats(stats: &QueueStats) -> v1::QueueStats {
    v1::QueueStats {
        depth: stats.depth(),
        ready: stats.ready,
        delayed: stats.delayed,
        leased: stats.leased,
        stored_only: stats.stored_only,
        bytes: stats.bytes,
        active_keys: stats.active_keys,
        consumers: stats.consumers,
        enqueued_total: stats.totals.enqueued,
        deduplicated_total: stats.totals.deduplicated,
        delivered_total: stats.totals.delivered,
        acked_total: stats.totals.acked,
        nacked_total: stats.totals.nacked,
        lease_expired_total: stats.totals.lease_expired,
        released_total: stats.totals.released,
        expired_total: stats.totals.expired,
        purged_total: stats.totals.purged,
        damaged_total: stats.totals.damaged,
        first_delivered_total: stats.totals.first_delivered,
        waited_ms_total: millis(stats.totals.waited),
        retried_total: stats.totals.retried,
        dead_lettered_total: stats.totals.dead_lettered,
        dead_letters_refused_total: stats.totals.dead_letters_refused,
        redriven_total: stats.totals.redriven,
        throttled: stats.throttled,
    }
}

/// Returns the settings of a key as they are shown.
pub(super) fn key_settings(key: &FairnessKey, settings: &KeySettings) -> v1::KeySettings {
    v1::KeySettings {
        fairness_key: key_text(key),
        paused: settings.delivery == Delivering::Paused,
        weight: settings.weight.map(NonZeroU32::get),
        concurrency: settings.concurrency.map(NonZeroU32::get),
    }
}

/// Returns a key as it is shown.
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
        };
        let mut definition = Definition::default();
        apply(&asked, YEAR, &mut definition).unwrap();
        assert_eq!(queue_settings(&definition, Detail::Full), asked);
        apply(&v1::QueueSettings::default(), YEAR, &mut definition).unwrap();
        assert_eq!(queue_settings(&definition, Detail::Full), asked);
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
                ..settings
            },
        ] {
            let refused = apply(&odd, YEAR, &mut Definition::default());
            assert!(matches!(refused, Err(CallError::Invalid(_))), "{odd:?}");
        }
    }

    #[test]
    fn a_key_whose_settings_are_taken_back_is_not_kept() {
        let key = FairnessKey::new("a").unwrap();
        let mut definition = Definition::default();
        let set = KeyChange {
            paused: Some(true),
            weight: Some(3),
            concurrency: None,
        };
        set.apply(key.clone(), 1, &mut definition).unwrap();
        assert_eq!(definition.keys.len(), 1);
        let second = FairnessKey::new("b").unwrap();
        let refused = set.apply(second, 1, &mut definition.clone());
        assert!(matches!(
            refused,
            Err(CallError::TooManyKeySettings { max: 1 })
        ));
        let unset = KeyChange {
            paused: Some(false),
            weight: Some(0),
            concurrency: Some(0),
        };
        unset.apply(key, 1, &mut definition).unwrap();
        assert!(definition.keys.is_empty());
    }
}
