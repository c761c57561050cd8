//! `FilaService`: messages in and out.

use std::pin::Pin;

use fila_core::{Enqueued, Settlement, Verdict};
use fila_proto::v1::fila_service_server::FilaService;
use fila_proto::v1::{
    AckBatchRequest, AckBatchResponse, AckRequest, AckResponse, ConsumeRequest, ConsumeResponse,
    EnqueueBatchRequest, EnqueueBatchResponse, EnqueueRequest, EnqueueResponse, ExtendBatchRequest,
    ExtendBatchResponse, ExtendRequest, ExtendResponse, LeaseRefusal, NackBatchRequest,
    NackBatchResponse, NackRequest, NackResponse, PeekRequest, PeekResponse, ProduceRequest,
    ProduceResponse, ReceiveRequest, ReceiveResponse, ReleaseRequest, ReleaseResponse, WorkRequest,
    WorkResponse,
};
use fila_store::{MessageId, QueueId};
use futures_util::{Stream, stream};
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use super::consume::Consuming;
use super::message::{self, Batch};
use super::produce::Producing;
use super::refusal::Refusal;
use super::trace::{CallTrace, Tracing};
use super::work::{Working, extend_by, nacked, settlement};
use super::{id, peek, receive};
use crate::intake::{Receipt, Requests, Room};
use crate::runtime::{Framed, Handle};

/// Serves producers and consumers.
#[derive(Clone, Debug)]
pub(super) struct Messages {
    pub(super) handle: Handle,
    pub(super) tracing: Tracing,
}

type Frames<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Messages {
    fn batch_fits(&self, found: usize) -> Result<(), Refusal> {
        let max = self.handle.limits().batch_messages.get();
        if found > max {
            return Err(Refusal::batch_too_large(found, max));
        }
        Ok(())
    }

    /// Settles one delivery. Checks the id of its message if the caller gives one.
    async fn settle(
        &self,
        queue: &str,
        message_id: &str,
        lease: u64,
        verdict: Verdict,
    ) -> Result<(), Status> {
        let queue = self.handle.queue(queue)?;
        let message = match message_id {
            "" => None,
            text => Some(message_of(queue.first(), text)?),
        };
        let result = Settlement {
            message,
            ..settlement(lease, verdict)
        };
        let results = self.handle.settle(&queue, vec![result]).await?;
        match results.into_iter().next() {
            Some(Err(error)) => Err(Refusal::from(error).into()),
            Some(Ok(())) | None => Ok(()),
        }
    }

    async fn settle_all(
        &self,
        queue: &str,
        results: Vec<Settlement>,
    ) -> Result<Vec<LeaseRefusal>, Status> {
        self.batch_fits(results.len())?;
        let queue = self.handle.queue(queue)?;
        let leases: Vec<u64> = results.iter().map(|result| result.lease.get()).collect();
        let results = self.handle.settle(&queue, results).await?;
        let refused = leases.into_iter().zip(results);
        let refused = refused.filter_map(|(lease_id, result)| {
            let error = Refusal::from(result.err()?).into();
            Some(LeaseRefusal {
                lease_id,
                error: Some(error),
            })
        });
        Ok(refused.collect())
    }
}

/// Returns the room of a request, which it needs until its messages are in an inbox.
fn room<T>(request: &mut Request<T>) -> Room {
    let receipt: Option<Receipt> = request.extensions_mut().remove();
    receipt.map_or_else(Room::default, |receipt| receipt.take())
}

/// Returns a response that carries deliveries, which [`count_deliveries`](super::count_deliveries) counts.
fn carrying<T>(framed: Framed, carried: T) -> Response<T> {
    let mut response = Response::new(carried);
    response.extensions_mut().insert(framed);
    response
}

fn message_of(first: QueueId, text: &str) -> Result<MessageId, Refusal> {
    match id::decode(text) {
        Some((of, message)) if of == first => Ok(message),
        Some(_) => Err(Refusal::invalid(
            "the message is of another queue; give both as they were delivered",
        )),
        None => Err(Refusal::invalid(
            "message_id is no id of a message; give it as it was delivered, or leave it out",
        )),
    }
}

#[tonic::async_trait]
impl FilaService for Messages {
    async fn enqueue(
        &self,
        mut request: Request<EnqueueRequest>,
    ) -> Result<Response<EnqueueResponse>, Status> {
        let trace = CallTrace::of(request.metadata());
        let source = message::source(&request);
        let room = room(&mut request);
        let EnqueueRequest { queue, message } = request.into_inner();
        let queue = self.handle.queue(&queue)?;
        let message = message.ok_or_else(|| Refusal::invalid("the request has no message"))?;
        let message = message::parse(message, &trace, source)?;
        let span = self.tracing.enqueue(queue.name.as_str(), &trace);
        let enqueue = self
            .handle
            .enqueue_received(&queue, vec![message], None, room);
        let results = enqueue.instrument(span.clone()).await?;
        let (message, deduplicated) = match results.into_iter().next() {
            Some(Ok(Enqueued::Stored(message))) => (message, false),
            Some(Ok(Enqueued::Duplicate(message))) => (message, true),
            Some(Err(error)) => return Err(Refusal::from(error).into()),
            None => return Err(self.handle.stopped().into()),
        };
        let message_id = id::encode(queue.id, message);
        span.record("message_id", message_id.as_str());
        Ok(Response::new(EnqueueResponse {
            message_id,
            deduplicated,
        }))
    }

    async fn enqueue_batch(
        &self,
        mut request: Request<EnqueueBatchRequest>,
    ) -> Result<Response<EnqueueBatchResponse>, Status> {
        let trace = CallTrace::of(request.metadata());
        let source = message::source(&request);
        let room = room(&mut request);
        let EnqueueBatchRequest {
            queue,
            messages,
            batch_id,
        } = request.into_inner();
        self.batch_fits(messages.len())?;
        let batch_id = batch_id.map(message::batch_id).transpose()?;
        let queue = self.handle.queue(&queue)?;
        let (messages, outcome) = Batch::parse(messages, &trace, source).split();
        let decided = if messages.is_empty() {
            Vec::new()
        } else {
            let span = self.tracing.enqueue(queue.name.as_str(), &trace);
            let enqueue = self
                .handle
                .enqueue_received(&queue, messages, batch_id, room);
            enqueue.instrument(span).await?
        };
        let results = outcome.merge(queue.id, decided);
        Ok(Response::new(EnqueueBatchResponse { results }))
    }

    type ProduceStream = Frames<ProduceResponse>;

    async fn produce(
        &self,
        mut request: Request<Streaming<ProduceRequest>>,
    ) -> Result<Response<Self::ProduceStream>, Status> {
        let trace = CallTrace::of(request.metadata());
        let source = message::source(&request);
        let frames = Requests::of(&mut request)?;
        let caller = (trace, source);
        let producing = Producing::new(self.handle.clone(), self.tracing, caller, frames);
        let frames = stream::unfold(producing, |mut producing| async move {
            Some((producing.next().await?, producing))
        });
        Ok(Response::new(Box::pin(frames)))
    }

    type ConsumeStream = Frames<ConsumeResponse>;

    async fn consume(
        &self,
        request: Request<ConsumeRequest>,
    ) -> Result<Response<Self::ConsumeStream>, Status> {
        let consuming = Consuming::begin(&self.handle, self.tracing, request.into_inner()).await?;
        let framed = consuming.framed();
        let frames = stream::unfold(consuming, |mut consuming| async move {
            Some((consuming.next().await?, consuming))
        });
        Ok(carrying::<Self::ConsumeStream>(framed, Box::pin(frames)))
    }

    type WorkStream = Frames<WorkResponse>;

    async fn work(
        &self,
        mut request: Request<Streaming<WorkRequest>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let requests = Requests::of(&mut request)?;
        let working = Working::new(self.handle.clone(), self.tracing, requests);
        let framed = working.framed();
        let frames = stream::unfold(working, |mut working| async move {
            Some((working.next().await?, working))
        });
        Ok(carrying::<Self::WorkStream>(framed, Box::pin(frames)))
    }

    async fn receive(
        &self,
        request: Request<ReceiveRequest>,
    ) -> Result<Response<ReceiveResponse>, Status> {
        let request = request.into_inner();
        let (framed, response) = receive::receive(&self.handle, self.tracing, request).await?;
        Ok(carrying(framed, response))
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        let ReleaseRequest { queue, lease_ids } = request.into_inner();
        let results = lease_ids.into_iter();
        let results = results.map(|lease| settlement(lease, Verdict::Release));
        let refused = self.settle_all(&queue, results.collect()).await?;
        Ok(Response::new(ReleaseResponse { refused }))
    }

    async fn ack(&self, request: Request<AckRequest>) -> Result<Response<AckResponse>, Status> {
        let ack = request.into_inner();
        self.settle(&ack.queue, &ack.message_id, ack.lease_id, Verdict::Ack)
            .await?;
        Ok(Response::new(AckResponse {}))
    }

    async fn ack_batch(
        &self,
        request: Request<AckBatchRequest>,
    ) -> Result<Response<AckBatchResponse>, Status> {
        let AckBatchRequest { queue, lease_ids } = request.into_inner();
        let results = lease_ids.into_iter();
        let results = results.map(|lease| settlement(lease, Verdict::Ack));
        let refused = self.settle_all(&queue, results.collect()).await?;
        Ok(Response::new(AckBatchResponse { refused }))
    }

    async fn nack(&self, request: Request<NackRequest>) -> Result<Response<NackResponse>, Status> {
        let nack = request.into_inner();
        let verdict = nacked(nack.delay_ms, &nack.error);
        self.settle(&nack.queue, &nack.message_id, nack.lease_id, verdict)
            .await?;
        Ok(Response::new(NackResponse {}))
    }

    async fn nack_batch(
        &self,
        request: Request<NackBatchRequest>,
    ) -> Result<Response<NackBatchResponse>, Status> {
        let NackBatchRequest { queue, nacks } = request.into_inner();
        let results = nacks.into_iter();
        let results =
            results.map(|nack| settlement(nack.lease_id, nacked(nack.delay_ms, &nack.error)));
        let refused = self.settle_all(&queue, results.collect()).await?;
        Ok(Response::new(NackBatchResponse { refused }))
    }

    async fn extend(
        &self,
        request: Request<ExtendRequest>,
    ) -> Result<Response<ExtendResponse>, Status> {
        let extend = request.into_inner();
        let verdict = extend_by(extend.lease_ms);
        self.settle(&extend.queue, &extend.message_id, extend.lease_id, verdict)
            .await?;
        Ok(Response::new(ExtendResponse {}))
    }

    async fn extend_batch(
        &self,
        request: Request<ExtendBatchRequest>,
    ) -> Result<Response<ExtendBatchResponse>, Status> {
        let ExtendBatchRequest { queue, extensions } = request.into_inner();
        let results = extensions.into_iter();
        let results =
            results.map(|extension| settlement(extension.lease_id, extend_by(extension.lease_ms)));
        let refused = self.settle_all(&queue, results.collect()).await?;
        Ok(Response::new(ExtendBatchResponse { refused }))
    }

    async fn peek(&self, request: Request<PeekRequest>) -> Result<Response<PeekResponse>, Status> {
        let request = request.into_inner();
        let queue = self.handle.queue(&request.queue)?;
        let query = peek::parse(request, self.handle.key_separator(&queue))?;
        let peeked = self.handle.peek(&queue, query).await?;
        let now = self.handle.clock().now();
        Ok(Response::new(peek::response(queue.first(), now, peeked)))
    }
}
