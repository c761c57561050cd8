//! Connections for which there is no place. A few of them at a time are told why, and the others are closed at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use fila_proto::v1::ErrorCode;
use http::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use tonic::Status;
use tonic::metadata::MetadataValue;
use tower::service_fn;

use super::places::NoPlace;
use super::site::is_grpc;
use crate::grpc::ERROR_METADATA;

/// The most connections that are told why at the same time.
const TOLD_MAX: usize = 64;

/// Tells clients that there is no place for their connections.
#[derive(Debug)]
pub(super) struct TurningAway(Arc<Semaphore>);

impl TurningAway {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(TOLD_MAX)))
    }

    /// Returns the work of telling a client, which takes `time` at most. None if too many are being told.
    pub(super) fn tell(
        &self,
        stream: TcpStream,
        why: NoPlace,
        builder: Builder<TokioExecutor>,
        time: Duration,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let permit = self.0.clone().try_acquire_owned().ok()?;
        Some(async move {
            let _permit = permit;
            // A client that is slower than this finds a closed connection.
            let _ = timeout(time, answer(stream, why, builder)).await;
        })
    }
}

/// Answers the first request, and ends the connection.
async fn answer(stream: TcpStream, why: NoPlace, builder: Builder<TokioExecutor>) {
    let answered = Arc::new(Notify::new());
    let service = service_fn({
        let answered = answered.clone();
        move |request: Request<_>| {
            answered.notify_one();
            let response = refuse(&request, why);
            async move { Ok::<_, Infallible>(response) }
        }
    });
    let service = TowerToHyperService::new(service);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = answered.notified() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

fn refuse<B>(request: &Request<B>, why: NoPlace) -> Response {
    if !is_grpc(request) {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response();
    }
    let mut status = Status::resource_exhausted(why.to_string());
    let code = MetadataValue::from_static(ErrorCode::TooManyConnections.name());
    status.metadata_mut().insert(ERROR_METADATA, code);
    status.into_http::<Body>()
}
