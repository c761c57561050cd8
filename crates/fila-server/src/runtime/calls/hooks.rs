//! `on_enqueue` hooks on the way into a queue.
//!
//! The messages of one producer keep their order: a call is one job, and a stream enqueues the next frames of a queue
//! after the frames before them have passed the hook. Meanwhile the stream goes on with other queues.

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
use crate::intake::Room;
use crate::runtime::calls::handle::{Frame, Handle, takes_messages};
use crate::runtime::error::CallError;
use crate::runtime::queues::registry::QueueEntry;
use crate::runtime::threads::ticket::{Reply, ReplySender};

/// How many pipelines a stream keeps before it drops the idle ones.
const IDLE_PIPELINES_MAX: usize = 64;

impl Handle {
    /// Lets the queue's `on_enqueue`, if it has one, decide on the schedules of messages, and returns them in their
    /// order. A message that the hook refuses has its [`refusal`](NewMessage::refusal) set.
    ///
    /// # Errors
    /// If the producer's part of the calls that wait for the hook is used up, or the server stops.
    ///
    /// # Cancel safety
    /// If it is dropped before it completes, only the hook's figures have changed.
    pub(crate) async fn schedule(
        &self,
        queue: &QueueEntry,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<NewMessage>, CallError> {
        let (messages, verdicts) = self.ask(queue, messages, Questions::Enqueue).await?;
        Ok(applied(messages, verdicts))
    }

    /// Asks the queue's `on_enqueue`, if it has one, about dead letters that return to the queue. Without a hook there
    /// are no verdicts.
    ///
    /// # Errors
    /// If the producer's part of the calls that wait for the hook is used up, or the server stops.
    pub(crate) async fn schedule_again(
        &self,
        queue: &QueueEntry,
        messages: Vec<StoredMessage>,
    ) -> Result<(Vec<StoredMessage>, Vec<Verdict>), CallError> {
        self.ask(queue, messages, Questions::Redrive).await
    }

    /// Asks the queue's `on_enqueue` about messages, and returns them with a verdict for each. Without a hook there are
    /// no verdicts.
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
        let Some(first) = messages.first() else {
            return Ok((messages, Vec::new()));
        };
        let producer = hooks.producer(first.into());
        let place = hooks.enter(producer, bytes).await.map_err(|used| {
            let name = queue.name.clone();
            CallError::HookCrowded { name, used }
        })?;
        let messages = Arc::new(messages);
        let (done, answers) = oneshot::channel();
        let questions = questions(messages.clone());
        let job = Job::new(hooks.clone(), questions, move |answers| {
            let verdicts = answers.into_iter().filter_map(|answer| match answer {
                Answer::Verdict(verdict) => Some(verdict),
                Answer::Judged(_) => None,
            });
            // The caller may no longer wait.
            let _ = done.send(verdicts.collect());
            drop(place);
        });
        self.0.pool.submit(job);
        let verdicts = answers.await.map_err(|_| self.stopped())?;
        // The worker has dropped its share, unless the pool gave up on that worker.
        let messages = Arc::try_unwrap(messages).unwrap_or_else(|shared| Vec::clone(&shared));
        Ok((messages, verdicts))
    }

    /// Returns the number of sandboxes that run hooks.
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
/// Each queue with a hook has a pipeline, which is a channel and a task. The task ends with the stream. The stream's
/// window of unconfirmed messages bounds how much is in the pipelines.
#[derive(Debug)]
pub(crate) struct HookedFrames {
    handle: Handle,
    replies: ReplySender<EnqueueResults>,
    pipelines: HashMap<QueueId, FramePipeline, RandomState>,
}

#[derive(Debug)]
struct FramePipeline {
    frames: mpsc::UnboundedSender<(Arc<QueueEntry>, Vec<Frame>, Room)>,
    /// How many groups of frames are in it.
    under_way: Arc<AtomicUsize>,
}

impl HookedFrames {
    /// `replies` receives the answers to the frames of the stream.
    pub(crate) fn new(handle: Handle, replies: ReplySender<EnqueueResults>) -> Self {
        Self {
            handle,
            replies,
            pipelines: HashMap::default(),
        }
    }

    /// Enqueues frames, after all earlier frames of the same queue, and gives their room back when they are in the
    /// inbox. Frames of a queue without a hook go straight to its
    /// inbox.
    pub(crate) async fn produce(
        &mut self,
        queue: Arc<QueueEntry>,
        frames: Vec<Frame>,
        room: Room,
    ) -> Result<(), CallError> {
        takes_messages(&queue)?;
        let hooks = queue.hooks.as_ref();
        let is_hooked = hooks.is_some_and(|hooks| hooks.defines(Hook::OnEnqueue));
        let is_idle = |pipeline: &FramePipeline| pipeline.under_way.load(Ordering::Acquire) == 0;
        // A queue whose script was removed may still have frames in its pipeline.
        if !is_hooked && self.pipelines.get(&queue.id).is_none_or(is_idle) {
            let produced = self.handle.produce(&queue, frames, &self.replies).await;
            drop(room);
            return produced;
        }
        if self.pipelines.len() > IDLE_PIPELINES_MAX {
            self.pipelines.retain(|_, pipeline| !is_idle(pipeline));
        }
        let (handle, replies) = (&self.handle, &self.replies);
        let pipeline = self
            .pipelines
            .entry(queue.id)
            .or_insert_with(|| FramePipeline::start(handle.clone(), replies.clone()));
        pipeline.under_way.fetch_add(1, Ordering::AcqRel);
        // The task lives as long as this sender.
        let _ = pipeline.frames.send((queue, frames, room));
        Ok(())
    }
}

impl FramePipeline {
    fn start(handle: Handle, replies: ReplySender<EnqueueResults>) -> Self {
        let (frames, mut waiting) =
            mpsc::unbounded_channel::<(Arc<QueueEntry>, Vec<Frame>, Room)>();
        let under_way = Arc::new(AtomicUsize::new(0));
        let passed = under_way.clone();
        tokio::spawn(async move {
            while let Some((queue, frames, room)) = waiting.recv().await {
                pass(&handle, &queue, frames, &replies).await;
                drop(room);
                passed.fetch_sub(1, Ordering::AcqRel);
            }
        });
        Self { frames, under_way }
    }
}

/// Passes frames through the hook of their queue, all in one job, and enqueues them.
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
                // Dropped tickets may have answered already; the first answer counts.
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
