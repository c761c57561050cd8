//! Who says what becomes of messages that have failed: the `on_failure` of their queues.
//!
//! A reader loads the headers, since those of a message that waits are in the store only, and gives the question to the
//! pool; the answer goes to the scheduler thread as an event. Whatever goes wrong on the way, there is an answer: without
//! any other it is what the queue does by itself.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use crossbeam_channel::Sender;
use fila_core::{Failure, FailureToken, Judgement};
use fila_lua::Hook;
use fila_store::{Loaded, QueueId, Shard};
use foldhash::fast::RandomState;
use tracing::error;

use super::scheduler::Event;
use crate::hooks::{Answer, Failed, Job, Pool, Questions, QueueHooks};
use crate::message_id;

/// The hooks of all queues that have any, by the queues, and who runs them.
#[derive(Debug)]
pub(super) struct Judge {
    hooks: RwLock<HashMap<QueueId, Arc<QueueHooks>, RandomState>>,
    pool: Pool,
}

impl Judge {
    pub(super) fn new(pool: Pool) -> Self {
        Self {
            hooks: RwLock::default(),
            pool,
        }
    }

    /// Follows a change of a queue's hooks.
    pub(super) fn follow(&self, queue: QueueId, hooks: Option<&Arc<QueueHooks>>) {
        let mut all = self.hooks.write().unwrap_or_else(PoisonError::into_inner);
        match hooks {
            Some(hooks) => drop(all.insert(queue, hooks.clone())),
            None => drop(all.remove(&queue)),
        }
    }

    fn hooks_of(&self, queue: QueueId) -> Option<Arc<QueueHooks>> {
        let all = self.hooks.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&queue).cloned()
    }

    /// Lets a failure be judged. Its queue's messages are in this shard, unless the queue is gone.
    pub(super) fn judge(
        &self,
        failure: Failure,
        shard: Option<&impl Shard>,
        events: Sender<Event>,
    ) {
        let Failure {
            queue,
            locator,
            attempts,
            error,
            token,
        } = failure;
        let answer = Pending {
            queue,
            token,
            judgement: Judgement::Default,
            events,
        };
        let (Some(hooks), Some(shard)) = (self.hooks_of(queue), shard) else {
            return;
        };
        if !hooks.defines(Hook::OnFailure) || hooks.judges_without_asking(Instant::now()) {
            return;
        }
        let Some(place) = hooks.enter_failure() else {
            return;
        };
        let id = message_id::encode(queue, locator.id);
        let payload = match shard.load(&[locator]) {
            Ok(mut found) => found.pop(),
            Err(failure) => {
                error!(queue_id = queue.get(), error = %failure, "a failed message was not read for its hook");
                None
            }
        };
        // One that is missing or damaged is dealt with where it is delivered.
        let Some(Loaded::Found(payload)) = payload else {
            return;
        };
        let questions = Questions::Failure(Arc::new(Failed {
            headers: payload.into_parts().0,
            id,
            attempts,
            error: error.as_str().into(),
        }));
        self.pool
            .submit(Job::new(hooks, questions, move |mut answers| {
                if let Some(Answer::Judged(judgement)) = answers.pop() {
                    answer.give(judgement);
                }
                drop(place);
            }));
    }
}

/// A failure that waits for its judgement. Dropped without one, it is left to its queue.
struct Pending {
    queue: QueueId,
    token: FailureToken,
    judgement: Judgement,
    events: Sender<Event>,
}

impl Pending {
    fn give(mut self, judgement: Judgement) {
        self.judgement = judgement;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // A scheduler thread that has stopped wants nothing any more.
        let _ = self.events.send(Event::Judged {
            queue: self.queue,
            token: self.token,
            judgement: self.judgement,
        });
    }
}
