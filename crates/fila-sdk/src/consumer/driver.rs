//! The task that holds the work stream.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fila_proto::v1;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{ErrorCode, LeaseExtension, LeaseNack, WorkRequest, WorkResponse};
use foldhash::fast::RandomState;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::delivery::{Delivery, DeliveryReport, Hold, LeaseHandle, Received, Verdict};
use super::lease::Lease;
use crate::backoff::Backoff;
use crate::error::{Broken, Refusal};
use crate::message::millis;
use crate::moment::after;
use crate::{Client, Error};

/// How many results are sent in one frame: as many as any server takes.
const REPORTS_MAX: usize = 1000;

/// The driver checks leases this often in their duration, and extends leases that have less than half of it left.
const LOOKS: u32 = 4;

/// The shortest time between two checks of the leases.
const LOOK_MIN: Duration = Duration::from_millis(5);

/// How long the server may take to end a stream that has no work left.
const FAREWELL: Duration = Duration::from_secs(5);

pub(super) struct ConsumerDriver {
    service: FilaServiceClient<Channel>,
    queue: Arc<str>,
    prefetch: u32,
    keep: Duration,
    deadline: Duration,
    open_timeout: Duration,
    backoff: Backoff,
    /// Closed when the consumer is dropped.
    deliveries: mpsc::UnboundedSender<Result<Delivery, Error>>,
    to_reports: mpsc::UnboundedSender<DeliveryReport>,
    reports: mpsc::UnboundedReceiver<DeliveryReport>,
    taken: Vec<DeliveryReport>,
    /// Counts the streams. A lease belongs to one of them.
    session: u64,
    /// Deliveries without a result, of this stream and of earlier ones.
    in_hands: u32,
    /// The leases of this stream without a confirmed result.
    held: HashMap<u64, Held, RandomState>,
    /// When to check the leases next, and how often.
    look_at: Option<Instant>,
    look_every: Duration,
    phase: Phase,
    /// Whether the server has ever accepted a stream: then the queue did exist.
    was_subscribed: bool,
}

/// A lease that the server has given this consumer.
#[derive(Debug)]
struct Held {
    lease: Arc<Lease>,
    /// Its duration from each extension on.
    time: Duration,
    /// When half of its duration is over.
    extend_at: Instant,
    /// When the driver stops extending it.
    keep_until: Instant,
    /// Reports that the server has not confirmed, in the order of their confirmations.
    unconfirmed: VecDeque<Unconfirmed>,
    /// When the last report was sent.
    reported_at: Instant,
}

/// A report that the server has not confirmed, with the caller that waits for the confirmation.
#[derive(Debug)]
enum Unconfirmed {
    Result(Option<oneshot::Sender<Result<(), Error>>>),
    Extension(Option<oneshot::Sender<Result<(), Error>>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Consuming,
    /// The consumer is dropped: the driver takes no more messages, and still sends results.
    Draining,
}

enum ConsumeEnd {
    Done,
    Broken(Broken),
}

struct WorkStream {
    requests: mpsc::UnboundedSender<WorkRequest>,
    responses: Streaming<WorkResponse>,
}

impl ConsumerDriver {
    pub(super) fn new(
        client: &Client,
        queue: Arc<str>,
        prefetch: u32,
        keep: Duration,
        deliveries: mpsc::UnboundedSender<Result<Delivery, Error>>,
    ) -> Self {
        let options = client.options();
        let (to_reports, reports) = mpsc::unbounded_channel();
        Self {
            service: client.service(),
            queue,
            prefetch,
            keep,
            deadline: options.deadline,
            open_timeout: options.connect_timeout,
            backoff: options.backoff(),
            deliveries,
            to_reports,
            reports,
            taken: Vec::new(),
            session: 0,
            in_hands: 0,
            held: HashMap::default(),
            look_at: None,
            look_every: Duration::MAX,
            phase: Phase::Consuming,
            was_subscribed: false,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            let broken = match self.open().await {
                Ok(mut stream) => match self.serve(&mut stream).await {
                    ConsumeEnd::Done => return,
                    ConsumeEnd::Broken(broken) => {
                        // Without a subscription the server would have refused the stream.
                        self.was_subscribed |= matches!(broken, Broken::Away(_));
                        broken
                    }
                },
                Err(broken) => broken,
            };
            self.lose_all();
            let is_final = match &broken {
                Broken::Refused(refusal) => !self.may_pass(refusal),
                Broken::Away(_) => false,
            };
            match broken {
                Broken::Refused(refusal) if is_final => {
                    let _ = self.deliveries.send(Err(refusal.into()));
                    return;
                }
                Broken::Refused(Refusal { message, .. }) | Broken::Away(message) => {
                    tracing::warn!(
                        queue = %self.queue,
                        error = %message,
                        "the work stream broke, subscribing again"
                    );
                }
            }
            if self.phase == Phase::Draining || !self.pause().await {
                return;
            }
        }
    }

    /// Returns whether a refusal may be about our previous connection: the server counts it until it notices that it
    /// broke.
    fn may_pass(&self, refusal: &Refusal) -> bool {
        self.was_subscribed && refusal.code == ErrorCode::TooManyConsumers
    }

    /// Waits before the next attempt. Returns false if the consumer is dropped meanwhile.
    async fn pause(&mut self) -> bool {
        let until = after(Instant::now(), self.backoff.next(fastrand::f64()));
        loop {
            tokio::select! {
                () = sleep_until(until) => return true,
                () = self.deliveries.closed() => return false,
                Some(report) = self.reports.recv() => {
                    self.too_late(report);
                }
            }
        }
    }

    async fn open(&mut self) -> Result<WorkStream, Broken> {
        self.session += 1;
        let (requests, outgoing) = mpsc::unbounded_channel();
        let first = WorkRequest {
            queue: String::from(&*self.queue),
            // A message that the application holds takes its place until it has a result.
            credit: self.prefetch.saturating_sub(self.in_hands),
            ..WorkRequest::default()
        };
        let _ = requests.send(first);
        let mut service = self.service.clone();
        let call = service.work(UnboundedReceiverStream::new(outgoing));
        let opened = timeout(self.open_timeout, call).await;
        let opened = opened
            .map_err(|_| Broken::Away(format!("no answer within {:?}", self.open_timeout)))?;
        Ok(WorkStream {
            requests,
            responses: opened?.into_inner(),
        })
    }

    async fn serve(&mut self, stream: &mut WorkStream) -> ConsumeEnd {
        let mut farewell = None;
        loop {
            if self.phase == Phase::Draining && self.in_hands == 0 {
                let time = match self.held.is_empty() {
                    true => FAREWELL,
                    // No caller waits longer than this for a report that is sent and not confirmed.
                    false => self.deadline,
                };
                let ends = after(Instant::now(), time);
                farewell = Some(farewell.map_or(ends, |at: Instant| at.min(ends)));
            }
            let look_at = self.look_at;
            tokio::select! {
                response = stream.responses.message() => match response {
                    Ok(Some(response)) => self.heard(response),
                    Ok(None) if self.phase == Phase::Draining => return ConsumeEnd::Done,
                    Ok(None) => {
                        let cause = "the server has ended the stream".to_owned();
                        return ConsumeEnd::Broken(Broken::Away(cause));
                    }
                    Err(status) => return ConsumeEnd::Broken(status.into()),
                },
                count = self.reports.recv_many(&mut self.taken, REPORTS_MAX) => {
                    debug_assert!(count > 0, "we have a sender of our own");
                    self.report(stream);
                }
                () = until(look_at) => self.look(stream),
                () = self.deliveries.closed(), if self.phase == Phase::Consuming => {
                    self.phase = Phase::Draining;
                    // A message that arrived while the consumer was being dropped may still be in the channel. Dropping
                    // the channel's last sender drops the channel, which releases the message.
                    self.deliveries = mpsc::unbounded_channel().0;
                    let _ = stream.requests.send(WorkRequest {
                        drain: true,
                        ..WorkRequest::default()
                    });
                }
                // Ending the stream releases all messages that the server still counts as leased.
                () = until(farewell) => return ConsumeEnd::Done,
            }
        }
    }

    fn heard(&mut self, response: WorkResponse) {
        self.was_subscribed = true;
        self.backoff.reset();
        for lease_id in response.confirmed {
            self.confirmed(lease_id);
        }
        for refused in response.refused {
            let error = refused.error.map(Refusal::from_wire);
            self.refused(refused.lease_id, error);
        }
        let now = Instant::now();
        for delivery in response.deliveries {
            self.deliver(delivery, now);
        }
    }

    fn deliver(&mut self, wire: v1::Delivery, now: Instant) {
        let time = Duration::from_millis(wire.lease_ms);
        let lease = Arc::new(Lease::default());
        let lease_id = wire.lease_id;
        let held = Held {
            lease: lease.clone(),
            time,
            extend_at: after(now, time / 2),
            keep_until: after(now, self.keep),
            unconfirmed: VecDeque::new(),
            reported_at: now,
        };
        self.held.insert(lease_id, held);
        self.in_hands += 1;
        if !self.keep.is_zero() {
            let every = (time / LOOKS).max(LOOK_MIN);
            self.look_every = self.look_every.min(every);
            let look_at = after(now, every);
            self.look_at = Some(self.look_at.map_or(look_at, |at| at.min(look_at)));
        }
        let handle = LeaseHandle {
            session: self.session,
            lease_id,
            lease,
            reports: self.to_reports.clone(),
            deadline: self.deadline,
            hold: Hold::Unseen,
        };
        let delivery = Delivery::new(Received::from_wire(wire), handle);
        // If the consumer is dropped, dropping the delivery releases it.
        let _ = self.deliveries.send(Ok(delivery));
    }

    fn confirmed(&mut self, lease_id: u64) {
        let Some(held) = self.held.get_mut(&lease_id) else {
            return;
        };
        match held.unconfirmed.pop_front() {
            Some(Unconfirmed::Result(answer)) => {
                self.held.remove(&lease_id);
                tell(answer, Ok(()));
            }
            Some(Unconfirmed::Extension(answer)) => tell(answer, Ok(())),
            None => {}
        }
    }

    fn refused(&mut self, lease_id: u64, refusal: Option<Refusal>) {
        let Some(held) = self.held.get_mut(&lease_id) else {
            return;
        };
        let is_over = refusal
            .as_ref()
            .is_none_or(|refusal| refusal.code == ErrorCode::LeaseNotFound);
        let error = match refusal {
            Some(refusal) if !is_over => Error::Refused(refusal),
            _ => Error::LeaseLost,
        };
        let report = held.unconfirmed.pop_front();
        if is_over {
            held.lease.lose();
        } else {
            // The extension has failed: the lease lasts no longer than before.
            held.extend_at = Instant::now();
        }
        match report {
            Some(Unconfirmed::Result(answer)) => {
                self.held.remove(&lease_id);
                tell(answer, Err(error));
            }
            Some(Unconfirmed::Extension(answer)) => tell(answer, Err(error)),
            None => {}
        }
    }

    /// Sends the reports on deliveries, and grants credit for finished deliveries.
    fn report(&mut self, stream: &WorkStream) {
        let mut request = WorkRequest::default();
        let reports = std::mem::take(&mut self.taken);
        for report in reports {
            if report.session != self.session {
                request.credit += u32::from(self.too_late(report));
                continue;
            }
            let lease_id = report.lease_id;
            if request
                .extensions
                .iter()
                .any(|one| one.lease_id == lease_id)
            {
                // Within one request the server applies results first, and this extension must come before them.
                let _ = stream.requests.send(std::mem::take(&mut request));
            }
            let reported = self.add(&mut request, report);
            if let Unconfirmed::Result(_) = reported {
                self.in_hands -= 1;
                request.credit += 1;
            }
            match self.held.get_mut(&lease_id) {
                Some(held) => {
                    held.unconfirmed.push_back(reported);
                    held.reported_at = Instant::now();
                }
                // The server refused an earlier report, and the caller has got the refusal.
                None => match reported {
                    Unconfirmed::Result(answer) | Unconfirmed::Extension(answer) => {
                        tell(answer, Err(Error::LeaseLost));
                    }
                },
            }
        }
        if self.phase == Phase::Draining {
            request.credit = 0;
        }
        let _ = stream.requests.send(request);
    }

    /// Adds a report to a request, and returns the confirmation to expect.
    fn add(&mut self, request: &mut WorkRequest, report: DeliveryReport) -> Unconfirmed {
        let lease_id = report.lease_id;
        match report.verdict {
            Verdict::Extend(time) => {
                request.extensions.push(LeaseExtension {
                    lease_id,
                    lease_ms: millis(time).max(1),
                });
                self.extended(lease_id, time);
                return Unconfirmed::Extension(report.answer);
            }
            Verdict::Ack => request.acks.push(lease_id),
            Verdict::Nack { error, delay } => request.nacks.push(LeaseNack {
                lease_id,
                error,
                delay_ms: delay.map(millis),
            }),
            Verdict::Release => request.releases.push(lease_id),
        }
        Unconfirmed::Result(report.answer)
    }

    /// Keeps a lease that its holder has extended for this time. The driver extends it no earlier than other leases,
    /// because an earlier extension would cut it short.
    fn extended(&mut self, lease_id: u64, time: Duration) {
        let Some(held) = self.held.get_mut(&lease_id) else {
            return;
        };
        held.extend_at = after(Instant::now(), time - time.min(held.time) / 2);
        if let Some(look_at) = &mut self.look_at {
            *look_at = held.extend_at.min(*look_at);
        }
    }

    /// Handles a report on a delivery of an earlier stream, and returns whether the report finishes the delivery.
    fn too_late(&mut self, report: DeliveryReport) -> bool {
        tell(report.answer, Err(Error::LeaseLost));
        let is_result = !matches!(report.verdict, Verdict::Extend(_));
        if is_result {
            self.in_hands -= 1;
        }
        is_result
    }

    /// Extends leases that have less than half of their duration left.
    fn look(&mut self, stream: &WorkStream) {
        let now = Instant::now();
        let mut request = WorkRequest::default();
        for (&lease_id, held) in &mut self.held {
            // One extension at a time: a server that does not answer gets no more of them.
            let is_said = !held.unconfirmed.is_empty();
            if is_said || held.extend_at > now || held.keep_until <= now || held.lease.is_lost() {
                continue;
            }
            held.extend_at = after(now, held.time / 2);
            held.unconfirmed.push_back(Unconfirmed::Extension(None));
            request.extensions.push(LeaseExtension {
                lease_id,
                lease_ms: millis(held.time).max(1),
            });
            if request.extensions.len() == REPORTS_MAX {
                let _ = stream.requests.send(std::mem::take(&mut request));
            }
        }
        if !request.extensions.is_empty() {
            let _ = stream.requests.send(request);
        }
        self.look_at = (!self.held.is_empty()).then(|| after(now, self.look_every));
    }

    /// Marks all leases as lost, because their stream has ended.
    fn lose_all(&mut self) {
        self.look_at = None;
        self.look_every = Duration::MAX;
        for (_, held) in self.held.drain() {
            held.lease.lose();
            for report in held.unconfirmed {
                match report {
                    Unconfirmed::Extension(answer) => tell(answer, Err(Error::LeaseLost)),
                    // The result was on its way, so the client cannot know whether the server has stored it.
                    Unconfirmed::Result(answer) => tell(
                        answer,
                        Err(Error::NoAnswer {
                            after: held.reported_at.elapsed(),
                            cause: Some("the connection broke".to_owned()),
                        }),
                    ),
                }
            }
        }
    }
}

/// Marks all leases as lost, however the task ends.
impl Drop for ConsumerDriver {
    fn drop(&mut self) {
        self.lose_all();
    }
}

fn tell(answer: Option<oneshot::Sender<Result<(), Error>>>, result: Result<(), Error>) {
    if let Some(answer) = answer {
        // The caller may have stopped waiting.
        let _ = answer.send(result);
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
