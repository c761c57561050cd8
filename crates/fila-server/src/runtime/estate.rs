//! Taking over all queues of a store when the server starts.

use std::sync::Arc;
use std::time::Instant;

use fila_core::Definition;
use fila_store::{Engine, Queue};
use tracing::info;

use super::catalogue::{Catalogue, Figures, QueueEntry};
use super::error::StartError;
use super::inbox::{Inbox, Input, Opening};
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
        let mut shares: Vec<Vec<Queue>> = vec![Vec::new(); self.inboxes.len()];
        for queue in self.engine.queues()? {
            let thread = least(&spread);
            spread[thread] += 1;
            shares[thread].push(queue);
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

    fn take_over_share(&self, thread: usize, queues: Vec<Queue>) -> Result<Found, StartError> {
        let mut found = Found::default();
        for queue in queues {
            let began = Instant::now();
            let name = queue.name;
            let definition = Definition::decode(&queue.definition);
            let definition = definition.map_err(|source| StartError::Definition {
                name: name.clone(),
                source,
            })?;
            let taken = take_over(&*self.engine, queue.id, definition.clone());
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
