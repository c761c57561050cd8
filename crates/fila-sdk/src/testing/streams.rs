//! What doubles of a server have in common: of the service for messages they know the two streams, on which a client
//! sends and consumes, and no other call.

use std::pin::Pin;

use fila_proto::v1;
use fila_proto::v1::fila_service_server::FilaService;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

/// The responses of a double on a stream.
pub type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The answer of a double to a call.
pub type Answer<T> = Result<Response<T>, Status>;

/// A double that takes the streams of a client.
pub trait Streams: Send + Sync + 'static {
    /// Takes a stream of messages.
    fn produce(
        &self,
        request: Request<Streaming<v1::ProduceRequest>>,
    ) -> Answer<Responses<v1::ProduceResponse>>;

    /// Takes a stream of results, and delivers.
    fn work(
        &self,
        request: Request<Streaming<v1::WorkRequest>>,
    ) -> Answer<Responses<v1::WorkResponse>>;
}

/// Refuses a call that a double does not know.
pub(super) fn unknown<T>() -> Answer<T> {
    Err(Status::unimplemented("the double does not know this call"))
}

/// The service of such a double: every other call is refused.
#[derive(Clone, Debug)]
pub struct StreamsOnly<D>(pub D);

#[tonic::async_trait]
impl<D: Streams> FilaService for StreamsOnly<D> {
    type ProduceStream = Responses<v1::ProduceResponse>;
    type ConsumeStream = Responses<v1::ConsumeResponse>;
    type WorkStream = Responses<v1::WorkResponse>;

    async fn produce(
        &self,
        request: Request<Streaming<v1::ProduceRequest>>,
    ) -> Answer<Self::ProduceStream> {
        self.0.produce(request)
    }

    async fn work(&self, request: Request<Streaming<v1::WorkRequest>>) -> Answer<Self::WorkStream> {
        self.0.work(request)
    }

    async fn enqueue(&self, _: Request<v1::EnqueueRequest>) -> Answer<v1::EnqueueResponse> {
        unknown()
    }

    async fn enqueue_batch(
        &self,
        _: Request<v1::EnqueueBatchRequest>,
    ) -> Answer<v1::EnqueueBatchResponse> {
        unknown()
    }

    async fn consume(&self, _: Request<v1::ConsumeRequest>) -> Answer<Self::ConsumeStream> {
        unknown()
    }

    async fn peek(&self, _: Request<v1::PeekRequest>) -> Answer<v1::PeekResponse> {
        unknown()
    }

    async fn ack(&self, _: Request<v1::AckRequest>) -> Answer<v1::AckResponse> {
        unknown()
    }

    async fn ack_batch(&self, _: Request<v1::AckBatchRequest>) -> Answer<v1::AckBatchResponse> {
        unknown()
    }

    async fn nack(&self, _: Request<v1::NackRequest>) -> Answer<v1::NackResponse> {
        unknown()
    }

    async fn nack_batch(&self, _: Request<v1::NackBatchRequest>) -> Answer<v1::NackBatchResponse> {
        unknown()
    }

    async fn extend(&self, _: Request<v1::ExtendRequest>) -> Answer<v1::ExtendResponse> {
        unknown()
    }
}
