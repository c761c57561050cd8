//! Keys and groups as an operator sets and lists them.

use std::collections::BTreeMap;

use fila_proto::v1::{
    GroupInfo, KeyChange, KeySettings, ListGroupsRequest, ListKeysRequest, ListQueuesRequest,
    QueueSettings, UpdateKeyRequest, UpdateKeysRequest, UpdateQueueRequest,
};
use tonic::{Code, Status};

use crate::common::{Rig, assert_refused, in_memory, message, soon};

const QUEUE: &str = "orders";

async fn set_separator(rig: &mut Rig, queue: &str, separator: &str) -> Result<(), Status> {
    let request = UpdateQueueRequest {
        name: queue.to_owned(),
        settings: Some(QueueSettings {
            key_separator: Some(separator.to_owned()),
            ..QueueSettings::default()
        }),
        version: None,
    };
    soon(rig.admin.update_queue(request)).await.map(drop)
}

async fn separator(rig: &mut Rig, queue: &str) -> String {
    let shown = rig.inspect(queue).await.settings.unwrap();
    shown.key_separator.unwrap()
}

fn on(key: &str) -> UpdateKeyRequest {
    UpdateKeyRequest {
        queue: QUEUE.to_owned(),
        fairness_key: key.to_owned(),
        ..UpdateKeyRequest::default()
    }
}

fn change(key: &str) -> KeyChange {
    KeyChange {
        fairness_key: key.to_owned(),
        ..KeyChange::default()
    }
}

async fn update_all(
    rig: &mut Rig,
    changes: Vec<KeyChange>,
    version: Option<u64>,
) -> Result<u64, Status> {
    let request = UpdateKeysRequest {
        queue: QUEUE.to_owned(),
        changes,
        version,
    };
    let changed = soon(rig.admin.update_keys(request)).await?;
    Ok(changed.into_inner().version)
}

/// Returns the names of the keys in a part of the tree, from pages of two.
async fn keys(rig: &mut Rig, within: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListKeysRequest {
            queue: QUEUE.to_owned(),
            page_size: 2,
            page_token,
            within: within.to_owned(),
        };
        let page = soon(rig.admin.list_keys(request)).await.unwrap();
        let page = page.into_inner();
        names.extend(page.keys.into_iter().map(|key| key.fairness_key));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            names.sort();
            return names;
        }
    }
}

/// Returns the groups in a part of the tree, from pages of two.
async fn groups(rig: &mut Rig, within: &str) -> BTreeMap<String, GroupInfo> {
    let mut groups = BTreeMap::new();
    let mut page_token = String::new();
    loop {
        let request = ListGroupsRequest {
            queue: QUEUE.to_owned(),
            page_size: 2,
            page_token,
            within: within.to_owned(),
        };
        let page = soon(rig.admin.list_groups(request)).await.unwrap();
        let page = page.into_inner();
        assert!(page.groups.len() <= 2);
        groups.extend(page.groups.into_iter().map(|it| (it.path.clone(), it)));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return groups;
        }
    }
}

#[tokio::test]
async fn a_new_queue_separates_by_a_slash_until_it_is_told_another_character_or_none() {
    let mut rig = Rig::start().await;
    rig.create(QUEUE).await;
    assert_eq!(separator(&mut rig, QUEUE).await, "/");
    let colon = QueueSettings {
        key_separator: Some(":".to_owned()),
        ..QueueSettings::default()
    };
    rig.create_with("others", colon).await;
    assert_eq!(separator(&mut rig, "others").await, ":");
    set_separator(&mut rig, QUEUE, "").await.unwrap();
    assert_eq!(separator(&mut rig, QUEUE).await, "");
    rig.enqueue(QUEUE, "a//b/c/d/e/f", "one name").await;
    assert_eq!(groups(&mut rig, "").await.len(), 0);
    for odd in ["a", "7", " ", "//", "→", "\n"] {
        let refused = set_separator(&mut rig, QUEUE, odd).await.unwrap_err();
        let text = refused.message().to_owned();
        assert!(
            text.starts_with("key_separator ") && text.contains("one ASCII character"),
            "{text}"
        );
        assert_refused::<()>(Err(refused), Code::InvalidArgument, "INVALID_ARGUMENT");
    }
    assert_eq!(separator(&mut rig, QUEUE).await, "");
}

#[tokio::test]
async fn dead_letters_have_the_separator_of_their_queue_and_none_of_their_own() {
    let mut rig = Rig::start().await;
    rig.create(QUEUE).await;
    set_separator(&mut rig, QUEUE, ":").await.unwrap();
    let refused = set_separator(&mut rig, "orders.dlq", "|").await;
    let refused = refused.unwrap_err();
    assert_eq!(
        refused.message(),
        "`key_separator` does nothing for queue `orders.dlq`, because its keys nest as those of the queue that they \
         come from; set it for queue `orders`"
    );
    assert_refused::<()>(Err(refused), Code::InvalidArgument, "INVALID_ARGUMENT");
    assert_eq!(separator(&mut rig, "orders.dlq").await, ":");
    let listed = soon(rig.admin.list_queues(ListQueuesRequest::default())).await;
    for queue in listed.unwrap().into_inner().queues {
        let settings = queue.settings.unwrap();
        assert_eq!(
            settings.key_separator.as_deref(),
            Some(":"),
            "{}",
            queue.name
        );
    }
    let odd = UpdateKeyRequest {
        queue: "orders.dlq".to_owned(),
        paused: Some(true),
        ..on("a::b")
    };
    let refused = soon(rig.admin.update_key(odd)).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_FAIRNESS_KEY");
}

#[tokio::test]
async fn settings_of_a_group_bind_its_members_and_are_listed_with_it() {
    let mut rig = Rig::start().await;
    rig.create(QUEUE).await;
    for request in [
        UpdateKeyRequest {
            weight: Some(3),
            depth_max: Some(500),
            ..on("acme")
        },
        UpdateKeyRequest {
            paused: Some(true),
            concurrency: Some(2),
            ..on("acme/batch")
        },
    ] {
        soon(rig.admin.update_key(request)).await.unwrap();
    }
    for key in ["acme", "acme/alice", "acme/batch/1", "acme/batch/2", "zeta"] {
        rig.enqueue(QUEUE, key, "x").await;
    }
    let mut deliveries = rig.consume(QUEUE, 10).await;
    for _ in 0..3 {
        let key = deliveries.next().await.fairness_key;
        assert!(!key.starts_with("acme/batch"), "{key}");
    }
    let stats = rig.stats(QUEUE).await;
    assert_eq!((stats.ready, stats.leased), (2, 3));
    assert_eq!((stats.active_keys, stats.active_groups), (5, 2));
    assert!(deliveries.is_silent());
    let found = groups(&mut rig, "").await;
    assert_eq!(found.keys().collect::<Vec<_>>(), ["acme", "acme/batch"]);
    let acme = &found["acme"];
    assert_eq!(
        (acme.weight, acme.paused, acme.depth_max),
        (3, false, Some(500))
    );
    assert_eq!((acme.members, acme.active_keys), (3, 4));
    assert_eq!((acme.ready, acme.leased, acme.delivered_total), (2, 2, 2));
    // Two of three deliveries.
    assert_eq!(acme.recent_served, 2_000);
    assert!((1..3_000).contains(&acme.recent_ideal), "{acme:?}");
    let batch = &found["acme/batch"];
    assert_eq!((batch.paused, batch.concurrency), (true, Some(2)));
    assert_eq!((batch.ready, batch.leased, batch.recent_served), (2, 0, 0));
}

#[tokio::test]
async fn lists_can_be_of_one_part_of_the_tree() {
    let mut rig = Rig::start().await;
    rig.create(QUEUE).await;
    for key in [
        "acme",
        "acme/a",
        "acme/team/b",
        "acme/team/c",
        "acmes/d",
        "zeta",
    ] {
        rig.enqueue(QUEUE, key, "x").await;
    }
    assert_eq!(keys(&mut rig, "").await.len(), 6);
    let of_acme = ["acme", "acme/a", "acme/team/b", "acme/team/c"];
    assert_eq!(keys(&mut rig, "acme").await, of_acme);
    assert_eq!(keys(&mut rig, "acme/team").await, of_acme[2..]);
    assert_eq!(keys(&mut rig, "zeta").await, ["zeta"]);
    assert!(keys(&mut rig, "unknown").await.is_empty());
    let names = |groups: BTreeMap<String, GroupInfo>| groups.into_keys().collect::<Vec<_>>();
    assert_eq!(
        names(groups(&mut rig, "").await),
        ["acme", "acme/team", "acmes"]
    );
    assert_eq!(names(groups(&mut rig, "acme").await), ["acme", "acme/team"]);
    assert!(groups(&mut rig, "zeta").await.is_empty());
    for (within, code) in [
        ("acme/", "INVALID_FAIRNESS_KEY"),
        ("a/b/c/d/e", "INVALID_FAIRNESS_KEY"),
        (&"k".repeat(300), "FAIRNESS_KEY_TOO_LONG"),
    ] {
        let within = within.to_owned();
        let request = ListKeysRequest {
            queue: QUEUE.to_owned(),
            within: within.clone(),
            ..ListKeysRequest::default()
        };
        let refused = soon(rig.admin.list_keys(request)).await;
        assert_refused(refused, Code::InvalidArgument, code);
        let request = ListGroupsRequest {
            queue: QUEUE.to_owned(),
            within,
            ..ListGroupsRequest::default()
        };
        let refused = soon(rig.admin.list_groups(request)).await;
        assert_refused(refused, Code::InvalidArgument, code);
    }
}

#[tokio::test]
async fn groups_of_an_unknown_queue_and_odd_page_tokens_are_refused() {
    let mut rig = Rig::start().await;
    let request = ListGroupsRequest {
        queue: QUEUE.to_owned(),
        ..ListGroupsRequest::default()
    };
    let refused = soon(rig.admin.list_groups(request.clone())).await;
    assert_refused(refused, Code::NotFound, "QUEUE_NOT_FOUND");
    let refused = update_all(&mut rig, Vec::new(), None).await;
    assert_refused(refused, Code::NotFound, "QUEUE_NOT_FOUND");
    rig.create(QUEUE).await;
    let odd = ListGroupsRequest {
        page_token: "certainly not".to_owned(),
        ..request
    };
    let refused = soon(rig.admin.list_groups(odd)).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
}

#[tokio::test]
async fn a_setting_for_a_path_that_no_message_can_have_is_refused_with_a_sentence() {
    let mut rig = Rig::start().await;
    rig.create(QUEUE).await;
    let pause = |key: &str| UpdateKeyRequest {
        paused: Some(true),
        ..on(key)
    };
    for (key, sentence) in [
        ("acme/", "part 2 of the fairness key is empty"),
        ("/acme", "part 1 of the fairness key is empty"),
        (
            "a/b/c/d/e",
            "the fairness key has 5 parts between `/`, at most 4 are allowed",
        ),
    ] {
        let refused = soon(rig.admin.update_key(pause(key))).await.unwrap_err();
        assert!(refused.message().starts_with(sentence), "{refused:?}");
        assert_refused::<()>(Err(refused), Code::InvalidArgument, "INVALID_FAIRNESS_KEY");
    }
    // Without a separator it is a name like any other, and its settings can be taken back after that.
    set_separator(&mut rig, QUEUE, "").await.unwrap();
    soon(rig.admin.update_key(pause("acme/"))).await.unwrap();
    set_separator(&mut rig, QUEUE, "/").await.unwrap();
    let resume = UpdateKeyRequest {
        paused: Some(false),
        ..on("acme/")
    };
    soon(rig.admin.update_key(resume.clone())).await.unwrap();
    assert!(rig.inspect(QUEUE).await.keys.is_empty());
    let refused = soon(rig.admin.update_key(resume)).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_FAIRNESS_KEY");
}

#[tokio::test]
async fn several_keys_change_together_or_not_at_all() {
    let mut config = in_memory();
    config.limits.key_settings_per_queue = 2;
    let mut rig = Rig::with(config).await;
    rig.create(QUEUE).await;
    let weight = |key: &str, weight| KeyChange {
        weight: Some(weight),
        ..change(key)
    };
    let seen = rig.inspect(QUEUE).await.version;
    let both = vec![weight("acme", 3), weight("acme/alice", 2)];
    let version = update_all(&mut rig, both, Some(seen)).await.unwrap();
    let shown = rig.inspect(QUEUE).await;
    assert_eq!(shown.version, version);
    let settings = |key: &str, weight| KeySettings {
        fairness_key: key.to_owned(),
        weight: Some(weight),
        ..KeySettings::default()
    };
    let expected = [settings("acme", 3), settings("acme/alice", 2)];
    assert_eq!(shown.keys, expected);
    // The version has moved.
    let stale = update_all(&mut rig, vec![weight("acme", 9)], Some(seen)).await;
    assert_refused(stale, Code::Aborted, "QUEUE_CHANGED");
    // One bad change among good ones.
    for (bad, code) in [
        (weight("zeta", u32::MAX), "INVALID_WEIGHT"),
        (weight("zeta//b", 1), "INVALID_FAIRNESS_KEY"),
        (weight(&"k".repeat(300), 1), "FAIRNESS_KEY_TOO_LONG"),
    ] {
        let refused = update_all(&mut rig, vec![weight("acme", 9), bad], None).await;
        let refused = refused.unwrap_err();
        assert!(refused.message().starts_with("change 2: "), "{refused:?}");
        assert_refused::<()>(Err(refused), Code::InvalidArgument, code);
    }
    let third = update_all(&mut rig, vec![weight("acme", 9), weight("zeta", 1)], None).await;
    assert_refused(third, Code::ResourceExhausted, "TOO_MANY_KEY_SETTINGS");
    let many = vec![weight("acme", 9); 1_001];
    let refused = update_all(&mut rig, many, None).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
    let shown = rig.inspect(QUEUE).await;
    assert_eq!(
        (shown.keys.as_slice(), shown.version),
        (&expected[..], version)
    );
    // In their order: the later one counts, and a key without settings makes room for another.
    let swap = vec![weight("zeta", 1), weight("acme", 0), weight("zeta", 5)];
    let later = update_all(&mut rig, swap, Some(version)).await.unwrap();
    assert!(later > version);
    let shown = rig.inspect(QUEUE).await;
    assert_eq!(shown.keys, [settings("acme/alice", 2), settings("zeta", 5)]);
    // Nothing to change.
    let same = update_all(&mut rig, vec![weight("zeta", 5)], None).await;
    assert_eq!(same.unwrap(), later);
    assert_eq!(
        update_all(&mut rig, Vec::new(), Some(later)).await.unwrap(),
        later
    );
}

#[tokio::test]
async fn a_key_shows_what_it_got_in_the_last_minute_and_what_it_should_have_got() {
    let mut rig = Rig::start().await;
    rig.create(QUEUE).await;
    for _ in 0..50 {
        rig.enqueue(QUEUE, "acme/alice", "x").await;
        rig.send(QUEUE, message("acme/bob", "x")).await.unwrap();
    }
    let mut deliveries = rig.consume(QUEUE, 20).await;
    for _ in 0..20 {
        deliveries.next().await;
    }
    let request = ListKeysRequest {
        queue: QUEUE.to_owned(),
        ..ListKeysRequest::default()
    };
    let listed = soon(rig.admin.list_keys(request)).await.unwrap();
    for key in listed.into_inner().keys {
        assert_eq!(key.recent_served, 10_000, "{key:?}");
        assert!(key.recent_ideal.abs_diff(10_000) <= 1_000, "{key:?}");
    }
}
