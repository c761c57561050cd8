//! The queues of this server, by name and by id.
//!
//! Clients find a queue by its name. The threads that read and write find its shard and its hooks by its id. An entry
//! never changes: a changed queue gets another entry. Only start-up and the [manager](crate::runtime::queues::manager) write here, after
//! the store.
//!
//! A queue is added by id before its scheduler thread opens it, because that thread may ask for its shard and its hooks
//! at once. The queue is announced by name after that, because a scheduler thread takes inputs from two lanes, and a
//! client that is faster than the opening would find no queue there.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Instant;

use fila_core::{QueueSettings, QueueStats};
use fila_store::{QueueId, QueueName, Shard, Version};
use foldhash::fast::RandomState;

use crate::hooks::{HookFigures, QueueHooks};
use crate::runtime::queues::names::source_of;

/// A queue that this server serves.
#[derive(Clone, Debug)]
pub struct QueueEntry {
    /// The id, which never changes.
    pub id: QueueId,
    /// The name.
    pub name: QueueName,
    /// The version of the definition.
    pub version: Version,
    /// The settings of the queue.
    pub definition: Arc<QueueSettings>,
    /// The queue whose dead letters this one holds, if it holds any.
    pub source: Option<QueueId>,
    /// The number of its scheduler thread.
    pub(crate) thread: usize,
    pub(crate) figures: Arc<Figures>,
    /// The hooks, if the queue has a script.
    pub(crate) hooks: Option<Arc<QueueHooks>>,
}

impl QueueEntry {
    /// Returns the state and the statistics of the hooks.
    pub fn hooks(&self) -> Vec<HookFigures> {
        let hooks = self.hooks.as_ref();
        hooks.map_or_else(Vec::new, |hooks| hooks.figures(Instant::now()))
    }

    /// Returns the name of the queue whose dead letters this one holds, if it holds any.
    pub fn dead_letters_of(&self) -> Option<&str> {
        source_of(self.name.as_str())
    }

    /// Returns the queue whose ids its messages have: a dead letter keeps the id that it had in its queue.
    pub fn first(&self) -> QueueId {
        self.source.unwrap_or(self.id)
    }

    /// Returns the statistics that the scheduler thread published last.
    pub fn stats(&self) -> QueueStats {
        self.figures.read()
    }
}

/// The statistics of a queue. Its scheduler thread writes them, metrics and calls read them.
#[derive(Debug, Default)]
pub(crate) struct Figures(Mutex<QueueStats>);

impl Figures {
    pub(crate) fn publish(&self, stats: &QueueStats) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = *stats;
    }

    fn read(&self) -> QueueStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All queues.
#[derive(Default)]
pub(crate) struct Registry(RwLock<Queues>);

#[derive(Default)]
struct Queues {
    by_name: BTreeMap<Arc<str>, Arc<QueueEntry>>,
    by_id: HashMap<QueueId, Served, RandomState>,
}

/// What threads need of a queue. Clients hold entries for as long as they like, so the shard is not part of an entry: it
/// would keep the store open.
struct Served {
    entry: Arc<QueueEntry>,
    shard: Arc<dyn Shard>,
}

impl Registry {
    pub(crate) fn find(&self, name: &str) -> Option<Arc<QueueEntry>> {
        self.read(|queues| queues.by_name.get(name).cloned())
    }

    /// Returns the shard of a queue, unless the queue was deleted.
    pub(crate) fn shard(&self, queue: QueueId) -> Option<Arc<dyn Shard>> {
        self.read(|queues| Some(queues.by_id.get(&queue)?.shard.clone()))
    }

    /// Returns the hooks of a queue, if it has any.
    pub(crate) fn hooks(&self, queue: QueueId) -> Option<Arc<QueueHooks>> {
        self.read(|queues| queues.by_id.get(&queue)?.entry.hooks.clone())
    }

    /// Returns the number of queues without those that hold dead letters.
    pub(crate) fn len(&self) -> usize {
        let is_counted = |name: &&Arc<str>| source_of(name).is_none();
        self.read(|queues| queues.by_name.keys().filter(is_counted).count())
    }

    /// Returns up to `limit` queues whose names begin with `prefix` and come after `after`, in the order of their names.
    pub(crate) fn page(&self, prefix: &str, after: &str, limit: usize) -> Vec<Arc<QueueEntry>> {
        let from = match after {
            "" => Bound::Included(prefix),
            after if after < prefix => Bound::Included(prefix),
            after => Bound::Excluded(after),
        };
        self.read(|queues| {
            let found = queues.by_name.range::<str, _>((from, Bound::Unbounded));
            let found = found.take_while(|(name, _)| name.starts_with(prefix));
            found.take(limit).map(|(_, queue)| queue.clone()).collect()
        })
    }

    /// Adds a queue by its id.
    pub(crate) fn add(&self, entry: Arc<QueueEntry>, shard: Arc<dyn Shard>) {
        let served = Served { entry, shard };
        self.write().by_id.insert(served.entry.id, served);
    }

    /// Adds a queue by its name.
    pub(crate) fn announce(&self, entry: Arc<QueueEntry>) {
        self.write()
            .by_name
            .insert(entry.name.as_str().into(), entry);
    }

    /// Replaces the entry of a queue.
    pub(crate) fn replace(&self, entry: &Arc<QueueEntry>) {
        let mut queues = self.write();
        if let Some(served) = queues.by_id.get_mut(&entry.id) {
            served.entry = entry.clone();
        }
        let name = entry.name.as_str().into();
        queues.by_name.insert(name, entry.clone());
    }

    pub(crate) fn remove(&self, entry: &QueueEntry) {
        let mut queues = self.write();
        queues.by_name.remove(entry.name.as_str());
        queues.by_id.remove(&entry.id);
    }

    /// Lets go of all shards, so that the store can close. Clients still find the names.
    pub(crate) fn release_shards(&self) {
        let served = std::mem::take(&mut self.write().by_id);
        drop(served);
    }

    #[cfg(test)]
    pub(crate) fn release_shard(&self, queue: QueueId) {
        self.write().by_id.remove(&queue);
    }

    fn read<R>(&self, read: impl FnOnce(&Queues) -> R) -> R {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> RwLockWriteGuard<'_, Queues> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read(|queues| f.debug_set().entries(queues.by_name.keys()).finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(names: &[&str]) -> Registry {
        let registry = Registry::default();
        for (number, name) in names.iter().enumerate() {
            registry.announce(Arc::new(QueueEntry {
                id: QueueId::new(number as u64),
                name: QueueName::parse(name).unwrap(),
                version: Version::new(1),
                definition: Arc::default(),
                source: None,
                thread: 0,
                figures: Arc::default(),
                hooks: None,
            }));
        }
        registry
    }

    fn names(page: &[Arc<QueueEntry>]) -> Vec<&str> {
        page.iter().map(|queue| queue.name.as_str()).collect()
    }

    #[test]
    fn pages_are_in_order_and_go_on_where_the_last_one_ended() {
        let registry = registry(&["b", "a2", "a1", "a3", "c"]);
        assert_eq!(names(&registry.page("a", "", 2)), ["a1", "a2"]);
        assert_eq!(names(&registry.page("a", "a2", 2)), ["a3"]);
        assert_eq!(names(&registry.page("b", "a", 2)), ["b"]);
        assert_eq!(names(&registry.page("", "b", 9)), ["c"]);
        assert!(registry.page("a", "c", 2).is_empty());
    }
}
