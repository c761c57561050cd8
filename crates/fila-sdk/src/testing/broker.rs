//! The handle of the test broker, and the pipe to it.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fila_proto::v1;
use fila_proto::v1::ErrorCode;
use fila_proto::v1::fila_admin_server::FilaAdminServer;
use fila_proto::v1::fila_service_server::FilaServiceServer;
use hyper_util::rt::TokioIo;
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;

use super::queue::TestQueue;
use super::service::Service;
use super::streams::StreamsOnly;
use crate::{Client, ClientBuilder, QueueSettings};

/// What is in the pipe at most.
const PIPE: usize = 1 << 20;

/// A broker inside the process that answers from memory and does as the test says.
///
/// It knows what a client needs: queues, fair turns by weight, leases, attempts, delays, deduplication, and a runtime
/// configuration that takes anything and acts on nothing. It does not know ordering, caps, times to live, limits, peeks and settings of keys, and keeps nothing. Cheap to clone; the clones
/// are one broker.
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

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) queues: BTreeMap<String, TestQueue>,
    /// The runtime configuration: values, and the versions at which they were set.
    pub(super) config: BTreeMap<String, (String, u64)>,
    pub(super) config_version: u64,
    pub(super) queues_ever: u64,
    pub(super) consumers_ever: u64,
    /// Frames that were taken in.
    pub(super) frames: u64,
    /// What the next messages are refused with.
    pub(super) refusals: Vec<ErrorCode>,
    pub(super) answers_to_lose: u32,
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
        let service = Service::new(shared.clone());
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

    /// Creates a queue.
    pub fn create_queue(&self, name: &str) {
        self.create_queue_with(name, &QueueSettings::new());
    }

    /// Creates a queue whose leases last as these settings say.
    pub fn create_queue_with(&self, name: &str, settings: &QueueSettings) {
        self.shared.state().create(name, settings.to_wire());
    }

    /// Returns how many messages a queue has; 0 if there is no such queue.
    pub fn depth(&self, queue: &str) -> u64 {
        self.stats(queue).depth
    }

    /// Returns how often messages of this queue were acknowledged.
    pub fn acked(&self, queue: &str) -> u64 {
        self.stats(queue).acked_total
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

    fn stats(&self, queue: &str) -> v1::QueueStats {
        let state = self.shared.state();
        let stats = state.queues.get(queue).and_then(|queue| queue.info().stats);
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

    /// Does something with the state, at this moment.
    pub(super) fn act<T>(&self, act: impl FnOnce(&mut State, Instant) -> T) -> T {
        let done = act(&mut self.state(), Instant::now());
        self.changed.notify_one();
        done
    }
}

impl State {
    pub(super) fn create(&mut self, name: &str, settings: v1::QueueSettings) {
        self.queues_ever += 1;
        let queue = TestQueue::new(name, self.queues_ever, settings);
        self.queues.insert(name.to_owned(), queue);
    }

    /// Takes a frame in. None if its answer is to get lost, with the connection.
    pub(super) fn take(
        &mut self,
        now: Instant,
        name: &str,
        batch: Option<v1::BatchId>,
        messages: Vec<v1::Message>,
    ) -> Option<Vec<v1::EnqueueResult>> {
        self.frames += 1;
        let count = messages.len();
        let results = if !self.refusals.is_empty() {
            let code = self.refusals.remove(0);
            refuse(code, "the test says so", count)
        } else if let Some(queue) = self.queues.get_mut(name) {
            queue.enqueue(now, batch, messages)
        } else {
            refuse(ErrorCode::QueueNotFound, &not_found(name), count)
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

fn refuse(code: ErrorCode, message: &str, count: usize) -> Vec<v1::EnqueueResult> {
    let result = v1::EnqueueResult {
        error: Some(v1::Error {
            code: code.into(),
            message: message.to_owned(),
        }),
        ..v1::EnqueueResult::default()
    };
    vec![result; count]
}

pub(super) fn not_found(queue: &str) -> String {
    format!("queue `{queue}` does not exist; create it in the test")
}

/// Lets leases end and delayed messages come when their time is there.
async fn keep_time(shared: Arc<SharedBroker>) {
    loop {
        let now = Instant::now();
        let next = {
            let mut state = shared.state();
            let moments = state.queues.values_mut().filter_map(|queue| {
                queue.pass(now);
                queue.next_moment()
            });
            moments.min()
        };
        // Far enough for a test without moments.
        let next = next.unwrap_or_else(|| now + Duration::from_secs(24 * 60 * 60));
        tokio::select! {
            () = sleep_until(next) => {}
            () = shared.changed.notified() => {}
        }
    }
}
