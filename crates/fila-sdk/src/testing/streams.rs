//! What doubles of a server have in common: of the service for messages they know the two streams, on which a client
//! sends and consumes, and perhaps the calls of a client that keeps no stream.

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

    /// Takes a call for messages. A double that only knows streams refuses it.
    fn receive(
        &self,
        _: v1::ReceiveRequest,
    ) -> impl Future<Output = Answer<v1::ReceiveResponse>> + Send {
        std::future::ready(unknown())
    }

    /// Takes the results of a call for a queue, and returns those that it refuses. A double that only knows streams
    /// refuses the call.
    fn settle(&self, _queue: &str, _: v1::WorkRequest) -> Result<Vec<v1::LeaseRefusal>, Status> {
        unknown().map(Response::into_inner)
    }
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

    async fn ack_batch(
        &self,
        request: Request<v1::AckBatchRequest>,
    ) -> Answer<v1::AckBatchResponse> {
        let v1::AckBatchRequest { queue, lease_ids } = request.into_inner();
        let results = v1::WorkRequest {
            acks: lease_ids,
            ..v1::WorkRequest::default()
        };
        let refused = self.0.settle(&queue, results)?;
        Ok(Response::new(v1::AckBatchResponse { refused }))
    }

    async fn nack(&self, _: Request<v1::NackRequest>) -> Answer<v1::NackResponse> {
        unknown()
    }

    async fn nack_batch(
        &self,
        request: Request<v1::NackBatchRequest>,
    ) -> Answer<v1::NackBatchResponse> {
        let v1::NackBatchRequest { queue, nacks } = request.into_inner();
        let results = v1::WorkRequest {
            nacks,
            ..v1::WorkRequest::default()
        };
        let refused = self.0.settle(&queue, results)?;
        Ok(Response::new(v1::NackBatchResponse { refused }))
    }

    async fn extend(&self, _: Request<v1::ExtendRequest>) -> Answer<v1::ExtendResponse> {
        unknown()
    }

    async fn receive(&self, request: Request<v1::ReceiveRequest>) -> Answer<v1::ReceiveResponse> {
        self.0.receive(request.into_inner()).await
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Answer<v1::ReleaseResponse> {
        let v1::ReleaseRequest { queue, lease_ids } = request.into_inner();
        let results = v1::WorkRequest {
            releases: lease_ids,
            ..v1::WorkRequest::default()
        };
        let refused = self.0.settle(&queue, results)?;
        Ok(Response::new(v1::ReleaseResponse { refused }))
    }

    async fn extend_batch(
        &self,
        request: Request<v1::ExtendBatchRequest>,
    ) -> Answer<v1::ExtendBatchResponse> {
        let v1::ExtendBatchRequest { queue, extensions } = request.into_inner();
        let results = v1::WorkRequest {
            extensions,
            ..v1::WorkRequest::default()
        };
        let refused = self.0.settle(&queue, results)?;
        Ok(Response::new(v1::ExtendBatchResponse { refused }))
    }
}
