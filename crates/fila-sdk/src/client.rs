//! The connection to a server.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fila_proto::v1::fila_service_client::FilaServiceClient;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

use crate::backoff::Backoff;
use crate::error::{Broken, Refusal, describe};
use crate::moment::after;
use crate::probe::probe;
use crate::producer::Producer;
use crate::settings::Settings;
use crate::tls::{TlsIdentity, TlsOptions};
use crate::tls_fault::TlsFault;
use crate::{Admin, Error, Queue};

/// The largest frame that the client reads. It exceeds the largest message that a server can send.
pub(crate) const FRAME_MAX: usize = 256 << 20;

/// How often the client pings a silent connection, and how long the server may take to answer. The client notices a
/// lost server after the sum of both.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a Fila server. Cheap to clone; clones share the connection and its buffers.
///
/// It reconnects by itself: when the connection breaks or the server restarts, the client opens the connection again,
/// with growing waits. It sends unconfirmed messages again, and the server stores each of them once. Consumers
/// subscribe again.
///
/// # Cancel safety
/// Any future of this crate can be dropped at any time: it leaves no lock, no place in a buffer and no waiting task
/// behind. The documentation of each call says what a drop leaves open.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    channel: Channel,
    options: Options,
    producer: OnceLock<Producer>,
}

/// The settings of a client.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) address: Arc<str>,
    pub(crate) connect_timeout: Duration,
    pub(crate) deadline: Duration,
    pub(crate) buffer_bytes: usize,
    pub(crate) backoff_first: Duration,
    pub(crate) backoff_longest: Duration,
    pub(crate) tls: TlsOptions,
}

/// Builds a [`Client`]. From [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    options: Options,
}

impl Client {
    /// Connects to the server at this address, as `http://127.0.0.1:5555` or `127.0.0.1:5555`, or with TLS as
    /// `https://broker.example:5555`.
    ///
    /// # Errors
    /// If the address is not valid, no server answers there, or the client does not trust it.
    pub async fn connect(address: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(address).connect().await
    }

    /// Connects to the server that the environment and its profile name; without them, to `http://127.0.0.1:5555`.
    /// [`Settings::from_env`] says what it reads.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), fila_sdk::Error> {
    /// // FILA_ADDR=https://broker.example:5555 FILA_CA_FILE=ca.pem
    /// let client = fila_sdk::Client::from_env().await?;
    /// client.queue("orders").send("7").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the settings cannot be used, no server answers, or the client does not trust it.
    pub async fn from_env() -> Result<Self, Error> {
        Settings::from_env()?.builder()?.connect().await
    }

    /// Begins to build a client with its own settings. See [`connect`](Self::connect) for the address.
    pub fn builder(address: impl AsRef<str>) -> ClientBuilder {
        let address = address.as_ref();
        let address = if address.contains("://") {
            address.into()
        } else {
            format!("http://{address}").into()
        };
        ClientBuilder {
            options: Options {
                address,
                connect_timeout: Duration::from_secs(5),
                deadline: Duration::from_secs(30),
                buffer_bytes: 32 << 20,
                backoff_first: Duration::from_millis(50),
                backoff_longest: Duration::from_secs(2),
                tls: TlsOptions::default(),
            },
        }
    }

    /// Returns a handle to send to the queue of this name and to consume from it. The server checks whether the queue
    /// exists when the handle is used.
    pub fn queue(&self, name: impl Into<String>) -> Queue {
        Queue::new(self.clone(), name.into().into())
    }

    /// Returns the calls of an operator.
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// Returns the address of the server.
    pub fn address(&self) -> &str {
        &self.shared.options.address
    }

    /// Waits until the server has confirmed or refused all messages that were sent before, or their deadline has
    /// passed.
    ///
    /// A program that awaits every `send` needs no flush. A program that drops some of these futures calls it before it
    /// ends.
    pub async fn flush(&self) {
        if let Some(producer) = self.shared.producer.get() {
            producer.flush().await;
        }
    }

    pub(crate) fn channel(&self) -> Channel {
        self.shared.channel.clone()
    }

    pub(crate) fn options(&self) -> &Options {
        &self.shared.options
    }

    pub(crate) fn service(&self) -> FilaServiceClient<Channel> {
        service(self.channel())
    }

    /// Returns the one stream that carries all messages of this client.
    pub(crate) fn producer(&self) -> &Producer {
        let shared = &self.shared;
        shared
            .producer
            .get_or_init(|| Producer::start(shared.channel.clone(), &shared.options))
    }

    /// Makes a call that must not run twice, within the deadline.
    pub(crate) async fn call<A>(
        &self,
        call: impl Future<Output = Result<Response<A>, Status>>,
    ) -> Result<A, Error> {
        self.call_after(Duration::ZERO, call).await
    }

    /// Makes a call that the server answers after this wait at the earliest, within the deadline from then on.
    pub(crate) async fn call_after<A>(
        &self,
        wait: Duration,
        call: impl Future<Output = Result<Response<A>, Status>>,
    ) -> Result<A, Error> {
        let begun = Instant::now();
        let ends = after(begun, wait.saturating_add(self.options().deadline));
        match timeout_at(ends, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(self.failed(status, begun.elapsed())),
            Err(_) => Err(self.no_answer(None)),
        }
    }

    /// Makes a call that changes nothing, and repeats it while the server is away, within the deadline.
    pub(crate) async fn call_again<A, F>(&self, call: impl Fn() -> F) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let ends = after(Instant::now(), self.options().deadline);
        let mut backoff = self.options().backoff();
        let mut heard = None;
        loop {
            let refused = match timeout_at(ends, call()).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => {
                    if let Some(error) = self.untrusted(&status) {
                        return Err(error);
                    }
                    let refused = Refusal::from_status(&status);
                    match Broken::from(status) {
                        Broken::Refused(refusal) => return Err(refusal.into()),
                        Broken::Away(cause) => heard = Some(cause),
                    }
                    refused
                }
                Err(_) => return Err(self.no_answer(heard)),
            };
            let wait = backoff.next(fastrand::f64());
            if after(Instant::now(), wait) >= ends {
                return Err(match refused {
                    Some(refusal) => refusal.into(),
                    None => self.unreachable(heard.unwrap_or_default()),
                });
            }
            sleep(wait).await;
        }
    }

    /// Converts the failure of a call that was made once.
    pub(crate) fn failed(&self, status: Status, after: Duration) -> Error {
        if let Some(refusal) = Refusal::from_status(&status) {
            return refusal.into();
        }
        if let Some(error) = self.untrusted(&status) {
            return error;
        }
        let was_sent = status.code() != Code::Unavailable;
        match Broken::from(status) {
            Broken::Refused(refusal) => refusal.into(),
            Broken::Away(cause) if was_sent => Error::NoAnswer {
                after,
                cause: Some(cause),
            },
            Broken::Away(cause) => self.unreachable(cause),
        }
    }

    /// Returns the error of a call that failed because of TLS. To repeat such a call is of no use.
    fn untrusted(&self, status: &Status) -> Option<Error> {
        let fault = TlsFault::find(status)?;
        Some(self.options().tls_error(fault, describe(status)))
    }

    fn unreachable(&self, cause: String) -> Error {
        let address = self.address().to_owned();
        Error::Unreachable { address, cause }
    }

    fn no_answer(&self, cause: Option<String>) -> Error {
        let after = self.options().deadline;
        Error::NoAnswer { after, cause }
    }
}

fn service(channel: Channel) -> FilaServiceClient<Channel> {
    FilaServiceClient::new(channel)
        .max_decoding_message_size(FRAME_MAX)
        .max_encoding_message_size(FRAME_MAX)
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

impl Options {
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(self.backoff_first, self.backoff_longest)
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.address.starts_with("https://")
    }

    pub(crate) fn tls_error(&self, fault: TlsFault, cause: String) -> Error {
        let address = self.address.to_string();
        Error::Tls {
            address,
            fault,
            cause,
        }
    }
}

impl ClientBuilder {
    /// Sets how long opening a connection may take; 5 s by default.
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.options.connect_timeout = time;
        self
    }

    /// Sets how long any call may take, including its repetitions; 30 s by default.
    pub fn deadline(mut self, time: Duration) -> Self {
        self.options.deadline = time;
        self
    }

    /// Sets how many bytes of unconfirmed messages the client may hold; 32 MiB by default. [`Queue::send`] waits for
    /// room beyond it.
    pub fn buffer(mut self, bytes: usize) -> Self {
        self.options.buffer_bytes = bytes;
        self
    }

    /// Sets the wait before the client tries a lost server again: `first`, then twice as long each time up to
    /// `longest`; 50 ms and 2 s by default.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.options.backoff_first = first;
        self.options.backoff_longest = longest;
        self
    }

    /// Trusts servers whose certificates come from these authorities, in PEM, instead of those that the system trusts.
    /// The address must begin with `https://`.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = fila_sdk::Client::builder("https://broker.example:5555")
    ///     .ca_certificate(std::fs::read("ca.pem")?)
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.options.tls.ca = Some(pem.into());
        self
    }

    /// Proves the client to the server with this certificate, and the chain behind it, and with its private key, both in
    /// PEM. The address must begin with `https://`.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.options.tls.identity = Some(TlsIdentity {
            certificate: certificate.into(),
            key: key.into(),
        });
        self
    }

    /// Expects this name in the server's certificate instead of the host of the address: for tests and tunnels, where
    /// the host is another.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.options.tls.server_name = Some(name.into());
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// If the address or a certificate is not valid, no server answers there, or the client does not trust it.
    pub async fn connect(self) -> Result<Client, Error> {
        let endpoint = self.endpoint()?;
        match endpoint.connect().await {
            Ok(channel) => {
                if self.options.is_secure() {
                    probe(&channel, &self.options).await?;
                }
                Ok(self.over(channel))
            }
            Err(error) => Err(self.unconnected(&error)),
        }
    }

    fn unconnected(&self, error: &tonic::transport::Error) -> Error {
        let cause = describe(error);
        match TlsFault::find(error) {
            Some(fault) => self.options.tls_error(fault, cause),
            None => Error::Unreachable {
                address: self.options.address.to_string(),
                cause,
            },
        }
    }

    /// Returns a client that connects on its first use: for services that may start before their server.
    ///
    /// # Errors
    /// If the address or a certificate is not valid.
    pub fn connect_lazy(self) -> Result<Client, Error> {
        let channel = self.endpoint()?.connect_lazy();
        Ok(self.over(channel))
    }

    /// Returns a client that uses an existing channel.
    pub(crate) fn over(self, channel: Channel) -> Client {
        let shared = Shared {
            channel,
            options: self.options,
            producer: OnceLock::new(),
        };
        Client {
            shared: Arc::new(shared),
        }
    }

    pub(crate) fn endpoint(&self) -> Result<Endpoint, Error> {
        let address = &*self.options.address;
        let invalid = |cause: String| Error::InvalidAddress {
            address: address.to_owned(),
            cause,
        };
        let endpoint = Endpoint::from_shared(address.to_owned());
        let endpoint = endpoint.map_err(|error| invalid(describe(&error)))?;
        let is_http = matches!(endpoint.uri().scheme_str(), Some("http" | "https"));
        if endpoint.uri().authority().is_none() || !is_http {
            return Err(invalid(
                "it has no host, or is not http or https".to_owned(),
            ));
        }
        Ok(self
            .secured(endpoint)?
            .connect_timeout(self.options.connect_timeout)
            .tcp_nodelay(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(8 << 20)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true))
    }

    /// Adds TLS, if the address asks for it.
    fn secured(&self, endpoint: Endpoint) -> Result<Endpoint, Error> {
        let tls = &self.options.tls;
        if self.options.is_secure() {
            let config = tls.config(self.options.connect_timeout);
            let config = config.map_err(|cause| Error::InvalidTls { cause })?;
            let endpoint = endpoint.tls_config(config);
            return endpoint.map_err(|error| Error::InvalidTls {
                cause: describe(&error),
            });
        }
        if tls.is_empty() {
            return Ok(endpoint);
        }
        // To connect without the security that was asked for would be worse than not to connect.
        Err(Error::InvalidTls {
            cause: format!(
                "they are for TLS, and the address {} is without it; write it with https://",
                self.options.address
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use fila_proto::v1::ErrorCode;
    use tonic::metadata::MetadataValue;

    use super::*;

    fn client() -> Client {
        let builder = Client::builder("127.0.0.1:1").deadline(Duration::from_secs(30));
        builder.connect_lazy().unwrap()
    }

    fn refusal(code: ErrorCode) -> Status {
        let mut status = Status::unavailable("the disk is full");
        let name = MetadataValue::from_static(code.name());
        status.metadata_mut().insert("fila-error", name);
        status
    }

    async fn call(status: Status) -> Error {
        let failing = async { Err::<Response<()>, _>(status) };
        client().call(failing).await.unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_refuses_for_now_is_not_called_away() {
        for code in [
            ErrorCode::StoreUnavailable,
            ErrorCode::OutcomeUnknown,
            ErrorCode::ShuttingDown,
        ] {
            assert_eq!(call(refusal(code)).await.code(), Some(code));
            let client = client();
            let ask = || async { Err::<Response<()>, _>(refusal(code)) };
            let error = client.call_again(ask).await.unwrap_err();
            assert_eq!(error.code(), Some(code));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_breaks_on_its_way_may_have_happened() {
        let error = call(Status::unknown("transport error")).await;
        assert!(matches!(error, Error::NoAnswer { .. }), "{error:?}");
        let error = call(Status::unavailable("connection refused")).await;
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_an_answer_ends_at_the_deadline() {
        let begun = Instant::now();
        let never = std::future::pending::<Result<Response<()>, Status>>();
        let error = client().call(never).await.unwrap_err();
        assert!(matches!(error, Error::NoAnswer { .. }), "{error:?}");
        assert_eq!(begun.elapsed().as_secs(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_nothing_is_asked_again_until_the_deadline() {
        let client = client();
        let begun = Instant::now();
        let calls = std::cell::Cell::new(0_u32);
        let ask = || {
            calls.set(calls.get() + 1);
            async { Err::<Response<()>, _>(Status::unavailable("connection refused")) }
        };
        let error = client.call_again(ask).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert!(begun.elapsed() <= Duration::from_secs(30));
        assert!(begun.elapsed() >= Duration::from_secs(27));
        assert!((15..60).contains(&calls.get()), "{} calls", calls.get());

        let begun = Instant::now();
        let ask = || std::future::pending::<Result<Response<()>, Status>>();
        let error = client.call_again(ask).await.unwrap_err();
        assert!(matches!(error, Error::NoAnswer { .. }), "{error:?}");
        assert_eq!(begun.elapsed().as_secs(), 30);
    }
}
