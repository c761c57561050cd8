//! Plays a sequence of gRPC requests to a broker that runs, and checks what it answers.
//!
//! One broker lives as long as the process, over the engine `memory` and with small limits, so that a few messages
//! reach them. Requests go through everything but the network: the codec of gRPC, the handlers, the threads. A sequence
//! ends with the books of every queue, and with all of them deleted: the next begins with nothing.

mod calls;
mod ledger;
mod wire;

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{
    DeleteConfigRequest, DeleteQueueRequest, InspectQueueRequest, ListConfigRequest,
    ListQueuesRequest, PeekRequest, QueueStats, ServerInfoRequest,
};
use fila_server::config::{ByteSize, Config, StorageEngine};
use fila_server::fuzzing::{Router, answering};
use fila_server::runtime::Runtime;

pub(crate) use ledger::Ledger;
#[allow(
    unused_imports,
    reason = "the fuzzer has no use for them, the test of its corpus has"
)]
pub(crate) use wire::{STEPS, Step, steps};

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(20);

/// The broker, which all inputs of this process are played to.
struct Stage {
    turn: tokio::runtime::Runtime,
    router: Router,
    _broker: Runtime,
}

static STAGE: Mutex<Option<Stage>> = Mutex::new(None);

/// Plays the input, and returns what was seen. Deliveries are waited for as long as `patience` says, all in all.
///
/// # Panics
/// If a request is not answered, or refused without a code; if a message is lost, comes unasked or comes back.
pub(crate) fn play(input: &[u8], patience: Duration) -> Ledger {
    let mut stage = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let stage = stage.get_or_insert_with(Stage::set_up);
    stage.turn.block_on(async {
        let mut calls = calls::Calls::new(stage.router.clone(), patience);
        for (step, request) in steps(input) {
            calls.take(step, request).await;
        }
        let ledger = calls.end();
        check(&stage.router, &ledger).await;
        clear(&stage.router).await;
        ledger
    })
}

impl Stage {
    fn set_up() -> Self {
        let broker = Runtime::start(&config()).expect("a broker in memory starts");
        let mut turn = tokio::runtime::Builder::new_current_thread();
        Self {
            turn: turn.enable_time().build().expect("a runtime can be made"),
            router: answering(&broker.handle()),
            _broker: broker,
        }
    }
}

fn config() -> Config {
    let number = |number| NonZeroUsize::new(number).expect("not zero");
    let small = |number| NonZeroU32::new(number).expect("not zero");
    let mut config = Config::default();
    config.storage.engine = StorageEngine::Memory;
    config.storage.memory_budget = ByteSize::kib(64);
    config.storage.sweep_interval = Duration::from_millis(10);
    config.lua.default_timeout = Duration::from_millis(1);
    let limits = &mut config.limits;
    limits.message.payload_bytes = ByteSize::kib(2);
    limits.message.headers = 3;
    limits.message.header_bytes = ByteSize::new(64);
    limits.message.fairness_key_bytes = ByteSize::new(16);
    limits.queues = number(6);
    limits.keys_per_queue = number(4);
    limits.depth_per_queue = NonZeroU64::new(24).expect("not zero");
    limits.depth_per_key = NonZeroU64::new(12).expect("not zero");
    limits.delayed_per_queue = 4;
    limits.deduplication_ids_per_queue = 4;
    limits.key_settings_per_queue = 2;
    limits.consumers = number(2);
    limits.in_flight_per_consumer = small(8);
    limits.prefetch_default = small(4);
    limits.produce_window = small(16);
    limits.batch_messages = number(20);
    limits.buffered_bytes = ByteSize::kib(64);
    limits.runtime_config.entries = 4;
    limits.runtime_config.bytes = ByteSize::new(256);
    limits.runtime_config.value_bytes = ByteSize::new(128);
    config
}

/// Waits for something that happens soon.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, future).await;
    waited.expect("every request is answered")
}

async fn names(router: &Router) -> Vec<String> {
    let mut admin = FilaAdminClient::new(router.clone());
    let listed = soon(admin.list_queues(ListQueuesRequest::default())).await;
    let listed = listed.expect("queues can be listed").into_inner();
    assert_eq!(listed.next_page_token, "", "few queues are one page");
    listed.queues.into_iter().map(|queue| queue.name).collect()
}

async fn inspect(router: &Router, name: &str) -> Option<QueueStats> {
    let mut admin = FilaAdminClient::new(router.clone());
    let name = name.to_owned();
    let answer = soon(admin.inspect_queue(InspectQueueRequest { name })).await;
    answer.ok()?.into_inner().queue?.stats
}

/// Checks the books of every queue.
async fn check(router: &Router, ledger: &Ledger) {
    for name in names(router).await {
        let before = balance(router, ledger, &name).await;
        let seen = peek(router, &name).await;
        let after = inspect(router, &name).await.expect("it is still there");
        // Between the two something may have become too old.
        if before.depth == after.depth {
            assert_eq!(seen, after.depth, "{name}: {after:?}");
        }
    }
}

/// Checks that all messages of a queue are accounted for. Waits for messages that a redrive is moving.
async fn balance(router: &Router, ledger: &Ledger, name: &str) -> QueueStats {
    let letters = format!("{name}.dlq");
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let letters = inspect(router, &letters).await;
        let stats = inspect(router, name).await.expect("it is still there");
        ledger.balance(name, &stats);
        let redriven = letters.map(|letters| letters.redriven_total);
        assert!(redriven.is_some() || name.ends_with(".dlq"), "{name}");
        let expected = redriven.map(|redriven| ledger.confirmed(name) + redriven);
        if expected.is_none_or(|expected| expected == stats.enqueued_total) {
            return stats;
        }
        let now = tokio::time::Instant::now();
        assert!(now < deadline, "{name}: {expected:?} came, {stats:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Counts what is in the store.
async fn peek(router: &Router, name: &str) -> u64 {
    let mut service = FilaServiceClient::new(router.clone());
    let mut request = PeekRequest {
        queue: name.to_owned(),
        ..PeekRequest::default()
    };
    let mut seen = 0;
    loop {
        let page = soon(service.peek(request.clone())).await;
        let page = page.expect("a queue can be peeked at").into_inner();
        seen += page.messages.len() as u64;
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return seen;
        }
    }
}

/// Deletes everything, after which nothing is left in memory.
async fn clear(router: &Router) {
    let mut admin = FilaAdminClient::new(router.clone());
    for name in names(router).await {
        if !name.ends_with(".dlq") {
            let deleted = soon(admin.delete_queue(DeleteQueueRequest { name })).await;
            deleted.expect("a queue can be deleted");
        }
    }
    let listed = soon(admin.list_config(ListConfigRequest::default())).await;
    for entry in listed.expect("entries can be listed").into_inner().entries {
        let (key, version) = (entry.key, None);
        let deleted = soon(admin.delete_config(DeleteConfigRequest { key, version })).await;
        deleted.expect("an entry can be deleted");
    }
    soon(async {
        loop {
            let info = admin.server_info(ServerInfoRequest {}).await;
            let info = info.expect("a server can be asked").into_inner();
            assert!(info.writable, "{info:?}");
            assert_eq!(info.queues, 0, "{info:?}");
            // Consumers that are gone and queues that are deleted are noticed by another thread.
            if info.consumers == 0 && info.memory_used_bytes == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Returns the bytes of a message of protobuf.
fn bytes(message: &impl prost::Message) -> Bytes {
    message.encode_to_vec().into()
}
