//! Queues that come and go: made, filled, purged and deleted, again and again, by one client; and what must be found of
//! them after a crash.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{
    CreateQueueRequest, DeleteQueueRequest, EnqueueBatchRequest, ListQueuesRequest, Message,
    PurgeQueueRequest,
};
use tonic::Status;

use super::chance::Chance;
use super::failures;
use super::ledger::Name;
use super::traffic;

const QUEUES: u64 = 3;
const BATCH: u64 = 20;

/// An operation on a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Deed {
    Create,
    Fill(BTreeSet<Name>),
    Purge,
    Delete,
}

/// A queue as the client knows it: its messages, if it exists.
#[derive(Debug, Default)]
struct Known {
    messages: Option<BTreeSet<Name>>,
    /// The operation without an answer.
    under_way: Option<Deed>,
}

impl Known {
    /// Returns what is there once a deed is done.
    fn after(&self, deed: &Deed) -> Option<BTreeSet<Name>> {
        match deed {
            Deed::Create | Deed::Purge => Some(BTreeSet::new()),
            Deed::Fill(more) => Some(
                self.messages
                    .iter()
                    .flatten()
                    .chain(more)
                    .copied()
                    .collect(),
            ),
            Deed::Delete => None,
        }
    }

    fn confirm(&mut self) {
        let deed = self.under_way.take().expect("something was done");
        self.messages = self.after(&deed);
    }

    /// Compares what is there with what was confirmed: a deed that was under way has happened wholly or not at all.
    fn audit(&mut self, queue: &str, found: Option<BTreeSet<Name>>) {
        let deed = self.under_way.take();
        let happened = deed.as_ref().is_some_and(|deed| self.after(deed) == found);
        assert!(
            found == self.messages || happened,
            "{queue} has {found:?} after {deed:?}, and {self:?}"
        );
        self.messages = found;
    }
}

/// The books of all these queues.
#[derive(Debug, Default)]
pub(crate) struct Books {
    queues: [Known; QUEUES as usize],
    next: u64,
    pub(crate) deeds: u64,
}

pub(crate) type Shared = Arc<Mutex<Books>>;

fn name(queue: u64) -> String {
    format!("scratch-{queue}")
}

impl Books {
    /// Chooses what to do to a queue, and writes it down.
    fn begin(&mut self, queue: u64, chance: &mut Chance) -> Deed {
        self.deeds += 1;
        let known = &mut self.queues[queue as usize];
        let deed = match (&known.messages, chance.below(8)) {
            (None, _) => Deed::Create,
            (Some(_), 0) => Deed::Delete,
            (Some(_), 1 | 2) => Deed::Purge,
            (Some(_), _) => {
                let first = self.next;
                self.next += BATCH;
                Deed::Fill((first..self.next).map(|place| (queue, place)).collect())
            }
        };
        known.under_way = Some(deed.clone());
        deed
    }
}

/// Makes, fills, purges and deletes until the server is gone.
pub(crate) async fn work(address: &str, books: &Shared, mut chance: Chance) -> Result<(), Status> {
    let channel = traffic::reach(address).await?;
    let mut admin = FilaAdminClient::new(channel.clone());
    let mut service = FilaServiceClient::new(channel);
    loop {
        let number = chance.below(QUEUES);
        let name = name(number);
        let deed = books.lock().unwrap().begin(number, &mut chance);
        match deed {
            Deed::Create => {
                let settings = None;
                let request = CreateQueueRequest { name, settings };
                admin.create_queue(request).await.map(drop)?;
            }
            Deed::Fill(names) => {
                let messages = names.iter().map(|(key, place)| Message {
                    fairness_key: key.to_string(),
                    payload: format!("{key} {place} x").into(),
                    ..Message::default()
                });
                let request = EnqueueBatchRequest {
                    queue: name,
                    messages: messages.collect(),
                    batch_id: None,
                };
                let answer = service.enqueue_batch(request).await?.into_inner();
                assert!(answer.results.iter().all(|it| it.error.is_none()));
            }
            Deed::Purge => {
                let purged = admin.purge_queue(PurgeQueueRequest { name }).await?;
                let purged = purged.into_inner().purged as usize;
                let known = books.lock().unwrap().queues[number as usize]
                    .messages
                    .clone();
                assert_eq!(Some(purged), known.map(|it| it.len()));
            }
            Deed::Delete => {
                let request = DeleteQueueRequest { name };
                admin.delete_queue(request).await.map(drop)?;
            }
        }
        books.lock().unwrap().queues[number as usize].confirm();
    }
}

/// Compares what there is with what was confirmed.
pub(crate) async fn audit(address: &str, books: &Shared) {
    let mut admin = FilaAdminClient::new(traffic::connect(address).await);
    let prefix = "scratch-".to_owned();
    let request = ListQueuesRequest {
        prefix,
        ..ListQueuesRequest::default()
    };
    let listed = admin.list_queues(request).await.unwrap().into_inner();
    for number in 0..QUEUES {
        let name = name(number);
        let is_there = listed.queues.iter().any(|queue| queue.name == name);
        let mut found = None;
        if is_there {
            let names = failures::peek(address, &name).await;
            let once: BTreeSet<Name> = names.iter().copied().collect();
            assert_eq!(once.len(), names.len(), "nothing is there twice");
            found = Some(once);
        }
        let mut books = books.lock().unwrap();
        books.queues[number as usize].audit(&name, found);
    }
}
