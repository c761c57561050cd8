//! Changes of the catalogue: one at a time, the store first, then the scheduler thread, then everybody.
//!
//! All of it blocks, and runs on threads made for that. A change that has begun is finished, whether or not its
//! caller still waits.

use std::sync::{Arc, Mutex, PoisonError};

use fila_core::{Command, QueueSettings};
use fila_store::{Engine, EngineError, Expected, Queue, QueueId, QueueName, Version};
use tracing::{error, info};

use super::catalogue::{Catalogue, Figures, QueueEntry};
use super::error::CallError;
use super::inbox::{Inbox, Input, Opening};
use super::judge::Judge;
use super::name::dead_letters_of;
use super::recover::take_over;
use super::shards::Shards;
use super::status::Status;
use crate::hooks::{HookSettings, Pool, Program, QueueHooks};

/// A change of a definition. Refuses what the definition must not become.
pub(super) type Change = Box<dyn FnOnce(&mut QueueSettings) -> Result<(), CallError> + Send>;

/// What a handle needs of a registrar, whatever its engine.
pub(super) trait Register: Send + Sync + 'static {
    fn create(
        &self,
        name: &QueueName,
        definition: QueueSettings,
    ) -> Result<Arc<QueueEntry>, CallError>;

    fn update(
        &self,
        name: &str,
        expected: Option<Version>,
        change: Change,
    ) -> Result<Arc<QueueEntry>, CallError>;

    fn delete(&self, name: &str) -> Result<(), CallError>;
}

#[derive(Debug)]
pub(super) struct Registrar<E: Engine> {
    pub(super) engine: Arc<E>,
    pub(super) shards: Arc<Shards<E::Shard>>,
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) status: Arc<Status>,
    pub(super) inboxes: Arc<[Inbox]>,
    pub(super) queues_max: usize,
    pub(super) hook_settings: Arc<HookSettings>,
    pub(super) pool: Pool,
    pub(super) judge: Arc<Judge>,
    /// How many queues each scheduler thread has. Locked for the whole of a change.
    pub(super) spread: Mutex<Vec<usize>>,
}

impl<E: Engine> Registrar<E> {
    fn refused(&self, name: &QueueName, failure: EngineError) -> CallError {
        if let EngineError::Commit(_) | EngineError::Read(_) = &failure {
            let source = std::error::Error::source(&failure).map(ToString::to_string);
            let source = source.unwrap_or_default();
            error!(queue = %name, error = %failure, source, "the catalogue was not changed");
        }
        if let EngineError::Commit(_) = &failure {
            self.status.fail("the store takes no more writes");
        }
        CallError::of_catalogue(name, failure)
    }

    /// Lets go of what is kept for the script of a queue that has another one now, or none.
    fn retire_hooks(&self, entry: &QueueEntry, next: Option<&QueueHooks>) {
        if let Some(hooks) = &entry.hooks {
            hooks.retire(next);
            self.pool.sweep();
        }
    }

    fn find(&self, name: &str) -> Result<Arc<QueueEntry>, CallError> {
        let found = self.catalogue.find(name);
        found.ok_or_else(|| CallError::UnknownQueue(name.to_owned()))
    }

    fn create_in_store(
        &self,
        name: &QueueName,
        definition: &QueueSettings,
    ) -> Result<Queue, CallError> {
        let created = self.engine.create_queue(name, definition.encode());
        created.map_err(|error| self.refused(name, error))
    }

    /// Opens a queue that was created, and puts it into the catalogue.
    fn open(
        &self,
        queue: Queue,
        definition: QueueSettings,
        program: Option<Program>,
        (thread, source): (usize, Option<QueueId>),
        dead_letters: Option<(QueueId, QueueName)>,
    ) -> Result<Arc<QueueEntry>, CallError> {
        let taken = take_over(&*self.engine, queue.id, definition.clone(), dead_letters);
        let taken = taken.map_err(|error| self.refused(&queue.name, error))?;
        let hooks = program.map(|program| {
            let (fallback, settings) = (definition.hook_fallback, &self.hook_settings);
            let name = queue.name.clone();
            Arc::new(QueueHooks::new(
                queue.id, name, program, fallback, settings, None,
            ))
        });
        let entry = Arc::new(QueueEntry {
            id: queue.id,
            name: queue.name,
            version: queue.version,
            definition: Arc::new(definition),
            source,
            thread,
            figures: Arc::new(Figures::default()),
            hooks,
        });
        self.shards.add(taken.shard);
        self.judge.follow(entry.id, entry.hooks.as_ref());
        let (opened, is_open) = crossbeam_channel::bounded(0);
        self.inboxes[thread].put_now(Input::Open(Opening {
            queue: entry.id,
            recovery: Box::new(taken.recovery),
            figures: entry.figures.clone(),
            opened: Some(opened),
        }));
        // Nothing is sent, the other end is dropped: when the queue is open, or the thread has stopped.
        let _ = is_open.recv();
        self.catalogue.put(entry.clone());
        Ok(entry)
    }
}

impl<E: Engine> Register for Registrar<E> {
    fn create(
        &self,
        name: &QueueName,
        mut definition: QueueSettings,
    ) -> Result<Arc<QueueEntry>, CallError> {
        // Outside of the lock: it takes a while.
        let program = QueueHooks::program_of(&mut definition, None, &self.hook_settings)?;
        let mut spread = self.spread.lock().unwrap_or_else(PoisonError::into_inner);
        if self.catalogue.find(name.as_str()).is_some() {
            return Err(CallError::QueueExists(name.clone()));
        }
        let max = self.queues_max;
        if self.catalogue.len() >= max {
            return Err(CallError::TooManyQueues { max });
        }
        let thread = least(&spread);
        // A queue without one gets it at the next start, so whatever happens in between does no harm.
        let queue = self.create_in_store(name, &definition)?;
        let mut dead_letters = None;
        if let Some(letters) = dead_letters_of(name) {
            let definition = QueueSettings::default();
            let created = self.create_in_store(&letters, &definition)?;
            dead_letters = Some((created.id, name.clone()));
            let source = Some(queue.id);
            self.open(created, definition, None, (thread, source), None)?;
            spread[thread] += 1;
        }
        let entry = self.open(queue, definition, program, (thread, None), dead_letters)?;
        spread[thread] += 1;
        info!(queue = %name, "queue created");
        Ok(entry)
    }

    fn update(
        &self,
        name: &str,
        expected: Option<Version>,
        change: Change,
    ) -> Result<Arc<QueueEntry>, CallError> {
        let _spread = self.spread.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = self.find(name)?;
        if expected.is_some_and(|expected| expected != entry.version) {
            let (name, found) = (entry.name.clone(), entry.version);
            return Err(CallError::QueueChanged { name, found });
        }
        let mut definition = QueueSettings::clone(&entry.definition);
        change(&mut definition)?;
        let before = entry.hooks.as_deref();
        let with_definition = before.map(|hooks| (hooks, &*entry.definition));
        let settings = &self.hook_settings;
        let program = QueueHooks::program_of(&mut definition, with_definition, settings)?;
        if definition == *entry.definition {
            return Ok(entry);
        }
        let seen = Expected::Version(entry.version);
        let updated = self
            .engine
            .update_queue(entry.id, seen, definition.encode());
        let version = updated.map_err(|error| self.refused(&entry.name, error))?;
        let hooks = program.map(|program| {
            let (fallback, settings) = (definition.hook_fallback, &self.hook_settings);
            let name = entry.name.clone();
            Arc::new(QueueHooks::new(
                entry.id, name, program, fallback, settings, before,
            ))
        });
        let definition = Arc::new(definition);
        let changed = Arc::new(QueueEntry {
            version,
            definition: definition.clone(),
            hooks,
            ..QueueEntry::clone(&entry)
        });
        // Before the scheduler thread lets failures be judged.
        self.judge.follow(entry.id, changed.hooks.as_ref());
        self.inboxes[entry.thread].put_now(Input::Command(Command::Update {
            queue: entry.id,
            definition: Box::new(QueueSettings::clone(&definition)),
        }));
        self.catalogue.put(changed.clone());
        self.retire_hooks(&entry, changed.hooks.as_deref());
        info!(queue = %entry.name, version = version.get(), "queue updated");
        Ok(changed)
    }

    fn delete(&self, name: &str) -> Result<(), CallError> {
        let mut spread = self.spread.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = self.find(name)?;
        if let Some(of) = entry.dead_letters_of()
            && self.catalogue.find(of).is_some()
        {
            let (name, of) = (entry.name.clone(), of.to_owned());
            return Err(CallError::DeadLetters { name, of });
        }
        let letters = dead_letters_of(&entry.name);
        let letters = letters.and_then(|name| self.catalogue.find(name.as_str()));
        // All of them at once: a message that is on its way from one to the other is in neither.
        let entries: Vec<_> = [Some(entry.clone()), letters]
            .into_iter()
            .flatten()
            .collect();
        let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
        let deleted = self.engine.delete_queues(&ids);
        deleted.map_err(|error| self.refused(&entry.name, error))?;
        spread[entry.thread] -= entries.len();
        for entry in &entries {
            self.catalogue.remove(&entry.name);
        }
        let close = ids.iter().map(|&queue| Command::Close { queue });
        self.inboxes[entry.thread].put_now(Input::Commands(close.collect()));
        for id in ids {
            self.shards.remove(id);
        }
        for entry in &entries {
            self.judge.follow(entry.id, None);
            self.retire_hooks(entry, None);
        }
        info!(queue = %entry.name, "queue deleted");
        Ok(())
    }
}

/// Returns the scheduler thread with the fewest queues.
pub(super) fn least(spread: &[usize]) -> usize {
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
