//! `Produce`: a stream of frames of messages, and of their results. Many frames are under way at once.
//!
//! Reading responses drives the stream: the server reads no frames from a client that reads no responses. It also reads
//! none while the window of unconfirmed messages is full. Frames that arrive together go to the scheduler thread
//! together, in their order.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fila_core::{EnqueueResults, Source};
use fila_proto::v1::{EnqueueResult, ProduceRequest, ProduceResponse};
use fila_store::QueueId;
use foldhash::fast::RandomState;
use futures_util::FutureExt;
use tokio::sync::{mpsc, watch};
use tonic::Status;
use tracing::Span;

use super::consume::stopped;
use super::message::{self, Batch, BatchOutcome};
use super::refusal::{Refusal, unreadable};
use super::trace::{CallTrace, Tracing};
use crate::intake::{Requests, Room};
use crate::runtime::{Frame, Handle, HookedFrames, QueueEntry, Replies, Reply, State};

/// About how many messages go to the scheduler thread together: the last frame may exceed it.
const MESSAGES_AT_ONCE: usize = 256;

/// The stream of one producer.
#[derive(Debug)]
pub(super) struct Producing {
    handle: Handle,
    tracing: Tracing,
    trace: CallTrace,
    source: Option<Source>,
    frames: Requests<ProduceRequest>,
    /// The queue of the previous frame.
    queue: String,
    window: usize,
    unconfirmed: usize,
    waiting: HashMap<u64, Waiting, RandomState>,
    next_number: u64,
    hooked: HookedFrames,
    replies: Replies<EnqueueResults>,
    state: watch::Receiver<State>,
    /// Answers to send. All of them are sent before the next frame is read.
    ready: VecDeque<ProduceResponse>,
    phase: ProducePhase,
}

/// A frame whose messages are not durable yet.
#[derive(Debug)]
struct Waiting {
    frame_id: u64,
    queue: QueueId,
    outcome: BatchOutcome,
    /// Ends when the messages are durable.
    _span: Span,
}

#[derive(Debug)]
enum ProducePhase {
    /// The window was not announced yet.
    New,
    Reading,
    /// No more frames are read. The stream ends like this when all frames are answered.
    Ending(Result<(), Status>),
    Ended,
}

/// Frames of one queue that go to the scheduler thread together.
#[derive(Debug, Default)]
struct Group {
    queue: Option<Arc<QueueEntry>>,
    frames: Vec<Frame>,
    /// The room of the requests that they came in.
    room: Room,
}

impl Producing {
    pub(super) fn new(
        handle: Handle,
        tracing: Tracing,
        (trace, source): (CallTrace, Option<Source>),
        frames: Requests<ProduceRequest>,
    ) -> Self {
        let (to_replies, replies) = mpsc::unbounded_channel();
        let window = handle.limits().produce_window.get() as usize;
        let state = handle.state();
        Self {
            hooked: HookedFrames::new(handle.clone(), to_replies),
            handle,
            tracing,
            trace,
            source,
            frames,
            queue: String::new(),
            window,
            unconfirmed: 0,
            waiting: HashMap::default(),
            next_number: 0,
            replies,
            state,
            ready: VecDeque::new(),
            phase: ProducePhase::New,
        }
    }

    /// Waits for the next response.
    pub(super) async fn next(&mut self) -> Option<Result<ProduceResponse, Status>> {
        if let ProducePhase::New = self.phase {
            self.phase = ProducePhase::Reading;
            let window = u32::try_from(self.window).unwrap_or(u32::MAX);
            return Some(Ok(ProduceResponse {
                window,
                ..ProduceResponse::default()
            }));
        }
        loop {
            if let Some(response) = self.ready.pop_front() {
                return Some(Ok(response));
            }
            if let ProducePhase::Ending(_) | ProducePhase::Ended = self.phase
                && self.waiting.is_empty()
            {
                return match std::mem::replace(&mut self.phase, ProducePhase::Ended) {
                    ProducePhase::Ending(Err(status)) => Some(Err(status)),
                    ProducePhase::New
                    | ProducePhase::Reading
                    | ProducePhase::Ending(Ok(()))
                    | ProducePhase::Ended => None,
                };
            }
            let reading = matches!(self.phase, ProducePhase::Reading);
            tokio::select! {
                Some((number, reply)) = self.replies.recv() => self.replied(number, reply),
                frame = self.frames.message(), if reading && self.unconfirmed < self.window => {
                    self.take(frame).await;
                }
                () = stopping(&mut self.state), if reading => {
                    self.phase = ProducePhase::Ending(Err(stopped()));
                }
            }
        }
    }

    /// Takes a frame, and further frames that have already arrived.
    async fn take(&mut self, frame: Result<Option<(ProduceRequest, Room)>, Status>) {
        let mut group = Group::default();
        let mut next = Some(frame);
        let before = self.unconfirmed;
        let mut frames = 0;
        while let Some(frame) = next {
            match frame {
                Ok(Some((frame, room))) => self.parse(frame, room, &mut group).await,
                Ok(None) => self.phase = ProducePhase::Ending(Ok(())),
                Err(status) => self.phase = ProducePhase::Ending(Err(unreadable(status))),
            }
            frames += 1;
            // Frames without messages count as well.
            let taken = frames.max(self.unconfirmed - before);
            let more = taken < MESSAGES_AT_ONCE
                && self.unconfirmed < self.window
                && matches!(self.phase, ProducePhase::Reading);
            next = if more {
                self.frames.message().now_or_never()
            } else {
                None
            };
        }
        self.hand_over(&mut group).await;
    }

    async fn parse(&mut self, frame: ProduceRequest, room: Room, group: &mut Group) {
        let ProduceRequest {
            frame_id,
            queue,
            messages,
            batch_id,
        } = frame;
        if !queue.is_empty() {
            self.queue = queue;
        }
        let (count, max) = (messages.len(), self.handle.limits().batch_messages.get());
        let found = if count > max {
            Err(Refusal::batch_too_large(count, max))
        } else {
            batch_id.map(message::batch_id).transpose()
        };
        let found = found.and_then(|batch_id| Ok((self.handle.queue(&self.queue)?, batch_id)));
        let (queue, batch_id) = match found {
            Ok(found) => found,
            Err(refusal) => {
                let refused = EnqueueResult {
                    error: Some(refusal.into()),
                    ..EnqueueResult::default()
                };
                return self.answer(frame_id, vec![refused; count]);
            }
        };
        let (messages, outcome) = Batch::parse(messages, &self.trace, self.source).split();
        if messages.is_empty() {
            let none = std::iter::empty::<Result<_, Refusal>>();
            return self.answer(frame_id, outcome.merge(queue.id, none));
        }
        if group.queue.as_ref().is_some_and(|last| last.id != queue.id) {
            self.hand_over(group).await;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.unconfirmed += outcome.len();
        let waiting = Waiting {
            frame_id,
            queue: queue.id,
            outcome,
            _span: self.tracing.enqueue(queue.name.as_str(), &self.trace),
        };
        self.waiting.insert(number, waiting);
        group.queue = Some(queue);
        group.room.absorb(room);
        group.frames.push(Frame {
            number,
            messages,
            batch_id,
        });
    }

    async fn hand_over(&mut self, group: &mut Group) {
        let Group {
            queue,
            frames,
            room,
        } = std::mem::take(group);
        let Some(queue) = queue else {
            return;
        };
        let numbers: Vec<u64> = frames.iter().map(|frame| frame.number).collect();
        let handed = self.hooked.produce(queue, frames, room).await;
        if let Err(error) = handed {
            let refusal = Refusal::from(error);
            for number in numbers {
                self.refuse(number, &refusal);
            }
        }
    }

    fn replied(&mut self, number: u64, reply: Reply<EnqueueResults>) {
        match self.handle.result(reply) {
            Ok(decided) => {
                if let Some(waiting) = self.confirmed(number) {
                    let results = waiting.outcome.merge(waiting.queue, decided);
                    self.answer(waiting.frame_id, results);
                }
            }
            Err(error) => self.refuse(number, &error.into()),
        }
    }

    fn refuse(&mut self, number: u64, refusal: &Refusal) {
        if let Some(waiting) = self.confirmed(number) {
            let results = waiting.outcome.refuse_all(waiting.queue, refusal);
            self.answer(waiting.frame_id, results);
        }
    }

    fn confirmed(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        self.unconfirmed -= waiting.outcome.len();
        Some(waiting)
    }

    fn answer(&mut self, frame_id: u64, results: Vec<EnqueueResult>) {
        self.ready.push_back(ProduceResponse {
            frame_id,
            results,
            window: 0,
        });
    }
}

/// Waits until the server stops.
pub(super) async fn stopping(state: &mut watch::Receiver<State>) {
    // An error means that the server has stopped.
    let _ = state.wait_for(|state| *state == State::Stopping).await;
}
