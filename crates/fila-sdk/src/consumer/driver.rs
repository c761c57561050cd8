//! The task that holds the work stream.
//!
//! It outlives its streams. When one breaks, it keeps the leases, and the next stream takes them over. The server keeps
//! them for some seconds, and the task gives up those that have ended meanwhile.

use std::sync::Arc;
use std::time::Duration;

use fila_proto::v1;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{ErrorCode, WorkRequest, WorkResponse};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::delivery::{Delivery, DeliveryReport, Hold, LeaseHandle, Received, Said, Verdict};
use super::held::{Held, HeldLeases, REPORTS_MAX, tell};
use super::lease::Lease;
use crate::backoff::Backoff;
use crate::error::{Broken, Refusal};
use crate::moment::after;
use crate::{Client, Error};

/// The driver checks leases this often in their duration, and extends leases that have less than half of it left.
const LOOKS: u32 = 4;

/// The shortest time between two checks of the leases.
const LOOK_MIN: Duration = Duration::from_millis(5);

/// How often the driver tells the server which deliveries handlers have begun. Most handlers are done before, and cost
/// nothing.
const TELL_EVERY: Duration = Duration::from_millis(100);

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
    /// Deliveries without a result.
    in_hands: u32,
    /// The leases without a confirmed result.
    held: HeldLeases,
    /// When to check the leases next, and how often.
    look_at: Option<Instant>,
    look_every: Duration,
    /// When to tell next what handlers have begun.
    tell_at: Option<Instant>,
    phase: Phase,
    /// Whether the server has ever accepted a stream: then the queue did exist.
    was_subscribed: bool,
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

impl WorkStream {
    fn send_all(&self, requests: Vec<WorkRequest>) {
        for request in requests {
            // If the stream is broken, its responses tell.
            let _ = self.requests.send(request);
        }
    }
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
            in_hands: 0,
            held: HeldLeases::default(),
            look_at: None,
            look_every: Duration::MAX,
            tell_at: None,
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
            let is_final = match &broken {
                Broken::Refused(refusal) => !self.may_pass(refusal),
                Broken::Away(_) => false,
            };
            match broken {
                Broken::Refused(refusal) if is_final => {
                    self.held.end_all();
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
            if !self.pause().await {
                return;
            }
        }
    }

    /// Returns whether a refusal may be about our previous connection: the server counts it until it notices that it
    /// broke.
    fn may_pass(&self, refusal: &Refusal) -> bool {
        let of_previous = [ErrorCode::TooManyConsumers, ErrorCode::TooManyConnections];
        self.was_subscribed && of_previous.contains(&refusal.code)
    }

    /// Waits before the next attempt. Returns false if there is nothing left to do.
    async fn pause(&mut self) -> bool {
        let wait = after(Instant::now(), self.backoff.next(fastrand::f64()));
        loop {
            self.held.end_overdue(Instant::now());
            if self.phase == Phase::Draining && self.held.is_empty() {
                return false;
            }
            let first_end = self.held.first_end();
            tokio::select! {
                () = sleep_until(wait) => return true,
                () = until(first_end) => {}
                () = self.deliveries.closed(), if self.phase == Phase::Consuming => self.drain(),
                count = self.reports.recv_many(&mut self.taken, REPORTS_MAX) => {
                    debug_assert!(count > 0, "we have a sender of our own");
                    for report in std::mem::take(&mut self.taken) {
                        // The next stream sends it.
                        self.take(None, report);
                    }
                }
            }
        }
    }

    async fn open(&mut self) -> Result<WorkStream, Broken> {
        let (requests, outgoing) = mpsc::unbounded_channel();
        let mut attaching = self.held.attach(Instant::now()).into_iter();
        let is_draining = self.phase == Phase::Draining;
        let first = WorkRequest {
            queue: String::from(&*self.queue),
            // A message that the application holds takes its place until it has a result.
            credit: match self.phase {
                Phase::Consuming => self.prefetch.saturating_sub(self.in_hands),
                Phase::Draining => 0,
            },
            reports_begun: true,
            ..attaching.next().unwrap_or_default()
        };
        let last = is_draining.then(drain_request);
        for request in [first].into_iter().chain(attaching).chain(last) {
            let _ = requests.send(request);
        }
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
            let (look_at, tell_at) = (self.look_at, self.tell_at);
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
                () = until(tell_at) => self.tell_beginnings(stream),
                () = self.deliveries.closed(), if self.phase == Phase::Consuming => {
                    self.drain();
                    let _ = stream.requests.send(drain_request());
                }
                // Ending the stream releases all messages that no handler has begun.
                () = until(farewell) => return ConsumeEnd::Done,
            }
        }
    }

    /// Takes no more messages, and releases those that wait.
    fn drain(&mut self) {
        self.phase = Phase::Draining;
        // A message that arrived while the consumer was being dropped may still be in the channel. Dropping the
        // channel's last sender drops the channel, which releases the message.
        self.deliveries = mpsc::unbounded_channel().0;
    }

    fn heard(&mut self, response: WorkResponse) {
        self.was_subscribed = true;
        self.backoff.reset();
        for lease_id in response.confirmed {
            self.held.confirmed(lease_id);
        }
        for refused in response.refused {
            let error = refused.error.map(Refusal::from_wire);
            self.held.refused(refused.lease_id, error);
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
        let held = Held::new(lease.clone(), time, self.keep, now);
        self.held.insert(lease_id, held);
        self.in_hands += 1;
        if !self.keep.is_zero() {
            let every = (time / LOOKS).max(LOOK_MIN);
            self.look_every = self.look_every.min(every);
            let look_at = after(now, every);
            self.look_at = Some(self.look_at.map_or(look_at, |at| at.min(look_at)));
        }
        if self.tell_at.is_none() {
            self.tell_at = Some(after(now, TELL_EVERY));
        }
        let handle = LeaseHandle {
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

    /// Sends the reports on deliveries, and grants credit for finished deliveries.
    fn report(&mut self, stream: &WorkStream) {
        let mut request = WorkRequest::default();
        for report in std::mem::take(&mut self.taken) {
            let lease_id = report.lease_id;
            let is_extended = request.extensions.iter().any(|it| it.lease_id == lease_id);
            if is_extended || request.begun.contains(&lease_id) {
                // Within one request the server applies results first, and these reports must come before them.
                let _ = stream.requests.send(std::mem::take(&mut request));
            }
            let credit = self.take(Some(&mut request), report);
            request.credit += u32::from(credit);
        }
        if self.phase == Phase::Draining {
            request.credit = 0;
        }
        let _ = stream.requests.send(request);
    }

    /// Takes a report, adds it to a request if there is one, and returns whether it finishes its delivery.
    fn take(&mut self, request: Option<&mut WorkRequest>, report: DeliveryReport) -> bool {
        let (lease_id, caller) = (report.lease_id, report.answer);
        let (taken, is_finished) = match report.said {
            Said::Begun => (self.held.begin(request, lease_id, caller), false),
            Said::Verdict(Verdict::Extend(time)) => {
                let extended = self.held.extend(request, lease_id, time, caller);
                let taken = extended.map(|extend_at| {
                    if let Some(look_at) = &mut self.look_at {
                        *look_at = extend_at.min(*look_at);
                    }
                });
                (taken, false)
            }
            Said::Verdict(verdict) => {
                self.in_hands -= 1;
                (self.held.settle(request, lease_id, verdict, caller), true)
            }
        };
        if let Err(caller) = taken {
            tell(caller, Err(Error::LeaseLost));
        }
        is_finished
    }

    /// Extends leases that have less than half of their duration left.
    fn look(&mut self, stream: &WorkStream) {
        let now = Instant::now();
        stream.send_all(self.held.extensions(now));
        self.look_at = (!self.held.is_empty()).then(|| after(now, self.look_every));
    }

    /// Tells the server which deliveries handlers have begun.
    fn tell_beginnings(&mut self, stream: &WorkStream) {
        let (requests, may_be_more) = self.held.beginnings();
        stream.send_all(requests);
        self.tell_at = may_be_more.then(|| after(Instant::now(), TELL_EVERY));
    }
}

/// Marks all leases as lost, however the task ends.
impl Drop for ConsumerDriver {
    fn drop(&mut self) {
        self.held.end_all();
    }
}

fn drain_request() -> WorkRequest {
    WorkRequest {
        drain: true,
        ..WorkRequest::default()
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
