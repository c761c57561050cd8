//! Predictions: what other settings of a queue would change.
//!
//! The scheduler thread copies what decides about the coming deliveries, in one step that
//! [`SNAPSHOT_KEYS_MAX`] bounds. A thread for blocking work then plays on the copy. No message is touched.

use std::sync::Arc;

use fila_core::{Comparison, QueueSettings, SNAPSHOT_KEYS_MAX, WhatIfQuery};
use tokio::sync::oneshot;

use crate::runtime::calls::handle::Handle;
use crate::runtime::error::CallError;
use crate::runtime::queues::registry::QueueEntry;

/// How many predictions are made at the same time. Each takes a core for a second or two, and a copy of the queue's keys.
/// Other predictions wait for their turn.
pub(crate) const PREDICTIONS: usize = 1;

/// How many keys are copied in the time that a message takes.
const KEYS_PER_MESSAGE: usize = 16;

impl Handle {
    /// Compares the coming deliveries of a queue under its settings with those under others. Changes nothing.
    ///
    /// # Cancel safety
    /// If the future is dropped, the prediction is given up within a few milliseconds.
    ///
    /// # Errors
    /// If the queue was deleted or has too many keys, or the server stops.
    pub async fn what_if(
        &self,
        queue: &QueueEntry,
        then: QueueSettings,
        query: WhatIfQuery,
    ) -> Result<Comparison, CallError> {
        // Waiting callers hold no copy.
        let turn = self.0.predictions.clone().acquire_owned().await;
        let id = queue.id;
        let keys = usize::try_from(queue.stats().active_keys).unwrap_or(usize::MAX);
        let cost = 1 + keys.min(SNAPSHOT_KEYS_MAX) / KEYS_PER_MESSAGE;
        let copy = self.query(queue, cost, move |broker, now| broker.snapshot(now, id));
        let snapshot = copy.await?;
        let now = Arc::clone(&queue.definition);
        let (reply, answer) = oneshot::channel();
        let handle = self.clone();
        tokio::task::spawn_blocking(move || {
            let is_wanted = || !reply.is_closed() && handle.accepting().is_ok();
            let compared = snapshot.compare(&now, &then, &query, &is_wanted);
            // The next caller may begin.
            drop((turn, snapshot));
            let _ = reply.send(compared);
        });
        let compared = answer.await.map_err(|_| self.stopped())?;
        // This caller still waits, so the server stops.
        compared.map_err(|_| self.stopped())
    }
}
