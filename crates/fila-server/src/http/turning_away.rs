//! Connections that the server does not serve: there is no place for them, or they lack TLS. A few of them at a time are
//! told why, and the others are closed at once.

use std::convert::Infallible;
use std::sync::Arc;

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

use super::connections::{ClientPatience, builder};
use super::places::NoPlace;
use super::site::is_grpc;
use crate::grpc::{ERROR_METADATA, status_code};
use crate::intake::Windows;

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
pub(super) struct TurningAway {
    told: Arc<Semaphore>,
    patience: ClientPatience,
}

impl TurningAway {
    pub(super) fn new(patience: ClientPatience) -> Self {
        Self {
            told: Arc::new(Semaphore::new(TOLD_MAX)),
            patience,
        }
    }

    /// Returns the work of telling a client, which takes a limited time. None if too many are being told.
    pub(super) fn tell(
        &self,
        stream: TcpStream,
        tls: Option<TlsAcceptor>,
        why: NoPlace,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let permit = self.told.clone().try_acquire_owned().ok()?;
        let patience = self.patience;
        Some(async move {
            let _permit = permit;
            match tls {
                None => turn_away(stream, why.into(), patience).await,
                Some(tls) => {
                    let accepting = timeout(patience.turned_away, tls.accept(stream));
                    // A client that cannot be told finds a closed connection.
                    if let Ok(Ok(stream)) = accepting.await {
                        turn_away(stream, why.into(), patience).await;
                    }
                }
            }
        })
    }
}

/// Answers the first request with the reason, and ends the connection. A client that is too slow finds it closed.
pub(super) async fn turn_away<S>(stream: S, why: Rejection, patience: ClientPatience)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let builder = builder(patience, Windows::SMALLEST);
    let _ = timeout(patience.turned_away, answer(stream, why, builder)).await;
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
