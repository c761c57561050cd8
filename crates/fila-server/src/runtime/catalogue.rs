//! Which queues there are, for everybody who serves a client.
//!
//! A snapshot in memory of the store's catalogue: read by every call, written by the registrar alone, after the
//! store. An entry never changes; a changed queue gets another entry.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use fila_core::{QueueSettings, QueueStats};
use fila_store::{QueueId, QueueName, Version};

use super::name::source_of;
use crate::hooks::{HookFigures, QueueHooks};

/// A queue as it is being served.
#[derive(Clone, Debug)]
pub struct QueueEntry {
    /// The queue, for ever.
    pub id: QueueId,
    /// What people call it.
    pub name: QueueName,
    /// The state of its definition.
    pub version: Version,
    /// What is set for it.
    pub definition: Arc<QueueSettings>,
    /// The queue whose dead letters are in this one, if they are.
    pub source: Option<QueueId>,
    /// On which scheduler thread it lives.
    pub(super) thread: usize,
    pub(super) figures: Arc<Figures>,
    /// If it has a script.
    pub(super) hooks: Option<Arc<QueueHooks>>,
}

impl QueueEntry {
    /// Returns how its hooks fare, now.
    pub fn hooks(&self) -> Vec<HookFigures> {
        let hooks = self.hooks.as_ref();
        hooks.map_or_else(Vec::new, |hooks| hooks.figures(Instant::now()))
    }

    /// Returns the name of the queue whose dead letters are in this one, if they are.
    pub fn dead_letters_of(&self) -> Option<&str> {
        source_of(self.name.as_str())
    }

    /// Returns how the queue was when its scheduler thread last did something for it.
    pub fn stats(&self) -> QueueStats {
        self.figures.read()
    }
}

/// A queue's figures, written by its scheduler thread and read by whoever wants to show them.
#[derive(Debug, Default)]
pub(super) struct Figures(Mutex<QueueStats>);

impl Figures {
    pub(super) fn publish(&self, stats: &QueueStats) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = *stats;
    }

    fn read(&self) -> QueueStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All queues by name.
#[derive(Debug, Default)]
pub(super) struct Catalogue(RwLock<BTreeMap<Arc<str>, Arc<QueueEntry>>>);

impl Catalogue {
    pub(super) fn find(&self, name: &str) -> Option<Arc<QueueEntry>> {
        self.read(|queues| queues.get(name).cloned())
    }

    /// Returns how many queues there are. Those of dead letters belong to the others, and are not counted.
    pub(super) fn len(&self) -> usize {
        let is_counted = |name: &&Arc<str>| source_of(name).is_none();
        self.read(|queues| queues.keys().filter(is_counted).count())
    }

    /// Returns up to `limit` queues whose names begin with `prefix` and come after `after`, in the order of their names.
    pub(super) fn page(&self, prefix: &str, after: &str, limit: usize) -> Vec<Arc<QueueEntry>> {
        let from = match after {
            "" => Bound::Included(prefix),
            after if after < prefix => Bound::Included(prefix),
            after => Bound::Excluded(after),
        };
        self.read(|queues| {
            let found = queues.range::<str, _>((from, Bound::Unbounded));
            let found = found.take_while(|(name, _)| name.starts_with(prefix));
            found.take(limit).map(|(_, queue)| queue.clone()).collect()
        })
    }

    pub(super) fn put(&self, queue: Arc<QueueEntry>) {
        let mut queues = self.0.write().unwrap_or_else(PoisonError::into_inner);
        queues.insert(queue.name.as_str().into(), queue);
    }

    pub(super) fn remove(&self, name: &QueueName) {
        let mut queues = self.0.write().unwrap_or_else(PoisonError::into_inner);
        queues.remove(name.as_str());
    }

    fn read<T>(&self, read: impl FnOnce(&BTreeMap<Arc<str>, Arc<QueueEntry>>) -> T) -> T {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue(names: &[&str]) -> Catalogue {
        let catalogue = Catalogue::default();
        for (number, name) in names.iter().enumerate() {
            catalogue.put(Arc::new(QueueEntry {
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
        catalogue
    }

    fn names(page: &[Arc<QueueEntry>]) -> Vec<&str> {
        page.iter().map(|queue| queue.name.as_str()).collect()
    }

    #[test]
    fn pages_are_in_order_and_go_on_where_the_last_one_ended() {
        let catalogue = catalogue(&["b", "a2", "a1", "a3", "c"]);
        assert_eq!(names(&catalogue.page("a", "", 2)), ["a1", "a2"]);
        assert_eq!(names(&catalogue.page("a", "a2", 2)), ["a3"]);
        assert_eq!(names(&catalogue.page("b", "a", 2)), ["b"]);
        assert_eq!(names(&catalogue.page("", "b", 9)), ["c"]);
        assert!(catalogue.page("a", "c", 2).is_empty());
    }
}
