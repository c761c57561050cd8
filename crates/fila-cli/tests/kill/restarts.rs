//! One start after the other on a backlog, most of them killed while they recover it; and exact accounts of every
//! message, down to how often it was tried.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{
    CreateQueueRequest, Delivery, EnqueueBatchRequest, LeaseNack, Message, PeekedMessage,
    QueueSettings, WorkRequest,
};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::chance::Chance;
use super::ledger::Name;
use super::process::{Server, killed_early};
use super::traffic::{self, PATIENCE, QUEUE, name_in};
use super::{failures, number, runtime};

const MESSAGES: u64 = 3000;
/// How many are taken in the life of one server.
const TAKEN: u32 = 40;

/// A message that may not be acknowledged.
#[derive(Debug)]
struct Known {
    /// How often it has failed.
    failures: RangeInclusive<u32>,
    may_be_gone: bool,
}

#[derive(Default)]
struct Books {
    there: BTreeMap<Name, Known>,
    acked: u64,
}

/// The result that was sent for a lease.
enum Sent {
    Ack(Name),
    Nack(Name),
}

impl Books {
    /// Compares the books with what there is, and forgets what is gone.
    fn audit(&mut self, found: &[PeekedMessage]) {
        let mut left = BTreeMap::new();
        for message in found {
            let name = name_in(&message.payload);
            let known = self.there.remove(&name);
            let known = known.unwrap_or_else(|| panic!("{name:?} is back, or there twice"));
            let tried = message.attempts;
            assert!(
                known.failures.contains(&tried),
                "{name:?}: {tried}, {known:?}"
            );
            left.insert(name, Known::new(tried));
        }
        for (name, known) in &self.there {
            assert!(known.may_be_gone, "{name:?} is lost");
            self.acked += 1;
        }
        self.there = left;
        assert_eq!(self.there.len() as u64 + self.acked, MESSAGES);
    }

    /// Compares a delivery with what is known, and adds to the report what becomes of it, if anything.
    fn decide(
        &mut self,
        delivery: &Delivery,
        chance: &mut Chance,
        report: &mut WorkRequest,
    ) -> Option<Sent> {
        let name = name_in(&delivery.payload);
        let known = self.there.get_mut(&name).expect("it is not gone");
        let failures = *known.failures.start();
        assert_eq!(delivery.attempt, failures + 1, "{name:?}: {known:?}");
        let lease_id = delivery.lease_id;
        match chance.below(4) {
            0 => {
                known.may_be_gone = true;
                report.acks.push(lease_id);
                Some(Sent::Ack(name))
            }
            1 | 2 => {
                known.failures = failures..=failures + 1;
                report.nacks.push(LeaseNack {
                    lease_id,
                    error: "as planned".to_owned(),
                    delay_ms: None,
                });
                Some(Sent::Nack(name))
            }
            // It is with this consumer when the server dies.
            _ => None,
        }
    }

    fn confirm(&mut self, sent: &Sent) {
        match sent {
            Sent::Ack(name) => {
                self.there.remove(name);
                self.acked += 1;
            }
            Sent::Nack(name) => {
                let known = self.there.get_mut(name).unwrap();
                known.failures = *known.failures.end()..=*known.failures.end();
            }
        }
    }
}

impl Known {
    fn new(failures: u32) -> Self {
        Self {
            failures: failures..=failures,
            may_be_gone: false,
        }
    }
}

async fn fill(address: &str, books: &mut Books) {
    let channel = traffic::connect(address).await;
    let settings = QueueSettings {
        retry_attempts_max: Some(0),
        retry_backoff_ms: Some(0),
        ..QueueSettings::default()
    };
    let request = CreateQueueRequest {
        name: QUEUE.to_owned(),
        settings: Some(settings),
    };
    let mut admin = FilaAdminClient::new(channel.clone());
    admin.create_queue(request).await.unwrap();
    let mut service = FilaServiceClient::new(channel);
    for key in 0..3 {
        let places = 0..MESSAGES / 3;
        let messages = places.clone().map(|place| Message {
            fairness_key: key.to_string(),
            payload: format!("{key} {place} {}", "x".repeat(300)).into(),
            ..Message::default()
        });
        let request = EnqueueBatchRequest {
            queue: QUEUE.to_owned(),
            messages: messages.collect(),
            batch_id: None,
        };
        let answer = service.enqueue_batch(request).await.unwrap().into_inner();
        assert!(answer.results.iter().all(|it| it.error.is_none()));
        let there = places.map(|place| ((key, place), Known::new(0)));
        books.there.extend(there);
    }
}

/// Takes some, whose attempts are as they should be; says of most of them what became of them, waits for some of the
/// answers, and kills the server while it still has the rest: leaving them would count as an attempt.
async fn work(mut server: Server, books: &mut Books, chance: &mut Chance) {
    let mut service = FilaServiceClient::new(traffic::connect(&server.address).await);
    let (sender, requests) = mpsc::channel(4);
    let first = WorkRequest {
        queue: QUEUE.to_owned(),
        credit: TAKEN,
        ..WorkRequest::default()
    };
    sender.send(first).await.unwrap();
    let call = service.work(ReceiverStream::new(requests)).await.unwrap();
    let mut responses = call.into_inner();
    let (mut taken, mut sent) = (0, BTreeMap::new());
    let mut report = WorkRequest::default();
    while taken < TAKEN {
        let response = responses.message().await.unwrap().unwrap();
        for delivery in response.deliveries {
            taken += 1;
            let lease = delivery.lease_id;
            if let Some(said) = books.decide(&delivery, chance, &mut report) {
                sent.insert(lease, said);
            }
        }
    }
    let answers = chance.below(sent.len() as u64 + 1);
    sender.send(report).await.unwrap();
    let mut confirmed = 0;
    while confirmed < answers {
        let response = responses.message().await.unwrap().unwrap();
        assert!(response.refused.is_empty(), "{:?}", response.refused);
        for lease in response.confirmed {
            books.confirm(&sent[&lease]);
            confirmed += 1;
        }
    }
    server.kill();
}

#[test]
fn fifty_starts_most_of_them_killed_in_their_recovery_leave_books_and_attempts_exact() {
    let seed = number("FILA_KILL_SEED", 5);
    println!("FILA_KILL_SEED={seed}");
    let mut chance = Chance::new(seed);
    let directory = TempDir::new().unwrap();
    let mut books = Books::default();
    let (mut early, mut usual) = (0, Duration::from_millis(100));
    for start in 0..50 {
        if start > 0 && chance.below(3) > 0 {
            // In its first moments, in its recovery, or just after.
            let after = chance.below(usual.as_micros() as u64 * 5 / 4);
            killed_early(directory.path(), Duration::from_micros(after));
            early += 1;
            continue;
        }
        let begun = Instant::now();
        let server = Server::start(directory.path());
        usual = begun.elapsed();
        runtime().block_on(async {
            let life = async {
                if start == 0 {
                    fill(&server.address, &mut books).await;
                }
                books.audit(&failures::peek_whole(&server.address, QUEUE).await);
                work(server, &mut books, &mut chance).await;
            };
            let life = tokio::time::timeout(PATIENCE, life).await;
            life.expect("nothing hangs");
        });
    }
    let server = Server::start(directory.path());
    let found = failures::peek_whole(&server.address, QUEUE);
    books.audit(&runtime().block_on(found));
    let (there, acked) = (books.there.len(), books.acked);
    println!(
        "50 starts, {early} killed early; {MESSAGES} accepted = {acked} acked + {there} there"
    );
}
