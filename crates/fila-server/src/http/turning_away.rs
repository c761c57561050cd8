//! Connections that the server does not serve: there is no place for them, or they lack TLS. A few of them at a time are
//! told why, and the others are closed at once.

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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tonic::Status;
use tonic::metadata::MetadataValue;
use tower::service_fn;

use super::places::NoPlace;
use super::site::is_grpc;
use crate::grpc::{ERROR_METADATA, status_code};

/// The most connections that are told why at the same time.
const TOLD_MAX: usize = 64;

/// Why a connection is not served.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum Rejection {
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    #[error("this port speaks TLS; connect to it with `https://`")]
    Plaintext,
}

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
        tls: Option<TlsAcceptor>,
        why: NoPlace,
        builder: Builder<TokioExecutor>,
        time: Duration,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let permit = self.0.clone().try_acquire_owned().ok()?;
        Some(async move {
            let _permit = permit;
            let answered = async {
                match tls {
                    None => answer(stream, why.into(), builder).await,
                    Some(tls) => {
                        // A client that cannot be told finds a closed connection.
                        if let Ok(stream) = tls.accept(stream).await {
                            answer(stream, why.into(), builder).await;
                        }
                    }
                }
            };
            // So does a slower one.
            let _ = timeout(time, answered).await;
        })
    }
}

/// Answers the first request with the reason, and ends the connection, which takes `time` at most.
pub(super) async fn turn_away(
    stream: TcpStream,
    why: Rejection,
    builder: Builder<TokioExecutor>,
    time: Duration,
) {
    let _ = timeout(time, answer(stream, why, builder)).await;
}

async fn answer<S>(stream: S, why: Rejection, builder: Builder<TokioExecutor>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
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

fn refuse<B>(request: &Request<B>, why: Rejection) -> Response {
    let (http, code) = match why {
        Rejection::NoPlace(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::TooManyConnections,
        ),
        Rejection::Plaintext => (StatusCode::BAD_REQUEST, ErrorCode::TlsRequired),
    };
    if !is_grpc(request) {
        return (http, format!("{why}\n")).into_response();
    }
    let mut status = Status::new(status_code(code), why.to_string());
    let code = MetadataValue::from_static(code.name());
    status.metadata_mut().insert(ERROR_METADATA, code);
    status.into_http::<Body>()
}
