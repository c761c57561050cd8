//! A whole server: the broker and its port, and the order in which they start and stop.
//!
//! The port opens while the server still reads queues from the store, and answers that the server is starting. A
//! shutdown has five steps. The server is no longer ready. It accepts no connection and no call. It stores and answers
//! all accepted calls and ends the streams of consumers. It closes the store. When the time is over, it closes the
//! remaining connections.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fila_store::Engine;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};
use tracing::{error, info};

use crate::config::{Config, LimitsConfig, ServerConfig};
use crate::grpc::{self, SERVICES, Tracing};
use crate::http::{ClientPatience, Connections, IoThreads, Places, Site};
use crate::intake::Receiving;
use crate::metrics::ConnectionCounts;
use crate::runtime::{Handle, Runtime, StartError, State, Stopped};
use crate::tls::Tls;

/// The most connections that wait to be accepted, unless the system allows fewer. Clients beyond it try again after a
/// second.
const BACKLOG: u32 = 1_024;

/// How long connections may stay open after the last answer: some clients do not read, or watch health.
const CONNECTIONS_GRACE: Duration = Duration::from_secs(1);

/// A server in this process. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    probe_address: Option<SocketAddr>,
    tls: Option<Tls>,
    runtime: Option<Runtime>,
    handle: Handle,
    stop: CancellationToken,
    kill: CancellationToken,
    serving: Option<JoinHandle<()>>,
    shutdown_timeout: Duration,
}

impl Server {
    /// Starts a server, and returns when it is ready.
    ///
    /// # Errors
    /// If the address or the store cannot be used.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::start_with(config, Runtime::start).await
    }

    /// Starts a server on an open store.
    ///
    /// # Errors
    /// If the address or the store cannot be used.
    pub async fn start_on(config: Config, engine: impl Engine) -> Result<Self, StartError> {
        Self::start_with(config, |config| Runtime::start_on(engine, config)).await
    }

    async fn start_with(
        config: Config,
        start: impl FnOnce(&Config) -> Result<Runtime, StartError> + Send + 'static,
    ) -> Result<Self, StartError> {
        let ports = Ports::open(&config)?;
        // If the start fails, this closes the ports again.
        let guard = ports.kill.clone().drop_guard();

        let tracing = match config.telemetry.otlp_endpoint {
            Some(_) => Tracing::On,
            None => Tracing::Off,
        };
        let shutdown_timeout = config.server.shutdown_timeout;
        let has_metrics = config.server.probe_metrics;
        let started = tokio::task::spawn_blocking(move || start(&config)).await;
        let runtime = match started {
            Ok(started) => started?,
            Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
            Err(failed) => return Err(StartError::Thread(failed.into())),
        };
        let handle = runtime.handle();
        let (reporter, health) = health_reporter();
        let state = handle.state();
        report(&reporter, *state.borrow()).await;
        tokio::spawn(report_changes(reporter, state));
        ports.serve(&handle, grpc::routes(&handle, tracing, health), has_metrics);
        guard.disarm();
        info!(address = %ports.address, tls = ports.tls.is_some(), "serving");
        Ok(Self {
            address: ports.address,
            probe_address: ports.probe_address,
            tls: ports.tls,
            runtime: Some(runtime),
            handle,
            stop: ports.stop,
            kill: ports.kill,
            serving: Some(ports.serving),
            shutdown_timeout,
        })
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address on which it answers probes, if there is one.
    pub fn probe_address(&self) -> Option<SocketAddr> {
        self.probe_address
    }

    /// Returns its certificates, if it speaks TLS.
    pub fn tls(&self) -> Option<Tls> {
        self.tls.clone()
    }

    /// Returns a handle of its broker.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Stops the server. Stores and answers all accepted calls and closes the store, if the time is enough.
    pub async fn shutdown(mut self) -> Stopped {
        let deadline = Instant::now() + self.shutdown_timeout;
        info!(timeout = ?self.shutdown_timeout, "shutting down");
        let runtime = self.runtime.take();
        if let Some(runtime) = &runtime {
            runtime.refuse_calls();
        }
        self.stop.cancel();
        let timeout = self.shutdown_timeout;
        let stopped = tokio::task::spawn_blocking(move || match runtime {
            Some(runtime) => runtime.stop(timeout),
            None => Stopped::Complete,
        });
        let stopped = stopped.await.unwrap_or(Stopped::TimedOut);
        let left = deadline.saturating_duration_since(Instant::now());
        if let Some(mut serving) = self.serving.take() {
            let ended = tokio::time::timeout(left.min(CONNECTIONS_GRACE), &mut serving).await;
            if ended.is_err() {
                self.kill.cancel();
                if let Err(error) = serving.await {
                    error!(%error, "the task that serves the port has failed");
                }
            }
        }
        info!("shut down");
        stopped
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        self.kill.cancel();
    }
}

/// The ports of a server. They open before the store does, and answer that the server is starting.
struct Ports {
    address: SocketAddr,
    probe_address: Option<SocketAddr>,
    tls: Option<Tls>,
    site: Site,
    probe_site: Site,
    counts: Arc<ConnectionCounts>,
    receiving: Arc<Receiving>,
    stop: CancellationToken,
    kill: CancellationToken,
    serving: JoinHandle<()>,
}

impl Ports {
    fn open(config: &Config) -> Result<Self, StartError> {
        let tls = Tls::open(&config.tls)?;
        let (listener, address) = listen(config.server.address)?;
        let probe = config.server.probe_address.map(listen).transpose()?;
        let probe_address = probe.as_ref().map(|(_, address)| *address);
        let (site, probe_site) = (Site::starting(), Site::starting());
        let counts = Arc::new(ConnectionCounts::default());
        let receiving = receiving(&config.limits);
        let (stop, kill) = (CancellationToken::new(), CancellationToken::new());
        let connections = Connections {
            threads: io_threads(&config.server).map_err(StartError::Thread)?,
            site: site.clone(),
            tls: tls.clone(),
            receiving: receiving.clone(),
            places: Places::new(config.limits.connections.get()),
            patience: ClientPatience::default(),
            counts: counts.clone(),
            stop: stop.clone(),
            kill: kill.clone(),
        };
        let probes = match probe {
            None => None,
            Some((listener, _)) => {
                let connections = connections.for_probes(probe_site.clone());
                Some(connections.map_err(StartError::Thread)?.serve(listener))
            }
        };
        let serving = tokio::spawn(async move {
            match probes {
                None => connections.serve(listener).await,
                Some(probes) => drop(tokio::join!(connections.serve(listener), probes)),
            }
        });
        Ok(Self {
            address,
            probe_address,
            tls,
            site,
            probe_site,
            counts,
            receiving,
            stop,
            kill,
            serving,
        })
    }

    /// Serves the broker from now on, and has its metrics count connections.
    fn serve(&self, handle: &Handle, grpc: Routes, has_probe_metrics: bool) {
        handle.metrics().count_connections(self.counts.clone());
        handle.metrics().count_receiving(self.receiving.clone());
        if let Some(tls) = &self.tls {
            handle.metrics().count_tls(tls.clone());
            let (watch, stop) = (tls.clone().watch(), self.stop.clone());
            tokio::spawn(async move { stop.run_until_cancelled(watch).await });
        }
        self.site.open(handle.clone(), grpc);
        self.probe_site
            .open_to_probes(handle.clone(), has_probe_metrics);
    }
}

/// Runs a server until `shutdown` completes, then stops it in order. Calls `started` with it once it is ready.
///
/// If `shutdown` completes first, the start is given up.
///
/// # Errors
/// If the address or the store cannot be used.
pub async fn run(
    config: Config,
    started: impl FnOnce(&Server),
    shutdown: impl Future<Output = ()>,
) -> Result<Stopped, StartError> {
    let mut shutdown = std::pin::pin!(shutdown);
    let server = tokio::select! {
        server = Server::start(config) => server?,
        () = &mut shutdown => return Ok(Stopped::Complete),
    };
    started(&server);
    shutdown.await;
    Ok(server.shutdown().await)
}

/// Starts the threads of connections: one per core, unless the configuration says otherwise.
fn io_threads(config: &ServerConfig) -> io::Result<IoThreads> {
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = config.worker_threads.unwrap_or_else(cores);
    IoThreads::start(threads.get())
}

fn receiving(limits: &LimitsConfig) -> Arc<Receiving> {
    let budget = limits.receiving_bytes.bytes();
    Arc::new(Receiving::new(budget, grpc::request_bytes_max(limits)))
}

/// Opens a port, and returns its address.
fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let opened = bind(address).and_then(|listener| {
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    opened.map_err(|source| StartError::Listen { address, source })
}

/// Opens a port. Its options are those of [`TcpListener::bind`], but for the backlog.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn report_changes(reporter: HealthReporter, mut state: watch::Receiver<State>) {
    while state.changed().await.is_ok() {
        let now = *state.borrow_and_update();
        report(&reporter, now).await;
    }
}

async fn report(reporter: &HealthReporter, state: State) {
    let status = match state {
        State::Ready => ServingStatus::Serving,
        State::Starting | State::Failed | State::Stopping => ServingStatus::NotServing,
    };
    for service in SERVICES {
        reporter.set_service_status(service, status).await;
    }
}
