//! Why a fairness key waits, over gRPC.

use fila_proto::v1::{
    EstimateBasis, ExplainKeyRequest, ExplainKeyResponse, PauseQueueRequest, UpdateKeyRequest,
    WaitReason,
};
use tonic::Code;

use crate::common::{Rig, assert_refused, message, soon};

fn request(queue: &str, key: &str) -> ExplainKeyRequest {
    ExplainKeyRequest {
        queue: queue.to_owned(),
        fairness_key: key.to_owned(),
    }
}

async fn explain(rig: &mut Rig, key: &str) -> ExplainKeyResponse {
    let explained = soon(rig.admin.explain_key(request("orders", key))).await;
    explained.unwrap().into_inner()
}

#[tokio::test]
async fn a_place_in_line_is_told_and_is_what_then_happens() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for key in ["a", "b", "c", "d"] {
        for number in 0..3 {
            rig.enqueue("orders", key, &format!("{key}{number}")).await;
        }
    }
    assert_eq!(
        explain(&mut rig, "c").await.reason(),
        WaitReason::NoConsumers
    );
    // One message at a time, so that what comes next is up to the broker.
    let mut deliveries = rig.consume("orders", 1).await;
    let mut last = deliveries.next().await;
    for _ in 0..4 {
        rig.ack("orders", &last).await.unwrap();
        last = deliveries.next().await;
    }
    let mut places = Vec::new();
    for key in ["a", "b", "c", "d"] {
        let explained = explain(&mut rig, key).await;
        assert_eq!(explained.reason(), WaitReason::Runnable, "{explained:?}");
        assert!(explained.position_exact);
        assert!(explained.position <= explained.bound, "{explained:?}");
        assert_eq!(explained.estimate_basis(), EstimateBasis::QueuePace);
        assert!(explained.estimate_ms >= Some(explained.now_ms));
        let ideal = explained.ideal_share.unwrap();
        assert!((ideal - 0.25).abs() < 1e-3, "{explained:?}");
        assert!(explained.share.unwrap() <= 0.4, "{explained:?}");
        places.push((explained.position.unwrap(), key));
    }
    places.sort_unstable();
    for (place, (said, key)) in places.into_iter().enumerate() {
        assert_eq!(place as u64, said);
        rig.ack("orders", &last).await.unwrap();
        last = deliveries.next().await;
        assert_eq!(last.fairness_key, key);
    }
}

#[tokio::test]
async fn what_holds_a_key_up_is_told_with_its_figures() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let nobody = explain(&mut rig, "nobody").await;
    assert_eq!(nobody.reason(), WaitReason::Empty);
    assert_eq!((nobody.weight, nobody.bound, nobody.share), (1, None, None));
    assert_eq!(nobody.estimate_basis(), EstimateBasis::Unspecified);

    let cap = UpdateKeyRequest {
        queue: "orders".to_owned(),
        fairness_key: "a".to_owned(),
        weight: Some(5),
        concurrency: Some(1),
        ..UpdateKeyRequest::default()
    };
    soon(rig.admin.update_key(cap)).await.unwrap();
    rig.enqueue("orders", "a", "first").await;
    rig.enqueue("orders", "a", "second").await;
    let mut deliveries = rig.consume("orders", 10).await;
    let first = deliveries.next().await;
    let capped = explain(&mut rig, "a").await;
    assert_eq!((capped.reason(), capped.cap), (WaitReason::AtCap, 1));
    assert_eq!((capped.weight, capped.ready, capped.leased), (5, 1, 1));
    assert_eq!((capped.share, capped.ideal_share), (Some(1.0), Some(1.0)));

    let pause = PauseQueueRequest {
        name: "orders".to_owned(),
    };
    soon(rig.admin.pause_queue(pause)).await.unwrap();
    assert_eq!(
        explain(&mut rig, "a").await.reason(),
        WaitReason::QueuePaused
    );
    rig.ack("orders", &first).await.unwrap();
}

#[tokio::test]
async fn a_key_in_groups_and_its_group_are_told_level_by_level() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for key in ["acme/team/alice", "acme/team/bob", "globex"] {
        for _ in 0..3 {
            rig.enqueue("orders", key, "work").await;
        }
    }
    let mut deliveries = rig.consume("orders", 1).await;
    let mut last = deliveries.next().await;
    for _ in 0..3 {
        rig.ack("orders", &last).await.unwrap();
        last = deliveries.next().await;
    }
    let alice = explain(&mut rig, "acme/team/alice").await;
    assert_eq!(alice.reason(), WaitReason::Runnable, "{alice:?}");
    assert!(!alice.group);
    let paths: Vec<&str> = alice.levels.iter().map(|it| &*it.path).collect();
    assert_eq!(paths, ["acme", "acme/team", "acme/team/alice"]);
    assert!(alice.levels.iter().all(|level| !level.holds_up));
    let bounds = alice.levels.iter().map(|level| level.bound.unwrap());
    assert_eq!(bounds.sum::<u64>(), alice.bound.unwrap());
    assert!(alice.position <= alice.bound, "{alice:?}");
    let shares = alice.levels.iter().map(|level| level.ideal_share.unwrap());
    let ideal = shares.product::<f64>();
    assert!(
        (ideal - alice.ideal_share.unwrap()).abs() < 1e-3,
        "{alice:?}"
    );
    let leased: u64 = alice.levels[0].leased + explain(&mut rig, "globex").await.leased;
    assert_eq!(leased, 1);

    let pause = UpdateKeyRequest {
        queue: "orders".to_owned(),
        fairness_key: "acme/team".to_owned(),
        paused: Some(true),
        ..UpdateKeyRequest::default()
    };
    soon(rig.admin.update_key(pause)).await.unwrap();
    let alice = explain(&mut rig, "acme/team/alice").await;
    assert_eq!(alice.reason(), WaitReason::KeyPaused);
    let causes: Vec<bool> = alice.levels.iter().map(|level| level.holds_up).collect();
    assert_eq!(causes, [false, true, false]);
    assert!(alice.levels[1].paused && !alice.levels[2].paused);
    let team = explain(&mut rig, "acme/team").await;
    assert_eq!((team.reason(), team.group), (WaitReason::KeyPaused, true));
    assert!(team.levels[1].holds_up);
    let acme = explain(&mut rig, "acme").await;
    assert_eq!(acme.reason(), WaitReason::MembersWait);
    assert!(acme.group);
    let globex = explain(&mut rig, "globex").await;
    assert_ne!(globex.reason(), WaitReason::KeyPaused);
    assert_eq!(globex.levels.len(), 1);
}

#[tokio::test]
async fn a_throttle_is_told_by_its_name_and_with_its_time() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for (name, value) in [("rate", "0.001"), ("burst", "1")] {
        rig.configure(&format!("throttle:api:{name}"), value).await;
    }
    for payload in ["first", "second"] {
        let mut new = message("a", payload);
        new.throttle_keys = vec!["api".to_owned()];
        rig.send("orders", new).await.unwrap();
    }
    let mut deliveries = rig.consume("orders", 10).await;
    assert_eq!(deliveries.next().await.payload, "first");
    // The second one is found to lack a token in the same go, in which the first one went out.
    let throttled = explain(&mut rig, "a").await;
    assert_eq!(throttled.reason(), WaitReason::Throttled, "{throttled:?}");
    assert_eq!(throttled.throttle_key, "api");
    let wait = throttled.until_ms.unwrap() - throttled.now_ms;
    assert!((900_000..=1_000_000).contains(&wait), "{throttled:?}");
    assert_eq!(throttled.estimate_ms, throttled.until_ms);
    assert_eq!(throttled.estimate_basis(), EstimateBasis::Due);
}

#[tokio::test]
async fn queues_and_keys_that_cannot_be_are_refused() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let nowhere = soon(rig.admin.explain_key(request("nowhere", "a"))).await;
    assert_refused(nowhere, Code::NotFound, "QUEUE_NOT_FOUND");
    let long = soon(rig.admin.explain_key(request("orders", &"k".repeat(300)))).await;
    assert_refused(long, Code::InvalidArgument, "FAIRNESS_KEY_TOO_LONG");
}
