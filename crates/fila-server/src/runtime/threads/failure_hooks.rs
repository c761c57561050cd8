//! Decisions on failed deliveries, by the `on_failure` hooks of their queues.
//!
//! A reader thread loads the headers, because those of a waiting message are in the store only, and submits the question
//! to the hook threads. The answer goes to the scheduler thread as an event. If anything goes wrong on the way, the
//! answer is [`Judgement::Default`]: the queue decides by itself.

use std::sync::Arc;
use std::time::Instant;

use fila_core::{Failure, FailureToken, Judgement};
use fila_lua::Hook;
use fila_store::{Loaded, QueueId};
use tracing::error;

use crate::hooks::{Answer, Failed, Job, Pool, Questions};
use crate::message_id;
use crate::runtime::queues::registry::Registry;
use crate::runtime::threads::events::{Event, EventSender};

/// Asks the hooks of queues about failed deliveries.
#[derive(Debug)]
pub(crate) struct FailureHooks {
    pub(crate) registry: Arc<Registry>,
    pub(crate) pool: Pool,
}

impl FailureHooks {
    /// Asks about a failure.
    pub(crate) fn ask(&self, failure: Failure, events: EventSender) {
        let Failure {
            queue,
            message,
            locator,
            attempts,
            error,
            token,
        } = failure;
        let answer = PendingJudgement {
            queue,
            token,
            judgement: Judgement::Default,
            events,
        };
        let (hooks, shard) = (self.registry.hooks(queue), self.registry.shard(queue));
        let (Some(hooks), Some(shard)) = (hooks, shard) else {
            return;
        };
        if !hooks.defines(Hook::OnFailure) || hooks.judges_without_asking(Instant::now()) {
            return;
        }
        let Some(place) = hooks.enter_failure(&locator.fairness_key) else {
            return;
        };
        let id = message_id::encode(queue, message);
        let payload = match shard.load(&[locator]) {
            Ok(mut found) => found.pop(),
            Err(failure) => {
                error!(queue_id = queue.get(), error = %failure, "a failed message was not read for its hook");
                None
            }
        };
        // The delivery reports a message that is missing or damaged.
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

/// A failure that waits for its judgement. If it is dropped without one, the queue decides.
struct PendingJudgement {
    queue: QueueId,
    token: FailureToken,
    judgement: Judgement,
    events: EventSender,
}

impl PendingJudgement {
    fn give(mut self, judgement: Judgement) {
        self.judgement = judgement;
    }
}

impl Drop for PendingJudgement {
    fn drop(&mut self) {
        self.events.add(Event::Judged {
            queue: self.queue,
            token: self.token,
            judgement: self.judgement,
        });
        // Threads of hooks have a low priority.
        self.events.summon();
    }
}
