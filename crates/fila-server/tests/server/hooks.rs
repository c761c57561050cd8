//! Hooks over real gRPC: how messages are scheduled, what a broken script does, and what it does not.

use fila_proto::v1::{
    DeleteQueueRequest, EnqueueBatchRequest, EnqueueResult, HookFallback, HookInfo, HookState,
    ListQueuesRequest, Message, ProduceRequest, QueueInfo, QueueSettings, UpdateQueueRequest,
};
use fila_server::Server;
use fila_server::config::Config;
use fila_server::runtime::Stopped;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status};

use crate::common::{
    Rig, assert_refused, batch, eventually, get, in_memory, on_disk, outcomes, soon,
};

const TENANT: &str = "function on_enqueue(msg)
  return { fairness_key = msg.headers['tenant'], weight = 3 }
end";

/// Fails if a header says so, and by a setting.
const MOODY: &str = "function on_enqueue(msg)
  if msg.headers['fail'] or fila.get('fail') then error('as planned') end
  return { fairness_key = msg.headers['tenant'] }
end";

fn with_script(source: &str) -> QueueSettings {
    QueueSettings {
        script: Some(source.to_owned()),
        ..QueueSettings::default()
    }
}

fn with_fallback(source: &str, fallback: HookFallback) -> QueueSettings {
    QueueSettings {
        hook_fallback: Some(fallback.into()),
        ..with_script(source)
    }
}

fn of_tenant(tenant: &str) -> Message {
    Message {
        fairness_key: "the producer's".to_owned(),
        headers: [("tenant".to_owned(), tenant.to_owned())].into(),
        payload: tenant.to_owned().into(),
        ..Message::default()
    }
}

fn failing() -> Message {
    let mut message = of_tenant("acme");
    message.headers.insert("fail".to_owned(), String::new());
    message
}

async fn update(rig: &mut Rig, queue: &str, settings: QueueSettings) -> Result<QueueInfo, Status> {
    let request = UpdateQueueRequest {
        name: queue.to_owned(),
        settings: Some(settings),
        version: None,
    };
    let updated = soon(rig.admin.update_queue(request)).await?;
    Ok(updated.into_inner().queue.unwrap())
}

async fn enqueue_all(rig: &mut Rig, queue: &str, messages: Vec<Message>) -> Vec<EnqueueResult> {
    let request = EnqueueBatchRequest {
        queue: queue.to_owned(),
        messages,
        batch_id: None,
    };
    let stored = soon(rig.messages.enqueue_batch(request)).await.unwrap();
    stored.into_inner().results
}

/// Takes `count` messages, and returns their fairness keys in alphabetical order.
async fn keys(rig: &mut Rig, queue: &str, count: usize) -> Vec<String> {
    let mut deliveries = rig.consume(queue, 1_000).await;
    let mut keys = Vec::new();
    for _ in 0..count {
        let delivery = deliveries.next().await;
        rig.ack(queue, &delivery).await.unwrap();
        keys.push(delivery.fairness_key);
    }
    keys.sort();
    keys
}

async fn hook(rig: &mut Rig, queue: &str) -> HookInfo {
    rig.inspect(queue).await.hooks.remove(0)
}

#[tokio::test]
async fn a_hook_schedules_whatever_way_messages_come() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", with_script(TENANT)).await;
    rig.send("orders", of_tenant("call")).await.unwrap();
    let batch = vec![of_tenant("batch 1"), of_tenant("batch 2")];
    enqueue_all(&mut rig, "orders", batch).await;
    let frames = (1..=3).map(|frame_id| ProduceRequest {
        frame_id,
        queue: "orders".to_owned(),
        messages: vec![of_tenant(&format!("stream {frame_id}"))],
        batch_id: None,
    });
    let frames = tokio_stream::iter(frames.collect::<Vec<_>>());
    let mut answers = soon(rig.messages.produce(frames))
        .await
        .unwrap()
        .into_inner();
    while let Some(answer) = soon(answers.message()).await.unwrap() {
        assert!(answer.results.iter().all(|result| result.error.is_none()));
    }
    let mut deliveries = rig.consume("orders", 10).await;
    let mut found = Vec::new();
    for _ in 0..6 {
        let delivery = deliveries.next().await;
        assert_eq!(delivery.weight, 3);
        found.push(delivery.fairness_key);
    }
    found.sort();
    let expected = [
        "batch 1", "batch 2", "call", "stream 1", "stream 2", "stream 3",
    ];
    assert_eq!(found, expected);
    let hook = hook(&mut rig, "orders").await;
    assert_eq!((hook.name.as_str(), hook.calls_total), ("on_enqueue", 6));
    assert_eq!((hook.state(), hook.failures_total), (HookState::Closed, 0));
}

#[tokio::test]
async fn without_on_enqueue_what_the_producer_says_stands() {
    let mut rig = Rig::start().await;
    let only_failure = "function on_failure(msg) return { action = 'dlq' } end";
    rig.create_with("orders", with_script(only_failure)).await;
    rig.send("orders", of_tenant("acme")).await.unwrap();
    assert_eq!(keys(&mut rig, "orders", 1).await, ["the producer's"]);
    let shown = rig.inspect("orders").await;
    let names: Vec<&str> = shown.hooks.iter().map(|hook| hook.name.as_str()).collect();
    assert_eq!(names, ["on_failure"]);
}

#[tokio::test]
async fn frames_of_a_stream_keep_their_order_through_a_hook() {
    let mut rig = Rig::start().await;
    rig.create_with(
        "orders",
        with_script("function on_enqueue(msg) return {} end"),
    )
    .await;
    let frames = (0..500).map(|frame_id| ProduceRequest {
        frame_id,
        queue: "orders".to_owned(),
        messages: vec![of_tenant(&format!("{frame_id:03}"))],
        batch_id: None,
    });
    let frames = tokio_stream::iter(frames.collect::<Vec<_>>());
    let mut answers = soon(rig.messages.produce(frames))
        .await
        .unwrap()
        .into_inner();
    while soon(answers.message()).await.unwrap().is_some() {}
    let mut deliveries = rig.consume("orders", 1_000).await;
    for number in 0..500 {
        let delivery = deliveries.next().await;
        assert_eq!(delivery.payload, format!("{number:03}"));
    }
}

#[tokio::test]
async fn a_script_that_does_not_load_is_refused_with_its_line_and_changes_nothing() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", with_script(TENANT)).await;
    let refused = update(
        &mut rig,
        "orders",
        with_script("function on_enqueue(msg)\n  return {"),
    );
    let refused = refused.await.unwrap_err();
    assert!(
        refused.message().starts_with("script is refused: "),
        "{refused}"
    );
    assert!(refused.message().contains("line 2: "), "{refused}");
    assert_refused(
        Err::<(), _>(refused),
        Code::InvalidArgument,
        "INVALID_SCRIPT",
    );
    for odd in ["local x = 1", "error('at once')", "while true do end"] {
        let refused = update(&mut rig, "orders", with_script(odd)).await;
        assert_refused(refused, Code::InvalidArgument, "INVALID_SCRIPT");
    }
    let settings = rig.inspect("orders").await.settings.unwrap();
    assert_eq!(settings.script.as_deref(), Some(TENANT));
    let odd = QueueSettings {
        hook_fallback: Some(9),
        ..QueueSettings::default()
    };
    let refused = update(&mut rig, "orders", odd).await;
    assert_refused(refused, Code::InvalidArgument, "INVALID_ARGUMENT");
}

#[tokio::test]
async fn a_replaced_script_acts_on_the_next_message_and_an_empty_one_takes_it_away() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", with_script(TENANT)).await;
    rig.send("orders", of_tenant("first")).await.unwrap();
    let other = "function on_enqueue(msg) return { fairness_key = 'second' } end";
    update(&mut rig, "orders", with_script(other))
        .await
        .unwrap();
    rig.send("orders", of_tenant("x")).await.unwrap();
    let without = update(&mut rig, "orders", with_script("")).await.unwrap();
    assert!(without.hooks.is_empty());
    assert_eq!(without.settings.unwrap().script.as_deref(), Some(""));
    rig.send("orders", of_tenant("x")).await.unwrap();
    let found = keys(&mut rig, "orders", 3).await;
    assert_eq!(found, ["first", "second", "the producer's"]);
}

#[tokio::test]
async fn the_configuration_is_read_as_it_is_when_the_message_comes() {
    let mut rig = Rig::start().await;
    let tiers = "function on_enqueue(msg)
        return { fairness_key = fila.get('tier:' .. msg.headers['tenant']) or 'free' }
    end";
    rig.create_with("orders", with_script(tiers)).await;
    rig.send("orders", of_tenant("acme")).await.unwrap();
    for tier in ["gold", "silver"] {
        rig.configure("tier:acme", tier).await;
        rig.send("orders", of_tenant("acme")).await.unwrap();
    }
    assert_eq!(
        keys(&mut rig, "orders", 3).await,
        ["free", "gold", "silver"]
    );
}

#[tokio::test]
async fn a_script_that_keeps_failing_is_bypassed_and_all_can_see_it() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", with_fallback(MOODY, HookFallback::Default))
        .await;
    // Twice is not three times.
    for message in [failing(), failing(), of_tenant("acme")] {
        rig.send("orders", message).await.unwrap();
    }
    let shown = hook(&mut rig, "orders").await;
    assert_eq!(
        (shown.state(), shown.failures_total),
        (HookState::Closed, 2)
    );
    let results = enqueue_all(&mut rig, "orders", vec![failing(); 5]).await;
    assert!(results.iter().all(|result| result.error.is_none()));
    rig.send("orders", of_tenant("acme")).await.unwrap();
    let shown = hook(&mut rig, "orders").await;
    assert_eq!(shown.state(), HookState::Open);
    assert_eq!((shown.failures_in_a_row, shown.failures_total), (3, 5));
    assert_eq!((shown.calls_total, shown.fallbacks_total), (6, 8));
    assert_eq!(shown.last_error, "the hook failed: line 2: as planned");
    assert!(shown.asked_again_in_ms.unwrap() <= 10_000);
    let found = keys(&mut rig, "orders", 9).await;
    assert_eq!(found[0], "acme");
    assert!(found[1..].iter().all(|key| key == "default"), "{found:?}");
    let (_, page) = get(&rig.server, "/metrics").await;
    for line in [
        "fila_hook_open{queue=\"orders\",hook=\"on_enqueue\"} 1",
        "fila_hook_calls_total{queue=\"orders\",hook=\"on_enqueue\"} 6",
        "fila_hook_failures_total{queue=\"orders\",hook=\"on_enqueue\"} 5",
        "fila_hook_fallbacks_total{queue=\"orders\",hook=\"on_enqueue\"} 8",
    ] {
        assert!(page.lines().any(|it| it == line), "{line}\n{page}");
    }
    // Another script begins anew.
    update(&mut rig, "orders", with_script(TENANT))
        .await
        .unwrap();
    let shown = hook(&mut rig, "orders").await;
    assert_eq!(
        (shown.state(), shown.last_error.as_str()),
        (HookState::Closed, "")
    );
}

#[tokio::test]
async fn a_breaker_is_of_one_hook_of_one_queue() {
    let mut rig = Rig::start().await;
    let script = "function on_enqueue(msg) error('as planned') end
        function on_failure(msg) return { action = 'dlq' } end";
    rig.create_with("orders", with_script(script)).await;
    rig.create_with("bills", with_script(TENANT)).await;
    enqueue_all(&mut rig, "orders", vec![of_tenant("acme"); 3]).await;
    rig.send("bills", of_tenant("acme")).await.unwrap();
    assert_eq!(keys(&mut rig, "bills", 1).await, ["acme"]);
    let mut deliveries = rig.consume("orders", 1).await;
    let delivery = deliveries.next().await;
    rig.nack("orders", &delivery).await.unwrap();
    soon(async { while rig.stats("orders.dlq").await.depth == 0 {} }).await;
    let (_, page) = get(&rig.server, "/metrics").await;
    for line in [
        "fila_hook_open{queue=\"orders\",hook=\"on_enqueue\"} 1",
        "fila_hook_open{queue=\"orders\",hook=\"on_failure\"} 0",
        "fila_hook_open{queue=\"bills\",hook=\"on_enqueue\"} 0",
    ] {
        assert!(page.lines().any(|it| it == line), "{line}\n{page}");
    }
}

#[tokio::test]
async fn after_the_cooldown_one_message_decides() {
    let mut config = in_memory();
    config.lua.circuit_breaker_cooldown = std::time::Duration::from_millis(1);
    let mut rig = Rig::with(config).await;
    rig.create_with("orders", with_script(MOODY)).await;
    rig.configure("fail", "yes").await;
    enqueue_all(&mut rig, "orders", vec![of_tenant("acme"); 3]).await;
    let request = fila_proto::v1::DeleteConfigRequest {
        key: "fail".to_owned(),
        version: None,
    };
    soon(rig.admin.delete_config(request)).await.unwrap();
    // Whether it is open still or tried by now, it is closed in the end.
    while hook(&mut rig, "orders").await.state() != HookState::Closed {
        rig.send("orders", of_tenant("acme")).await.unwrap();
    }
    rig.send("orders", of_tenant("closed")).await.unwrap();
    let depth = rig.stats("orders").await.depth;
    let found = keys(&mut rig, "orders", usize::try_from(depth).unwrap()).await;
    assert!(found.contains(&"closed".to_owned()), "{found:?}");
}

#[tokio::test]
async fn a_queue_may_refuse_what_its_hook_gives_no_answer_for() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", with_fallback(MOODY, HookFallback::Refuse))
        .await;
    let refused = rig.send("orders", failing()).await;
    let text = refused.as_ref().unwrap_err().message().to_owned();
    assert!(text.contains("line 2: as planned"), "{text}");
    assert_refused(refused, Code::FailedPrecondition, "HOOK_FAILED");
    // Each message for itself, and each in its place of its batch, also if that comes again.
    let messages = vec![of_tenant("a"), failing(), of_tenant("b")];
    let first = rig
        .enqueue_batch(batch(0), "orders", messages.clone())
        .await
        .unwrap();
    let first = outcomes(&first);
    let words: Vec<&str> = first.iter().map(|(word, _)| *word).collect();
    assert_eq!(words, ["stored", "HOOK_FAILED", "stored"]);
    let again = rig
        .enqueue_batch(batch(0), "orders", messages)
        .await
        .unwrap();
    let words: Vec<&str> = outcomes(&again).iter().map(|(word, _)| *word).collect();
    assert_eq!(words, ["duplicate", "HOOK_FAILED", "duplicate"]);
    assert_eq!(keys(&mut rig, "orders", 2).await, ["a", "b"]);
}

#[tokio::test]
async fn a_queue_may_keep_the_last_good_answer() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", with_fallback(MOODY, HookFallback::LastGood))
        .await;
    rig.send("orders", of_tenant("acme")).await.unwrap();
    rig.configure("fail", "yes").await;
    let messages = vec![of_tenant("acme"), of_tenant("unknown"), of_tenant("acme")];
    enqueue_all(&mut rig, "orders", messages).await;
    rig.send("orders", of_tenant("acme")).await.unwrap();
    assert_eq!(hook(&mut rig, "orders").await.state(), HookState::Open);
    let found = keys(&mut rig, "orders", 5).await;
    assert_eq!(found, ["acme", "acme", "acme", "acme", "the producer's"]);
}

#[tokio::test]
async fn a_script_at_its_limit_delays_no_other_queue_not_even_on_the_same_stream() {
    let mut config = in_memory();
    // It never opens: each message takes its whole time.
    config.lua.circuit_breaker_threshold = std::num::NonZeroU32::new(1_000_000).unwrap();
    config.lua.default_timeout = std::time::Duration::from_millis(100);
    let mut rig = Rig::with(config).await;
    rig.create_with(
        "spin",
        with_script("function on_enqueue(msg) while true do end end"),
    )
    .await;
    rig.create_with("quick", with_script(TENANT)).await;
    let (frames, requests) = mpsc::unbounded_channel();
    let slow = ProduceRequest {
        frame_id: 1,
        queue: "spin".to_owned(),
        // Minutes of work for each of the workers.
        messages: vec![of_tenant("x"); 5_000],
        batch_id: None,
    };
    frames.send(slow).unwrap();
    let requests = UnboundedReceiverStream::new(requests);
    let mut answers = soon(rig.messages.produce(requests))
        .await
        .unwrap()
        .into_inner();
    assert!(soon(answers.message()).await.unwrap().unwrap().window > 0);
    for frame_id in 2..22 {
        let quick = ProduceRequest {
            frame_id,
            queue: "quick".to_owned(),
            messages: vec![of_tenant("acme")],
            batch_id: None,
        };
        frames.send(quick).unwrap();
        let answer = soon(answers.message()).await.unwrap().unwrap();
        assert_eq!(answer.frame_id, frame_id);
        rig.send("quick", of_tenant("acme")).await.unwrap();
    }
    assert_eq!(keys(&mut rig, "quick", 40).await, ["acme"; 40]);
    assert_eq!(rig.stats("spin").await.depth, 0);
}

#[tokio::test]
async fn scripts_and_choices_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(dir.path())).await;
    rig.create_with("orders", with_fallback(TENANT, HookFallback::Refuse))
        .await;
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
    let mut rig = Rig::with(on_disk(dir.path())).await;
    let settings = rig.inspect("orders").await.settings.unwrap();
    assert_eq!(settings.script.as_deref(), Some(TENANT));
    assert_eq!(settings.hook_fallback(), HookFallback::Refuse);
    rig.send("orders", of_tenant("acme")).await.unwrap();
    assert_eq!(keys(&mut rig, "orders", 1).await, ["acme"]);
}

#[tokio::test]
async fn a_stored_script_that_no_longer_loads_does_not_keep_the_server_from_starting() {
    let dir = tempfile::tempdir().unwrap();
    let large = "local entries = {}
        for number = 1, 2000 do entries[number] = 'an entry of some length ' .. number end
        function on_enqueue(msg) return { fairness_key = entries[1] } end";
    let mut roomy = on_disk(dir.path());
    roomy.lua.default_memory_limit_bytes = "8 MiB".parse().unwrap();
    let mut rig = Rig::with(roomy).await;
    rig.create_with("orders", with_script(large)).await;
    rig.create_with("strict", with_fallback(large, HookFallback::Refuse))
        .await;
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
    let mut narrow = on_disk(dir.path());
    narrow.lua.default_memory_limit_bytes = "64 KiB".parse().unwrap();
    let mut rig = Rig::with(narrow).await;
    let shown = hook(&mut rig, "orders").await;
    assert_eq!(shown.state(), HookState::Broken);
    assert!(
        shown.last_error.contains("65536 bytes of memory"),
        "{shown:?}"
    );
    rig.send("orders", of_tenant("acme")).await.unwrap();
    assert_eq!(keys(&mut rig, "orders", 1).await, ["the producer's"]);
    let refused = rig.send("strict", of_tenant("acme")).await;
    assert_refused(refused, Code::FailedPrecondition, "HOOK_FAILED");
    // It can be changed otherwise, and mended.
    let timeout = QueueSettings {
        visibility_timeout_ms: Some(5_000),
        ..QueueSettings::default()
    };
    let changed = update(&mut rig, "orders", timeout).await.unwrap();
    assert_eq!(changed.hooks[0].state(), HookState::Broken);
    let mended = update(&mut rig, "orders", with_script(TENANT))
        .await
        .unwrap();
    assert_eq!(mended.hooks[0].state(), HookState::Closed);
}

#[tokio::test]
async fn a_deleted_queue_leaves_no_sandbox() {
    let mut rig = Rig::start().await;
    for name in ["one", "two"] {
        rig.create_with(name, with_script(TENANT)).await;
        rig.send(name, of_tenant("acme")).await.unwrap();
    }
    let (_, page) = get(&rig.server, "/metrics").await;
    assert!(!page.contains("\nfila_hook_sandboxes 0\n"), "{page}");
    for name in ["one", "two"] {
        let name = name.to_owned();
        soon(rig.admin.delete_queue(DeleteQueueRequest { name }))
            .await
            .unwrap();
    }
    let server = &rig.server;
    eventually(async || {
        let (_, page) = get(server, "/metrics").await;
        page.contains("\nfila_hook_sandboxes 0\n") && !page.contains("queue=\"one\"")
    })
    .await;
}

#[tokio::test]
async fn lists_leave_scripts_out_and_show_how_hooks_fare() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", with_script(TENANT)).await;
    let request = ListQueuesRequest::default();
    let page = soon(rig.admin.list_queues(request))
        .await
        .unwrap()
        .into_inner();
    let queue = &page.queues[0];
    assert_eq!(queue.settings.as_ref().unwrap().script, None);
    assert_eq!(queue.hooks.len(), 1);
}

#[tokio::test]
async fn headers_beyond_the_limits_are_not_shown_to_scripts() {
    let mut rig = Rig::start().await;
    rig.create_with("orders", with_script(TENANT)).await;
    for _ in 0..4 {
        let mut message = of_tenant("acme");
        let value = "x".repeat(64 << 10);
        message.headers.insert("large".to_owned(), value);
        let refused = rig.send("orders", message).await;
        assert_refused(refused, Code::InvalidArgument, "HEADERS_TOO_LARGE");
    }
    assert_eq!(hook(&mut rig, "orders").await.calls_total, 0);
}

#[tokio::test]
async fn a_server_that_stops_answers_calls_that_wait_for_a_hook() {
    let mut config: Config = in_memory();
    config.lua.circuit_breaker_threshold = std::num::NonZeroU32::new(1_000_000).unwrap();
    config.lua.default_timeout = std::time::Duration::from_millis(100);
    let mut rig = Rig::of(soon(Server::start(config)).await.unwrap()).await;
    rig.create_with(
        "spin",
        with_script("function on_enqueue(msg) while true do end end"),
    )
    .await;
    let mut messages = rig.another().await;
    let waiting = tokio::spawn(async move {
        let request = EnqueueBatchRequest {
            queue: "spin".to_owned(),
            messages: vec![of_tenant("x"); 5_000],
            batch_id: None,
        };
        messages.enqueue_batch(request).await
    });
    soon(async { while hook(&mut rig, "spin").await.calls_total == 0 {} }).await;
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
    let refused = soon(waiting).await.unwrap();
    assert_refused(refused, Code::Unavailable, "SHUTTING_DOWN");
}

#[tokio::test]
async fn on_failure_is_told_what_failed_and_its_answer_is_what_happens() {
    let mut rig = Rig::start().await;
    let script = "function on_failure(msg)
        if msg.headers['tenant'] == 'tell' then
          error(table.concat({ msg.id, msg.queue, msg.attempts, msg.error }, ' '))
        end
        return { action = 'retry', delay_ms = 3600000 }
    end";
    rig.create_with("orders", with_script(script)).await;
    rig.send("orders", of_tenant("acme")).await.unwrap();
    let mut deliveries = rig.consume("orders", 1).await;
    let delivery = deliveries.next().await;
    rig.nack("orders", &delivery).await.unwrap();
    soon(async { while hook(&mut rig, "orders").await.calls_total == 0 {} }).await;
    let told = rig.send("orders", of_tenant("tell")).await.unwrap();
    let delivery = deliveries.next().await;
    assert_eq!(delivery.message_id, told, "the other one waits for an hour");
    rig.nack("orders", &delivery).await.unwrap();
    // Without an answer the queue's own policy applies: it delivers the message again.
    let again = deliveries.next().await;
    assert_eq!(
        (again.message_id.as_str(), again.attempt),
        (told.as_str(), 2)
    );
    assert_eq!(rig.stats("orders").await.delayed, 1);
    let shown = hook(&mut rig, "orders").await;
    assert_eq!(shown.name, "on_failure");
    assert_eq!((shown.calls_total, shown.fallbacks_total), (2, 1));
    let error = format!("the hook failed: line 3: {told} orders 1 as planned");
    assert_eq!(shown.last_error, error);
}

#[tokio::test]
async fn frames_keep_their_order_though_the_script_is_taken_away_while_some_wait_for_it() {
    let mut rig = Rig::start().await;
    // Slow, and not so slow that it is given up.
    let slow = "function on_enqueue(msg)
        for number = 1, 100000 do end
        return {}
    end";
    rig.create_with("orders", with_script(slow)).await;
    let frame = |frame_id: u64| ProduceRequest {
        frame_id,
        queue: "orders".to_owned(),
        messages: vec![Message {
            // As what the hook says nothing of.
            fairness_key: String::new(),
            ..of_tenant(&format!("{frame_id:03}"))
        }],
        batch_id: None,
    };
    let (sender, frames) = mpsc::unbounded_channel();
    let frames = UnboundedReceiverStream::new(frames);
    let call = soon(rig.messages.produce(frames)).await.unwrap();
    let mut answers = call.into_inner();
    for number in 0..200 {
        sender.send(frame(number)).unwrap();
    }
    while hook(&mut rig, "orders").await.calls_total == 0 {
        let _ = soon(answers.message()).await.unwrap();
    }
    update(&mut rig, "orders", with_script("")).await.unwrap();
    for number in 200..300 {
        sender.send(frame(number)).unwrap();
    }
    drop(sender);
    while soon(answers.message()).await.unwrap().is_some() {}
    let mut deliveries = rig.consume("orders", 1_000).await;
    for number in 0..300 {
        let delivery = deliveries.next().await;
        assert_eq!(delivery.payload, format!("{number:03}"));
    }
}

#[tokio::test]
async fn a_script_that_comes_later_judges_failures_from_then_on_and_its_successor_after_it() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let mut deliveries = rig.consume("orders", 1).await;
    for (script, dead) in [
        ("function on_failure(msg) return { action = 'dlq' } end", 1),
        (
            "function on_failure(msg) return { action = 'retry', delay_ms = 3600000 } end",
            1,
        ),
        ("function on_failure(msg) return { action = 'dlq' } end", 2),
    ] {
        update(&mut rig, "orders", with_script(script))
            .await
            .unwrap();
        let before = hook(&mut rig, "orders").await.calls_total;
        rig.send("orders", of_tenant("acme")).await.unwrap();
        let delivery = deliveries.next().await;
        rig.nack("orders", &delivery).await.unwrap();
        // If the server does not call the hook, this never ends.
        let asked = async { while hook(&mut rig, "orders").await.calls_total == before {} };
        soon(asked).await;
        let judged = async { while rig.stats("orders.dlq").await.depth < dead {} };
        soon(judged).await;
        assert_eq!(rig.stats("orders.dlq").await.depth, dead);
    }
}

#[tokio::test]
async fn failures_are_judged_after_a_restart_too() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(on_disk(directory.path())).await;
    let script = "function on_failure(msg) return { action = 'dlq' } end";
    rig.create_with("orders", with_script(script)).await;
    rig.send("orders", of_tenant("acme")).await.unwrap();
    assert_eq!(soon(rig.server.shutdown()).await, Stopped::Complete);
    let mut rig = Rig::with(on_disk(directory.path())).await;
    let mut deliveries = rig.consume("orders", 1).await;
    let delivery = deliveries.next().await;
    rig.nack("orders", &delivery).await.unwrap();
    let judged = async { while rig.stats("orders.dlq").await.depth == 0 {} };
    soon(judged).await;
    assert_eq!(hook(&mut rig, "orders").await.calls_total, 1);
}
