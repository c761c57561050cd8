//! The handle of the test broker, and the pipe to it.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fila_core::QueueStats;
use fila_proto::v1;
use fila_proto::v1::ErrorCode;
use fila_proto::v1::fila_admin_server::FilaAdminServer;
use fila_proto::v1::fila_service_server::FilaServiceServer;
use hyper_util::rt::TokioIo;
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;

use super::queues::Queues;
use super::service::Service;
use super::streams::StreamsOnly;
use super::wire;
use crate::moment::FAR;
use crate::{Client, ClientBuilder, QueueSettings};

/// The most bytes that a pipe between client and broker holds.
const PIPE: usize = 1 << 20;

/// A broker inside the process that answers from memory and does as the test says.
///
/// Its queues are those of the server: the same code decides on turns, leases, attempts, delays, times to live,
/// deduplication and dead letters. Three things differ. A queue whose settings name no backoff retries at once. A time may
/// be of any length. The runtime configuration takes anything and acts on nothing, so no throttle holds a message.
/// The broker does not know hooks, charges, histories, peeks, redrives and settings of keys, and keeps nothing. Cheap to
/// clone; the clones are one broker.
#[derive(Clone)]
pub struct Broker {
    shared: Arc<SharedBroker>,
    pipes: mpsc::UnboundedSender<io::Result<DuplexStream>>,
}

pub(super) struct SharedBroker {
    state: Mutex<State>,
    /// Something has changed that the clock should know.
    changed: Notify,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) queues: Queues,
    /// The runtime configuration, by its keys.
    pub(super) config: BTreeMap<String, v1::ConfigEntry>,
    pub(super) config_version: u64,
    /// Frames that were taken in.
    frames: u64,
    /// The codes with which the broker refuses the next messages.
    refusals: Vec<ErrorCode>,
    answers_to_lose: u32,
    is_away: bool,
    connections: Vec<AbortHandle>,
}

impl Broker {
    /// Starts a broker without queues. Must be called within a Tokio runtime; it ends with it.
    pub fn new() -> Self {
        let shared = Arc::new(SharedBroker {
            state: Mutex::default(),
            changed: Notify::new(),
        });
        let (pipes, incoming) = mpsc::unbounded_channel();
        let service = Service(shared.clone());
        let serving = Server::builder()
            .add_service(
                FilaServiceServer::new(StreamsOnly(service.clone()))
                    .max_decoding_message_size(64 << 20),
            )
            .add_service(FilaAdminServer::new(service))
            .serve_with_incoming(UnboundedReceiverStream::new(incoming));
        tokio::spawn(serving);
        tokio::spawn(keep_time(shared.clone()));
        Self { shared, pipes }
    }

    /// Returns a client of this broker with its defaults.
    pub fn client(&self) -> Client {
        self.client_with(|client| client)
    }

    /// Returns a client of this broker with settings of its own.
    pub fn client_with(&self, set: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Client {
        let broker = self.clone();
        client_over(set(Client::builder("http://testing")), move || {
            broker.connect()
        })
    }

    /// Creates a queue, and the queue of its dead letters, which has `.dlq` after its name.
    ///
    /// # Panics
    /// If there is such a queue, or the name is none for a queue.
    pub fn create_queue(&self, name: &str) {
        self.create_queue_with(name, &QueueSettings::new());
    }

    /// As [`create_queue`](Self::create_queue), with settings.
    ///
    /// # Panics
    /// If there is such a queue, the name is none for a queue, or a setting is not allowed.
    pub fn create_queue_with(&self, name: &str, settings: &QueueSettings) {
        let created = self
            .shared
            .act(|state| state.queues.create(name, settings.to_wire()));
        created.expect("the name is new and good for a queue, and so are the settings");
    }

    /// Returns how many messages a queue has; 0 if there is no such queue.
    pub fn depth(&self, queue: &str) -> u64 {
        self.stats(queue).depth()
    }

    /// Returns how often messages of this queue were acknowledged.
    pub fn acked(&self, queue: &str) -> u64 {
        self.stats(queue).totals.acked
    }

    /// Returns how many frames of messages have come in, however many messages each had.
    pub fn frames(&self) -> u64 {
        self.shared.state().frames
    }

    /// Breaks all connections. Clients come back.
    pub fn cut(&self) {
        for connection in self.shared.state().connections.drain(..) {
            connection.abort();
        }
    }

    /// Breaks all connections and takes no new ones.
    pub fn go_away(&self) {
        self.shared.state().is_away = true;
        self.cut();
    }

    /// Takes connections again.
    pub fn come_back(&self) {
        self.shared.state().is_away = false;
    }

    /// Breaks the connection instead of answering the next frame of messages, which is stored.
    pub fn lose_answer(&self) {
        self.shared.state().answers_to_lose += 1;
    }

    /// Refuses the next message with this code.
    pub fn refuse(&self, code: ErrorCode) {
        self.shared.state().refusals.push(code);
    }

    fn stats(&self, queue: &str) -> QueueStats {
        let stats = self.shared.state().queues.stats(queue);
        stats.unwrap_or_default()
    }

    fn connect(&self) -> io::Result<DuplexStream> {
        let mut state = self.shared.state();
        if state.is_away {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (client, mut near) = duplex(PIPE);
        let (mut far, server) = duplex(PIPE);
        let copying = tokio::spawn(async move {
            // Ends with either side, or when it is cut.
            let _ = copy_bidirectional(&mut near, &mut far).await;
        });
        state.connections.push(copying.abort_handle());
        let served = self.pipes.send(Ok(server));
        served.map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(client)
    }
}

/// Returns a client that is given its pipes to the server one by one: for tests that play the server themselves.
///
/// # Panics
/// If the address is none.
#[doc(hidden)]
pub fn client_over(
    builder: ClientBuilder,
    connect: impl Fn() -> io::Result<DuplexStream> + Send + 'static,
) -> Client {
    let endpoint = builder.endpoint().expect("the address is one");
    let connector = tower::service_fn(move |_| {
        let connected = connect().map(TokioIo::new);
        async move { connected }
    });
    builder.over(endpoint.connect_with_connector_lazy(connector))
}

impl Default for Broker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").finish_non_exhaustive()
    }
}

impl SharedBroker {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the state, and lets the clock know.
    pub(super) fn act<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let done = act(&mut self.state());
        self.changed.notify_one();
        done
    }
}

impl State {
    /// Takes a frame in. None if its answer is to get lost, with the connection.
    pub(super) fn take(
        &mut self,
        name: &str,
        batch: Option<&v1::BatchId>,
        messages: &[v1::Message],
    ) -> Option<Vec<v1::EnqueueResult>> {
        self.frames += 1;
        let results = if self.refusals.is_empty() {
            self.queues.enqueue(name, batch, messages)
        } else {
            let code = self.refusals.remove(0);
            let refused = wire::not_enqueued(code, &"the test says so");
            vec![refused; messages.len()]
        };
        if self.answers_to_lose > 0 {
            self.answers_to_lose -= 1;
            for connection in self.connections.drain(..) {
                connection.abort();
            }
            return None;
        }
        Some(results)
    }
}

/// Lets leases end and delayed messages come when their time is there.
async fn keep_time(shared: Arc<SharedBroker>) {
    loop {
        let idle = {
            let queues = &mut shared.state().queues;
            queues.run();
            queues.idle_time()
        };
        // A day is far enough for a test in which nothing happens by itself.
        let idle = idle.unwrap_or(Duration::from_secs(24 * 60 * 60));
        tokio::select! {
            () = sleep(idle.min(FAR)) => {}
            () = shared.changed.notified() => {}
        }
    }
}
