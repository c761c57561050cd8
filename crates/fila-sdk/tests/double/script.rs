//! A server that the test plays itself, word by word: for what no right server says, and for what one must be told.

use std::io;

use fila_proto::v1;
use fila_proto::v1::fila_service_server::FilaServiceServer;
use fila_sdk::testing::{Answer, Responses, Streams, StreamsOnly, client_over};
use fila_sdk::{Client, ClientBuilder};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

/// The server's ends of the streams that a client opens.
pub(crate) struct Script {
    produces: mpsc::UnboundedReceiver<Wire<v1::ProduceRequest, v1::ProduceResponse>>,
    works: mpsc::UnboundedReceiver<Wire<v1::WorkRequest, v1::WorkResponse>>,
}

/// The server's end of one stream. Dropping it ends the stream as if nothing were wrong.
pub(crate) struct Wire<Q, R> {
    requests: Streaming<Q>,
    responses: mpsc::UnboundedSender<Result<R, Status>>,
}

impl Script {
    pub(crate) fn new() -> (Self, Client) {
        Self::with(|client| client)
    }

    pub(crate) fn with(set: impl FnOnce(ClientBuilder) -> ClientBuilder) -> (Self, Client) {
        let (to_produces, produces) = mpsc::unbounded_channel();
        let (to_works, works) = mpsc::unbounded_channel();
        let (pipes, incoming) = mpsc::unbounded_channel::<io::Result<DuplexStream>>();
        let ends = Ends {
            produces: to_produces,
            works: to_works,
        };
        let serving = Server::builder()
            .add_service(FilaServiceServer::new(StreamsOnly(ends)))
            .serve_with_incoming(UnboundedReceiverStream::new(incoming));
        tokio::spawn(serving);
        let client = client_over(set(Client::builder("http://script")), move || {
            let (client, server) = duplex(1 << 20);
            pipes.send(Ok(server)).unwrap();
            Ok(client)
        });
        (Self { produces, works }, client)
    }

    /// Waits for a produce stream, and lets it have a window.
    pub(crate) async fn produce(&mut self) -> Wire<v1::ProduceRequest, v1::ProduceResponse> {
        self.produce_with(16_384).await
    }

    pub(crate) async fn produce_with(
        &mut self,
        window: u32,
    ) -> Wire<v1::ProduceRequest, v1::ProduceResponse> {
        let wire = self.produce_unopened().await;
        wire.say(v1::ProduceResponse {
            window,
            ..v1::ProduceResponse::default()
        });
        wire
    }

    /// Waits for a produce stream, and says nothing.
    pub(crate) async fn produce_unopened(
        &mut self,
    ) -> Wire<v1::ProduceRequest, v1::ProduceResponse> {
        self.produces.recv().await.unwrap()
    }

    /// Waits for a work stream.
    pub(crate) async fn work(&mut self) -> Wire<v1::WorkRequest, v1::WorkResponse> {
        self.works.recv().await.unwrap()
    }
}

impl<Q, R> Wire<Q, R> {
    /// Waits for what the client says next.
    pub(crate) async fn hear_next(&mut self) -> Q {
        self.requests.message().await.unwrap().unwrap()
    }

    /// Whether the client has hung up.
    pub(crate) async fn is_over(&mut self) -> bool {
        !matches!(self.requests.message().await, Ok(Some(_)))
    }

    pub(crate) fn say(&self, response: R) {
        self.responses.send(Ok(response)).unwrap();
    }

    /// Breaks the stream.
    pub(crate) fn fail(self, status: Status) {
        self.responses.send(Err(status)).unwrap();
    }
}

impl Wire<v1::ProduceRequest, v1::ProduceResponse> {
    /// Waits for what the client says next.
    pub(crate) async fn hear(&mut self) -> v1::ProduceRequest {
        self.hear_next().await
    }

    /// Stores all messages of a frame.
    pub(crate) fn store(&self, frame: &v1::ProduceRequest) {
        let stored = frame.messages.iter().map(|message| v1::EnqueueResult {
            message_id: String::from_utf8_lossy(&message.payload).into_owned(),
            ..v1::EnqueueResult::default()
        });
        self.say(v1::ProduceResponse {
            frame_id: frame.frame_id,
            results: stored.collect(),
            window: 0,
        });
    }

    /// Refuses all messages of a frame.
    pub(crate) fn refuse(&self, frame: &v1::ProduceRequest, code: v1::ErrorCode) {
        let refused = v1::EnqueueResult {
            error: Some(error(code)),
            ..v1::EnqueueResult::default()
        };
        self.say(v1::ProduceResponse {
            frame_id: frame.frame_id,
            results: vec![refused; frame.messages.len()],
            window: 0,
        });
    }
}

impl Wire<v1::WorkRequest, v1::WorkResponse> {
    /// Waits for what the client says next but for what it begins, which is confirmed.
    pub(crate) async fn hear(&mut self) -> v1::WorkRequest {
        loop {
            let mut said = self.hear_next().await;
            let begun = std::mem::take(&mut said.begun);
            if begun.is_empty() {
                return said;
            }
            self.confirm(&begun);
            if said != v1::WorkRequest::default() {
                return said;
            }
        }
    }

    /// Delivers a message whose consumers were lost before.
    pub(crate) fn deliver_lost(&self, lease_id: u64) {
        self.say(v1::WorkResponse {
            deliveries: vec![v1::Delivery {
                message_id: format!("message of {lease_id}"),
                lease_id,
                attempt: 1,
                lease_ms: 30_000,
                lost: 1,
                ..v1::Delivery::default()
            }],
            ..v1::WorkResponse::default()
        });
    }

    /// Delivers messages under these leases, each for 30 s.
    pub(crate) fn deliver(&self, leases: impl IntoIterator<Item = u64>) {
        let deliveries = leases.into_iter().map(|lease_id| v1::Delivery {
            message_id: format!("message of {lease_id}"),
            lease_id,
            attempt: 1,
            lease_ms: 30_000,
            ..v1::Delivery::default()
        });
        self.say(v1::WorkResponse {
            deliveries: deliveries.collect(),
            ..v1::WorkResponse::default()
        });
    }

    pub(crate) fn confirm(&self, leases: &[u64]) {
        self.say(v1::WorkResponse {
            confirmed: leases.to_vec(),
            ..v1::WorkResponse::default()
        });
    }

    pub(crate) fn refuse(&self, lease_id: u64, code: v1::ErrorCode) {
        let refused = v1::LeaseRefusal {
            lease_id,
            error: Some(error(code)),
        };
        self.say(v1::WorkResponse {
            refused: vec![refused],
            ..v1::WorkResponse::default()
        });
    }
}

pub(crate) fn error(code: v1::ErrorCode) -> v1::Error {
    v1::Error {
        code: code.into(),
        message: "the script says so".to_owned(),
        quota: None,
    }
}

/// A status as the server gives it to a stream that it refuses.
pub(crate) fn refusal(code: v1::ErrorCode) -> Status {
    let mut status = Status::failed_precondition("the script says so");
    let name = code.name().parse().unwrap();
    status.metadata_mut().insert("fila-error", name);
    status
}

/// A status as the network gives it to a stream that breaks.
pub(crate) fn cut() -> Status {
    Status::unavailable("the script cuts it")
}

struct Ends {
    produces: mpsc::UnboundedSender<Wire<v1::ProduceRequest, v1::ProduceResponse>>,
    works: mpsc::UnboundedSender<Wire<v1::WorkRequest, v1::WorkResponse>>,
}

fn open<Q, R: Send + 'static>(
    request: Request<Streaming<Q>>,
    wires: &mpsc::UnboundedSender<Wire<Q, R>>,
) -> Answer<Responses<R>> {
    let (responses, outgoing) = mpsc::unbounded_channel();
    let requests = request.into_inner();
    let wire = Wire {
        requests,
        responses,
    };
    match wires.send(wire) {
        Ok(()) => Ok(Response::new(Box::pin(UnboundedReceiverStream::new(
            outgoing,
        )))),
        Err(_) => Err(Status::unavailable("the script is over")),
    }
}

impl Streams for Ends {
    fn produce(
        &self,
        request: Request<Streaming<v1::ProduceRequest>>,
    ) -> Answer<Responses<v1::ProduceResponse>> {
        open(request, &self.produces)
    }

    fn work(
        &self,
        request: Request<Streaming<v1::WorkRequest>>,
    ) -> Answer<Responses<v1::WorkResponse>> {
        open(request, &self.works)
    }
}
