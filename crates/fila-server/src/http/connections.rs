//! Accepts, serves and ends connections.
//!
//! Every socket gets `TCP_NODELAY`: without it a small answer waits 40 ms until the client acknowledges the one before
//! it. The server closes and counts connections beyond `limits.connections`.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::BoxError;
use axum::body::HttpBody;
use axum::response::Response;
use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{ServiceExt, service_fn};
use tracing::{debug, warn};

use super::Site;
use crate::grpc::is_streamed;
use crate::intake::{Receiving, Share, Windows, receive};
use crate::metrics::ConnectionCounts;

/// The most calls under way on one connection.
const STREAMS_MAX: u32 = 1_024;
/// How long a connection may be silent before the server pings it, and how long it has to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// How long the first byte of a connection and the headers of a request may take to arrive.
const HELLO_MAX: Duration = Duration::from_secs(10);
/// How long to wait when the system is out of sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The address of a request's client, as an extension of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress(pub(crate) SocketAddr);

/// The connections of one listener.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) site: Site,
    pub(crate) receiving: Arc<Receiving>,
    pub(crate) places: Arc<Semaphore>,
    pub(crate) counts: Arc<ConnectionCounts>,
    /// Cancelled to accept no more connections, and to end each connection after its calls.
    pub(crate) stop: CancellationToken,
    /// Cancelled to end connections at once.
    pub(crate) kill: CancellationToken,
}

impl Connections {
    /// Serves connections until `stop` is cancelled, and returns when all connections have ended.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let graceful = GracefulShutdown::new();
        let tasks = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.stop.cancelled() => break,
            };
            let (stream, client) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.pause_after(&error).await;
                    continue;
                }
            };
            let Ok(place) = self.places.clone().try_acquire_owned() else {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                drop(stream);
                continue;
            };
            if let Err(error) = stream.set_nodelay(true) {
                debug!(%error, "a connection closed before it was served");
                continue;
            }
            let (site, kill) = (self.site.clone(), self.kill.clone());
            let share = Arc::new(self.receiving.share());
            let (watcher, counts) = (graceful.watcher(), self.counts.clone());
            let stop = self.stop.clone();
            tasks.spawn(async move {
                let _place = place;
                let _counted = Counted::new(counts);
                // A connection that is still silent when the server stops is closed.
                tokio::select! {
                    speaks = speaks(&stream) => if !speaks { return },
                    () = stop.cancelled() => return,
                }
                let builder = builder(share.windows());
                let pages =
                    service_fn(move |request| answer(site.clone(), share.clone(), client, request));
                let service = TowerToHyperService::new(pages);
                let connection = builder
                    .serve_connection(TokioIo::new(stream), service)
                    .into_owned();
                let served = watcher.watch(connection);
                tokio::select! {
                    ended = served => if let Err(error) = ended {
                        debug!(%error, "a connection failed");
                    },
                    () = kill.cancelled() => {}
                }
            });
        }
        drop(listener);
        tasks.close();
        tokio::select! {
            () = graceful.shutdown() => {}
            () = self.kill.cancelled() => {}
        }
        tasks.wait().await;
    }

    /// Ignores connections that were reset before they were accepted. Pauses after other errors: a lack of sockets
    /// lasts, and the loop must not spin on it.
    async fn pause_after(&self, error: &io::Error) {
        let resets = [
            io::ErrorKind::ConnectionAborted,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::Interrupted,
        ];
        if !resets.contains(&error.kind()) {
            warn!(%error, "connections cannot be accepted; raise the limit on open files");
            sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// Answers a request, whose body counts against the budget meanwhile.
async fn answer<B>(
    site: Site,
    share: Arc<Share>,
    client: SocketAddr,
    request: http::Request<B>,
) -> Result<Response, Infallible>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let (request, _receipt) = receive(&share, is_streamed, request);
    site.router().oneshot(coming_from(client, request)).await
}

fn coming_from<B>(client: SocketAddr, mut request: http::Request<B>) -> http::Request<B> {
    request.extensions_mut().insert(ClientAddress(client));
    request
}

/// Waits for the first byte, so that silent connections do not count against `limits.connections` forever.
async fn speaks(stream: &TcpStream) -> bool {
    let mut first = [0];
    let peeked = timeout(HELLO_MAX, stream.peek(&mut first)).await;
    matches!(peeked, Ok(Ok(1)))
}

fn builder(windows: Windows) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HELLO_MAX)
        .max_buf_size(64 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .initial_stream_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .max_concurrent_streams(STREAMS_MAX)
        .max_frame_size(64 << 10)
        .max_send_buf_size(1 << 20);
    builder
}

/// Counts an open connection in the metrics until it is dropped.
struct Counted(Arc<ConnectionCounts>);

impl Counted {
    fn new(counts: Arc<ConnectionCounts>) -> Self {
        counts.open.fetch_add(1, Ordering::Relaxed);
        Self(counts)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[tokio::test]
    async fn connections_are_counted_that_were_there_before_anything_else() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::new(ConnectionCounts::default());
        let connections = Connections {
            site: Site::starting(),
            receiving: Arc::new(Receiving::new(1 << 20, 1 << 20)),
            places: Arc::new(Semaphore::new(10)),
            counts: counts.clone(),
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
        };
        let kill = connections.kill.clone().drop_guard();
        let stop = connections.stop.clone().drop_guard();
        let serving = tokio::spawn(connections.serve(listener));
        let _client = TcpStream::connect(address).await.unwrap();
        while counts.open.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        let metrics = Metrics::new();
        metrics.count_connections(counts);
        assert_eq!(metrics.connections(), 1);
        drop((stop, kill));
        serving.await.unwrap();
        assert_eq!(metrics.connections(), 0);
    }
}
