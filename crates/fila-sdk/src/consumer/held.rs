//! The leases that a consumer holds, over all its streams, and what the server has still to confirm of them.
//!
//! A lease outlives its stream: the server keeps it for a while after a connection broke. So the table stays, and a new
//! stream begins with everything that the server has to know: see [`HeldLeases::attach`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fila_proto::v1::{LeaseExtension, LeaseNack, WorkRequest};
use foldhash::fast::RandomState;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::delivery::Verdict;
use super::lease::Lease;
use crate::Error;
use crate::error::Refusal;
use crate::message::millis;
use crate::moment::after;

/// How many results are sent in one frame: as many as any server takes.
pub(super) const REPORTS_MAX: usize = 1000;

/// The caller that waits for a confirmation, if one does.
pub(super) type Caller = Option<oneshot::Sender<Result<(), Error>>>;

#[derive(Debug, Default)]
pub(super) struct HeldLeases {
    leases: HashMap<u64, Held, RandomState>,
}

/// A lease that the server has given this consumer.
#[derive(Debug)]
pub(super) struct Held {
    lease: Arc<Lease>,
    /// Its duration from each extension on.
    time: Duration,
    /// When half of its duration is over.
    extend_at: Instant,
    /// When it has ended, as far as the server has confirmed.
    ends_at: Instant,
    /// When the driver stops extending it.
    keep_until: Instant,
    /// Whether the server was told that a handler has begun.
    is_told: bool,
    /// Reports that the server has not confirmed, in the order of their confirmations.
    unconfirmed: VecDeque<Unconfirmed>,
    /// When the last report was sent.
    reported_at: Instant,
}

/// A report that the server has not confirmed.
#[derive(Debug)]
enum Unconfirmed {
    Result(Verdict, TimesSent, Caller),
    Extension(Duration, Caller),
    Beginning(Caller),
}

impl Unconfirmed {
    fn caller(self) -> Caller {
        match self {
            Self::Result(_, _, caller) | Self::Extension(_, caller) | Self::Beginning(caller) => {
                caller
            }
        }
    }
}

/// How often a result was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimesSent {
    Never,
    /// On this stream.
    Once,
    /// Also on an earlier stream, so the server may have stored it then.
    Again,
}

impl Held {
    pub(super) fn new(lease: Arc<Lease>, time: Duration, keep: Duration, now: Instant) -> Self {
        Self {
            lease,
            time,
            extend_at: after(now, time / 2),
            ends_at: after(now, time),
            keep_until: after(now, keep),
            is_told: false,
            unconfirmed: VecDeque::new(),
            reported_at: now,
        }
    }

    fn has_result(&self) -> bool {
        let mut reports = self.unconfirmed.iter();
        reports.any(|report| matches!(report, Unconfirmed::Result(..)))
    }

    /// Adds what a new stream has to say of this lease to a request.
    fn attach(&mut self, request: &mut WorkRequest, lease_id: u64, now: Instant) {
        let mut reports = std::mem::take(&mut self.unconfirmed);
        let last = reports.pop_back();
        if let Some(Unconfirmed::Result(verdict, sent, caller)) = last {
            add_result(request, lease_id, &verdict);
            let sent = match sent {
                TimesSent::Never => TimesSent::Once,
                TimesSent::Once | TimesSent::Again => TimesSent::Again,
            };
            let result = Unconfirmed::Result(verdict, sent, caller);
            self.unconfirmed.push_back(result);
            for earlier in reports {
                tell(earlier.caller(), Err(no_answer(self.reported_at)));
            }
            return;
        }
        // No shorter than before. If the application extends it, no longer either.
        let mut time = self.ends_at.saturating_duration_since(now);
        if self.keep_until > now {
            time = time.max(self.time);
        }
        let (mut caller, mut beginning) = (None, None);
        for report in reports.into_iter().chain(last) {
            match report {
                // Of several extensions, the last one counts.
                Unconfirmed::Extension(wanted, waiting) => {
                    time = wanted;
                    let earlier = std::mem::replace(&mut caller, waiting);
                    tell(earlier, Err(no_answer(self.reported_at)));
                }
                Unconfirmed::Beginning(waiting) => beginning = Some(waiting),
                Unconfirmed::Result(..) => debug_assert!(false, "a result is the last report"),
            }
        }
        add_extension(request, lease_id, time);
        self.extended(time, now);
        let extension = Unconfirmed::Extension(time, caller);
        self.unconfirmed.push_back(extension);
        if let Some(waiting) = beginning {
            request.begun.push(lease_id);
            self.unconfirmed.push_back(Unconfirmed::Beginning(waiting));
        }
    }

    /// Follows an extension that is sent.
    fn extended(&mut self, time: Duration, now: Instant) {
        // No earlier than other leases, because an earlier extension would cut this one short.
        self.extend_at = after(now, time - time.min(self.time) / 2);
    }
}

impl HeldLeases {
    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    pub(super) fn insert(&mut self, lease_id: u64, held: Held) {
        self.leases.insert(lease_id, held);
    }

    /// Adds a result to a request; without one, the next stream sends it. Fails with the caller if the lease has ended.
    pub(super) fn settle(
        &mut self,
        request: Option<&mut WorkRequest>,
        lease_id: u64,
        verdict: Verdict,
        caller: Caller,
    ) -> Result<(), Caller> {
        let Some(held) = self.leases.get_mut(&lease_id) else {
            return Err(caller);
        };
        held.reported_at = Instant::now();
        let mut sent = TimesSent::Never;
        if let Some(request) = request {
            sent = TimesSent::Once;
            add_result(request, lease_id, &verdict);
        }
        let result = Unconfirmed::Result(verdict, sent, caller);
        held.unconfirmed.push_back(result);
        Ok(())
    }

    /// Adds an extension that the application wants to a request. As [`settle`](Self::settle).
    pub(super) fn extend(
        &mut self,
        request: Option<&mut WorkRequest>,
        lease_id: u64,
        time: Duration,
        caller: Caller,
    ) -> Result<Instant, Caller> {
        let Some(held) = self.leases.get_mut(&lease_id) else {
            return Err(caller);
        };
        let now = Instant::now();
        if let Some(request) = request {
            add_extension(request, lease_id, time);
            held.extended(time, now);
        }
        held.reported_at = now;
        let extension = Unconfirmed::Extension(time, caller);
        held.unconfirmed.push_back(extension);
        Ok(held.extend_at)
    }

    /// Adds the beginning of a delivery to a request. As [`settle`](Self::settle).
    pub(super) fn begin(
        &mut self,
        request: Option<&mut WorkRequest>,
        lease_id: u64,
        caller: Caller,
    ) -> Result<(), Caller> {
        let Some(held) = self.leases.get_mut(&lease_id) else {
            return Err(caller);
        };
        if let Some(request) = request {
            request.begun.push(lease_id);
        }
        held.is_told = true;
        held.unconfirmed.push_back(Unconfirmed::Beginning(caller));
        Ok(())
    }

    /// Takes a confirmation of the server.
    pub(super) fn confirmed(&mut self, lease_id: u64) {
        let Some(held) = self.leases.get_mut(&lease_id) else {
            return;
        };
        match held.unconfirmed.pop_front() {
            Some(Unconfirmed::Result(_, _, caller)) => {
                self.leases.remove(&lease_id);
                tell(caller, Ok(()));
            }
            Some(Unconfirmed::Extension(time, caller)) => {
                held.ends_at = after(Instant::now(), time);
                tell(caller, Ok(()));
            }
            Some(Unconfirmed::Beginning(caller)) => tell(caller, Ok(())),
            None => {}
        }
    }

    /// Takes a refusal of the server. A server that stops keeps its leases: the next stream sends the report again.
    pub(super) fn refused(&mut self, lease_id: u64, refusal: Option<Refusal>) {
        let Some(held) = self.leases.get_mut(&lease_id) else {
            return;
        };
        if let Some(refusal) = &refusal
            && refusal.code == crate::ErrorCode::ShuttingDown
        {
            return;
        }
        let is_over = refusal
            .as_ref()
            .is_none_or(|refusal| refusal.code == crate::ErrorCode::LeaseNotFound);
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
            Some(Unconfirmed::Result(_, sent, caller)) => {
                let error = match sent {
                    // The server may have stored it when it came on an earlier stream.
                    TimesSent::Again if is_over => no_answer(held.reported_at),
                    TimesSent::Never | TimesSent::Once | TimesSent::Again => error,
                };
                self.leases.remove(&lease_id);
                tell(caller, Err(error));
            }
            Some(Unconfirmed::Extension(_, caller) | Unconfirmed::Beginning(caller)) => {
                if is_over {
                    self.end(lease_id);
                }
                tell(caller, Err(error));
            }
            None => {}
        }
    }

    /// Returns requests that extend leases which have less than half of their duration left.
    pub(super) fn extensions(&mut self, now: Instant) -> Vec<WorkRequest> {
        let mut requests = Requests::default();
        for (&lease_id, held) in &mut self.leases {
            // One extension at a time: a server that does not answer gets no more of them.
            let is_said = !held.unconfirmed.is_empty();
            if is_said || held.extend_at > now || held.keep_until <= now || held.lease.is_lost() {
                continue;
            }
            add_extension(requests.next(), lease_id, held.time);
            held.extended(held.time, now);
            let extension = Unconfirmed::Extension(held.time, None);
            held.unconfirmed.push_back(extension);
        }
        requests.all
    }

    /// Returns requests that tell which deliveries a handler has begun since the last time, and whether there may be more.
    pub(super) fn beginnings(&mut self) -> (Vec<WorkRequest>, bool) {
        let mut requests = Requests::default();
        let mut may_be_more = false;
        for (&lease_id, held) in &mut self.leases {
            if held.is_told || held.has_result() {
                continue;
            }
            // One report at a time.
            if held.lease.is_begun() && held.unconfirmed.is_empty() {
                requests.next().begun.push(lease_id);
                held.is_told = true;
                held.unconfirmed.push_back(Unconfirmed::Beginning(None));
            } else {
                may_be_more = true;
            }
        }
        (requests.all, may_be_more)
    }

    /// Returns the requests with which a new stream takes over the leases: results that the server has not confirmed are
    /// sent again, and all other leases are extended.
    pub(super) fn attach(&mut self, now: Instant) -> Vec<WorkRequest> {
        let mut requests = Requests::default();
        for (&lease_id, held) in &mut self.leases {
            held.attach(requests.next(), lease_id, now);
        }
        requests.all
    }

    /// Returns when the first lease ends, if the server hears no more of it.
    pub(super) fn first_end(&self) -> Option<Instant> {
        self.leases.values().map(|held| held.ends_at).min()
    }

    /// Ends the leases whose time is over.
    pub(super) fn end_overdue(&mut self, now: Instant) {
        let overdue = self.leases.iter().filter(|(_, held)| held.ends_at <= now);
        let overdue: Vec<u64> = overdue.map(|(&lease_id, _)| lease_id).collect();
        for lease_id in overdue {
            self.end(lease_id);
        }
    }

    /// Ends all leases, because no stream will follow.
    pub(super) fn end_all(&mut self) {
        let all: Vec<u64> = self.leases.keys().copied().collect();
        for lease_id in all {
            self.end(lease_id);
        }
    }

    fn end(&mut self, lease_id: u64) {
        let Some(held) = self.leases.remove(&lease_id) else {
            return;
        };
        held.lease.lose();
        for report in held.unconfirmed {
            match report {
                // The result was on its way, so the client cannot know whether the server has stored it.
                Unconfirmed::Result(_, TimesSent::Once | TimesSent::Again, caller) => {
                    tell(caller, Err(no_answer(held.reported_at)));
                }
                Unconfirmed::Result(_, TimesSent::Never, caller)
                | Unconfirmed::Extension(_, caller)
                | Unconfirmed::Beginning(caller) => tell(caller, Err(Error::LeaseLost)),
            }
        }
    }
}

/// Requests with as many results each as a server takes.
#[derive(Default)]
struct Requests {
    all: Vec<WorkRequest>,
    /// Leases in the last one. Each has two reports at most.
    leases: usize,
}

impl Requests {
    /// Returns the request for the reports on the next lease.
    fn next(&mut self) -> &mut WorkRequest {
        if self.all.is_empty() || self.leases >= REPORTS_MAX / 2 {
            self.all.push(WorkRequest::default());
            self.leases = 0;
        }
        self.leases += 1;
        self.all.last_mut().expect("one was pushed")
    }
}

fn add_extension(request: &mut WorkRequest, lease_id: u64, time: Duration) {
    request.extensions.push(LeaseExtension {
        lease_id,
        lease_ms: millis(time).max(1),
    });
}

fn add_result(request: &mut WorkRequest, lease_id: u64, verdict: &Verdict) {
    match verdict {
        Verdict::Ack => request.acks.push(lease_id),
        Verdict::Nack { error, delay } => request.nacks.push(LeaseNack {
            lease_id,
            error: error.clone(),
            delay_ms: delay.map(millis),
        }),
        Verdict::Extend(time) => add_extension(request, lease_id, *time),
        Verdict::Release => request.releases.push(lease_id),
    }
}

pub(super) fn tell(caller: Caller, result: Result<(), Error>) {
    if let Some(caller) = caller {
        // The caller may have stopped waiting.
        let _ = caller.send(result);
    }
}

fn no_answer(reported_at: Instant) -> Error {
    Error::NoAnswer {
        after: reported_at.elapsed(),
        cause: Some("the connection broke".to_owned()),
    }
}
