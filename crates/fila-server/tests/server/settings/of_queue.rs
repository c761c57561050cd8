//! The settings of a queue: one function for each, of its name.

use std::collections::{BTreeMap, BTreeSet};

use fila_proto::v1::{
    Charge, DeduplicationScope, HookFallback, Message, Ordering, QueueSettings, UpdateKeyRequest,
    UpdateQueueRequest,
};
use tonic::Code;

use super::scene::{ALL, EACH, LETTERS, QUEUE, STATES, Scene};
use crate::common::{assert_refused, message, soon};

/// What a change of each setting acts on.
#[allow(non_upper_case_globals, reason = "they have the names of the settings")]
pub(super) mod acts_on {
    use super::super::ActsOn;

    pub(crate) const visibility_timeout: ActsOn = ActsOn::Deliveries;
    pub(crate) const ordering: ActsOn = ActsOn::Deliveries;
    pub(crate) const key_concurrency: ActsOn = ActsOn::Deliveries;
    pub(crate) const charge: ActsOn = ActsOn::Deliveries;
    pub(crate) const deduplication_window: ActsOn = ActsOn::Sent;
    pub(crate) const deduplication_scope: ActsOn = ActsOn::Sent;
    pub(crate) const depth_max: ActsOn = ActsOn::Sent;
    pub(crate) const key_depth_max: ActsOn = ActsOn::Sent;
    pub(crate) const key_separator: ActsOn = ActsOn::SentAndDeliveries;
    pub(crate) const message_ttl: ActsOn = ActsOn::Sent;
    pub(crate) const retry_attempts_max: ActsOn = ActsOn::Failures;
    pub(crate) const retry_backoff: ActsOn = ActsOn::Failures;
    pub(crate) const retry_backoff_max: ActsOn = ActsOn::Failures;
    pub(crate) const retry_jitter_percent: ActsOn = ActsOn::Failures;
    pub(crate) const script: ActsOn = ActsOn::SentAndFailures;
    pub(crate) const hook_fallback: ActsOn = ActsOn::Sent;
}

pub(super) async fn visibility_timeout(mut scene: Scene) {
    let short = QueueSettings {
        visibility_timeout_ms: Some(300),
        ..QueueSettings::default()
    };
    scene.set(short).await;
    scene.release(Some(0)).await;
    let mut deliveries = scene.rig.consume(QUEUE, 1000).await;
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    // Each lease runs out, and its message comes again.
    while seen.len() < ALL || seen.values().any(|times| *times < 2) {
        let delivery = deliveries.next().await;
        *seen.entry(delivery.message_id).or_default() += 1;
    }
}

pub(super) async fn ordering(mut scene: Scene) {
    let strict = QueueSettings {
        ordering: Some(Ordering::Key.into()),
        ..QueueSettings::default()
    };
    scene.set(strict).await;
    let seen = scene.one_of_each_key_at_a_time().await;
    for (key, numbers) in seen {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
}

pub(super) async fn key_concurrency(mut scene: Scene) {
    let capped = QueueSettings {
        key_concurrency: Some(1),
        ..QueueSettings::default()
    };
    scene.set(capped).await;
    scene.one_of_each_key_at_a_time().await;
}

pub(super) async fn charge(mut scene: Scene) {
    let by_size = QueueSettings {
        charge: Some(Charge::Bytes.into()),
        ..QueueSettings::default()
    };
    scene.set(by_size).await;
    // A message of 4 KiB costs as much as very many small ones. By number they would take turns.
    let rivals = scene.rivals_before_the_last().await;
    assert!(rivals > 5 * EACH, "{rivals}");
}

pub(super) async fn deduplication_window(mut scene: Scene) {
    let short = QueueSettings {
        deduplication_window_ms: Some(1),
        ..QueueSettings::default()
    };
    scene.set(short).await;
    let first = scene.rig.send(QUEUE, once("a")).await.unwrap();
    let rig = &mut scene.rig;
    // The id is forgotten long before the five minutes of the default.
    while rig.send(QUEUE, once("a")).await.unwrap() == first {}
}

pub(super) async fn deduplication_scope(mut scene: Scene) {
    let of_queue = QueueSettings {
        deduplication_scope: Some(DeduplicationScope::Queue.into()),
        ..QueueSettings::default()
    };
    scene.set(of_queue).await;
    let first = scene.rig.send(QUEUE, once("a")).await.unwrap();
    assert_eq!(scene.rig.send(QUEUE, once("b")).await.unwrap(), first);
}

fn once(key: &str) -> Message {
    Message {
        deduplication_id: "once".to_owned(),
        ..message(key, "once")
    }
}

pub(super) async fn depth_max(mut scene: Scene) {
    let full = QueueSettings {
        depth_max: Some(ALL as u64),
        ..QueueSettings::default()
    };
    scene.set(full).await;
    let sent = scene.rig.send(QUEUE, message("a", "more")).await;
    assert_refused(sent, Code::ResourceExhausted, "QUEUE_FULL");
}

pub(super) async fn key_depth_max(mut scene: Scene) {
    let full = QueueSettings {
        key_depth_max: Some(EACH as u64),
        ..QueueSettings::default()
    };
    scene.set(full).await;
    for state in STATES {
        let sent = scene.rig.send(QUEUE, message(state, "more")).await;
        assert_refused(sent, Code::ResourceExhausted, "KEY_FULL");
    }
    scene.rig.enqueue(QUEUE, "a", "another key").await;
}

pub(super) async fn key_separator(mut scene: Scene) {
    let colon = QueueSettings {
        key_separator: Some(":".to_owned()),
        ..QueueSettings::default()
    };
    scene.set(colon).await;
    let sent = scene.rig.send(QUEUE, message("a::b", "no path")).await;
    assert_refused(sent, Code::InvalidArgument, "INVALID_FAIRNESS_KEY");
    scene.rig.enqueue(QUEUE, "a//b", "one name").await;
    let pause = UpdateKeyRequest {
        queue: QUEUE.to_owned(),
        fairness_key: "team".to_owned(),
        paused: Some(true),
        ..UpdateKeyRequest::default()
    };
    soon(scene.rig.admin.update_key(pause)).await.unwrap();
    scene.rig.enqueue(QUEUE, "team:a", "in a group").await;
    let mut deliveries = scene.rig.consume(QUEUE, 100).await;
    let before = scene.until_marker(&mut deliveries).await;
    assert!(before.iter().all(|it| it.fairness_key != "team:a"));
    let flat = UpdateQueueRequest {
        name: QUEUE.to_owned(),
        settings: Some(QueueSettings {
            key_separator: Some(String::new()),
            ..QueueSettings::default()
        }),
        version: None,
    };
    soon(scene.rig.admin.update_queue(flat)).await.unwrap();
    // It waited in a group that is paused, and is in none any more.
    while deliveries.next().await.fairness_key != "team:a" {}
}

pub(super) async fn message_ttl(mut scene: Scene) {
    let short = QueueSettings {
        message_ttl_ms: Some(1),
        ..QueueSettings::default()
    };
    scene.set(short).await;
    scene.rig.enqueue(QUEUE, "a", "short").await;
    scene.until(QUEUE, |stats| stats.expired_total == 1).await;
    scene.make_ready().await;
    assert_eq!(scene.peek(QUEUE).await.len(), ALL, "the others live on");
}

pub(super) async fn retry_attempts_max(mut scene: Scene) {
    let once = QueueSettings {
        retry_attempts_max: Some(1),
        ..QueueSettings::default()
    };
    scene.set(once).await;
    scene.all_die().await;
}

fn slow() -> QueueSettings {
    QueueSettings {
        retry_backoff_ms: Some(100_000),
        ..QueueSettings::default()
    }
}

pub(super) async fn retry_backoff(mut scene: Scene) {
    scene.set(slow()).await;
    for wait in scene.waits_after_failure().await {
        assert!((90_000..=110_000).contains(&wait), "{wait}");
    }
}

pub(super) async fn retry_backoff_max(mut scene: Scene) {
    let capped = QueueSettings {
        retry_backoff_max_ms: Some(50_000),
        ..slow()
    };
    scene.set(capped).await;
    for wait in scene.waits_after_failure().await {
        assert!((45_000..=55_000).contains(&wait), "{wait}");
    }
}

pub(super) async fn retry_jitter_percent(mut scene: Scene) {
    let exact = QueueSettings {
        retry_jitter_percent: Some(0),
        ..slow()
    };
    scene.set(exact).await;
    let waits: BTreeSet<u64> = scene.waits_after_failure().await.into_iter().collect();
    assert_eq!(waits, [100_000].into());
}

pub(super) async fn script(mut scene: Scene) {
    let hooks = "function on_enqueue(msg) return { fairness_key = 'hooked' } end
        function on_failure(msg) return { action = 'dlq' } end";
    let hooked = QueueSettings {
        script: Some(hooks.to_owned()),
        ..QueueSettings::default()
    };
    scene.set(hooked).await;
    scene.all_die().await;
    let letters = scene.peek(LETTERS).await;
    assert!(letters.iter().all(|it| it.fairness_key != "hooked"));
    scene.rig.enqueue(QUEUE, "a", "new").await;
    assert_eq!(scene.peek(QUEUE).await[0].fairness_key, "hooked");
}

pub(super) async fn hook_fallback(mut scene: Scene) {
    let refusing = QueueSettings {
        script: Some("function on_enqueue(msg) error('no') end".to_owned()),
        hook_fallback: Some(HookFallback::Refuse.into()),
        ..QueueSettings::default()
    };
    scene.set(refusing).await;
    let sent = scene.rig.send(QUEUE, message("a", "new")).await;
    assert_refused(sent, Code::FailedPrecondition, "HOOK_FAILED");
}
