//! Fairness keys as paths, over gRPC: the weights of groups that a hook names, and peeks and redrives by group.

use std::collections::BTreeMap;

use fila_proto::v1::{
    HookFallback, HookState, Message, PeekRequest, QueueSettings, RedriveRequest, UpdateKeyRequest,
    UpdateQueueRequest,
};
use fila_server::runtime::Stopped;
use tonic::{Code, Status};

use crate::common::{Rig, assert_refused, message, on_disk, soon};

/// Schedules by headers. The weight of a tenant is in a header, too.
const USERS: &str = "function on_enqueue(msg)
  local tenant, user = msg.headers['tenant'], msg.headers['user']
  local weights = tenant and { [tenant] = tonumber(msg.headers['tenant_weight']) or msg.headers['tenant_weight'] }
  return { fairness_key = tenant and user and tenant .. '/' .. user, weights = weights }
end";

fn with_script(source: &str) -> QueueSettings {
    QueueSettings {
        script: Some(source.to_owned()),
        ..QueueSettings::default()
    }
}

/// A message of a user, and the weight that it gives to its tenant.
fn of_user(tenant: &str, user: &str, tenant_weight: &str) -> Message {
    let headers = [
        ("tenant", tenant),
        ("user", user),
        ("tenant_weight", tenant_weight),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Message {
        headers: headers.into(),
        ..message("the producer/names this", "x")
    }
}

/// Takes `count` messages one by one, and returns how many each tenant got.
async fn shares(rig: &mut Rig, queue: &str, count: usize) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    let mut deliveries = rig.consume(queue, 1).await;
    for _ in 0..count {
        let delivery = deliveries.next().await;
        rig.ack(queue, &delivery).await.unwrap();
        let tenant = delivery.fairness_key.split('/').next().unwrap();
        *shares.entry(tenant.to_owned()).or_default() += 1;
    }
    shares
}

#[track_caller]
fn assert_near(shares: &BTreeMap<String, usize>, tenant: &str, expected: usize) {
    let found = shares.get(tenant).copied().unwrap_or_default();
    assert!(found.abs_diff(expected) <= 2, "{tenant}: {shares:?}");
}

/// Sends 100 messages of three users of one tenant, and 100 of one user of another, and the weights of both.
async fn send(rig: &mut Rig, acme: &str, globex: &str) {
    for number in 0..100 {
        let user = ["alice", "bob", "carol"][number % 3];
        let of_acme = of_user("acme", user, acme);
        rig.send("orders", of_acme).await.unwrap();
        let of_globex = of_user("globex", "gina", globex);
        rig.send("orders", of_globex).await.unwrap();
    }
}

#[tokio::test]
async fn a_hook_weighs_the_tenants_and_an_operator_overrides_it() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", with_script(USERS)).await;
    send(&mut rig, "3", "1").await;
    assert_near(&shares(&mut rig, "orders", 40).await, "acme", 30);
    // The next message of any user changes the weight of its tenant, also for the messages that wait.
    let lighter = of_user("acme", "dave", "1");
    rig.send("orders", lighter).await.unwrap();
    assert_near(&shares(&mut rig, "orders", 40).await, "acme", 20);
    let fixed = UpdateKeyRequest {
        queue: "orders".to_owned(),
        fairness_key: "globex".to_owned(),
        weight: Some(4),
        ..UpdateKeyRequest::default()
    };
    soon(rig.admin.update_key(fixed)).await.unwrap();
    assert_near(&shares(&mut rig, "orders", 40).await, "globex", 32);
    let hook = rig.inspect("orders").await.hooks.remove(0);
    assert_eq!((hook.adjusted_total, hook.unusable_total), (0, 0));
}

#[tokio::test]
async fn the_weights_of_a_hook_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    rig.create_with("orders", with_script(USERS)).await;
    send(&mut rig, "3", "1").await;
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
    let mut rig = Rig::with(on_disk(directory.path())).await;
    assert_near(&shares(&mut rig, "orders", 40).await, "acme", 30);
}

#[tokio::test]
async fn wrong_weights_are_counted_and_cost_neither_the_message_nor_the_breaker() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", with_script(USERS)).await;
    for _ in 0..10 {
        for weight in ["0", "70000", "1.5", "-1"] {
            let adjusted = of_user("acme", "alice", weight);
            rig.send("orders", adjusted).await.unwrap();
        }
        for weight in ["", "heavy"] {
            let unusable = of_user("acme", "alice", weight);
            rig.send("orders", unusable).await.unwrap();
        }
    }
    let hook = rig.inspect("orders").await.hooks.remove(0);
    assert_eq!((hook.adjusted_total, hook.unusable_total), (40, 20));
    assert_eq!((hook.state(), hook.failures_total), (HookState::Closed, 0));
    assert_eq!(
        hook.last_error,
        "`on_enqueue` returned \"heavy\" as `weights[\"acme\"]`; a whole number from 1 to 65536 is expected"
    );
    let all = shares(&mut rig, "orders", 60).await;
    assert_eq!(all["acme"], 60, "they keep the key of the hook");
}

#[tokio::test]
async fn a_weight_for_no_group_of_the_key_is_named_in_the_last_error() {
    let mut rig = Rig::start().await;
    let source = "function on_enqueue(msg)
      return { fairness_key = msg.headers['tenant'], weights = { acme = 3 } }
    end";
    rig.create_with("orders", with_script(source)).await;
    for tenant in ["acme/alice", "acme", "globex/gina"] {
        let sent = of_user(tenant, "", "");
        rig.send("orders", sent).await.unwrap();
    }
    let hook = rig.inspect("orders").await.hooks.remove(0);
    assert_eq!(hook.unusable_total, 2, "acme/alice is in acme");
    let expected = "`on_enqueue` returned 3 as `weights[\"acme\"]`; the path of a group that the fairness key is in is \
                    expected, as \"acme\" for \"acme/alice\"";
    assert_eq!(hook.last_error, expected);
}

#[tokio::test]
async fn a_key_of_a_hook_that_is_no_path_falls_back_like_other_mistakes() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", with_script(USERS)).await;
    for (tenant, user) in [
        ("acme", "a//b"),
        ("acme", ""),
        ("", "alice"),
        ("a/b", "c/d/e"),
    ] {
        let no_path = of_user(tenant, user, "3");
        rig.send("orders", no_path).await.unwrap();
    }
    let mut deliveries = rig.consume("orders", 10).await;
    for _ in 0..4 {
        let delivery = deliveries.next().await;
        assert_eq!(delivery.fairness_key, "the producer/names this");
    }
    let hook = rig.inspect("orders").await.hooks.remove(0);
    assert_eq!((hook.unusable_total, hook.failures_total), (4, 0));
    assert!(
        hook.last_error
            .contains("has 5 parts between `/`, at most 4 are allowed"),
        "{}",
        hook.last_error
    );
    let refuse = UpdateQueueRequest {
        name: "orders".to_owned(),
        settings: Some(QueueSettings {
            hook_fallback: Some(HookFallback::Refuse.into()),
            ..QueueSettings::default()
        }),
        version: None,
    };
    soon(rig.admin.update_queue(refuse)).await.unwrap();
    let refused = rig.send("orders", of_user("acme", "a//b", "3")).await;
    assert_refused(refused, Code::FailedPrecondition, "HOOK_FAILED");
}

/// Keys, and whether they are within `acme`.
const KEYS: [(&str, bool); 7] = [
    ("acme", true),
    ("acme-2", false),
    ("acme/alice", true),
    ("acme/batch/nightly", true),
    ("acme0", false),
    ("b/acme", false),
    ("acm", false),
];

async fn keys_within(rig: &mut Rig, queue: &str, group: &str, page_size: u32) -> Vec<String> {
    let mut request = PeekRequest {
        queue: queue.to_owned(),
        within: Some(group.to_owned()),
        page_size,
        ..PeekRequest::default()
    };
    let mut keys = Vec::new();
    loop {
        let page = soon(rig.messages.peek(request.clone())).await.unwrap();
        let page = page.into_inner();
        keys.extend(page.messages.into_iter().map(|it| it.fairness_key));
        if page.next_page_token.is_empty() {
            return keys;
        }
        request.page_token = page.next_page_token;
    }
}

#[tokio::test]
async fn a_peek_shows_the_messages_within_a_group_page_by_page() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    for (key, _) in KEYS {
        rig.enqueue("orders", key, "1").await;
        rig.enqueue("orders", key, "2").await;
    }
    let twice = |keys: &[&str]| -> Vec<String> {
        let keys = keys.iter().flat_map(|key| [*key; 2]);
        keys.map(str::to_owned).collect()
    };
    for page_size in [1, 2, 3, 5, 1_000] {
        let found = keys_within(&mut rig, "orders", "acme", page_size).await;
        let expected = twice(&["acme", "acme/alice", "acme/batch/nightly"]);
        assert_eq!(found, expected, "pages of {page_size}");
    }
    let below = keys_within(&mut rig, "orders", "acme/batch", 2).await;
    assert_eq!(below, twice(&["acme/batch/nightly"]));
    assert_eq!(keys_within(&mut rig, "orders", "nobody", 2).await, [""; 0]);
}

async fn peek(rig: &mut Rig, request: PeekRequest) -> Result<(), Status> {
    soon(rig.messages.peek(request)).await.map(drop)
}

#[tokio::test]
async fn a_group_that_cannot_be_one_is_refused_with_a_sentence() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let flat = QueueSettings {
        key_separator: Some(String::new()),
        ..QueueSettings::default()
    };
    rig.create_with("flat", flat).await;
    let within = |queue: &str, group: &str| PeekRequest {
        queue: queue.to_owned(),
        within: Some(group.to_owned()),
        ..PeekRequest::default()
    };
    for group in ["a//b", "/", "a/", "a/b/c/d/e"] {
        let refused = peek(&mut rig, within("orders", group)).await;
        assert_refused(refused, Code::InvalidArgument, "INVALID_FAIRNESS_KEY");
    }
    let refused = peek(&mut rig, within("flat", "acme")).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
    let both = PeekRequest {
        fairness_key: Some("acme".to_owned()),
        ..within("orders", "acme")
    };
    assert_refused(
        peek(&mut rig, both).await,
        Code::InvalidArgument,
        "INVALID_ARGUMENT",
    );
    let redrive = RedriveRequest {
        queue: "flat.dlq".to_owned(),
        within: Some("acme".to_owned()),
        ..RedriveRequest::default()
    };
    let refused = soon(rig.admin.redrive(redrive)).await;
    assert_refused(refused.map(drop), Code::InvalidArgument, "INVALID_ARGUMENT");
    // A token belongs to the group that it came from.
    rig.enqueue("orders", "acme/alice", "1").await;
    rig.enqueue("orders", "acme/alice", "2").await;
    let mut request = within("orders", "acme");
    request.page_size = 1;
    let page = soon(rig.messages.peek(request)).await.unwrap().into_inner();
    let foreign = PeekRequest {
        page_token: page.next_page_token,
        ..within("orders", "globex")
    };
    assert_refused(
        peek(&mut rig, foreign).await,
        Code::InvalidArgument,
        "INVALID_ARGUMENT",
    );
}

/// Lets every message of a queue die.
async fn bury(rig: &mut Rig, queue: &str, messages: usize) {
    let mut consumer = rig.consume(queue, 1).await;
    for _ in 0..messages {
        let delivery = consumer.next().await;
        rig.nack(queue, &delivery).await.unwrap();
    }
}

#[tokio::test]
async fn dead_letters_come_back_by_group() {
    let mut rig = Rig::start().await;
    let once = QueueSettings {
        retry_attempts_max: Some(1),
        ..QueueSettings::default()
    };
    rig.create_with("orders", once).await;
    for (key, _) in KEYS {
        rig.enqueue("orders", key, "1").await;
    }
    bury(&mut rig, "orders", KEYS.len()).await;
    let within = |group: &str| RedriveRequest {
        queue: "orders.dlq".to_owned(),
        within: Some(group.to_owned()),
        ..RedriveRequest::default()
    };
    for (group, moved) in [("acme/batch", 1), ("acme", 2), ("acme", 0), ("b", 1)] {
        let steps = soon(rig.admin.redrive(within(group))).await.unwrap();
        let mut steps = steps.into_inner();
        let mut last = None;
        while let Some(step) = soon(steps.message()).await.unwrap() {
            last = Some(step);
        }
        let last = last.unwrap();
        assert_eq!((last.redriven, last.done), (moved, true), "{group}");
        assert_eq!(last.seen, moved, "it looks at no other keys");
    }
    let left = KEYS
        .iter()
        .filter(|(key, is_within)| !is_within && *key != "b/acme");
    assert_eq!(rig.stats("orders.dlq").await.depth, left.count() as u64);
    let found = keys_within(&mut rig, "orders", "acme", 10).await;
    assert_eq!(found, ["acme", "acme/alice", "acme/batch/nightly"]);
}

/// The dead letters of a queue nest by its separator, also after it has changed.
#[tokio::test]
async fn dead_letters_have_the_groups_of_their_queue() {
    let mut rig = Rig::start().await;
    let colon = QueueSettings {
        key_separator: Some(":".to_owned()),
        retry_attempts_max: Some(1),
        ..QueueSettings::default()
    };
    rig.create("orders").await;
    let update = UpdateQueueRequest {
        name: "orders".to_owned(),
        settings: Some(colon),
        version: None,
    };
    soon(rig.admin.update_queue(update)).await.unwrap();
    for key in ["a/b:c", "a/b", "a/c"] {
        rig.enqueue("orders", key, "1").await;
    }
    bury(&mut rig, "orders", 3).await;
    let found = keys_within(&mut rig, "orders.dlq", "a/b", 10).await;
    assert_eq!(found, ["a/b", "a/b:c"]);
}
