//! Failures under `kill -9`: messages that are acknowledged, fail, are let go, become dead letters and come back, while
//! throttles change; and exact accounts of where each of them is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{
    CreateQueueRequest, DeleteConfigRequest, InspectQueueRequest, LeaseNack, ListConfigRequest,
    PeekRequest, QueueSettings, RedriveRequest, SetConfigRequest, WorkRequest, WorkResponse,
};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use super::fates::{Expected, Fates};
use super::ledger::{Ledger, Name};
use super::outbox::Outbox;
use super::process::Server;
use super::traffic::{self, Books, KEYS, PATIENCE, Producer, QUEUE, name_in};
use super::{number, runtime};

const DEAD_LETTERS: &str = "orders.dlq";
const PRODUCERS: u64 = 2;
const CONSUMERS: u64 = 3;
const THROTTLES: u64 = 3;

/// How many dead letters the consumer of dead letters takes in a round. The rest is for redrives.
const LETTERS_TAKEN: u64 = 30;

type Consumers = Arc<Mutex<Fates>>;

/// Numbers that look like chance, and are the same for the same seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Returns another one, for somebody else.
    fn split(&mut self) -> Self {
        Self(self.below(u64::from(u32::MAX)) | (self.below(1 << 31) << 32))
    }
}

/// What a consumer does with messages.
#[derive(Clone, Copy)]
enum Habit {
    /// Acknowledges half of them, lets many fail and some go, and leaves now and then.
    Careless,
    /// Acknowledges some, lets the rest fail, and leaves after so many.
    Brief(u64),
    /// Acknowledges so many, which are all.
    Thorough(u64),
}

/// What was sent about a lease.
#[derive(Clone, Copy)]
enum Sent {
    Ack(Name, Expected),
    Nack,
}

/// One consumer and its leases.
struct Consumer {
    queue: &'static str,
    habit: Habit,
    chance: Chance,
    fates: Consumers,
    leases: HashMap<u64, Sent>,
    taken: u64,
    acked: u64,
}

impl Consumer {
    fn new(queue: &'static str, habit: Habit, chance: Chance, fates: &Consumers) -> Self {
        Self {
            queue,
            habit,
            chance,
            fates: fates.clone(),
            leases: HashMap::new(),
            taken: 0,
            acked: 0,
        }
    }

    /// Works on one stream until the server is gone, or it has had enough.
    async fn work(&mut self, address: &str) -> Result<(), Status> {
        let endpoint = Endpoint::from_shared(address.to_owned()).unwrap();
        let connected = endpoint.tcp_nodelay(true).connect().await;
        let channel = connected.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut service = FilaServiceClient::new(channel);
        let (sender, requests) = mpsc::channel(64);
        let first = WorkRequest {
            queue: self.queue.to_owned(),
            credit: 32,
            ..WorkRequest::default()
        };
        if sender.send(first).await.is_err() {
            return Ok(());
        }
        let call = service.work(ReceiverStream::new(requests)).await?;
        let mut responses = call.into_inner();
        let until = match self.habit {
            Habit::Careless => self.taken + 50 + self.chance.below(400),
            Habit::Brief(most) => most,
            Habit::Thorough(_) => u64::MAX,
        };
        while let Some(response) = responses.message().await? {
            let report = self.take(&response);
            let is_enough = match self.habit {
                Habit::Thorough(all) => self.acked == all,
                Habit::Careless | Habit::Brief(_) => self.taken >= until,
            };
            let is_sent = report.credit == 0 || sender.send(report).await.is_ok();
            if is_enough || !is_sent {
                break;
            }
        }
        // What it has is given back by its end. Acknowledgements that are open stay so: perhaps they are read.
        self.leases.clear();
        Ok(())
    }

    /// Writes down what a response says, and returns what to answer.
    fn take(&mut self, response: &WorkResponse) -> WorkRequest {
        let mut fates = self.fates.lock().unwrap();
        for lease in &response.confirmed {
            match self.leases.remove(lease).expect("confirmed once") {
                Sent::Ack(name, expected) => {
                    fates.ack_confirmed(name, expected);
                    self.acked += 1;
                }
                Sent::Nack => fates.failed(),
            }
        }
        for refusal in &response.refused {
            // It has run out, since this test is slow now and then.
            if let Sent::Ack(name, _) = self.leases.remove(&refusal.lease_id).unwrap() {
                fates.ack_refused(name);
            }
        }
        let mut report = WorkRequest {
            credit: response.deliveries.len() as u32,
            ..WorkRequest::default()
        };
        for delivery in &response.deliveries {
            self.taken += 1;
            let name = name_in(&delivery.payload);
            let expected = fates.delivered(name);
            let lease = delivery.lease_id;
            let acks = match self.habit {
                Habit::Careless => 5,
                Habit::Brief(_) => 3,
                Habit::Thorough(_) => 10,
            };
            match self.chance.below(10) {
                roll if roll < acks || expected == Expected::Refusal => {
                    fates.ack_sent(name);
                    self.leases.insert(lease, Sent::Ack(name, expected));
                    report.acks.push(lease);
                }
                9 => {} // let go
                _ => {
                    self.leases.insert(lease, Sent::Nack);
                    report.nacks.push(LeaseNack {
                        lease_id: lease,
                        error: "as planned".to_owned(),
                        delay_ms: None,
                    });
                }
            }
        }
        report
    }
}

/// Returns whether a call failed because the server is gone, which is how it is to end.
fn is_gone(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
    )
}

/// Moves dead letters back: all, some, or those of one key; again and again until the server is gone.
async fn redrive(address: &str, fates: &Consumers, mut chance: Chance) -> Result<(), Status> {
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
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
async fn throttle(address: &str, mut chance: Chance) -> Result<(), Status> {
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
    loop {
        let what = ["rate", "burst"][chance.below(2) as usize];
        let key = format!("throttle:throttle-{}:{what}", chance.below(THROTTLES));
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

async fn unthrottle(address: &str) {
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
    let all = admin.list_config(ListConfigRequest::default());
    for entry in all.await.unwrap().into_inner().entries {
        let (key, version) = (entry.key, None);
        let request = DeleteConfigRequest { key, version };
        admin.delete_config(request).await.unwrap();
    }
}

/// Returns all messages of a queue, which are as many as it says.
async fn peek(address: &str, queue: &str) -> Vec<Name> {
    let channel = traffic::connect(address).await;
    let mut service = FilaServiceClient::new(channel.clone());
    let (mut names, mut page_token) = (Vec::new(), String::new());
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
        names.extend(page.messages.iter().map(|it| name_in(&it.payload)));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let name = queue.to_owned();
    let mut admin = FilaAdminClient::new(channel);
    let answer = admin.inspect_queue(InspectQueueRequest { name });
    let queue = answer.await.unwrap().into_inner().queue.unwrap();
    assert_eq!(queue.stats.unwrap().depth, names.len() as u64);
    names
}

async fn audit(address: &str, books: &Books, fates: &Consumers) -> (u64, u64) {
    let (queue, letters) = (
        peek(address, QUEUE).await,
        peek(address, DEAD_LETTERS).await,
    );
    let mut fates = fates.lock().unwrap();
    fates.audit(&books.lock().unwrap(), &queue, &letters);
    (queue.len() as u64, letters.len() as u64)
}

async fn create(address: &str) {
    let request = CreateQueueRequest {
        name: QUEUE.to_owned(),
        settings: Some(QueueSettings {
            visibility_timeout_ms: Some(100),
            retry_attempts_max: Some(2),
            retry_backoff_ms: Some(5),
            ..QueueSettings::default()
        }),
    };
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
    admin.create_queue(request).await.unwrap();
}

/// Starts all clients, each on a connection of its own.
fn start(
    address: &str,
    books: &Books,
    outboxes: &[Producer],
    fates: &Consumers,
    chance: &mut Chance,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for outbox in outboxes {
        let (address, books, outbox) = (address.to_owned(), books.clone(), outbox.clone());
        tasks.spawn(async move {
            // The server's death is how this ends.
            let _ = traffic::produce(&address, &books, &mut *outbox.lock().await, true).await;
        });
    }
    for _ in 0..CONSUMERS {
        let mut consumer = Consumer::new(QUEUE, Habit::Careless, chance.split(), fates);
        let address = address.to_owned();
        tasks.spawn(async move {
            // Ends when the server is gone, and it cannot come back.
            while consumer.work(&address).await.is_ok() {}
        });
    }
    let habit = Habit::Brief(LETTERS_TAKEN);
    let mut reader = Consumer::new(DEAD_LETTERS, habit, chance.split(), fates);
    let (letters, redrives, throttles) =
        (address.to_owned(), address.to_owned(), address.to_owned());
    tasks.spawn(async move { drop(reader.work(&letters).await) });
    let (fates, luck) = (fates.clone(), chance.split());
    tasks.spawn(async move {
        let ended = redrive(&redrives, &fates, luck).await.unwrap_err();
        assert!(is_gone(&ended), "{ended:?}");
    });
    let luck = chance.split();
    tasks.spawn(async move {
        let ended = throttle(&throttles, luck).await.unwrap_err();
        assert!(is_gone(&ended), "{ended:?}");
    });
    tasks
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

/// Brings all dead letters back, and acknowledges everything.
async fn finish(address: &str, fates: &Consumers, chance: Chance) {
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
    let request = RedriveRequest {
        queue: DEAD_LETTERS.to_owned(),
        ..RedriveRequest::default()
    };
    let mut steps = admin.redrive(request).await.unwrap().into_inner();
    while let Some(step) = steps.message().await.unwrap() {
        assert_eq!(step.skipped_leased, 0, "nobody has any");
    }
    assert_eq!(peek(address, DEAD_LETTERS).await, []);
    let all = peek(address, QUEUE).await.len() as u64;
    let mut consumer = Consumer::new(QUEUE, Habit::Thorough(all), chance, fates);
    if all > 0 {
        let drained = tokio::time::timeout(PATIENCE, consumer.work(address)).await;
        drained.expect("all of it comes").unwrap();
    }
}

#[test]
fn what_fails_is_acknowledged_in_its_queue_or_a_dead_letter_after_kill_9_and_one_of_these_only() {
    let seed = number("FILA_KILL_SEED", 3);
    println!("FILA_KILL_SEED={seed}");
    let mut chance = Chance(seed);
    let directory = TempDir::new().unwrap();
    let books: Books = Arc::new(Mutex::new(Ledger::new(false)));
    let fates = Consumers::default();
    let outboxes: Vec<Producer> = (0..PRODUCERS)
        .map(|number| Arc::new(Outbox::throttled(number, THROTTLES).into()))
        .collect();
    for round in 0..number("FILA_KILL_ROUNDS", 3) {
        let work = 200 + chance.below(6000);
        let (queue, letters) = runtime().block_on(async {
            let mut server = Server::start(directory.path());
            if round == 0 {
                create(&server.address).await;
            }
            let found = audit(&server.address, &books, &fates).await;
            let tasks = start(&server.address, &books, &outboxes, &fates, &mut chance);
            until_done(&fates, work).await;
            server.kill();
            traffic::ended(tasks).await;
            found
        });
        let fates = fates.lock().unwrap();
        println!("round {round}: {queue} and {letters} found, killed after {work}; {fates}");
    }
    runtime().block_on(async {
        let server = Server::start(directory.path());
        let address = &server.address;
        audit(address, &books, &fates).await;
        unthrottle(address).await;
        traffic::finish(address, &books, &outboxes).await;
        audit(address, &books, &fates).await;
        finish(address, &fates, chance.split()).await;
        assert_eq!(audit(address, &books, &fates).await, (0, 0));
    });
    let fates = fates.lock().unwrap();
    println!("{fates}");
    assert!(fates.redriven > 0, "some have come back");
}
