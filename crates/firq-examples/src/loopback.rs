//! A server and a client on this machine, for the examples that use HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::BoxError;

/// An application that listens on a port of loopback.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Server {
    /// Serves an application on a port that is free.
    ///
    /// # Errors
    /// If there is no such port.
    pub async fn start(app: Router) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = axum::serve(listener, app).with_graceful_shutdown(async {
            let _ = stopped.await; // a drop of the sender also stops the server
        });
        Ok(Self {
            address,
            stop,
            serving: tokio::spawn(serving.into_future()),
        })
    }

    /// Returns the address of the server.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, and waits until the open ones have ended.
    ///
    /// # Errors
    /// If serving failed.
    pub async fn stop(self) -> Result<(), BoxError> {
        let _ = self.stop.send(()); // fails only if the server has ended already
        Ok(self.serving.await??)
    }
}

/// A client of one server, which keeps its connections open as applications do.
#[derive(Clone, Debug)]
pub struct Client {
    inner: legacy::Client<HttpConnector, Body>,
    address: SocketAddr,
}

/// The answer of a server.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub text: String,
}

impl Reply {
    /// Returns how long the server asks the client to wait before it tries again.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.headers.get(RETRY_AFTER)?.to_str().ok()?;
        Some(Duration::from_secs(seconds.parse().ok()?))
    }
}

impl Client {
    /// Returns a client of the server that listens at an address.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        let inner = legacy::Client::builder(TokioExecutor::new()).build_http();
        Self { inner, address }
    }

    /// Gets a path, with one additional header.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn get(&self, path: &str, (name, value): (&str, &str)) -> Result<Reply, BoxError> {
        let request = Request::get(format!("http://{}{path}", self.address))
            .header(name, value)
            .body(Body::empty())?;
        let (head, body) = self.inner.request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Reply {
            status: head.status,
            headers: head.headers,
            text: String::from_utf8_lossy(&body).into_owned(),
        })
    }
}
