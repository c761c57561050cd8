//! Opening all queues of the store when the server starts.

use std::collections::HashMap;
use std::time::Instant;

use fila_core::QueueSettings;
use fila_store::{Queue, QueueName};
use tracing::{info, warn};

use crate::runtime::error::StartError;
use crate::runtime::queues::names::{dead_letters_of, source_of};
use crate::runtime::queues::opening::{PairedQueue, QueueOpener};
use crate::runtime::store::Store;

/// Opens all queues, those of different scheduler threads in parallel. Returns the number of queues of each thread.
pub(crate) fn open_all(opener: &QueueOpener) -> Result<Vec<usize>, StartError> {
    let began = Instant::now();
    let threads = opener.inboxes.len();
    let mut spread = vec![0; threads];
    let mut shares: Vec<Vec<PairedQueue>> = Vec::new();
    shares.resize_with(threads, Vec::new);
    for pair in pairs(&*opener.store)? {
        let thread = least(&spread);
        spread[thread] += pair.len();
        shares[thread].extend(pair);
    }
    let total: usize = spread.iter().sum();
    info!(queues = total, "opening the queues of the store");
    let messages: Result<u64, StartError> = std::thread::scope(|scope| {
        let workers: Vec<_> = shares
            .into_iter()
            .enumerate()
            .map(|(thread, queues)| scope.spawn(move || open_share(opener, thread, queues)))
            .collect();
        let messages = workers.into_iter().map(|worker| {
            // A panic continues in the thread that starts the server.
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        messages.sum()
    });
    let messages = messages?;
    info!(queues = total, messages, took = ?began.elapsed(), "all queues are open");
    Ok(spread)
}

/// Opens the queues of one scheduler thread, and returns how many messages they have.
fn open_share(
    opener: &QueueOpener,
    thread: usize,
    queues: Vec<PairedQueue>,
) -> Result<u64, StartError> {
    let mut total = 0;
    for paired in queues {
        let began = Instant::now();
        let name = paired.queue.name.clone();
        let definition = QueueSettings::decode(&paired.queue.definition).map_err(|source| {
            let name = name.clone();
            StartError::QueueSettings { name, source }
        })?;
        let script = definition.script.as_deref();
        let program = script.map(|source| opener.hook_settings.recover(&name, source));
        let opened = opener
            .open(paired, definition, program, thread)
            .map_err(|source| {
                let name = name.clone();
                StartError::Claim { name, source }
            })?;
        let messages = opened.messages;
        total += messages;
        if messages > 0 {
            info!(queue = %name, messages, took = ?began.elapsed(), "queue opened");
        }
        opener.registry.announce(opened.entry);
    }
    Ok(total)
}

/// Returns all queues, each preceded by the queue of its dead letters: both must be on one thread. Creates a queue of
/// dead letters for a queue that has none yet.
fn pairs(store: &dyn Store) -> Result<Vec<Vec<PairedQueue>>, StartError> {
    let (letters, queues): (Vec<Queue>, Vec<Queue>) = store
        .queues()?
        .into_iter()
        .partition(|queue| source_of(queue.name.as_str()).is_some());
    let mut letters: HashMap<QueueName, Queue> = letters
        .into_iter()
        .map(|queue| (queue.name.clone(), queue))
        .collect();
    let mut pairs = Vec::with_capacity(queues.len());
    for queue in queues {
        let held = match dead_letters_of(&queue.name) {
            None => {
                warn!(queue = %queue.name, "the queue's name is too long for a queue of dead letters; it has none");
                None
            }
            Some(name) => Some(match letters.remove(&name) {
                Some(found) => found,
                None => create_dead_letters(store, &name)?,
            }),
        };
        let (source, dead_letters) = (queue.id, held.as_ref().map(|held| held.id));
        let held = held.map(|held| PairedQueue {
            source: Some(source),
            ..unpaired(held)
        });
        let queue = PairedQueue {
            dead_letters,
            ..unpaired(queue)
        };
        pairs.push(held.into_iter().chain([queue]).collect());
    }
    // Queues of dead letters whose source is gone. No version of this server leaves any.
    let mut orphans: Vec<Queue> = letters.into_values().collect();
    orphans.sort_by_key(|queue| queue.id);
    pairs.extend(orphans.into_iter().map(|queue| vec![unpaired(queue)]));
    Ok(pairs)
}

fn create_dead_letters(store: &dyn Store, name: &QueueName) -> Result<Queue, StartError> {
    let created = store.create_queue(name, QueueSettings::default().encode());
    let created = created.map_err(|source| {
        let name = name.clone();
        StartError::Claim { name, source }
    })?;
    info!(queue = %name, "queue of dead letters created");
    Ok(created)
}

fn unpaired(queue: Queue) -> PairedQueue {
    PairedQueue {
        queue,
        source: None,
        dead_letters: None,
    }
}

/// Returns the scheduler thread with the fewest queues.
pub(crate) fn least(spread: &[usize]) -> usize {
    let least = spread.iter().enumerate().min_by_key(|(_, queues)| **queues);
    least.map_or(0, |(thread, _)| thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_goes_where_there_are_fewest() {
        assert_eq!(least(&[3, 1, 2, 1]), 1);
        assert_eq!(least(&[0]), 0);
    }
}
