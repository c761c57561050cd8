//! Headers that make a hook answer nonsense or fail: they cost the messages that carry them, and no other tenant.

use fila_proto::v1::{
    EnqueueBatchRequest, HookFallback, HookInfo, HookState, Message, PeekRequest, PeekedMessage,
    ProduceRequest, QueueSettings,
};
use tonic::Code;

use crate::common::{Rig, assert_refused, get, outcomes, soon};

const BOOK: &str = include_str!("../../../../docs/hooks.md");

/// Returns the script of the documentation that begins like this, word for word.
fn script_of_the_book(function: &str) -> &'static str {
    let mut blocks = BOOK.split("\n```lua\n").skip(1);
    let block = blocks.find(|block| block.starts_with(function)).unwrap();
    block.split_once("\n```\n").unwrap().0
}

/// Fails if the message has no priority.
const FRAGILE: &str = "function on_enqueue(msg)
  return {
    fairness_key = msg.headers['tenant'],
    weight = tonumber(msg.headers['priority']) + 1,
    throttle_keys = { msg.headers['endpoint'] }
  }
end";

fn with_script(source: &str) -> QueueSettings {
    QueueSettings {
        script: Some(source.to_owned()),
        ..QueueSettings::default()
    }
}

/// Returns a message with headers, whose producer claims a fairness key.
fn message(claimed: &str, headers: &[(&str, &str)]) -> Message {
    let headers = headers.iter();
    let headers = headers.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Message {
        fairness_key: claimed.to_owned(),
        headers: headers.collect(),
        ..Message::default()
    }
}

fn of_acme() -> Message {
    let headers = [("tenant", "acme"), ("priority", "3"), ("endpoint", "mail")];
    message("", &headers)
}

/// Returns a message for each way to spoil an answer of the documentation's script: five numbers out of range, five
/// words that are no numbers, and four strings that are no keys.
fn hostile() -> Vec<Message> {
    let long = "x".repeat(257);
    let numbers = ["0", "1.5", "70000", "-1", "1e999"];
    let words = ["nan", "inf", "", "high", &*long];
    let priorities = numbers.into_iter().chain(words);
    let mut messages: Vec<Message> = priorities
        .map(|it| message("claimed", &[("tenant", "noisy"), ("priority", it)]))
        .collect();
    for keys in [
        [("tenant", &*long), ("endpoint", "mail")],
        [("tenant", ""), ("endpoint", "")],
        [("tenant", "noisy"), ("endpoint", "")],
        [("tenant", "noisy"), ("endpoint", &*long)],
    ] {
        messages.push(message("claimed", &keys));
    }
    messages
}

async fn send_all(rig: &mut Rig, messages: Vec<Message>) -> Vec<&'static str> {
    let request = EnqueueBatchRequest {
        queue: "orders".to_owned(),
        messages,
        batch_id: None,
    };
    let stored = soon(rig.messages.enqueue_batch(request)).await.unwrap();
    let results = stored.into_inner().results;
    outcomes(&results).iter().map(|(word, _)| *word).collect()
}

async fn produce(rig: &mut Rig, messages: Vec<Message>) {
    let frames = messages.into_iter().zip(1..);
    let frames = frames.map(|(message, frame_id)| ProduceRequest {
        frame_id,
        queue: "orders".to_owned(),
        messages: vec![message],
        batch_id: None,
    });
    let frames = tokio_stream::iter(frames.collect::<Vec<_>>());
    let call = soon(rig.messages.produce(frames)).await.unwrap();
    let mut answers = call.into_inner();
    while let Some(answer) = soon(answers.message()).await.unwrap() {
        assert!(answer.results.iter().all(|result| result.error.is_none()));
    }
}

async fn peek(rig: &mut Rig) -> Vec<PeekedMessage> {
    let request = PeekRequest {
        queue: "orders".to_owned(),
        page_size: 1_000,
        ..PeekRequest::default()
    };
    let page = soon(rig.messages.peek(request)).await.unwrap();
    page.into_inner().messages
}

async fn hook(rig: &mut Rig) -> HookInfo {
    rig.inspect("orders").await.hooks.remove(0)
}

/// Returns the fairness key, the weight in force and the throttle keys of a message.
fn schedule(message: &PeekedMessage) -> (&str, u32, Vec<&str>) {
    let keys = message.throttle_keys.iter().map(String::as_str);
    (&message.fairness_key, message.weight, keys.collect())
}

/// Checks that each message of acme has its key, its weight and its throttle.
fn assert_acme_is_whole(messages: &[PeekedMessage], count: usize) {
    let of_acme = messages.iter().filter(|it| it.headers["tenant"] == "acme");
    let of_acme: Vec<_> = of_acme.map(schedule).collect();
    assert_eq!(of_acme, vec![("acme", 3, vec!["mail"]); count]);
}

#[tokio::test]
async fn hostile_headers_cost_no_other_tenant_its_key_its_weight_or_its_throttle() {
    for rounds in [1, 3, 30] {
        let mut rig = Rig::start().await;
        let script = script_of_the_book("function on_enqueue(msg)\n  -- msg.headers");
        rig.create_with("orders", with_script(script)).await;
        rig.configure("throttle:mail:rate", "0").await;
        let mut batch = vec![of_acme()];
        for _ in 0..rounds {
            batch.extend(hostile());
            batch.push(of_acme());
        }
        assert!(
            send_all(&mut rig, batch)
                .await
                .iter()
                .all(|it| *it == "stored")
        );
        rig.send("orders", of_acme()).await.unwrap();
        produce(&mut rig, [hostile(), vec![of_acme()]].concat()).await;
        for message in hostile() {
            rig.send("orders", message).await.unwrap();
        }
        rig.send("orders", of_acme()).await.unwrap();

        let messages = peek(&mut rig).await;
        assert_acme_is_whole(&messages, rounds + 4);
        for message in &messages {
            let (key, _, throttles) = schedule(message);
            let headers = &message.headers;
            let expected = match headers["tenant"].as_str() {
                "" => "default",
                tenant if tenant.len() > 256 => "claimed",
                tenant => tenant,
            };
            assert_eq!(key, expected, "{headers:?}");
            let endpoint = headers.get("endpoint").filter(|it| *it == "mail");
            assert_eq!(throttles.first().copied(), endpoint.map(String::as_str));
        }
        let hostile = rounds as u64 + 2;
        let shown = hook(&mut rig).await;
        assert_eq!(
            (shown.state(), shown.failures_total),
            (HookState::Closed, 0)
        );
        assert_eq!(shown.calls_total, messages.len() as u64);
        assert_eq!(shown.adjusted_total, 5 * hostile);
        assert_eq!(shown.unusable_total, 4 * hostile);
        assert_eq!(shown.fallbacks_total, 0);
        assert!(shown.last_error.contains("`throttle_keys[1]`"), "{shown:?}");
        let (_, page) = get(&rig.server, "/metrics").await;
        for (name, count) in [("adjusted", 5 * hostile), ("unusable", 4 * hostile)] {
            let labels = "queue=\"orders\",hook=\"on_enqueue\"";
            let line = format!("fila_hook_{name}_total{{{labels}}} {count}");
            assert!(page.lines().any(|it| it == line), "{line}\n{page}");
        }
        // Its messages wait for the throttle, and so do the hostile ones that name it.
        let mut deliveries = rig.consume("orders", 1_000).await;
        for _ in 0..messages.len() - (rounds + 4) - (rounds + 2) {
            assert!(
                deliveries
                    .next()
                    .await
                    .headers
                    .get("endpoint")
                    .is_none_or(|it| it != "mail")
            );
        }
        assert_eq!(rig.stats("orders").await.throttled, 2 * rounds as u64 + 6);
    }
}

#[tokio::test]
async fn while_a_hook_is_not_called_no_tenant_loses_its_key_its_weight_or_its_throttle() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", with_script(FRAGILE)).await;
    let acme = |claimed, more: &[(&str, &str)]| {
        let headers = [("tenant", "acme"), ("priority", "2"), ("endpoint", "mail")];
        message(claimed, &[&headers, more].concat())
    };
    rig.send("orders", acme("", &[])).await.unwrap();
    let failing = message("noisy", &[("tenant", "noisy")]);
    send_all(&mut rig, vec![failing; 30]).await;
    let shown = hook(&mut rig).await;
    assert_eq!((shown.state(), shown.failures_total), (HookState::Open, 3));

    // The same headers, or a fairness key that the hook has named, get the last answer.
    rig.send("orders", acme("", &[])).await.unwrap();
    rig.send("orders", acme("acme", &[("id", "1")]))
        .await
        .unwrap();
    // A producer that claims the key of another cannot lower its weight, or escape its throttle.
    let claims = message("acme", &[("tenant", "liar")]);
    rig.send("orders", claims).await.unwrap();
    // A tenant that is new keeps its own key.
    let new = message("beta", &[("tenant", "beta"), ("priority", "2")]);
    rig.send("orders", new).await.unwrap();
    rig.send("orders", message("", &[("tenant", "none")]))
        .await
        .unwrap();

    let messages = peek(&mut rig).await;
    assert_acme_is_whole(&messages, 3);
    let of = |name, value| {
        let mut found = messages.iter();
        found.find(|it| it.headers.get(name) == Some(&String::from(value)))
    };
    let schedule_of = |name, value| of(name, value).map(schedule).unwrap();
    assert_eq!(schedule_of("tenant", "liar"), ("acme", 3, vec!["mail"]));
    assert_eq!(schedule_of("tenant", "noisy"), ("noisy", 1, vec![]));
    assert_eq!(schedule_of("tenant", "beta"), ("beta", 1, vec![]));
    assert_eq!(schedule_of("tenant", "none"), ("default", 1, vec![]));
}

#[tokio::test]
async fn a_strict_queue_refuses_the_hostile_message_alone() {
    let mut rig = Rig::start().await;
    let script = script_of_the_book("function on_enqueue(msg)\n  -- msg.headers");
    let settings = QueueSettings {
        hook_fallback: Some(HookFallback::Refuse.into()),
        ..with_script(script)
    };
    rig.create_with("orders", settings).await;
    let long = "x".repeat(257);
    let bad = message("", &[("tenant", &*long)]);
    for _ in 0..10 {
        let batch = vec![of_acme(), bad.clone(), of_acme()];
        let words = send_all(&mut rig, batch).await;
        assert_eq!(words, ["stored", "HOOK_FAILED", "stored"]);
    }
    let refused = rig.send("orders", bad).await;
    let text = refused.as_ref().unwrap_err().message().to_owned();
    assert!(
        text.contains("a string of 257 bytes as `fairness_key`"),
        "{text}"
    );
    assert_refused(refused, Code::FailedPrecondition, "HOOK_FAILED");
    // Numbers are brought into range there, too.
    let weight = message("", &[("tenant", "noisy"), ("priority", "0")]);
    rig.send("orders", weight).await.unwrap();
    assert_acme_is_whole(&peek(&mut rig).await, 20);
    let shown = hook(&mut rig).await;
    assert_eq!(
        (shown.state(), shown.failures_total),
        (HookState::Closed, 0)
    );
}

#[tokio::test]
async fn too_many_throttle_keys_are_no_way_around_a_throttle() {
    let mut rig = Rig::start().await;
    let script = "function on_enqueue(msg)
        local keys = {}
        for key in msg.headers['endpoints']:gmatch('[^,]+') do keys[#keys + 1] = key end
        keys[#keys + 1] = 'tenant:' .. msg.headers['tenant']
        return { fairness_key = msg.headers['tenant'], throttle_keys = keys }
    end";
    rig.create_with("orders", with_script(script)).await;
    let of = |count: usize| {
        let endpoints: Vec<String> = (0..count).map(|it| it.to_string()).collect();
        let endpoints = endpoints.join(",");
        message("", &[("tenant", "noisy"), ("endpoints", &endpoints)])
    };
    let words = send_all(&mut rig, vec![of(15), of(16), of(1_000), of(1)]).await;
    assert_eq!(words, ["stored", "HOOK_FAILED", "HOOK_FAILED", "stored"]);
    for message in peek(&mut rig).await {
        let last = message.throttle_keys.last();
        assert_eq!(last.map(String::as_str), Some("tenant:noisy"));
    }
    assert_eq!(hook(&mut rig).await.state(), HookState::Closed);
}

#[tokio::test]
async fn hostile_answers_about_failures_leave_the_hook_to_the_others() {
    let mut rig = Rig::start().await;
    let script = "function on_failure(msg)
        return { action = msg.headers['action'], delay_ms = tonumber(msg.headers['delay']) }
    end";
    rig.create_with("orders", with_script(script)).await;
    let mut deliveries = rig.consume("orders", 1).await;
    let failures = [
        ("drop", "0"),
        ("", "1"),
        ("drop", "2"),
        ("drop", "3"),
        ("retry", "1e999"),
        ("retry", "-1"),
    ];
    for (sent, (action, delay)) in (1..).zip(failures) {
        let headers = [("action", action), ("delay", delay)];
        rig.send("orders", message("noisy", &headers))
            .await
            .unwrap();
        let delivery = deliveries.next().await;
        rig.nack("orders", &delivery).await.unwrap();
        soon(async { while hook(&mut rig).await.calls_total < sent {} }).await;
        if delay == "1e999" {
            soon(async { while rig.stats("orders").await.delayed == 0 {} }).await;
        } else {
            // By the queue's own policy, or at once: as the nack says.
            let again = deliveries.next().await;
            assert_eq!(again.attempt, 2, "{action} {delay}");
            rig.ack("orders", &again).await.unwrap();
        }
    }
    let dead = message("acme", &[("action", "dlq")]);
    rig.send("orders", dead).await.unwrap();
    let delivery = deliveries.next().await;
    rig.nack("orders", &delivery).await.unwrap();
    soon(async { while rig.stats("orders.dlq").await.depth == 0 {} }).await;
    let shown = hook(&mut rig).await;
    assert_eq!(
        (shown.state(), shown.failures_total),
        (HookState::Closed, 0)
    );
    assert_eq!((shown.unusable_total, shown.adjusted_total), (4, 2));
}
