//! Failures under `kill -9`: messages that are acknowledged, fail, are let go, become dead letters and come back, while
//! throttles change; and exact accounts of where each of them is.

use std::pin::pin;
use std::sync::{Arc, Mutex};

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{
    CreateQueueRequest, DeleteConfigRequest, InspectQueueRequest, ListConfigRequest, PeekRequest,
    PeekedMessage, QueueSettings, RedriveRequest, SetConfigRequest, UpdateQueueRequest,
};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::chance::Chance;
use super::consumer::{Consumer, Consumers, Desk, Habit, Watch};
use super::fates::Balance;
use super::ledger::{Ledger, Name};
use super::outbox::Outbox;
use super::process::Server;
use super::traffic::{self, KEYS, PATIENCE, Producer, QUEUE, name_in};
use super::{number, runtime};

pub(crate) const DEAD_LETTERS: &str = "orders.dlq";
pub(crate) const PRODUCERS: u64 = 2;
pub(crate) const CONSUMERS: u64 = 3;
pub(crate) const THROTTLES: &[&str] = &["throttle-0", "throttle-1", "throttle-2"];

/// How many dead letters the consumer of dead letters takes in a round. The rest is for redrives.
pub(crate) const LETTERS_TAKEN: u64 = 30;

/// Returns whether a call failed because the server is gone, which is how it is to end.
pub(crate) fn is_gone(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
    )
}

/// Moves dead letters back: all, some, or those of one key; again and again until the server is gone.
pub(crate) async fn redrive(
    address: &str,
    fates: &Consumers,
    mut chance: Chance,
) -> Result<(), Status> {
    let mut admin = FilaAdminClient::new(traffic::reach(address).await?);
    loop {
        let key = chance.below(PRODUCERS * KEYS);
        let request = RedriveRequest {
            queue: DEAD_LETTERS.to_owned(),
            count: (chance.below(2) == 0).then(|| 1 + chance.below(300)),
            fairness_key: (chance.below(4) == 0).then(|| key.to_string()),
            ..RedriveRequest::default()
        };
        let mut steps = admin.redrive(request).await?.into_inner();
        let mut before = 0;
        while let Some(step) = steps.message().await? {
            fates.lock().unwrap().redriven += step.redriven - before;
            before = step.redriven;
        }
    }
}

/// Sets and removes throttles until the server is gone.
pub(crate) async fn throttle(address: &str, mut chance: Chance) -> Result<(), Status> {
    let mut admin = FilaAdminClient::new(traffic::reach(address).await?);
    loop {
        let what = ["rate", "burst"][chance.below(2) as usize];
        let throttle = THROTTLES[chance.below(THROTTLES.len() as u64) as usize];
        let key = format!("throttle:{throttle}:{what}");
        let version = None;
        match chance.below(4) {
            0 => {
                let request = DeleteConfigRequest { key, version };
                match admin.delete_config(request).await {
                    Err(status) if status.code() != Code::NotFound => return Err(status),
                    _ => {}
                }
            }
            roll => {
                let value = [300, 3_000, 1_000_000][roll as usize - 1].to_string();
                let request = SetConfigRequest {
                    key,
                    value,
                    version,
                };
                admin.set_config(request).await?;
            }
        }
    }
}

/// Removes what `throttle` may have set.
pub(crate) async fn unthrottle(address: &str) {
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
    let all = admin.list_config(ListConfigRequest {
        prefix: "throttle:throttle-".to_owned(),
        ..ListConfigRequest::default()
    });
    for entry in all.await.unwrap().into_inner().entries {
        let (key, version) = (entry.key, None);
        let request = DeleteConfigRequest { key, version };
        admin.delete_config(request).await.unwrap();
    }
}

/// Returns all messages of a queue, which are as many as it says.
pub(crate) async fn peek(address: &str, queue: &str) -> Vec<Name> {
    let messages = peek_whole(address, queue).await;
    messages.iter().map(|it| name_in(&it.payload)).collect()
}

/// The same, with all that is known of them.
pub(crate) async fn peek_whole(address: &str, queue: &str) -> Vec<PeekedMessage> {
    let channel = traffic::connect(address).await;
    let mut service = FilaServiceClient::new(channel.clone());
    let (mut messages, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = PeekRequest {
            queue: queue.to_owned(),
            page_size: 1000,
            page_token,
            payload_bytes_max: Some(40),
            ..PeekRequest::default()
        };
        let page = service.peek(request).await.unwrap().into_inner();
        assert_eq!(page.damaged, 0);
        messages.extend(page.messages);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let name = queue.to_owned();
    let mut admin = FilaAdminClient::new(channel);
    let answer = admin.inspect_queue(InspectQueueRequest { name });
    let queue = answer.await.unwrap().into_inner().queue.unwrap();
    assert_eq!(queue.stats.unwrap().depth, messages.len() as u64);
    messages
}

/// Compares the books with what there is in the queue and, if it has some, among its dead letters.
pub(crate) async fn audit(address: &str, desk: &Desk, has_letters: bool) -> Balance {
    let queue = peek(address, desk.queue).await;
    let letters = match has_letters {
        true => peek(address, DEAD_LETTERS).await,
        false => Vec::new(),
    };
    let mut fates = desk.fates.lock().unwrap();
    fates.audit(&desk.books.lock().unwrap(), &queue, &letters)
}

/// Returns settings by which messages fail fast, and leases run out.
pub(crate) fn settings() -> QueueSettings {
    QueueSettings {
        visibility_timeout_ms: Some(100),
        retry_attempts_max: Some(2),
        retry_backoff_ms: Some(5),
        ..QueueSettings::default()
    }
}

async fn create(address: &str) {
    let request = CreateQueueRequest {
        name: QUEUE.to_owned(),
        settings: Some(settings()),
    };
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
    admin.create_queue(request).await.unwrap();
}

/// Starts all clients, each on a connection of its own.
pub(crate) fn start(
    address: &str,
    outboxes: &[Producer],
    desk: &Desk,
    chance: &mut Chance,
    tasks: &mut JoinSet<()>,
) {
    for outbox in outboxes {
        let (address, books, outbox) = (address.to_owned(), desk.books.clone(), outbox.clone());
        tasks.spawn(async move {
            // The server's death is how this ends.
            let _ = traffic::produce(&address, &books, &mut *outbox.lock().await, true).await;
        });
    }
    for _ in 0..CONSUMERS {
        let mut consumer = Consumer::new(desk, Habit::Careless, chance.split());
        let address = address.to_owned();
        tasks.spawn(async move {
            // Ends when the server is gone, and it cannot come back.
            while consumer.work(&address).await.is_ok() {}
        });
    }
    let letters = Desk {
        queue: DEAD_LETTERS,
        ..desk.clone()
    };
    let mut reader = Consumer::new(&letters, Habit::Brief(LETTERS_TAKEN), chance.split());
    let (letters, redrives, throttles) =
        (address.to_owned(), address.to_owned(), address.to_owned());
    tasks.spawn(async move { drop(reader.work(&letters).await) });
    let (fates, luck) = (desk.fates.clone(), chance.split());
    tasks.spawn(async move {
        let ended = redrive(&redrives, &fates, luck).await.unwrap_err();
        assert!(is_gone(&ended), "{ended:?}");
    });
    let luck = chance.split();
    tasks.spawn(async move {
        let ended = throttle(&throttles, luck).await.unwrap_err();
        assert!(is_gone(&ended), "{ended:?}");
    });
}

async fn until_done(fates: &Consumers, work: u64) {
    let goal = fates.lock().unwrap().events + work;
    let wait = async {
        while fates.lock().unwrap().events < goal {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    waited.expect("work goes on");
}

/// Brings all dead letters back.
pub(crate) async fn redrive_all(address: &str) {
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
    let request = RedriveRequest {
        queue: DEAD_LETTERS.to_owned(),
        ..RedriveRequest::default()
    };
    let mut steps = admin.redrive(request).await.unwrap().into_inner();
    while let Some(step) = steps.message().await.unwrap() {
        assert_eq!(step.skipped_leased, 0, "no consumer has any");
    }
    assert_eq!(peek(address, DEAD_LETTERS).await, []);
}

/// Says for how long messages of a queue are leased.
pub(crate) async fn lease_for(address: &str, queue: &str, millis: u64) {
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
    let request = UpdateQueueRequest {
        name: queue.to_owned(),
        settings: Some(QueueSettings {
            visibility_timeout_ms: Some(millis),
            ..QueueSettings::default()
        }),
        version: None,
    };
    admin.update_queue(request).await.unwrap();
}

/// Acknowledges everything that is in a queue, as long as something comes.
pub(crate) async fn drain(address: &str, desk: &Desk, chance: Chance) {
    let all = peek(address, desk.queue).await.len() as u64;
    if all == 0 {
        return;
    }
    // On a busy machine acknowledgements would be late else, and messages die again.
    lease_for(address, desk.queue, 60_000).await;
    let mut consumer = Consumer::new(desk, Habit::Thorough(all), chance);
    let mut work = pin!(consumer.work(address));
    let mut before = 0;
    while let Err(_elapsed) = tokio::time::timeout(PATIENCE, &mut work).await {
        let events = desk.fates.lock().unwrap().events;
        let left = peek_whole(address, desk.queue).await;
        assert!(events > before, "nothing comes, and {left:?} is there");
        before = events;
    }
}

#[test]
fn what_fails_is_acknowledged_in_its_queue_or_a_dead_letter_after_kill_9_and_one_of_these_only() {
    let seed = number("FILA_KILL_SEED", 3);
    println!("FILA_KILL_SEED={seed}");
    let mut chance = Chance::new(seed);
    let directory = TempDir::new().unwrap();
    let desk = Desk {
        queue: QUEUE,
        books: Arc::new(Mutex::new(Ledger::new(false))),
        fates: Consumers::default(),
        rules: Watch::default(),
    };
    let outboxes: Vec<Producer> = (0..PRODUCERS)
        .map(|number| Arc::new(Outbox::new(number).throttled(THROTTLES).into()))
        .collect();
    for round in 0..number("FILA_KILL_ROUNDS", 3) {
        let work = 200 + chance.below(6000);
        let found = runtime().block_on(async {
            let mut server = Server::start(directory.path());
            if round == 0 {
                create(&server.address).await;
            }
            let found = audit(&server.address, &desk, true).await;
            let mut tasks = JoinSet::new();
            start(&server.address, &outboxes, &desk, &mut chance, &mut tasks);
            until_done(&desk.fates, work).await;
            server.kill();
            traffic::ended(tasks).await;
            found
        });
        let fates = desk.fates.lock().unwrap();
        println!("round {round}: {found}, killed after {work}; {fates}");
    }
    runtime().block_on(async {
        let server = Server::start(directory.path());
        let address = &server.address;
        audit(address, &desk, true).await;
        unthrottle(address).await;
        traffic::finish(address, &desk.books, &outboxes).await;
        audit(address, &desk, true).await;
        redrive_all(address).await;
        drain(address, &desk, chance.split()).await;
        let left = audit(address, &desk, true).await;
        assert_eq!((left.there, left.dead), (0, 0));
    });
    let fates = desk.fates.lock().unwrap();
    println!("{fates}");
    assert!(fates.redriven > 0, "some have come back");
}
