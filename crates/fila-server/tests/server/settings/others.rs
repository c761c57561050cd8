//! The settings of keys, of the runtime configuration, and the pause of a queue.

use std::collections::BTreeSet;

use fila_core::KeySettings;
use fila_proto::v1::{PauseQueueRequest, QueueSettings, ResumeQueueRequest, UpdateKeyRequest};
use fila_server::runtime_config::ThrottleSetting;

use super::scene::{ALL, EACH, HARDLY_EVER, QUEUE, STATES, Scene};
use super::{ActsOn, Row};
use crate::common::soon;

pub(super) fn rows() -> Vec<Row> {
    // A new field does not compile here: it needs a row below.
    let KeySettings {
        delivery: _,
        weight: _,
        concurrency: _,
        depth_max: _,
    } = KeySettings::default();
    let _ = |ThrottleSetting { rate: _, burst: _ }: ThrottleSetting| {};
    let row = |name, acts_on, play| Row {
        name,
        acts_on,
        play,
    };
    vec![
        row("pause", ActsOn::Deliveries, |scene| Box::pin(pause(scene))),
        row("key pause", ActsOn::Deliveries, |scene| {
            Box::pin(key_pause(scene))
        }),
        row("key weight", ActsOn::Deliveries, |scene| {
            Box::pin(key_weight(scene))
        }),
        row("key concurrency", ActsOn::Deliveries, |scene| {
            Box::pin(concurrency(scene))
        }),
        row("key depth_max", ActsOn::Sent, |scene| {
            Box::pin(depth_max(scene))
        }),
        row("throttle:<key>:rate", ActsOn::Deliveries, |scene| {
            Box::pin(rate(scene))
        }),
        row("throttle:<key>:burst", ActsOn::Deliveries, |scene| {
            Box::pin(burst(scene))
        }),
        row("<any other entry>", ActsOn::SentAndFailures, |scene| {
            Box::pin(entry(scene))
        }),
    ]
}

async fn pause(mut scene: Scene) {
    let name = || QUEUE.to_owned();
    let request = PauseQueueRequest { name: name() };
    soon(scene.rig.admin.pause_queue(request)).await.unwrap();
    scene.changed().await;
    scene.make_ready().await;
    let mut deliveries = scene.rig.consume(QUEUE, 100).await;
    let stats = scene.rig.stats(QUEUE).await;
    assert_eq!((stats.leased, stats.consumers), (0, 1));
    assert!(deliveries.is_silent());
    let request = ResumeQueueRequest { name: name() };
    soon(scene.rig.admin.resume_queue(request)).await.unwrap();
    for _ in 0..ALL {
        deliveries.next().await;
    }
}

async fn key_pause(mut scene: Scene) {
    let paused = |paused| UpdateKeyRequest {
        paused: Some(paused),
        ..UpdateKeyRequest::default()
    };
    scene.set_keys(paused(true)).await;
    scene.make_ready().await;
    let mut deliveries = scene.rig.consume(QUEUE, 100).await;
    assert!(scene.until_marker(&mut deliveries).await.is_empty());
    scene.update_keys(paused(false)).await;
    for _ in 0..ALL {
        deliveries.next().await;
    }
}

async fn key_weight(mut scene: Scene) {
    let heavy = UpdateKeyRequest {
        weight: Some(100),
        ..UpdateKeyRequest::default()
    };
    scene.set_keys(heavy).await;
    // With equal weights they would take turns.
    let rivals = scene.rivals_before_the_last().await;
    assert!(rivals <= EACH / 3, "{rivals}");
}

async fn concurrency(mut scene: Scene) {
    let capped = UpdateKeyRequest {
        concurrency: Some(1),
        ..UpdateKeyRequest::default()
    };
    scene.set_keys(capped).await;
    scene.one_of_each_key_at_a_time().await;
}

/// Of keys, and of a group that holds nothing yet.
async fn depth_max(mut scene: Scene) {
    let full = UpdateKeyRequest {
        depth_max: Some(EACH as u64),
        ..UpdateKeyRequest::default()
    };
    let group = UpdateKeyRequest {
        queue: QUEUE.to_owned(),
        fairness_key: "group/team".to_owned(),
        ..full.clone()
    };
    soon(scene.rig.admin.update_key(group)).await.unwrap();
    scene.set_keys(full).await;
    let keys = scene.rig.inspect(QUEUE).await.keys;
    let shown = keys.iter().map(|key| (&*key.fairness_key, key.depth_max));
    let names = STATES.into_iter().chain(["group/team"]);
    let expected = names.map(|name| (name, Some(EACH as u64)));
    assert_eq!(
        shown.collect::<BTreeSet<_>>(),
        expected.collect::<BTreeSet<_>>()
    );
}

async fn rate(mut scene: Scene) {
    scene.rig.configure("throttle:api:rate", "0").await;
    scene.changed().await;
    scene.make_ready().await;
    let mut deliveries = scene.rig.consume(QUEUE, 100).await;
    assert!(scene.until_marker(&mut deliveries).await.is_empty());
    // It counts them when it has read them.
    scene
        .until(QUEUE, |stats| stats.throttled == ALL as u64)
        .await;
    assert!(deliveries.is_silent());
    scene.rig.configure("throttle:api:rate", "1000").await;
    for _ in 0..ALL {
        deliveries.next().await;
    }
}

async fn burst(mut scene: Scene) {
    scene.rig.configure("throttle:api:rate", HARDLY_EVER).await;
    scene.rig.configure("throttle:api:burst", "5").await;
    scene.changed().await;
    scene.make_ready().await;
    let mut deliveries = scene.rig.consume(QUEUE, 100).await;
    // After a restart a bucket begins empty.
    let tokens = if scene.restarts { 0 } else { 5 };
    for _ in 0..tokens {
        deliveries.next().await;
    }
    assert!(scene.until_marker(&mut deliveries).await.is_empty());
    let rest = (ALL - tokens) as u64;
    scene.until(QUEUE, |stats| stats.throttled == rest).await;
    assert!(deliveries.is_silent());
}

/// Hooks read all other entries.
async fn entry(mut scene: Scene) {
    let hooks = "function on_enqueue(msg) return { fairness_key = fila.get('flag') or 'none' } end
        function on_failure(msg) return { action = fila.get('action') or 'retry' } end";
    let request = fila_proto::v1::UpdateQueueRequest {
        name: QUEUE.to_owned(),
        settings: Some(QueueSettings {
            script: Some(hooks.to_owned()),
            ..QueueSettings::default()
        }),
        version: None,
    };
    soon(scene.rig.admin.update_queue(request)).await.unwrap();
    scene.rig.configure("flag", "on").await;
    scene.rig.configure("action", "dlq").await;
    scene.changed().await;
    scene.all_die().await;
    scene.rig.enqueue(QUEUE, "a", "new").await;
    assert_eq!(scene.peek(QUEUE).await[0].fairness_key, "on");
}
