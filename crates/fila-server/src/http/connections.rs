//! Accepts, serves and ends connections. Each is served by one of the [`IoThreads`].
//!
//! Every socket gets `TCP_NODELAY`: without it a small answer waits 40 ms until the client acknowledges the one before
//! it. The server turns away and counts connections beyond `limits.connections`. A client that takes too long loses its
//! connection: see [`ClientPatience`].

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
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{ServiceExt, service_fn};
use tracing::{debug, warn};

use super::Site;
use super::complaints::{Complaint, Complaints};
use super::io_threads::IoThreads;
use super::outbox::Outbox;
use super::places::Places;
use super::socket::{Seen, Socket};
use super::turning_away::{Rejection, TurningAway, turn_away};
use crate::grpc::is_streamed;
use crate::intake::{Receiving, Share, Windows, receive};
use crate::metrics::ConnectionCounts;
use crate::tls::Tls;

/// The most calls under way on one connection.
const STREAMS_MAX: u32 = 1_024;
/// The most bytes of one response that wait in HTTP/2 for its client.
const SEND_BUFFER: usize = 256 << 10;
/// The most bytes of the headers of one request.
const HEADERS_MAX: u32 = 16 << 10;
/// The most streams that a client has reset and the server has not noticed yet. Beyond it the connection is closed.
const RESETS_MAX: usize = 64;
/// The bytes with which every HTTP/2 connection begins.
const PREFACE: usize = 24;
/// The first byte of a connection that begins with a TLS handshake.
const HANDSHAKE: u8 = 0x16;
/// The most TLS handshakes under way. The addresses of clients share them, as they share connections.
const HANDSHAKES_MAX: usize = 2_048;
/// The most connections of probes.
const PROBES_MAX: usize = 64;
/// How long to wait when the system is out of sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The address of a request's client, as an extension of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddress(pub(crate) SocketAddr);

/// How long the server waits for clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientPatience {
    /// For the first bytes of a connection, its TLS handshake included, and for the headers of a request over HTTP/1.
    pub(crate) hello: Duration,
    /// For the answer to a ping, which the server sends after as long a silence. Headers over HTTP/2 that do not end are
    /// silence.
    pub(crate) ping: Duration,
    /// For a client that reads nothing while the server has something for it.
    pub(crate) read: Duration,
    /// For a connection that sends none of its deliveries while others wait for the room that they take.
    pub(crate) crowded: Duration,
    /// For the request of a connection that has no place.
    pub(crate) turned_away: Duration,
}

impl Default for ClientPatience {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(10),
            ping: Duration::from_secs(20),
            read: Duration::from_secs(30),
            crowded: Duration::from_secs(5),
            turned_away: Duration::from_secs(1),
        }
    }
}

/// The connections of one listener.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) threads: IoThreads,
    pub(crate) site: Site,
    /// None for connections without TLS.
    pub(crate) tls: Option<Tls>,
    pub(crate) receiving: Arc<Receiving>,
    pub(crate) places: Arc<Places>,
    pub(crate) patience: ClientPatience,
    pub(crate) counts: Arc<ConnectionCounts>,
    /// Cancelled to accept no more connections, and to end each connection after its calls.
    pub(crate) stop: CancellationToken,
    /// Cancelled to end connections at once.
    pub(crate) kill: CancellationToken,
}

impl Connections {
    /// Returns connections for probes: a few, without TLS, beside the others.
    ///
    /// # Errors
    /// If their thread cannot be started.
    pub(crate) fn for_probes(&self, site: Site) -> io::Result<Self> {
        Ok(Self {
            threads: IoThreads::start(1)?,
            site,
            tls: None,
            receiving: self.receiving.clone(),
            places: Places::new(PROBES_MAX),
            patience: self.patience,
            counts: Arc::default(),
            stop: self.stop.clone(),
            kill: self.kill.clone(),
        })
    }

    /// Serves connections until `stop` is cancelled, and returns when all connections have ended.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let graceful = GracefulShutdown::new();
        let tasks = TaskTracker::new();
        let turning_away = TurningAway::new(self.patience);
        let handshakes = Places::new(HANDSHAKES_MAX);
        let complaints = Arc::new(Complaints::new(self.counts.clone()));
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
            let place = match self.places.take(client.ip()) {
                Ok(place) => place,
                Err(why) => {
                    complaints.add(client, Complaint::TurnedAway(why));
                    let tls = self.tls.as_ref().map(Tls::acceptor);
                    if let Some(telling) = turning_away.tell(stream, tls, why) {
                        tasks.spawn(telling);
                    }
                    continue;
                }
            };
            let prepared = stream.set_nodelay(true).and_then(|()| stream.into_std());
            let stream = match prepared {
                Ok(stream) => stream,
                Err(error) => {
                    debug!(%error, "a connection closed before it was served");
                    continue;
                }
            };
            let thread = self.threads.choose();
            let handle = thread.handle.clone();
            let connection = self.connection(client, handshakes.clone());
            let watcher = graceful.watcher();
            let (counts, complaints) = (self.counts.clone(), complaints.clone());
            let serving = async move {
                let _held = (place, thread, Counted::new(counts));
                if let Some(complaint) = connection.serve(stream, watcher).await {
                    complaints.add(client, complaint);
                }
            };
            tasks.spawn_on(serving, &handle);
        }
        drop(listener);
        tasks.close();
        tokio::select! {
            () = graceful.shutdown() => {}
            () = self.kill.cancelled() => {}
        }
        tasks.wait().await;
    }

    fn connection(&self, client: SocketAddr, handshakes: Arc<Places>) -> Connection {
        Connection {
            client,
            tls: self.tls.clone(),
            handshakes,
            site: self.site.clone(),
            share: Arc::new(self.receiving.share()),
            patience: self.patience,
            stop: self.stop.clone(),
            kill: self.kill.clone(),
        }
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

/// One connection.
struct Connection {
    client: SocketAddr,
    tls: Option<Tls>,
    /// Places for TLS handshakes.
    handshakes: Arc<Places>,
    site: Site,
    share: Arc<Share>,
    patience: ClientPatience,
    stop: CancellationToken,
    kill: CancellationToken,
}

impl Connection {
    /// Serves it until it ends, and returns whether the server has a complaint about its client.
    async fn serve(self, stream: std::net::TcpStream, watcher: Watcher) -> Option<Complaint> {
        // The thread that serves a connection also waits for its socket.
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => {
                warn!(%error, "a connection cannot be served");
                return None;
            }
        };
        let hello_ends = Instant::now() + self.patience.hello;
        // A connection that is still silent when the server stops is closed.
        let first = tokio::select! {
            first = first_byte(&stream) => first?,
            () = sleep_until(hello_ends) => return Some(Complaint::Silent),
            () = self.stop.cancelled() => return None,
        };
        match &self.tls {
            None => self.serve_http(stream, hello_ends, watcher).await,
            Some(tls) if first == HANDSHAKE => {
                let Ok(handshake) = self.handshakes.take(self.client.ip()) else {
                    let why = "too many handshakes of this address are under way";
                    return Some(Complaint::Handshake(why.to_owned()));
                };
                let accepted = tokio::select! {
                    accepted = tls.acceptor().accept(stream) => accepted,
                    () = sleep_until(hello_ends) => return Some(Complaint::Silent),
                    () = self.stop.cancelled() => return None,
                };
                drop(handshake);
                match accepted {
                    Ok(stream) => self.serve_http(stream, hello_ends, watcher).await,
                    Err(error) => Some(Complaint::Handshake(error.to_string())),
                }
            }
            Some(_) => {
                turn_away(stream, Rejection::Plaintext, self.patience).await;
                Some(Complaint::Plaintext)
            }
        }
    }

    /// Serves requests until the connection ends.
    async fn serve_http<S>(
        self,
        stream: S,
        hello_ends: Instant,
        watcher: Watcher,
    ) -> Option<Complaint>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let socket = Socket::new(stream, self.patience.read);
        let seen = socket.seen();
        let outbox = Outbox::default();
        let pages = service_fn({
            let (site, share) = (self.site.clone(), self.share.clone());
            let (client, outbox) = (self.client, outbox.clone());
            move |request| {
                let request = coming_from(client, &outbox, request);
                answer(site.clone(), share.clone(), request)
            }
        });
        let service = TowerToHyperService::new(pages);
        let connection = builder(self.patience, self.share.windows())
            .serve_connection(TokioIo::new(socket), service)
            .into_owned();
        let served = watcher.watch(connection);
        let is_crowded = || self.site.is_crowded();
        tokio::select! {
            ended = served => ended.err().and_then(|error| judge(&*error, &seen)),
            () = lacks_hello(&seen, hello_ends) => Some(Complaint::Silent),
            () = outbox.holds_up(self.patience.crowded, is_crowded) => Some(Complaint::Unread),
            () = self.kill.cancelled() => None,
        }
    }
}

/// Answers a request, whose body counts against the budget meanwhile.
async fn answer<B>(
    site: Site,
    share: Arc<Share>,
    request: http::Request<B>,
) -> Result<Response, Infallible>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let (request, _receipt) = receive(&share, is_streamed, request);
    site.router().oneshot(request).await
}

fn coming_from<B>(
    client: SocketAddr,
    outbox: &Outbox,
    mut request: http::Request<B>,
) -> http::Request<B> {
    request.extensions_mut().insert(ClientAddress(client));
    request.extensions_mut().insert(outbox.clone());
    request
}

/// Waits for the first byte, and leaves it where it is. None if there is none.
async fn first_byte(stream: &TcpStream) -> Option<u8> {
    let mut first = [0];
    let peeked = stream.peek(&mut first).await;
    matches!(peeked, Ok(1)).then_some(first[0])
}

/// Ends when a client has had the time for the first bytes of a connection and has sent fewer. Over HTTP/1 the limit on the
/// time of headers follows.
async fn lacks_hello(seen: &Seen, ends: Instant) {
    sleep_until(ends).await;
    if seen.received() >= PREFACE {
        std::future::pending().await
    }
}

/// Tells whether the server complains about the end of a connection.
fn judge(error: &(dyn std::error::Error + 'static), seen: &Seen) -> Option<Complaint> {
    if seen.is_unread() {
        return Some(Complaint::Unread);
    }
    debug!(%error, "a connection failed");
    let error = error.downcast_ref::<hyper::Error>()?;
    error.is_timeout().then_some(Complaint::Unresponsive)
}

pub(super) fn builder(patience: ClientPatience, windows: Windows) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.hello)
        .max_buf_size(64 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(patience.ping)
        .keep_alive_timeout(patience.ping)
        .initial_stream_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .max_concurrent_streams(STREAMS_MAX)
        .max_frame_size(64 << 10)
        .max_header_list_size(HEADERS_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(RESETS_MAX)
        .max_send_buf_size(SEND_BUFFER);
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
mod tests;
