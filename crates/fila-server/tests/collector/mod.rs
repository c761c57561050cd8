//! A collector of traces that hands on what it is sent.

use std::net::SocketAddr;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    pub(crate) received: mpsc::UnboundedReceiver<ExportTraceServiceRequest>,
    pub(crate) task: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Collector {
    /// Starts one on a free port.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, received) = mpsc::unbounded_channel();
        let server = Server::builder()
            .add_service(TraceServiceServer::new(Relay(sender)))
            .serve_with_incoming(TcpListenerStream::new(listener));
        Self {
            address,
            received,
            task: tokio::spawn(server),
        }
    }
}

struct Relay(mpsc::UnboundedSender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Relay {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.send(request.into_inner()).unwrap();
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
