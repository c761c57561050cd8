//! The task that sends messages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fila_proto::v1::{BatchId, ErrorCode, ProduceResponse};
use fila_proto::{SharedFrame, produce_shared};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::frame::{Frame, Lines, earlier};
use super::timer::LazyTimer;
use super::{NoAnswer, Put};
use crate::Error;
use crate::backoff::Backoff;
use crate::client::{FRAME_MAX, Options};
use crate::error::{Broken, Refusal};
use crate::message::millis;
use crate::moment::after;

/// How many frames may be unanswered. At this limit messages gather for the next frame: the more slowly the server
/// answers, the larger the frames become. Two frames would do for a server that syncs one batch while it receives the
/// next; the others cover the round trip.
const FRAMES_MAX: usize = 8;

/// How many messages the task takes out of the channel at once.
const TAKE_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct ProducerDriver {
    channel: Channel,
    puts: mpsc::UnboundedReceiver<Put>,
    taken: Vec<Put>,
    /// The room in the buffer, which is given back when messages are answered.
    room: Arc<Semaphore>,
    no_answer: NoAnswer,
    /// The name of this producer, for the server's deduplication of frames.
    name: Bytes,
    /// How long the server must remember a frame.
    remember: Duration,
    open_timeout: Duration,
    /// How long the server may be silent while frames are unanswered.
    silence_max: Duration,
    backoff: Backoff,
    lines: Lines,
    /// Callers that wait for all messages before this number.
    flushes: VecDeque<(u64, oneshot::Sender<()>)>,
    next_sequence: u64,
    unanswered: BTreeMap<u64, Frame>,
    unanswered_messages: usize,
    /// Frames that the server refused for now, and when to send them again.
    deferred: BTreeSet<u64>,
    again_at: Option<Instant>,
    pace: Pace,
    timer: LazyTimer,
    /// No deadline of an unanswered message is before this moment. `None` if there is no such message.
    due: Option<Instant>,
}

/// How many frames may be unanswered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Full,
    /// The server ended the stream because of one frame, and the client does not know which. It sends them one by one
    /// to find it.
    OneByOne,
}

/// Why a stream has ended.
enum ProduceEnd {
    /// No message is left, and none can come.
    Done,
    Broken(Broken),
}

/// One stream.
struct ProduceStream {
    frames: mpsc::UnboundedSender<SharedFrame>,
    responses: Streaming<ProduceResponse>,
    /// How many messages may be unanswered.
    window: usize,
}

impl ProducerDriver {
    pub(super) fn new(
        channel: Channel,
        options: &Options,
        (puts, room): (mpsc::UnboundedReceiver<Put>, Arc<Semaphore>),
        no_answer: NoAnswer,
    ) -> Self {
        Self {
            channel,
            puts,
            taken: Vec::new(),
            room,
            no_answer,
            name: Bytes::copy_from_slice(&random_name()),
            // The last caller gives up after one deadline. The second one is for the last frame to arrive.
            remember: options.deadline.saturating_mul(2),
            open_timeout: options.connect_timeout,
            silence_max: options.deadline.max(options.connect_timeout),
            backoff: options.backoff(),
            lines: Lines::default(),
            flushes: VecDeque::new(),
            next_sequence: 0,
            unanswered: BTreeMap::new(),
            unanswered_messages: 0,
            deferred: BTreeSet::new(),
            again_at: None,
            pace: Pace::Full,
            timer: LazyTimer::new(),
            due: None,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            self.forget_expired();
            self.flushed();
            if self.is_idle() {
                if !self.take().await {
                    return;
                }
                continue;
            }
            let broken = match self.open().await {
                Ok(mut stream) => match self.serve(&mut stream).await {
                    ProduceEnd::Done => return,
                    ProduceEnd::Broken(broken) => broken,
                },
                Err(broken) => broken,
            };
            self.broke(broken).await;
        }
    }

    fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.unanswered.is_empty()
    }

    /// Waits for messages and takes them. Returns false if no more can come.
    async fn take(&mut self) -> bool {
        let count = self.puts.recv_many(&mut self.taken, TAKE_MAX).await;
        self.sort();
        count > 0
    }

    fn sort(&mut self) {
        for put in self.taken.drain(..) {
            match put {
                Put::Message(waiting) => {
                    self.due = earlier(self.due, Some(waiting.ends));
                    self.lines.push(waiting);
                }
                Put::Flush(done) => self.flushes.push_back((self.lines.ever(), done)),
            }
        }
    }

    /// Answers the flushes whose messages are all answered or given up.
    fn flushed(&mut self) {
        if self.flushes.is_empty() {
            return;
        }
        let under_way = self.unanswered.values().map(|frame| frame.first);
        let oldest = under_way.chain(self.lines.first()).min();
        while let Some((before, _)) = self.flushes.front()
            && oldest.is_none_or(|oldest| *before <= oldest)
            && let Some((_, done)) = self.flushes.pop_front()
        {
            // The caller may have stopped waiting.
            let _ = done.send(());
        }
    }

    async fn open(&mut self) -> Result<ProduceStream, Broken> {
        let (frames, requests) = mpsc::unbounded_channel();
        let requests = UnboundedReceiverStream::new(requests);
        let call = produce_shared(self.channel.clone(), FRAME_MAX, requests);
        let opened = async {
            let mut responses = call.await?;
            let first = responses.message().await?;
            Ok::<_, tonic::Status>((responses, first))
        };
        let opened = self.meanwhile(timeout(self.open_timeout, opened)).await;
        let (responses, first) = opened
            .map_err(|_| Broken::Away(format!("no answer within {:?}", self.open_timeout)))??;
        let Some(first) = first else {
            return Err(Broken::Away("the server has ended the stream".to_owned()));
        };
        Ok(ProduceStream {
            frames,
            responses,
            window: first.window.max(1) as usize,
        })
    }

    async fn serve(&mut self, stream: &mut ProduceStream) -> ProduceEnd {
        self.deferred.clear();
        self.again_at = None;
        self.resend(stream);
        let mut heard_at = Instant::now();
        loop {
            if !self.is_answer_due() {
                heard_at = Instant::now();
            }
            self.fill(stream);
            self.flushed();
            let silent_at = after(heard_at, self.silence_max);
            let silent_at = self.is_answer_due().then_some(silent_at);
            let wake_at = earlier(earlier(self.due, self.again_at), silent_at);
            if let Some(wake_at) = wake_at {
                self.timer.fire_by(wake_at);
            }
            tokio::select! {
                response = stream.responses.message() => match response {
                    Ok(Some(response)) => {
                        heard_at = Instant::now();
                        if let Err(broken) = self.answered(response) {
                            return ProduceEnd::Broken(broken);
                        }
                        if self.pace == Pace::OneByOne && self.deferred.is_empty() {
                            self.resend(stream);
                        }
                    }
                    Ok(None) => {
                        let cause = "the server has ended the stream".to_owned();
                        return ProduceEnd::Broken(Broken::Away(cause));
                    }
                    Err(status) => return ProduceEnd::Broken(status.into()),
                },
                count = self.puts.recv_many(&mut self.taken, TAKE_MAX), if self.puts_may_come() => {
                    if count == 0 && self.is_idle() {
                        return ProduceEnd::Done;
                    }
                    self.sort();
                }
                () = self.timer.fired(), if wake_at.is_some() => {
                    let now = Instant::now();
                    if self.again_at.is_some_and(|again_at| again_at <= now) {
                        heard_at = now;
                        self.send_again(stream);
                    } else if silent_at.is_some_and(|silent_at| silent_at <= now) {
                        // The callers of these frames have given up. On this stream the frames would hold their places
                        // until it ends.
                        let cause = format!("no answer within {:?}", self.silence_max);
                        return ProduceEnd::Broken(Broken::Away(cause));
                    }
                    self.expire_due(now);
                }
            }
        }
    }

    /// Waits for something other than a stream. Meanwhile the task takes messages, and answers those whose deadline passes.
    async fn meanwhile<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = pin!(other);
        loop {
            self.flushed();
            if let Some(due) = self.due {
                self.timer.fire_by(due);
            }
            let is_open = !(self.puts.is_closed() && self.puts.is_empty());
            tokio::select! {
                biased;
                done = &mut other => return done,
                _ = self.puts.recv_many(&mut self.taken, TAKE_MAX), if is_open => self.sort(),
                () = self.timer.fired(), if self.due.is_some() => self.expire_due(Instant::now()),
            }
        }
    }

    /// Returns whether frames are unanswered.
    fn is_answer_due(&self) -> bool {
        self.unanswered.len() > self.deferred.len()
    }

    /// Returns whether more messages may come. Once the channel is closed, the task only finishes the frames that are
    /// under way.
    fn puts_may_come(&self) -> bool {
        !(self.puts.is_closed() && self.puts.is_empty()) || self.is_idle()
    }

    /// Sends all unanswered frames on a new stream. At the pace [`Pace::OneByOne`], only the first of them.
    fn resend(&self, stream: &ProduceStream) {
        let frames = match self.pace {
            Pace::Full => usize::MAX,
            Pace::OneByOne => 1,
        };
        for &sequence in self.unanswered.keys().take(frames) {
            self.send(stream, sequence);
        }
    }

    /// Makes frames of the waiting messages, as long as the window has room.
    fn fill(&mut self, stream: &ProduceStream) {
        if !self.deferred.is_empty() {
            // Other frames would overtake the deferred ones.
            return;
        }
        let frames_max = match self.pace {
            Pace::Full => FRAMES_MAX,
            Pace::OneByOne => 1,
        };
        if self.lines.is_empty() {
            return;
        }
        self.expire_due(Instant::now());
        while self.unanswered.len() < frames_max && self.unanswered_messages < stream.window {
            let room = stream.window - self.unanswered_messages;
            let sequence = self.next_sequence;
            let Some(frame) = self.lines.next_frame(sequence, room) else {
                break;
            };
            self.next_sequence += 1;
            self.unanswered_messages += frame.len();
            self.unanswered.insert(sequence, frame);
            self.send(stream, sequence);
        }
    }

    fn send(&self, stream: &ProduceStream, sequence: u64) {
        let Some(frame) = self.unanswered.get(&sequence) else {
            return;
        };
        let first = self.unanswered.keys().next();
        let request = SharedFrame {
            frame: frame.request.clone(),
            batch_id: BatchId {
                producer: self.name.clone(),
                sequence,
                answered_below: first.copied().unwrap_or(sequence),
                remember_ms: millis(self.remember),
            },
        };
        // If the stream has ended, the task notices when it reads the next response.
        let _ = stream.frames.send(request);
    }

    fn answered(&mut self, response: ProduceResponse) -> Result<(), Broken> {
        let sequence = response.frame_id;
        let Some(frame) = self.unanswered.get(&sequence) else {
            return Ok(());
        };
        let may_be_stored = frame.may_be_stored;
        let mut errors = response.results.iter();
        let passing = errors.find_map(|result| {
            let error = result.error.as_ref()?;
            matters_soon(error.code(), may_be_stored).then(|| error.clone())
        });
        if let Some(error) = passing {
            self.no_answer.trouble.set(Some(error.message.clone()));
            if error.code() != ErrorCode::BufferFull {
                return Err(Broken::Away(error.message));
            }
            self.deferred.insert(sequence);
            if self.again_at.is_none() {
                self.again_at = Some(after(Instant::now(), self.backoff.next(fastrand::f64())));
            }
            return Ok(());
        }
        self.no_answer.trouble.set(None);
        self.backoff.reset();
        if let Some(frame) = self.remove(sequence) {
            frame.answer(response.results);
        }
        if self.unanswered.is_empty() {
            self.pace = Pace::Full;
            if self.lines.is_empty() {
                self.due = None;
            }
        }
        Ok(())
    }

    fn remove(&mut self, sequence: u64) -> Option<Frame> {
        let frame = self.unanswered.remove(&sequence)?;
        self.deferred.remove(&sequence);
        self.unanswered_messages -= frame.len();
        self.room.add_permits(frame.units);
        Some(frame)
    }

    /// Sends the deferred frames.
    fn send_again(&mut self, stream: &ProduceStream) {
        self.again_at = None;
        self.forget_expired();
        let deferred = std::mem::take(&mut self.deferred);
        match self.pace {
            Pace::Full => {
                for sequence in deferred {
                    self.send(stream, sequence);
                }
            }
            // If the callers of the deferred frame have given up, the next frame goes.
            Pace::OneByOne => self.resend(stream),
        }
    }

    /// Answers the messages whose deadline has passed. Messages that wait for a frame are not sent any more.
    fn expire_due(&mut self, now: Instant) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        let error = self.no_answer.error();
        let (units, mut due) = self.lines.expire(now, &error);
        self.room.add_permits(units);
        for frame in self.unanswered.values_mut() {
            due = earlier(due, frame.expire(now, &error));
        }
        self.due = due;
    }

    /// Drops frames and messages whose callers have given up.
    fn forget_expired(&mut self) {
        let now = Instant::now();
        self.expire_due(now);
        let expired = self.unanswered.iter();
        let expired = expired.filter(|(_, frame)| frame.ends <= now);
        let expired: Vec<u64> = expired.map(|(&sequence, _)| sequence).collect();
        for sequence in expired {
            self.remove(sequence);
        }
    }

    /// Handles a broken stream.
    async fn broke(&mut self, broken: Broken) {
        let cause = match broken {
            Broken::Away(cause) => cause,
            // The server may still count our previous connection.
            Broken::Refused(refusal)
                if refusal.code == ErrorCode::TooManyConnections && !self.unanswered.is_empty() =>
            {
                refusal.message
            }
            Broken::Refused(refusal) => return self.refused(refusal),
        };
        tracing::debug!(error = %cause, "the produce stream broke, opening it again");
        for frame in self.unanswered.values_mut() {
            frame.may_be_stored = true;
        }
        self.no_answer.trouble.set(Some(cause));
        let pause = self.backoff.next(fastrand::f64());
        self.meanwhile(sleep(pause)).await;
    }

    /// Handles the end of the stream because of a frame. If one frame was unanswered, the task fails it. Otherwise the
    /// frames go one by one until the task finds it.
    fn refused(&mut self, refusal: Refusal) {
        let error = Error::Refused(refusal);
        let is_known = self.pace == Pace::OneByOne || self.unanswered.len() <= 1;
        if !is_known {
            self.pace = Pace::OneByOne;
            return;
        }
        match self.unanswered.keys().next().copied() {
            Some(sequence) => {
                if let Some(frame) = self.remove(sequence) {
                    frame.fail(&error);
                }
            }
            // The client has sent nothing: the server refuses the stream itself, and would refuse it again.
            None => {
                let units = self.lines.fail(&error);
                self.room.add_permits(units);
            }
        }
    }
}

impl Drop for ProducerDriver {
    /// Callers that wait for room learn that no task is left to give it back.
    fn drop(&mut self) {
        self.room.close();
    }
}

/// Returns whether a refusal may pass soon, so that the task sends the message again and does not fail it.
///
/// A failed store does not pass before a restart, and has not stored the message; the caller learns it at once. But if
/// the server may have stored an earlier copy, only a server that works can tell.
fn matters_soon(code: ErrorCode, may_be_stored: bool) -> bool {
    match code {
        ErrorCode::BufferFull | ErrorCode::ShuttingDown | ErrorCode::OutcomeUnknown => true,
        ErrorCode::StoreUnavailable => may_be_stored,
        _ => false,
    }
}

/// Returns a random name for this producer.
fn random_name() -> [u8; 16] {
    let mut name = [0; 16];
    if getrandom::fill(&mut name).is_err() {
        // Without randomness from the system, a weaker generator has to do: its seed differs by process and time.
        fastrand::fill(&mut name);
    }
    name
}
