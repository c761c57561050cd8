//! Other settings tried on a copy of a queue, over gRPC.

use std::collections::BTreeMap;
use std::time::Duration;

use fila_proto::v1::{
    KeyChange, PaceBasis, PauseQueueRequest, UpdateKeyRequest, WhatIfKind, WhatIfRequest,
    WhatIfResponse, WhatIfRow,
};
use tonic::Code;

use crate::common::{Rig, assert_refused, batch, message, soon};

fn weighing(key: &str, weight: u32) -> KeyChange {
    KeyChange {
        fairness_key: key.to_owned(),
        weight: Some(weight),
        ..KeyChange::default()
    }
}

fn request(changes: Vec<KeyChange>) -> WhatIfRequest {
    WhatIfRequest {
        queue: "orders".to_owned(),
        changes,
        levels: 4,
        ..WhatIfRequest::default()
    }
}

async fn ask(rig: &mut Rig, changes: Vec<KeyChange>) -> WhatIfResponse {
    let answer = soon(rig.admin.what_if(request(changes))).await;
    answer.unwrap().into_inner()
}

/// Starts a server whose queue has a group of two users, which has messages of its own, and a key beside it.
async fn companies() -> Rig {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let keys = ["acme/alice", "acme/bob", "acme", "globex"];
    for (number, key) in (1..).zip(keys.repeat(3)) {
        let messages = vec![message(key, "x"); 500];
        let stored = rig.enqueue_batch(batch(number), "orders", messages).await;
        assert_eq!(stored.unwrap().len(), 500);
    }
    rig
}

fn row<'a>(answer: &'a WhatIfResponse, path: &str, kind: WhatIfKind) -> &'a WhatIfRow {
    let mut rows = answer.rows.iter();
    let found = rows.find(|row| row.path == path && row.kind() == kind);
    found.unwrap_or_else(|| panic!("{path} in {answer:?}"))
}

#[tokio::test]
async fn the_server_then_delivers_what_was_predicted() {
    let mut rig = companies().await;
    let version = rig.inspect("orders").await.version;
    let changes = vec![weighing("acme", 3), weighing("acme/bob", 2)];
    let answer = ask(&mut rig, changes.clone()).await;
    assert_eq!(answer.version, version);
    // No consumer was here yet, so there is no pace and there are no times.
    assert_eq!(answer.basis(), PaceBasis::Nothing);
    assert_eq!((answer.pace, answer.over_ms), (None, None));
    let over = answer.over_deliveries.unwrap();
    let acme = row(&answer, "acme", WhatIfKind::Group);
    assert!(acme.changed);
    assert_eq!((acme.ready, acme.level), (4_500, 0));
    let (now, then) = (acme.now.unwrap(), acme.then.unwrap());
    assert_eq!((now.weight, then.weight), (1, 3));
    assert!((now.share - 0.5).abs() < 0.01, "{now:?}");
    assert!((then.share - 0.75).abs() < 0.01, "{then:?}");
    assert_eq!((then.rate, then.drained_ms), (None, None));
    assert!(then.drained_deliveries.unwrap() >= 4_500);
    // A question changes nothing.
    assert_eq!(rig.inspect("orders").await.version, version);

    for change in changes {
        let update = UpdateKeyRequest {
            queue: "orders".to_owned(),
            fairness_key: change.fairness_key,
            weight: change.weight,
            ..UpdateKeyRequest::default()
        };
        soon(rig.admin.update_key(update)).await.unwrap();
    }
    let mut got = BTreeMap::new();
    let mut deliveries = rig.consume("orders", u32::try_from(over).unwrap()).await;
    for _ in 0..over {
        *got.entry(deliveries.next().await.fairness_key).or_insert(0) += 1;
    }
    for (path, kind) in [
        ("acme/alice", WhatIfKind::Key),
        ("acme/bob", WhatIfKind::Key),
        ("acme", WhatIfKind::OwnMessages),
        ("globex", WhatIfKind::Key),
    ] {
        let predicted = row(&answer, path, kind).then.unwrap().deliveries;
        let real: u64 = got[path];
        assert!(
            real.abs_diff(predicted) <= 1,
            "{path}: {predicted} predicted, {real} delivered"
        );
    }
}

#[tokio::test]
async fn times_are_told_once_consumers_take_messages() {
    let mut rig = companies().await;
    let mut deliveries = rig.consume("orders", 10).await;
    for _ in 0..200 {
        let delivery = deliveries.next().await;
        rig.ack("orders", &delivery).await.unwrap();
    }
    // So short that no backlog is gone by then.
    let asked = WhatIfRequest {
        over_ms: 200,
        ..request(vec![weighing("globex", 9)])
    };
    let answer = soon(rig.admin.what_if(asked)).await.unwrap().into_inner();
    assert_ne!(answer.basis(), PaceBasis::Nothing);
    assert!(answer.pace.unwrap() > 0.0);
    assert_eq!((answer.over_ms, answer.over_deliveries), (Some(200), None));
    // Changed ones come first.
    assert_eq!(answer.rows[0].path, "globex");
    let globex = &answer.rows[0];
    let (now, then) = (globex.now.unwrap(), globex.then.unwrap());
    assert!(then.deliveries > now.deliveries, "{globex:?}");
    assert!(now.rate.is_some() && now.drained_deliveries.is_none());
}

#[tokio::test]
async fn a_paused_group_stops_its_members_and_a_paused_queue_is_told() {
    let mut rig = companies().await;
    let pause = PauseQueueRequest {
        name: "orders".to_owned(),
    };
    soon(rig.admin.pause_queue(pause)).await.unwrap();
    let change = KeyChange {
        fairness_key: "acme".to_owned(),
        paused: Some(true),
        ..KeyChange::default()
    };
    let answer = ask(&mut rig, vec![change]).await;
    assert!(answer.queue_paused);
    for (path, kind) in [
        ("acme", WhatIfKind::Group),
        ("acme/alice", WhatIfKind::Key),
        ("acme", WhatIfKind::OwnMessages),
    ] {
        let then = row(&answer, path, kind).then.unwrap();
        let drained = then.drained_deliveries;
        assert_eq!((then.deliveries, drained), (0, None), "{path}");
    }
    let globex = row(&answer, "globex", WhatIfKind::Key).then.unwrap();
    assert!((globex.share - 1.0).abs() < 1e-9);
}

#[tokio::test]
async fn levels_and_rows_are_limited_and_the_rest_is_counted() {
    let mut rig = companies().await;
    let asked = |levels, rows_max, changes| WhatIfRequest {
        levels,
        rows_max,
        ..request(changes)
    };
    let paths = |answer: &WhatIfResponse| {
        let rows = answer.rows.iter();
        rows.map(|row| row.path.clone()).collect::<Vec<_>>()
    };
    let top = soon(rig.admin.what_if(asked(1, 0, vec![]))).await.unwrap();
    assert_eq!(paths(top.get_ref()), ["acme", "globex"]);
    // A changed member is shown whatever the levels are.
    let changes = vec![weighing("acme/bob", 2)];
    let changed = soon(rig.admin.what_if(asked(0, 0, changes))).await.unwrap();
    assert_eq!(paths(changed.get_ref()), ["acme", "acme/bob", "globex"]);
    let cut = soon(rig.admin.what_if(asked(9, 2, vec![]))).await.unwrap();
    assert_eq!((cut.get_ref().rows.len(), cut.get_ref().left_out), (2, 3));
}

#[tokio::test]
async fn questions_that_no_update_could_follow_are_refused() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let nowhere = WhatIfRequest {
        queue: "nowhere".to_owned(),
        ..WhatIfRequest::default()
    };
    let refused = soon(rig.admin.what_if(nowhere)).await;
    assert_refused(refused, Code::NotFound, "QUEUE_NOT_FOUND");
    for (changes, code) in [
        (vec![weighing("a", u32::MAX)], "INVALID_WEIGHT"),
        (vec![weighing("a//b", 1)], "INVALID_FAIRNESS_KEY"),
        (vec![weighing(&"k".repeat(300), 1)], "FAIRNESS_KEY_TOO_LONG"),
        (vec![weighing("a", 1); 1_001], "INVALID_ARGUMENT"),
    ] {
        let refused = soon(rig.admin.what_if(request(changes))).await;
        assert_refused(refused, Code::InvalidArgument, code);
    }
    let long = WhatIfRequest {
        over_ms: 86_400_001,
        ..request(vec![])
    };
    let refused = soon(rig.admin.what_if(long)).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
}

#[tokio::test]
async fn callers_that_go_away_leave_their_turn_to_the_next_one() {
    let mut rig = companies().await;
    for round in 0..20 {
        let mut admin = rig.admin.clone();
        let asked = admin.what_if(request(vec![weighing("acme", round + 1)]));
        // It is dropped on its way, in the line or in its turn.
        let gone = Duration::from_micros(u64::from(round) * 400);
        let _ = tokio::time::timeout(gone, asked).await;
    }
    let answer = ask(&mut rig, vec![weighing("acme", 3)]).await;
    assert!(row(&answer, "acme", WhatIfKind::Group).changed);
}
