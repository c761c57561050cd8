//! Taking over all queues of a store when the server starts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use fila_core::QueueSettings;
use fila_store::{Engine, Queue, QueueId, QueueName};
use tracing::{info, warn};

use super::catalogue::{Catalogue, Figures, QueueEntry};
use super::error::StartError;
use super::inbox::{Inbox, Input, Opening};
use super::name::{dead_letters_of, source_of};
use super::recover::take_over;
use super::registrar::least;
use super::shards::Shards;
use crate::hooks::{HookSettings, QueueHooks};

/// What all threads of a server share of its queues.
pub(super) struct Estate<E: Engine> {
    pub(super) engine: Arc<E>,
    pub(super) shards: Arc<Shards<E::Shard>>,
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) inboxes: Arc<[Inbox]>,
    pub(super) hook_settings: Arc<HookSettings>,
}

/// What was found in the store.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    queues: usize,
    messages: u64,
}

impl<E: Engine> Estate<E> {
    /// Takes over all queues, those of different scheduler threads at once. Returns how many each thread has.
    pub(super) fn take_over_all(&self) -> Result<Vec<usize>, StartError> {
        let began = Instant::now();
        let mut spread = vec![0; self.inboxes.len()];
        let mut shares: Vec<Vec<Housed>> = Vec::new();
        shares.resize_with(self.inboxes.len(), Vec::new);
        for found in households(&*self.engine)? {
            let thread = least(&spread);
            spread[thread] += found.len();
            shares[thread].extend(found);
        }
        let total: usize = spread.iter().sum();
        info!(queues = total, "taking over the queues of the store");
        let found: Result<Vec<Found>, StartError> = std::thread::scope(|scope| {
            let workers: Vec<_> = shares
                .into_iter()
                .enumerate()
                .map(|(thread, queues)| scope.spawn(move || self.take_over_share(thread, queues)))
                .collect();
            let found = workers.into_iter().map(|worker| {
                // A panic goes on in the thread that started the server.
                worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            found.collect()
        });
        let messages: u64 = found?.iter().map(|found| found.messages).sum();
        info!(queues = total, messages, took = ?began.elapsed(), "all queues taken over");
        Ok(spread)
    }

    fn take_over_share(&self, thread: usize, queues: Vec<Housed>) -> Result<Found, StartError> {
        let mut found = Found::default();
        for Housed {
            queue,
            source,
            dead_letters,
        } in queues
        {
            let began = Instant::now();
            let name = queue.name;
            let definition = QueueSettings::decode(&queue.definition);
            let definition = definition.map_err(|source| StartError::QueueSettings {
                name: name.clone(),
                source,
            })?;
            let dead_letters = dead_letters.map(|to| (to, name.clone()));
            let taken = take_over(&*self.engine, queue.id, definition.clone(), dead_letters);
            let taken = taken.map_err(|source| StartError::Claim {
                name: name.clone(),
                source,
            })?;
            let messages = taken.recovery.messages();
            found.queues += 1;
            found.messages += messages;
            if messages > 0 {
                info!(queue = %name, messages, took = ?began.elapsed(), "queue taken over");
            }
            let settings = &self.hook_settings;
            let hooks = definition.script.as_deref().map(|source| {
                let program = settings.recover(&name, source);
                let (name, fallback) = (name.clone(), definition.hook_fallback);
                Arc::new(QueueHooks::new(
                    queue.id, name, program, fallback, settings, None,
                ))
            });
            let entry = Arc::new(QueueEntry {
                id: queue.id,
                name,
                version: queue.version,
                definition: Arc::new(definition),
                source,
                thread,
                figures: Arc::new(Figures::default()),
                hooks,
            });
            self.shards.add(taken.shard);
            self.inboxes[thread].put_now(Input::Open(Opening {
                queue: entry.id,
                recovery: Box::new(taken.recovery),
                figures: entry.figures.clone(),
                opened: None,
            }));
            self.catalogue.put(entry);
        }
        Ok(found)
    }
}

/// A queue, and where its dead letters go.
#[derive(Debug)]
struct Housed {
    queue: Queue,
    /// The queue whose dead letters are in this one.
    source: Option<QueueId>,
    /// The queue that the dead letters of this one are in.
    dead_letters: Option<QueueId>,
}

/// Returns all queues, each together with the one of its dead letters and that one first: they are to be on one
/// thread. A queue that has none yet gets one.
fn households<E: Engine>(engine: &E) -> Result<Vec<Vec<Housed>>, StartError> {
    let queues = engine.queues()?;
    let (letters, queues): (Vec<Queue>, Vec<Queue>) = queues
        .into_iter()
        .partition(|queue| source_of(queue.name.as_str()).is_some());
    let mut letters: HashMap<QueueName, Queue> = letters
        .into_iter()
        .map(|queue| (queue.name.clone(), queue))
        .collect();
    let mut households = Vec::with_capacity(queues.len());
    for queue in queues {
        let name = dead_letters_of(&queue.name);
        let found = match name {
            None => {
                warn!(queue = %queue.name, "the queue's name is too long for a queue of dead letters; it has none");
                None
            }
            Some(name) => Some(match letters.remove(&name) {
                Some(found) => found,
                None => {
                    let created = engine.create_queue(&name, QueueSettings::default().encode());
                    let created = created.map_err(|source| StartError::Claim {
                        name: name.clone(),
                        source,
                    })?;
                    info!(queue = %name, "queue of dead letters created");
                    created
                }
            }),
        };
        let dead_letters = found.as_ref().map(|found| found.id);
        let source = Some(queue.id);
        let found = found.map(|found| Housed {
            source,
            ..alone(found)
        });
        let mut household: Vec<Housed> = found.into_iter().collect();
        household.push(Housed {
            dead_letters,
            ..alone(queue)
        });
        households.push(household);
    }
    // Those whose queue is gone, which no version of this server leaves behind.
    let mut orphans: Vec<Queue> = letters.into_values().collect();
    orphans.sort_by_key(|queue| queue.id);
    households.extend(orphans.into_iter().map(|queue| vec![alone(queue)]));
    Ok(households)
}

fn alone(queue: Queue) -> Housed {
    Housed {
        queue,
        source: None,
        dead_letters: None,
    }
}
