//! Opening a queue, at start-up and when it is created: the server claims it, reads what scheduling needs to know of its
//! messages, and hands it to a scheduler thread.

use std::sync::Arc;

use crossbeam_channel::Receiver;
use fila_core::{QueueSettings, Recovery};
use fila_store::{Cursor, Damaged, EngineError, Queue, QueueId, ReadError, Shard};
use tracing::error;

use crate::hooks::{HookSettings, Program, QueueHooks};
use crate::message_id;
use crate::runtime::queues::registry::{Figures, QueueEntry, Registry};
use crate::runtime::store::Store;
use crate::runtime::threads::inbox::{Inbox, Input, Opening};

/// Rows per page. A page shows one moment, and an in-memory store takes no writes while it is read.
const PAGE: usize = 4_096;

/// Opens queues.
#[derive(Clone)]
pub(crate) struct QueueOpener {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) inboxes: Arc<[Inbox]>,
    pub(crate) hook_settings: Arc<HookSettings>,
}

/// A queue of the store, with the queue that it is paired with for dead letters.
#[derive(Debug)]
pub(crate) struct PairedQueue {
    pub(crate) queue: Queue,
    /// The queue whose dead letters this one holds.
    pub(crate) source: Option<QueueId>,
    /// The queue that holds the dead letters of this one.
    pub(crate) dead_letters: Option<QueueId>,
}

/// A queue that was handed to its scheduler thread. It is in the registry by its id.
#[derive(Debug)]
pub(crate) struct OpenedQueue {
    pub(crate) entry: Arc<QueueEntry>,
    /// How many messages the store has.
    pub(crate) messages: u64,
    /// Disconnects when the scheduler thread has opened the queue, or has stopped.
    pub(crate) is_open: Receiver<()>,
}

impl QueueOpener {
    /// Opens a queue on this scheduler thread. `program` makes the hooks of its script.
    pub(crate) fn open(
        &self,
        paired: PairedQueue,
        definition: QueueSettings,
        program: Option<Program>,
        thread: usize,
    ) -> Result<OpenedQueue, EngineError> {
        let Queue {
            id, name, version, ..
        } = paired.queue;
        let shard = self.store.claim(id)?;
        let mut recovery = read(&*shard, definition.clone())?;
        if let Some(to) = paired.dead_letters {
            recovery.dead_letters(to, name.clone());
        }
        let hooks = program.map(|program| {
            let settings = &self.hook_settings;
            let hooks = QueueHooks::new(id, name.clone(), program, &definition, settings, None);
            Arc::new(hooks)
        });
        let entry = Arc::new(QueueEntry {
            id,
            name,
            version,
            definition: Arc::new(definition),
            source: paired.source,
            thread,
            figures: Arc::new(Figures::default()),
            hooks,
        });
        let messages = recovery.messages();
        self.registry.add(entry.clone(), shard);
        let (opened, is_open) = crossbeam_channel::bounded(0);
        self.inboxes[thread].put_now(Input::Open(Opening {
            queue: id,
            recovery: Box::new(recovery),
            figures: entry.figures.clone(),
            opened,
        }));
        Ok(OpenedQueue {
            entry,
            messages,
            is_open,
        })
    }
}

fn read(shard: &dyn Shard, definition: QueueSettings) -> Result<Recovery, ReadError> {
    let queue = shard.queue();
    let mut recovery = Recovery::new(queue, shard.epoch(), shard.generation(), definition);
    let mut after = None;
    loop {
        let page = shard.remembered(after.as_ref(), PAGE)?;
        report_all(queue, &page.damaged, &mut recovery);
        page.items
            .into_iter()
            .for_each(|row| recovery.remembered(&row));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut after = Some(Cursor::start());
    while let Some(cursor) = after {
        let page = shard.scan(&cursor, PAGE)?;
        page.items.iter().for_each(|entry| recovery.message(entry));
        report_all(queue, &page.damaged, &mut recovery);
        after = page.next;
    }
    Ok(recovery)
}

fn report_all(queue: QueueId, damaged: &[Damaged], recovery: &mut Recovery) {
    recovery.damaged(damaged.len());
    for damaged in damaged {
        report_damage(queue, damaged);
    }
}

/// Logs a message that cannot be read.
pub(crate) fn report_damage(queue: QueueId, damaged: &Damaged) {
    error!(
        queue_id = queue.get(),
        record = damaged.record,
        message_id = damaged.message.as_ref().map(|it| message_id::encode(queue, it.id)),
        error = %damaged.error,
        "a record is damaged and is not used; restore a copy",
    );
}
