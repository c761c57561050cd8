//! `Work`: deliveries out, credit and results in, on one stream.
//!
//! Reading responses drives the stream. Under load, many deliveries and confirmations share a frame; when idle, each
//! goes out at once. The server reads no requests while too many results are unconfirmed, or while the client reads no
//! responses.

use std::collections::HashMap;
use std::time::Duration;

use fila_core::{Beginnings, ConsumerKind, Departure, LeaseId, SettleResults, Settlement, Verdict};
use fila_proto::v1::{LeaseRefusal, WorkRequest, WorkResponse};
use fila_store::ErrorText;
use foldhash::fast::RandomState;
use tokio::sync::mpsc;
use tonic::Status;

use super::consume::{dismissed, stopped};
use super::delivery_buffer::DeliveryBuffer;
use super::refusal::{Refusal, unreadable};
use super::trace::Tracing;
use crate::intake::{Requests, Room};
use crate::runtime::{CallError, Consumer, Framed, Handle, Outgoing, Replies, Reply, ReplySender};

/// The stream of one worker. If it is dropped, the client has hung up, or the connection broke.
#[derive(Debug)]
pub(super) struct Working {
    handle: Handle,
    tracing: Tracing,
    requests: Requests<WorkRequest>,
    /// `None` before the first request and after the last one.
    consumer: Option<Consumer>,
    buffer: DeliveryBuffer,
    /// Results that are not durable yet, by the number of their report.
    reports: HashMap<u64, Vec<u64>, RandomState>,
    unconfirmed: usize,
    next_number: u64,
    to_replies: ReplySender<SettleResults>,
    replies: Replies<SettleResults>,
    confirmed: Vec<u64>,
    refused: Vec<LeaseRefusal>,
    phase: WorkPhase,
}

#[derive(Debug)]
enum WorkPhase {
    /// The first request has not arrived.
    New,
    Working,
    /// The client sends no more, or was dismissed. The stream ends like this when all its results are answered.
    Ending(Result<(), Status>),
    Ended,
}

impl Working {
    pub(super) fn new(handle: Handle, tracing: Tracing, requests: Requests<WorkRequest>) -> Self {
        let (to_replies, replies) = mpsc::unbounded_channel();
        Self {
            handle,
            tracing,
            requests,
            consumer: None,
            buffer: DeliveryBuffer::default(),
            reports: HashMap::default(),
            unconfirmed: 0,
            next_number: 0,
            to_replies,
            replies,
            confirmed: Vec::new(),
            refused: Vec::new(),
            phase: WorkPhase::New,
        }
    }

    /// Returns where it notes the bytes of its frames.
    pub(super) fn framed(&self) -> Framed {
        self.buffer.framed()
    }

    /// Waits for the next frame.
    pub(super) async fn next(&mut self) -> Option<Result<WorkResponse, Status>> {
        loop {
            self.gather();
            if let Some(frame) = self.frame() {
                return Some(Ok(frame));
            }
            if let WorkPhase::Ending(_) | WorkPhase::Ended = self.phase
                && self.reports.is_empty()
            {
                self.consumer = None;
                return match std::mem::replace(&mut self.phase, WorkPhase::Ended) {
                    WorkPhase::Ending(Err(status)) => Some(Err(status)),
                    WorkPhase::New
                    | WorkPhase::Working
                    | WorkPhase::Ending(Ok(()))
                    | WorkPhase::Ended => None,
                };
            }
            let reading = matches!(self.phase, WorkPhase::New | WorkPhase::Working)
                && self.unconfirmed < self.handle.limits().produce_window.get() as usize;
            let sending = matches!(self.phase, WorkPhase::Working);
            tokio::select! {
                Some((number, reply)) = self.replies.recv() => self.replied(number, reply),
                outgoing = outgoing(self.consumer.as_mut()), if sending => self.outgoing(outgoing),
                request = self.requests.message(), if reading => self.request(request).await,
            }
        }
    }

    /// Takes all replies and deliveries that have already arrived, so that they share a frame.
    fn gather(&mut self) {
        while let Ok((number, reply)) = self.replies.try_recv() {
            self.replied(number, reply);
        }
        while !self.buffer.fills_a_frame()
            && matches!(self.phase, WorkPhase::Working)
            && let Some(consumer) = &mut self.consumer
            && let Some(outgoing) = consumer.next_now()
        {
            self.outgoing(Some(outgoing));
        }
    }

    fn frame(&mut self) -> Option<WorkResponse> {
        if self.buffer.is_empty() && self.confirmed.is_empty() && self.refused.is_empty() {
            return None;
        }
        let deliveries = match &self.consumer {
            Some(consumer) => self.buffer.frame_of(consumer.queue(), self.tracing),
            None => Vec::new(),
        };
        Some(WorkResponse {
            deliveries,
            confirmed: std::mem::take(&mut self.confirmed),
            refused: std::mem::take(&mut self.refused),
        })
    }

    fn outgoing(&mut self, outgoing: Option<Outgoing>) {
        let end = match outgoing {
            Some(Outgoing::Deliveries(parcel)) => return self.buffer.add(parcel),
            Some(Outgoing::Dismissed(why)) => {
                let consumer = self.consumer.as_ref();
                let queue = consumer.map_or("", |consumer| consumer.queue().name.as_str());
                dismissed(why, queue)
            }
            Some(Outgoing::Stopped) | None => Err(stopped()),
        };
        self.phase = WorkPhase::Ending(end);
    }

    async fn request(&mut self, request: Result<Option<(WorkRequest, Room)>, Status>) {
        let done = match request {
            Ok(Some((request, _room))) => self.take(request).await,
            // A client that can send no more results needs no more deliveries.
            Ok(None) => {
                self.hang_up(Departure::Closed);
                return self.end(Ok(()));
            }
            Err(status) => {
                self.hang_up(Departure::Lost);
                return self.end(Err(unreadable(status)));
            }
        };
        if let Err(refusal) = done {
            self.hang_up(Departure::Lost);
            self.end(Err(refusal.into()));
        }
    }

    fn hang_up(&mut self, departure: Departure) {
        if let Some(mut consumer) = self.consumer.take() {
            consumer.not_sent(self.buffer.leases());
            if departure == Departure::Closed {
                consumer.close();
            }
        }
        self.buffer.clear();
    }

    fn end(&mut self, end: Result<(), Status>) {
        self.phase = WorkPhase::Ending(end);
    }

    async fn take(&mut self, request: WorkRequest) -> Result<(), Refusal> {
        let mut consumer = match self.consumer.take() {
            Some(consumer) => {
                let queue = consumer.queue().name.as_str();
                if !request.queue.is_empty() && request.queue != queue {
                    let text = format!("this stream works on `{queue}`; open another for another");
                    return Err(Refusal::invalid(text));
                }
                consumer
            }
            None => {
                let queue = self.handle.queue(&request.queue)?;
                let in_flight = self.handle.limits().in_flight_per_consumer.get();
                let beginnings = match request.reports_begun {
                    true => Beginnings::Reported,
                    false => Beginnings::Assumed,
                };
                let kind = ConsumerKind::Stream(beginnings);
                let consumer = self.handle.subscribe(&queue, in_flight, kind);
                let consumer = consumer.await?;
                self.phase = WorkPhase::Working;
                consumer
            }
        };
        if request.credit > 0 {
            consumer.credit(request.credit.into());
        }
        let drain = request.drain;
        let reported = self.report(&consumer, request).await;
        if drain {
            consumer.drain();
        }
        self.consumer = Some(consumer);
        Ok(reported?)
    }

    async fn report(&mut self, consumer: &Consumer, request: WorkRequest) -> Result<(), CallError> {
        let results = settlements(request);
        if results.is_empty() {
            return Ok(());
        }
        let leases: Vec<u64> = results.iter().map(|result| result.lease.get()).collect();
        let max = self.handle.limits().batch_messages.get();
        if results.len() > max {
            let refusal = Refusal::batch_too_large(results.len(), max);
            self.refuse(leases, &refusal);
            return Ok(());
        }
        let number = self.next_number;
        self.next_number += 1;
        let handed = self
            .handle
            .report(consumer, number, results, &self.to_replies)
            .await;
        match handed {
            Ok(()) => {
                self.unconfirmed += leases.len();
                self.reports.insert(number, leases);
                Ok(())
            }
            Err(error) => {
                self.refuse(leases, &error.into());
                Ok(())
            }
        }
    }

    fn replied(&mut self, number: u64, reply: Reply<SettleResults>) {
        let Some(leases) = self.reports.remove(&number) else {
            return;
        };
        self.unconfirmed -= leases.len();
        match self.handle.result(reply) {
            Ok(results) => {
                for (lease_id, result) in leases.into_iter().zip(results) {
                    match result {
                        Ok(()) => self.confirmed.push(lease_id),
                        Err(error) => self.refuse(vec![lease_id], &error.into()),
                    }
                }
            }
            Err(error) => self.refuse(leases, &error.into()),
        }
    }

    fn refuse(&mut self, leases: Vec<u64>, refusal: &Refusal) {
        let refused = leases.into_iter().map(|lease_id| LeaseRefusal {
            lease_id,
            error: Some(refusal.clone().into()),
        });
        self.refused.extend(refused);
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.hang_up(Departure::Lost);
    }
}

async fn outgoing(consumer: Option<&mut Consumer>) -> Option<Outgoing> {
    match consumer {
        Some(consumer) => consumer.next().await,
        None => std::future::pending().await,
    }
}

fn settlements(request: WorkRequest) -> Vec<Settlement> {
    let count = request.acks.len()
        + request.nacks.len()
        + request.extensions.len()
        + request.releases.len()
        + request.begun.len();
    let mut results = Vec::with_capacity(count);
    let mut add = |lease, verdict| results.push(settlement(lease, verdict));
    for lease in request.acks {
        add(lease, Verdict::Ack);
    }
    for nack in request.nacks {
        add(nack.lease_id, nacked(nack.delay_ms, &nack.error));
    }
    for extension in request.extensions {
        add(extension.lease_id, extend_by(extension.lease_ms));
    }
    for lease in request.releases {
        add(lease, Verdict::Release);
    }
    for lease in request.begun {
        add(lease, Verdict::Begin);
    }
    results
}

/// Returns the result of a delivery that names no message.
pub(super) fn settlement(lease: u64, verdict: Verdict) -> Settlement {
    Settlement {
        lease: LeaseId::from_number(lease),
        message: None,
        verdict,
    }
}

pub(super) fn nacked(delay_ms: Option<u64>, error: &str) -> Verdict {
    Verdict::Nack {
        delay: delay_ms.map(Duration::from_millis),
        error: (!error.is_empty()).then(|| ErrorText::new(error)),
    }
}

pub(super) fn extend_by(lease_ms: u64) -> Verdict {
    Verdict::Extend {
        by: (lease_ms > 0).then(|| Duration::from_millis(lease_ms)),
    }
}
