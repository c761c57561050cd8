//! The calls of an operator.

use std::time::Duration;

use fila_sdk::{
    Charge, DeathReason, DeduplicationScope, ErrorCode, EstimateBasis, HookFallback, HookState,
    KeyChange, Message, Ordering, PaceBasis, PredictionKind, QueueSettings, Waiting, WhatIf,
};

use crate::rig::{Rig, soon};

#[tokio::test]
async fn settings_come_back_as_they_were_given() {
    let rig = Rig::start().await;
    let admin = rig.client.admin();
    let settings = QueueSettings::new()
        .visibility_timeout(Duration::from_secs(60))
        .ordering(Ordering::Key)
        .key_concurrency(1)
        .charge(Charge::Bytes)
        .deduplication_window(Duration::from_secs(90))
        .deduplication_scope(DeduplicationScope::Queue)
        .depth_max(1000)
        .key_depth_max(100)
        .key_separator(":")
        .message_ttl(Duration::from_secs(3600))
        .retry_attempts_max(3)
        .retry_backoff(Duration::from_secs(2))
        .retry_backoff_max(Duration::from_secs(20))
        .retry_jitter_percent(5)
        .script("function on_enqueue(msg) return {} end")
        .hook_fallback(HookFallback::LastGood);
    let created = soon(admin.create_queue("orders", settings.clone()))
        .await
        .unwrap();
    assert_eq!(created.settings, settings);
    let queue = soon(admin.queue("orders")).await.unwrap();
    assert_eq!((queue.name.as_str(), queue.settings), ("orders", settings));
}

#[tokio::test]
async fn a_script_schedules_what_is_sent_and_says_how_it_fares() {
    let rig = Rig::start().await;
    let admin = rig.client.admin();
    let script = "function on_enqueue(msg)
        if not msg.headers['tenant'] then error('no tenant') end
        return { fairness_key = msg.headers['tenant'] }
    end";
    let settings = QueueSettings::new()
        .script(script)
        .hook_fallback(HookFallback::Refuse);
    soon(admin.create_queue("orders", settings)).await.unwrap();
    let queue = rig.client.queue("orders");
    let sent = queue.send(Message::new("x").key("mine").header("tenant", "acme"));
    soon(sent).await.unwrap();
    let keys = soon(admin.keys("orders", 10)).await.unwrap();
    assert_eq!(keys[0].key, "acme");
    let refused = soon(queue.send("x")).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::HookFailed));
    let hook = soon(admin.queue("orders")).await.unwrap().hooks.remove(0);
    assert_eq!(
        (hook.name.as_str(), hook.state),
        ("on_enqueue", HookState::Closed)
    );
    assert_eq!((hook.calls_total, hook.failures_total), (2, 1));
    let error = hook.last_error.unwrap();
    assert_eq!(error, "the hook failed: line 2: no tenant");
    let broken = QueueSettings::new().script("return {");
    let refused = soon(admin.update_queue("orders", broken, None))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::InvalidScript));
    let without = QueueSettings::new().script("");
    let updated = soon(admin.update_queue("orders", without, None))
        .await
        .unwrap();
    assert!(updated.hooks.is_empty());
}

#[tokio::test]
async fn an_update_changes_what_it_says_and_heeds_the_version() {
    let rig = Rig::start().await;
    let admin = rig.client.admin();
    rig.queue("orders").await;
    let before = soon(admin.queue("orders")).await.unwrap();
    let change = QueueSettings::new().depth_max(5);
    let changed = admin.update_queue("orders", change.clone(), Some(before.version));
    let changed = soon(changed).await.unwrap();
    assert_eq!(changed.settings.depth_max, Some(5));
    assert_eq!(
        changed.settings.visibility_timeout,
        before.settings.visibility_timeout
    );
    let stale = admin.update_queue("orders", change, Some(before.version));
    let error = soon(stale).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::QueueChanged));
}

#[tokio::test]
async fn queues_are_listed_by_prefix_paused_purged_and_deleted() {
    let rig = Rig::start().await;
    let admin = rig.client.admin();
    for name in ["orders", "orders-eu", "mails"] {
        rig.queue(name).await.send("x").await.unwrap();
    }
    let names = |queues: Vec<fila_sdk::QueueInfo>| -> Vec<String> {
        queues.into_iter().map(|queue| queue.name).collect()
    };
    let all = soon(admin.queues("")).await.unwrap();
    let expected = [
        "mails",
        "mails.dlq",
        "orders",
        "orders-eu",
        "orders-eu.dlq",
        "orders.dlq",
    ];
    assert_eq!(names(all), expected);
    let some = soon(admin.queues("orders")).await.unwrap();
    assert_eq!(names(some), expected[2..]);

    soon(admin.pause_queue("orders")).await.unwrap();
    assert!(soon(admin.queue("orders")).await.unwrap().paused);
    soon(admin.resume_queue("orders")).await.unwrap();
    assert!(!soon(admin.queue("orders")).await.unwrap().paused);
    assert_eq!(soon(admin.purge_queue("orders")).await.unwrap(), 1);
    soon(admin.delete_queue("orders")).await.unwrap();
    let error = soon(admin.delete_queue("orders")).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::QueueNotFound));
}

#[tokio::test]
async fn dead_letters_have_a_history_and_come_back() {
    let rig = Rig::start().await;
    let admin = rig.client.admin();
    let settings = QueueSettings::new().retry_attempts_max(1);
    soon(admin.create_queue("orders", settings)).await.unwrap();
    let orders = rig.client.queue("orders");
    for number in 0..3 {
        let message = Message::new(number.to_string()).key("acme");
        soon(orders.send(message)).await.unwrap();
    }
    let mut consumer = orders.consumer().subscribe();
    for _ in 0..3 {
        let order = soon(consumer.next()).await.unwrap().unwrap();
        soon(order.nack("no such address")).await.unwrap();
    }
    let letters = rig.client.queue("orders.dlq");
    let page = soon(letters.peek().page()).await.unwrap();
    assert_eq!(page.messages.len(), 3);
    let history = page.messages[0].history.clone().unwrap();
    assert_eq!(history.last_error, "no such address");
    let death = history.death.unwrap();
    assert_eq!(death.reason, DeathReason::AttemptsExhausted);
    assert_eq!((death.queue.as_str(), death.attempts), ("orders", 1));
    let redrive = admin.redrive("orders.dlq").count(2).key("acme");
    let done = soon(redrive.run()).await.unwrap();
    assert_eq!((done.redriven, done.total), (2, 3));
    for letter in &page.messages[..2] {
        let order = soon(consumer.next()).await.unwrap().unwrap();
        assert_eq!((order.attempt, &order.id), (1, &letter.id));
        assert_eq!(order.history, letter.history, "it is not forgotten");
        soon(order.ack()).await.unwrap();
    }
    let error = soon(admin.redrive("orders").run()).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InvalidArgument));
}

#[tokio::test]
async fn keys_are_listed_page_by_page_and_changed_one_by_one() {
    let rig = Rig::start().await;
    let orders = rig.queue("orders").await;
    let admin = rig.client.admin();
    let messages = (0..2500).map(|number| Message::new("").key(format!("tenant-{number:04}")));
    for sent in soon(orders.send_all(messages)).await {
        sent.unwrap();
    }
    let keys = soon(admin.keys("orders", usize::MAX)).await.unwrap();
    assert_eq!(keys.len(), 2500);
    assert_eq!(soon(admin.keys("orders", 10)).await.unwrap().len(), 10);

    let change = admin.update_key("orders", "tenant-0007", KeyChange::weight(3));
    assert_eq!(soon(change).await.unwrap().weight, Some(3));
    let change = admin.update_key("orders", "tenant-0007", KeyChange::pause());
    assert!(soon(change).await.unwrap().paused);
    let queue = soon(admin.queue("orders")).await.unwrap();
    assert_eq!(queue.keys.len(), 1);
    let change = admin.update_key("orders", "tenant-0007", KeyChange::resume());
    soon(change).await.unwrap();
    let change = admin.update_key("orders", "tenant-0007", KeyChange::concurrency(2));
    assert_eq!(soon(change).await.unwrap().concurrency, Some(2));
}

#[tokio::test]
async fn groups_are_listed_and_several_keys_change_with_the_version_that_was_seen() {
    let rig = Rig::start().await;
    let orders = rig.queue("orders").await;
    let admin = rig.client.admin();
    let keys = (0..1500).map(|number| format!("tenant-{number:04}/user"));
    let keys = keys.chain(["acme/a".to_owned(), "acme/team/b".to_owned()]);
    for sent in soon(orders.send_all(keys.map(|key| Message::new("").key(key)))).await {
        sent.unwrap();
    }
    let all = soon(admin.groups("orders", usize::MAX)).await.unwrap();
    assert_eq!(all.len(), 1502);
    assert_eq!(soon(admin.groups("orders", 10)).await.unwrap().len(), 10);
    let groups = soon(admin.groups_within("orders", "acme", 10)).await;
    let mut groups = groups.unwrap();
    groups.sort_by(|one, other| one.path.cmp(&other.path));
    let found = groups
        .iter()
        .map(|it| (it.path.as_str(), it.members, it.ready));
    let expected = [("acme", 2, 2), ("acme/team", 1, 1)];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let members = soon(admin.keys_within("orders", "acme/team", 10)).await;
    assert_eq!(members.unwrap()[0].key, "acme/team/b");
    let odd = soon(admin.keys_within("orders", "acme/", 10)).await;
    let code = odd.unwrap_err().code();
    assert_eq!(code, Some(ErrorCode::InvalidFairnessKey));

    let seen = soon(admin.queue("orders")).await.unwrap();
    assert_eq!(seen.stats.active_groups, 1502);
    let changes = [
        ("acme", KeyChange::depth_max(50)),
        ("acme/team", KeyChange::weight(3)),
    ];
    let changed = admin.update_keys("orders", changes, Some(seen.version));
    let version = soon(changed).await.unwrap();
    let queue = soon(admin.queue("orders")).await.unwrap();
    assert_eq!((queue.version, queue.keys.len()), (version, 2));
    assert_eq!(queue.keys[0].depth_max, Some(50));
    let stale = admin.update_keys("orders", changes, Some(seen.version));
    let code = soon(stale).await.unwrap_err().code();
    assert_eq!(code, Some(ErrorCode::QueueChanged));
}

#[tokio::test]
async fn a_key_that_waits_is_explained() {
    let rig = Rig::start().await;
    let orders = rig.queue("orders").await;
    let admin = rig.client.admin();
    let nobody = soon(admin.explain("orders", "nobody")).await.unwrap();
    assert_eq!(nobody.waiting, Waiting::Empty);
    assert_eq!((nobody.bound, nobody.estimate), (None, None));

    let later = Duration::from_secs(3600);
    let message = Message::new("").key("late").delay(later);
    soon(orders.send(message)).await.unwrap();
    let late = soon(admin.explain("orders", "late")).await.unwrap();
    let Waiting::BackingOff { until } = late.waiting else {
        panic!("{late:?}");
    };
    let wait = until.duration_since(late.now).unwrap();
    assert!(wait <= later && wait > later / 2, "{late:?}");
    let estimate = late.estimate.unwrap();
    assert_eq!((estimate.at, estimate.basis), (until, EstimateBasis::Due));
    assert_eq!((late.weight, late.delayed, late.debt), (1, 1, 0.0));

    soon(orders.send(Message::new("").key("acme")))
        .await
        .unwrap();
    let acme = soon(admin.explain("orders", "acme")).await.unwrap();
    assert_eq!(acme.waiting, Waiting::NoConsumers);
    soon(admin.update_key("orders", "acme", KeyChange::pause()))
        .await
        .unwrap();
    let acme = soon(admin.explain("orders", "acme")).await.unwrap();
    assert_eq!(acme.waiting, Waiting::KeyPaused);
    assert_eq!(acme.held_up_by().map(|level| &*level.path), Some("acme"));
    let error = soon(admin.explain("nowhere", "acme")).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::QueueNotFound));
}

#[tokio::test]
async fn a_key_in_a_group_is_explained_in_levels_and_the_group_as_a_whole() {
    let rig = Rig::start().await;
    let orders = rig.queue("orders").await;
    let admin = rig.client.admin();
    for key in ["acme/alice", "acme/bob"] {
        let message = Message::new("").key(key).weight(2);
        soon(orders.send(message)).await.unwrap();
    }
    let alice = soon(admin.explain("orders", "acme/alice")).await.unwrap();
    assert_eq!((alice.held_up_by(), alice.is_group), (None, false));
    soon(admin.update_key("orders", "acme", KeyChange::pause()))
        .await
        .unwrap();
    let alice = soon(admin.explain("orders", "acme/alice")).await.unwrap();
    assert_eq!(alice.waiting, Waiting::KeyPaused);
    let acme = alice.held_up_by().expect("a level is paused");
    assert_eq!((&*acme.path, acme.is_paused), ("acme", true));
    let [_, own] = &alice.levels[..] else {
        panic!("{alice:?}");
    };
    assert_eq!(
        (&*own.path, own.weight, own.is_paused),
        ("acme/alice", 2, false)
    );
    let sum: u64 = alice.levels.iter().filter_map(|level| level.bound).sum();
    assert_eq!(alice.bound, Some(sum));
    let acme = soon(admin.explain("orders", "acme")).await.unwrap();
    assert_eq!((acme.is_group, acme.ready), (true, 2));
    soon(admin.update_key("orders", "acme", KeyChange::resume()))
        .await
        .unwrap();
    for key in ["acme/alice", "acme/bob"] {
        soon(admin.update_key("orders", key, KeyChange::pause()))
            .await
            .unwrap();
    }
    let acme = soon(admin.explain("orders", "acme")).await.unwrap();
    assert_eq!(acme.waiting, Waiting::MembersWait);
}

#[tokio::test]
async fn the_server_tells_of_itself() {
    let rig = Rig::start().await;
    let info = soon(rig.client.admin().server()).await.unwrap();
    assert_eq!(info.version, env!("CARGO_PKG_VERSION"));
    assert!(info.writable);
    assert_eq!(info.queues, 0);
}

#[tokio::test]
async fn other_settings_are_tried_and_applied_with_the_version_that_was_tried() {
    let rig = Rig::start().await;
    let orders = rig.queue("orders").await;
    let admin = rig.client.admin();
    for key in ["acme/alice", "acme/bob", "globex"] {
        let messages = (0..1500).map(|_| Message::new("").key(key));
        for sent in soon(orders.send_all(messages)).await {
            sent.unwrap();
        }
    }
    let question = WhatIf::new()
        .change("acme", KeyChange::weight(3))
        .over(Duration::from_secs(300))
        .levels(2)
        .rows_max(3);
    let told = soon(admin.what_if("orders", &question)).await.unwrap();
    assert_eq!((told.rows.len(), told.left_out), (3, 1));
    assert_eq!((told.basis, told.over), (PaceBasis::Nothing, None));
    let acme = &told.rows[0];
    assert_eq!(
        (acme.path.as_str(), acme.kind),
        ("acme", PredictionKind::Group)
    );
    assert_eq!((acme.now.weight, acme.then.weight), (1, 3));
    assert!((acme.then.share - 0.75).abs() < 0.01, "{acme:?}");
    assert_eq!((acme.then.rate, acme.then.drained), (None, None));
    assert!(acme.then.drained_deliveries < acme.now.drained_deliveries);
    let before = soon(admin.queue("orders")).await.unwrap();
    assert_eq!((before.version, before.keys.len()), (told.version, 0));

    let apply = || admin.update_keys("orders", question.changes(), Some(told.version));
    let applied = soon(apply());
    let version = applied.await.unwrap();
    let after = soon(admin.queue("orders")).await.unwrap();
    assert_eq!((after.version, after.keys[0].weight), (version, Some(3)));
    // The settings are others by now.
    let late = soon(apply()).await;
    assert_eq!(late.unwrap_err().code(), Some(ErrorCode::QueueChanged));

    let error = soon(admin.what_if("nowhere", &WhatIf::new()))
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::QueueNotFound));
}
