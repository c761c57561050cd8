//! Creating, changing and deleting queues: one change at a time, the store first, then the scheduler thread, then the
//! registry's names.
//!
//! All of it blocks, and runs on threads made for that. A change that has begun is finished, whether or not its caller
//! still waits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fila_core::{Command, QueueSettings};
use fila_lua::Hook;
use fila_store::{EngineError, Expected, Queue, QueueName, Version};
use tracing::{error, info};

use crate::hooks::{Pool, Program, QueueHooks};
use crate::runtime::error::CallError;
use crate::runtime::queues::names::dead_letters_of;
use crate::runtime::queues::opening::{PairedQueue, QueueOpener};
use crate::runtime::queues::recovery::least;
use crate::runtime::queues::registry::QueueEntry;
use crate::runtime::status::Status;
use crate::runtime::threads::inbox::Input;

/// Creates, changes and deletes queues.
pub(crate) struct QueueManager {
    pub(crate) opener: QueueOpener,
    pub(crate) status: Arc<Status>,
    pub(crate) queues_max: usize,
    pub(crate) pool: Pool,
    /// The number of queues of each scheduler thread. A change holds the lock until it is done.
    pub(crate) spread: Mutex<Vec<usize>>,
}

impl QueueManager {
    pub(crate) fn create(
        &self,
        name: &QueueName,
        mut definition: QueueSettings,
    ) -> Result<Arc<QueueEntry>, CallError> {
        // Compiling takes a while, so it comes before the lock.
        let settings = &self.opener.hook_settings;
        let program = QueueHooks::program_of(&mut definition, None, settings)?;
        let mut spread = self.begin();
        if self.opener.registry.find(name.as_str()).is_some() {
            return Err(CallError::QueueExists(name.clone()));
        }
        let max = self.queues_max;
        if self.opener.registry.len() >= max {
            return Err(CallError::TooManyQueues { max });
        }
        let thread = least(&spread);
        // A crash between the two creations does no harm: the next start creates the queue of dead letters.
        let queue = self.create_in_store(name, &definition)?;
        let mut dead_letters = None;
        if let Some(name) = dead_letters_of(name) {
            let definition = QueueSettings::default();
            let letters = PairedQueue {
                queue: self.create_in_store(&name, &definition)?,
                source: Some(queue.id),
                dead_letters: None,
            };
            dead_letters = Some(letters.queue.id);
            self.open(letters, definition, None, thread)?;
            spread[thread] += 1;
        }
        let paired = PairedQueue {
            queue,
            source: None,
            dead_letters,
        };
        let entry = self.open(paired, definition, program, thread)?;
        spread[thread] += 1;
        info!(queue = %name, "queue created");
        Ok(entry)
    }

    /// Changes the definition of a queue, if `expected` is still its version or none is expected. `change` may refuse.
    pub(crate) fn update(
        &self,
        name: &str,
        expected: Option<Version>,
        change: impl FnOnce(&mut QueueSettings) -> Result<(), CallError>,
    ) -> Result<Arc<QueueEntry>, CallError> {
        let _spread = self.begin();
        let entry = self.find(name)?;
        if expected.is_some_and(|expected| expected != entry.version) {
            let (name, found) = (entry.name.clone(), entry.version);
            return Err(CallError::QueueChanged { name, found });
        }
        let mut definition = QueueSettings::clone(&entry.definition);
        change(&mut definition)?;
        let before = entry.hooks.as_deref();
        let with_definition = before.map(|hooks| (hooks, &*entry.definition));
        let settings = &self.opener.hook_settings;
        let program = QueueHooks::program_of(&mut definition, with_definition, settings)?;
        if definition == *entry.definition {
            return Ok(entry);
        }
        if entry.dead_letters_of().is_some() {
            check_dead_letters(&entry, &definition, program.as_ref())?;
        }
        let seen = Expected::Version(entry.version);
        let store = &self.opener.store;
        let version = store
            .update_queue(entry.id, seen, definition.encode())
            .map_err(|error| self.refused(&entry.name, error))?;
        let hooks = program.map(|program| {
            let name = entry.name.clone();
            let hooks = QueueHooks::new(entry.id, name, program, &definition, settings, before);
            Arc::new(hooks)
        });
        let changed = Arc::new(QueueEntry {
            version,
            definition: Arc::new(definition.clone()),
            hooks,
            ..QueueEntry::clone(&entry)
        });
        // The new hooks are there before the scheduler thread asks them about failures.
        self.opener.registry.replace(&changed);
        self.opener.inboxes[entry.thread].put_now(Input::Command(Command::Update {
            queue: entry.id,
            definition: Box::new(definition),
        }));
        self.retire_hooks(&entry, changed.hooks.as_deref());
        info!(queue = %entry.name, version = version.get(), "queue updated");
        Ok(changed)
    }

    pub(crate) fn delete(&self, name: &str) -> Result<(), CallError> {
        let mut spread = self.begin();
        let registry = &self.opener.registry;
        let entry = self.find(name)?;
        if let Some(of) = entry.dead_letters_of()
            && registry.find(of).is_some()
        {
            let (name, of) = (entry.name.clone(), of.to_owned());
            return Err(CallError::DeadLetters { name, of });
        }
        let letters = dead_letters_of(&entry.name).and_then(|name| registry.find(name.as_str()));
        // Both at once: a message that moves from one to the other is in neither for a moment.
        let entries: Vec<_> = std::iter::once(entry.clone()).chain(letters).collect();
        let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
        let deleted = self.opener.store.delete_queues(&ids);
        deleted.map_err(|error| self.refused(&entry.name, error))?;
        spread[entry.thread] -= entries.len();
        for entry in &entries {
            registry.remove(entry);
        }
        let close = ids.into_iter().map(|queue| Command::Close { queue });
        self.opener.inboxes[entry.thread].put_now(Input::Commands(close.collect()));
        for entry in &entries {
            self.retire_hooks(entry, None);
        }
        info!(queue = %entry.name, "queue deleted");
        Ok(())
    }

    fn begin(&self) -> MutexGuard<'_, Vec<usize>> {
        self.spread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &str) -> Result<Arc<QueueEntry>, CallError> {
        let found = self.opener.registry.find(name);
        found.ok_or_else(|| CallError::unknown_queue(name))
    }

    fn create_in_store(
        &self,
        name: &QueueName,
        definition: &QueueSettings,
    ) -> Result<Queue, CallError> {
        let created = self.opener.store.create_queue(name, definition.encode());
        created.map_err(|error| self.refused(name, error))
    }

    /// Opens a queue that was created, and announces it.
    fn open(
        &self,
        paired: PairedQueue,
        definition: QueueSettings,
        program: Option<Program>,
        thread: usize,
    ) -> Result<Arc<QueueEntry>, CallError> {
        let name = paired.queue.name.clone();
        let opened = self
            .opener
            .open(paired, definition, program, thread)
            .map_err(|error| self.refused(&name, error))?;
        let _ = opened.is_open.recv();
        self.opener.registry.announce(opened.entry.clone());
        Ok(opened.entry)
    }

    /// Frees what the hook threads keep for a script that the queue no longer has.
    fn retire_hooks(&self, entry: &QueueEntry, next: Option<&QueueHooks>) {
        if let Some(hooks) = &entry.hooks {
            hooks.retire(next);
            self.pool.sweep();
        }
    }

    fn refused(&self, name: &QueueName, failure: EngineError) -> CallError {
        if let EngineError::Commit(_) | EngineError::Read(_) = &failure {
            let source = std::error::Error::source(&failure).map(ToString::to_string);
            let source = source.unwrap_or_default();
            error!(queue = %name, error = %failure, source, "the store refused a change of the queue");
        }
        if let EngineError::Commit(_) = &failure {
            self.status.fail("the store takes no more writes");
        }
        CallError::of_catalogue(name, failure)
    }
}

/// Refuses settings that do nothing in a queue of dead letters: no producer sends to it, and no other queue takes what fails
/// in it.
fn check_dead_letters(
    entry: &QueueEntry,
    definition: &QueueSettings,
    program: Option<&Program>,
) -> Result<(), CallError> {
    let before = &entry.definition;
    let sends = "no producer sends to it";
    let inert = [
        (
            before.deduplication_window != definition.deduplication_window,
            "deduplication_window",
            sends,
        ),
        (
            before.deduplication_scope != definition.deduplication_scope,
            "deduplication_scope",
            sends,
        ),
        (
            before.hook_fallback != definition.hook_fallback,
            "hook_fallback",
            sends,
        ),
        (
            before.script != definition.script
                && program.is_some_and(|program| program.defines(Hook::OnEnqueue)),
            "on_enqueue",
            sends,
        ),
        (
            before.retry.attempts_max != definition.retry.attempts_max,
            "retry_attempts_max",
            "it tries dead letters without limit",
        ),
        (
            before.key_separator != definition.key_separator,
            "key_separator",
            "its keys nest as those of the queue that they come from",
        ),
    ];
    match inert.into_iter().find(|(is_changed, ..)| *is_changed) {
        None => Ok(()),
        Some((_, setting, why)) => {
            let (name, of) = (&entry.name, entry.dead_letters_of().unwrap_or_default());
            let text = format!(
                "`{setting}` does nothing for queue `{name}`, because {why}; set it for queue `{of}`"
            );
            Err(CallError::Invalid(text))
        }
    }
}
