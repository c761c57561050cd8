//! Hooks, as a handle has them.
//!
//! The order of one producer is kept: a call is one job, and a stream hands the next frames of a queue over when those
//! before have passed. While they pass, the stream goes on with other queues.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fila_core::{EnqueueResults, NewMessage};
use fila_lua::Hook;
use fila_store::{QueueId, StoredMessage};
use foldhash::fast::RandomState;
use tokio::sync::{mpsc, oneshot};

use crate::hooks::{About, Answer, Job, Questions, Verdict};
use crate::runtime::calls::handle::{Frame, Handle, takes_messages};
use crate::runtime::error::CallError;
use crate::runtime::queues::registry::QueueEntry;
use crate::runtime::threads::ticket::{Reply, ReplySender};

/// Queues whose lines a stream keeps though nothing is in them.
const IDLE_LINES_MAX: usize = 64;

impl Handle {
    /// Lets the queue's `on_enqueue` say how messages are scheduled, if it has one, and returns them in their order. One
    /// that is refused is among them, with the reason.
    ///
    /// # Errors
    /// If too many calls wait for the hook, or the server stops.
    ///
    /// # Cancel safety
    /// Dropped before it is done, it has done nothing that anybody sees, but for the hook's figures.
    pub(crate) async fn schedule(
        &self,
        queue: &QueueEntry,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<NewMessage>, CallError> {
        let (messages, verdicts) = self.ask(queue, messages, Questions::Enqueue).await?;
        Ok(applied(messages, verdicts))
    }

    /// Lets the queue's `on_enqueue` say how dead letters are scheduled that come back to it, if it has one. Without one
    /// there is nothing to say.
    ///
    /// # Errors
    /// If too many calls wait for the hook, or the server stops.
    pub(crate) async fn schedule_again(
        &self,
        queue: &QueueEntry,
        messages: Vec<StoredMessage>,
    ) -> Result<(Vec<StoredMessage>, Vec<Verdict>), CallError> {
        self.ask(queue, messages, Questions::Redrive).await
    }

    /// Asks the queue's `on_enqueue` about messages, and returns them with a verdict for each; none if there is no hook.
    async fn ask<M: Clone>(
        &self,
        queue: &QueueEntry,
        messages: Vec<M>,
        questions: fn(Arc<Vec<M>>) -> Questions,
    ) -> Result<(Vec<M>, Vec<Verdict>), CallError>
    where
        for<'a> About<'a>: From<&'a M>,
    {
        let hooks = queue.hooks.as_ref();
        let Some(hooks) = hooks.filter(|hooks| hooks.defines(Hook::OnEnqueue)) else {
            return Ok((messages, Vec::new()));
        };
        if let Some(verdicts) = hooks.without_asking(&messages, Instant::now()) {
            return Ok((messages, verdicts));
        }
        let bytes = messages.iter().map(|it| About::from(it).bytes()).sum();
        let place = hooks.enter(bytes).await.map_err(|crowded| {
            let name = queue.name.clone();
            let max = crowded.max;
            CallError::HookCrowded { name, max }
        })?;
        let messages = Arc::new(messages);
        let (done, answers) = oneshot::channel();
        let questions = questions(messages.clone());
        let job = Job::new(hooks.clone(), questions, move |answers| {
            let verdicts = answers.into_iter().filter_map(|answer| match answer {
                Answer::Verdict(verdict) => Some(verdict),
                Answer::Judged(_) => None,
            });
            // If nobody waits any more, nobody is told.
            let _ = done.send(verdicts.collect());
            drop(place);
        });
        self.0.pool.submit(job);
        let verdicts = answers.await.map_err(|_| self.stopped())?;
        // Nobody else has them, unless a worker was given up that still has.
        let messages = Arc::try_unwrap(messages).unwrap_or_else(|shared| Vec::clone(&shared));
        Ok((messages, verdicts))
    }

    /// Returns how many sandboxes there are for hooks.
    pub(crate) fn sandboxes(&self) -> usize {
        self.0.pool.sandboxes()
    }
}

fn applied(mut messages: Vec<NewMessage>, verdicts: Vec<Verdict>) -> Vec<NewMessage> {
    for (message, verdict) in messages.iter_mut().zip(verdicts) {
        verdict.apply(message);
    }
    messages
}

/// The frames of one stream on their way through hooks.
///
/// Each queue whose messages have to pass one has a line and a task of its own, which ends with the stream. How much is
/// in the lines is bounded by what the stream may have unconfirmed.
#[derive(Debug)]
pub(crate) struct HookedFrames {
    handle: Handle,
    replies: ReplySender<EnqueueResults>,
    lines: HashMap<QueueId, FramePipeline, RandomState>,
}

#[derive(Debug)]
struct FramePipeline {
    frames: mpsc::UnboundedSender<(Arc<QueueEntry>, Vec<Frame>)>,
    /// How many handfuls of frames are in it.
    under_way: Arc<AtomicUsize>,
}

impl HookedFrames {
    /// Makes lines for a stream that is answered here.
    pub(crate) fn new(handle: Handle, replies: ReplySender<EnqueueResults>) -> Self {
        Self {
            handle,
            replies,
            lines: HashMap::default(),
        }
    }

    /// Hands frames over, after those of the same queue that were handed over before.
    pub(crate) async fn produce(
        &mut self,
        queue: Arc<QueueEntry>,
        frames: Vec<Frame>,
    ) -> Result<(), CallError> {
        takes_messages(&queue)?;
        let hooks = queue.hooks.as_ref();
        let is_hooked = hooks.is_some_and(|hooks| hooks.defines(Hook::OnEnqueue));
        let is_idle = |line: &FramePipeline| line.under_way.load(Ordering::Acquire) == 0;
        // A queue that has lost its script may still have messages on the way.
        if !is_hooked && self.lines.get(&queue.id).is_none_or(is_idle) {
            return self.handle.produce(&queue, frames, &self.replies).await;
        }
        if self.lines.len() > IDLE_LINES_MAX {
            self.lines.retain(|_, line| !is_idle(line));
        }
        let (handle, replies) = (&self.handle, &self.replies);
        let line = self.lines.entry(queue.id);
        let line = line.or_insert_with(|| FramePipeline::start(handle.clone(), replies.clone()));
        line.under_way.fetch_add(1, Ordering::AcqRel);
        // The task ends after its line.
        let _ = line.frames.send((queue, frames));
        Ok(())
    }
}

impl FramePipeline {
    fn start(handle: Handle, replies: ReplySender<EnqueueResults>) -> Self {
        let (frames, mut waiting) = mpsc::unbounded_channel::<(Arc<QueueEntry>, Vec<Frame>)>();
        let under_way = Arc::new(AtomicUsize::new(0));
        let passed = under_way.clone();
        tokio::spawn(async move {
            while let Some((queue, frames)) = waiting.recv().await {
                pass(&handle, &queue, frames, &replies).await;
                passed.fetch_sub(1, Ordering::AcqRel);
            }
        });
        Self { frames, under_way }
    }
}

/// Lets frames pass the hook of their queue, all in one job, and hands them over.
async fn pass(
    handle: &Handle,
    queue: &QueueEntry,
    mut frames: Vec<Frame>,
    replies: &ReplySender<EnqueueResults>,
) {
    let sizes: Vec<usize> = frames.iter().map(|frame| frame.messages.len()).collect();
    let messages = frames.iter_mut();
    let messages = messages.flat_map(|frame| std::mem::take(&mut frame.messages));
    match handle.schedule(queue, messages.collect()).await {
        Ok(messages) => {
            let mut messages = messages.into_iter();
            for (frame, size) in frames.iter_mut().zip(sizes) {
                frame.messages = messages.by_ref().take(size).collect();
            }
            let numbers: Vec<u64> = frames.iter().map(|frame| frame.number).collect();
            if let Err(error) = handle.produce(queue, frames, replies).await {
                // The tickets may have said so already; the first answer counts.
                refuse(&numbers, &error, replies);
            }
        }
        Err(error) => {
            let numbers: Vec<u64> = frames.iter().map(|frame| frame.number).collect();
            refuse(&numbers, &error, replies);
        }
    }
}

fn refuse(numbers: &[u64], error: &CallError, replies: &ReplySender<EnqueueResults>) {
    for number in numbers {
        let _ = replies.send((*number, Reply::Done(Err(error.clone()))));
    }
}
