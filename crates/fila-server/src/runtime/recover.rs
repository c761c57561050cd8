//! Taking over a queue: claiming it, and finding out what is in it.

use std::sync::Arc;

use fila_core::{QueueSettings, Recovery};
use fila_store::{Cursor, Damaged, Engine, EngineError, QueueId, QueueName, ReadError, Shard};
use tracing::error;

use crate::message_id;

/// Rows per page. A page is of one moment, and a store in memory cannot be written to during it.
const PAGE: usize = 4_096;

/// A queue that was taken over.
#[derive(Debug)]
pub(super) struct Recovered<S> {
    pub(super) shard: Arc<S>,
    pub(super) recovery: Recovery,
}

/// Claims a queue and reads what scheduling needs to know of its messages. `dead_letters` is where those go that are not
/// tried any more, and what the queue is called that they come from.
pub(super) fn take_over<E: Engine>(
    engine: &E,
    queue: QueueId,
    definition: QueueSettings,
    dead_letters: Option<(QueueId, QueueName)>,
) -> Result<Recovered<E::Shard>, EngineError> {
    let shard = engine.claim(queue)?;
    let mut recovery = read(&shard, definition)?;
    if let Some((to, name)) = dead_letters {
        recovery.dead_letters(to, name);
    }
    Ok(Recovered {
        shard: Arc::new(shard),
        recovery,
    })
}

fn read(shard: &impl Shard, definition: QueueSettings) -> Result<Recovery, ReadError> {
    let queue = shard.queue();
    let mut recovery = Recovery::new(queue, shard.epoch(), shard.generation(), definition);
    let mut after = Some(Cursor::start());
    while let Some(cursor) = after {
        let page = shard.scan(&cursor, PAGE)?;
        page.items.iter().for_each(|entry| recovery.message(entry));
        for damaged in &page.damaged {
            report_damage(queue, damaged);
        }
        after = page.next;
    }
    let mut after = None;
    loop {
        let page = shard.remembered(after.as_ref(), PAGE)?;
        page.items
            .into_iter()
            .for_each(|remembered| recovery.remembered(remembered));
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(recovery),
        }
    }
}

/// Tells whoever looks after the server of a message that cannot be read.
pub(super) fn report_damage(queue: QueueId, damaged: &Damaged) {
    error!(
        queue_id = queue.get(),
        record = damaged.record,
        message_id = damaged.message.as_ref().map(|it| message_id::encode(queue, it.id)),
        error = %damaged.error,
        "a message is damaged and is not served; restore a copy",
    );
}
