//! TLS on the port: clients of every kind, certificates that are replaced, and handshakes that go wrong.

use std::path::PathBuf;
use std::sync::Arc;

use fila_proto::v1::fila_admin_client::FilaAdminClient;
use fila_proto::v1::fila_service_client::FilaServiceClient;
use fila_proto::v1::{CreateQueueRequest, EnqueueRequest, ListQueuesRequest};
use fila_server::Server;
use fila_server::config::{ClientCertificates, Config};
use fila_server::runtime::Stopped;
use fila_server::tls::Reloaded;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::service_fn;

use crate::common::{PATIENCE, assert_refused, eventually, get, in_memory, message, raw, soon};

/// Signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
struct Issued {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    fn issue(&self) -> Issued {
        self.issue_for((1975, 4096))
    }

    /// Issues a certificate that is valid in these years.
    fn issue_for(&self, (from, to): (i32, i32)) -> Issued {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Issued { certificate, key }
    }
}

/// Files of certificates, and the authority that signed them.
struct Files {
    authority: Authority,
    place: TempDir,
}

impl Files {
    fn new() -> Self {
        let files = Self {
            authority: Authority::new(),
            place: tempfile::tempdir().unwrap(),
        };
        files.renew();
        files.write("ca.pem", &files.authority.0.pem());
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Writes a new certificate of the server, and returns it.
    fn renew(&self) -> CertificateDer<'static> {
        let issued = self.authority.issue();
        self.write("server.pem", &issued.certificate.pem());
        self.write("server.key", &issued.key.serialize_pem());
        issued.certificate.der().clone()
    }

    fn config(&self, clients: ClientCertificates) -> Config {
        let mut config = in_memory();
        config.tls.certificate_file = Some(self.path("server.pem"));
        config.tls.key_file = Some(self.path("server.key"));
        config.tls.client_certificates = clients;
        if clients != ClientCertificates::Off {
            config.tls.client_ca_file = Some(self.path("ca.pem"));
        }
        config
    }

    async fn server(&self, clients: ClientCertificates) -> Server {
        soon(Server::start(self.config(clients))).await.unwrap()
    }

    fn client(&self) -> Client {
        Client {
            authority: self.authority.0.der().clone(),
            identity: None,
            protocols: vec![b"h2".to_vec()],
        }
    }
}

/// How a client connects.
#[derive(Clone)]
struct Client {
    authority: CertificateDer<'static>,
    identity: Option<(CertificateDer<'static>, Vec<u8>)>,
    protocols: Vec<Vec<u8>>,
}

impl Client {
    fn showing(self, issued: &Issued) -> Self {
        let identity = (issued.certificate.der().clone(), issued.key.serialize_der());
        Self {
            identity: Some(identity),
            ..self
        }
    }

    fn speaking(self, protocols: &[&[u8]]) -> Self {
        Self {
            protocols: protocols.iter().map(|it| it.to_vec()).collect(),
            ..self
        }
    }

    fn connector(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.clone()));
                let chain = vec![certificate.clone()];
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = self.protocols.clone();
        TlsConnector::from(Arc::new(config))
    }

    async fn connect(&self, server: &Server) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(server.address()).await?;
        let name = "localhost".try_into().unwrap();
        soon(self.connector().connect(name, stream)).await
    }

    async fn channel(&self, server: &Server) -> Result<Channel, tonic::transport::Error> {
        let (client, address) = (self.clone(), server.address());
        let connect = service_fn(move |_| {
            let client = client.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                let name = "localhost".try_into().unwrap();
                let stream = client.connector().connect(name, stream).await?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        soon(endpoint.connect_with_connector(connect)).await
    }

    /// Tells whether a call succeeds.
    async fn is_served(&self, server: &Server) -> bool {
        let Ok(channel) = self.channel(server).await else {
            return false;
        };
        list_queues(channel).await.is_ok()
    }

    /// Asks over HTTP/1, and returns the answer.
    async fn get(&self, server: &Server, path: &str) -> String {
        let mut stream = self.connect(server).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: fila\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The server may end the connection without a word of farewell.
        let _ = soon(stream.read_to_end(&mut answer)).await;
        String::from_utf8(answer).unwrap()
    }

    /// Returns the value of a metric.
    async fn metric(&self, server: &Server, name: &str) -> u64 {
        let client = self.clone().speaking(&[b"http/1.1"]);
        let page = client.get(server, "/metrics").await;
        let line = page.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split(' ').nth(1)).unwrap();
        value.parse().unwrap()
    }
}

async fn list_queues(channel: Channel) -> Result<(), Status> {
    let mut admin = FilaAdminClient::new(channel);
    let listed = soon(admin.list_queues(ListQueuesRequest::default())).await;
    listed.map(drop)
}

#[tokio::test]
async fn one_port_serves_grpc_and_pages_over_tls_with_and_without_alpn() {
    let files = Files::new();
    let server = files.server(ClientCertificates::Off).await;
    let client = files.client();
    assert!(client.is_served(&server).await);
    for protocols in [&[b"http/1.1".as_slice()][..], &[]] {
        let client = client.clone().speaking(protocols);
        let answer = client.get(&server, "/healthz").await;
        assert!(answer.ends_with("alive\n"), "{answer}");
    }
    let expires = client
        .metric(&server, "fila_tls_certificate_expires_seconds")
        .await;
    let year_4096 = 67_090_118_400;
    assert_eq!(expires, year_4096);
}

#[tokio::test]
async fn a_client_of_another_authority_or_another_protocol_is_not_served_and_counted() {
    let files = Files::new();
    let server = files.server(ClientCertificates::Off).await;
    let stranger = Files::new().client();
    assert!(!stranger.is_served(&server).await);
    let client = files.client();
    let mail = client.clone().speaking(&[b"smtp"]);
    assert!(mail.connect(&server).await.is_err());
    assert!(client.is_served(&server).await);
    eventually(|| async { client.metric(&server, "fila_tls_handshakes_failed").await == 2 }).await;
}

#[tokio::test]
async fn tls_before_version_1_2_is_refused() {
    let files = Files::new();
    let server = files.server(ClientCertificates::Off).await;
    // A ClientHello of TLS 1.1 with one cipher suite, and nothing else.
    let mut hello = vec![0x03, 0x02];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0x00, 0x2f, 1, 0]);
    let mut record = vec![0x16, 0x03, 0x01, 0, 4 + hello.len() as u8];
    record.extend([1, 0, 0, hello.len() as u8]);
    record.extend(hello);
    let answer = raw(&server, &record).await;
    let (alert, fatal) = (0x15, 2);
    assert_eq!((answer[0], answer[5]), (alert, fatal));
    assert!(files.client().is_served(&server).await);
}

#[tokio::test]
async fn a_client_without_tls_is_told_to_use_it() {
    let files = Files::new();
    let server = files.server(ClientCertificates::Off).await;
    let (status, answer) = get(&server, "/healthz").await;
    assert_eq!(status, 400);
    assert!(answer.contains("https://"), "{answer}");
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
    let channel = soon(endpoint.connect()).await.unwrap();
    let call = list_queues(channel).await;
    assert_refused(call, Code::FailedPrecondition, "TLS_REQUIRED");
}

#[tokio::test]
async fn certificates_of_clients_are_checked_as_the_configuration_says() {
    let files = Files::new();
    let anonymous = files.client();
    let known = files.client().showing(&files.authority.issue());
    let unacceptable = [
        files.client().showing(&Authority::new().issue()),
        files
            .client()
            .showing(&files.authority.issue_for((1975, 2020))),
        files
            .client()
            .showing(&files.authority.issue_for((4000, 4096))),
    ];
    for clients in [ClientCertificates::Optional, ClientCertificates::Required] {
        let server = files.server(clients).await;
        assert!(known.is_served(&server).await);
        let is_optional = clients == ClientCertificates::Optional;
        assert_eq!(anonymous.is_served(&server).await, is_optional);
        for client in &unacceptable {
            assert!(!client.is_served(&server).await);
        }
    }
}

/// Lets the process open as many files as the system allows: both ends of a connection are in it.
fn raise_limit_of_files() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).unwrap();
    }
}

#[tokio::test]
async fn a_thousand_handshakes_that_never_end_do_not_hinder_others_nor_the_shutdown() {
    let files = Files::new();
    let server = files.server(ClientCertificates::Off).await;
    raise_limit_of_files();
    let mut stuck = Vec::new();
    for _ in 0..1_000 {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(&[0x16, 0x03]).await.unwrap();
        stuck.push(stream);
    }
    for _ in 0..10 {
        assert!(files.client().is_served(&server).await);
    }
    let began = std::time::Instant::now();
    assert_eq!(soon(server.shutdown()).await, Stopped::Complete);
    assert!(began.elapsed() < PATIENCE / 2);
}

#[tokio::test]
async fn a_client_for_whom_there_is_no_place_is_told_so_over_tls() {
    let files = Files::new();
    let mut config = files.config(ClientCertificates::Off);
    config.limits.connections = std::num::NonZeroUsize::MIN;
    let server = soon(Server::start(config)).await.unwrap();
    let client = files.client();
    let _first = client.channel(&server).await.unwrap();
    let channel = client.channel(&server).await.unwrap();
    let refused = list_queues(channel).await;
    assert_refused(refused, Code::ResourceExhausted, "TOO_MANY_CONNECTIONS");
}

/// Returns the certificate that a new connection gets.
async fn certificate(client: &Client, server: &Server) -> CertificateDer<'static> {
    let stream = client.connect(server).await.unwrap();
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    chain[0].clone().into_owned()
}

#[tokio::test]
async fn a_renewed_certificate_is_for_new_connections_and_no_call_is_lost() {
    let files = Files::new();
    let server = files.server(ClientCertificates::Off).await;
    let (client, tls) = (files.client(), server.tls().unwrap());
    let channel = client.channel(&server).await.unwrap();
    let request = CreateQueueRequest {
        name: "orders".to_owned(),
        ..CreateQueueRequest::default()
    };
    let mut admin = FilaAdminClient::new(channel.clone());
    soon(admin.create_queue(request)).await.unwrap();
    let mut messages = FilaServiceClient::new(channel);
    assert_eq!(tls.reload().unwrap(), Reloaded::Unchanged);
    for _ in 0..20 {
        let renewed = files.renew();
        assert_eq!(tls.reload().unwrap(), Reloaded::Changed);
        assert_eq!(certificate(&client, &server).await, renewed);
        let request = EnqueueRequest {
            queue: "orders".to_owned(),
            message: Some(message("a", "x")),
        };
        // Over the connection that was there before, and over a new one.
        soon(messages.enqueue(request.clone())).await.unwrap();
        let mut new = FilaServiceClient::new(client.channel(&server).await.unwrap());
        soon(new.enqueue(request)).await.unwrap();
    }
}

#[tokio::test]
async fn files_that_cannot_be_used_keep_the_old_certificate_and_are_counted_once() {
    let files = Files::new();
    let server = files.server(ClientCertificates::Off).await;
    let (client, tls) = (files.client(), server.tls().unwrap());
    let old = certificate(&client, &server).await;
    let (certificate_file, key_file) = ("server.pem", "server.key");
    let stranger = files.authority.issue();
    let spoiled = [
        (key_file, stranger.key.serialize_pem()),
        (key_file, "no key".to_owned()),
        (certificate_file, String::new()),
        (
            certificate_file,
            "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----".to_owned(),
        ),
    ];
    let metric = "fila_tls_reload_failures_total";
    for (failures, (name, text)) in (1..).zip(&spoiled) {
        let good = std::fs::read_to_string(files.path(name)).unwrap();
        files.write(name, text);
        let refused = tls.reload().unwrap_err().to_string();
        assert!(refused.contains(name), "{refused}");
        assert!(tls.reload().is_err());
        assert_eq!(certificate(&client, &server).await, old);
        assert_eq!(client.metric(&server, metric).await, failures);
        files.write(name, &good);
        assert_eq!(tls.reload().unwrap(), Reloaded::Unchanged);
    }
    std::fs::remove_file(files.path(key_file)).unwrap();
    assert!(tls.reload().is_err());
    assert!(client.is_served(&server).await);
}

#[tokio::test]
async fn a_server_does_not_start_with_files_that_cannot_be_used() {
    let files = Files::new();
    files.write("server.key", &files.authority.issue().key.serialize_pem());
    let config = files.config(ClientCertificates::Off);
    let refused = Server::start(config).await.unwrap_err();
    let source = std::error::Error::source(&refused).unwrap().to_string();
    assert!(source.contains("cannot be used together"), "{source}");
}

#[tokio::test]
async fn probes_have_an_address_without_tls_that_serves_nothing_else() {
    let files = Files::new();
    for has_metrics in [false, true] {
        let mut config = files.config(ClientCertificates::Required);
        config.server.probe_address = Some(([127, 0, 0, 1], 0).into());
        config.server.probe_metrics = has_metrics;
        let server = soon(Server::start(config)).await.unwrap();
        let probe = server.probe_address().unwrap();
        let ask = async |path: &str| {
            let mut stream = TcpStream::connect(probe).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nhost: fila\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            soon(stream.read_to_string(&mut answer)).await.unwrap();
            answer
        };
        assert!(ask("/healthz").await.ends_with("alive\n"));
        assert!(ask("/readyz").await.ends_with("ready\n"));
        let metrics = ask("/metrics").await;
        assert_eq!(metrics.contains("fila_ready 1"), has_metrics, "{metrics}");
        let endpoint = Endpoint::from_shared(format!("http://{probe}")).unwrap();
        let channel = soon(endpoint.connect()).await.unwrap();
        let refused = list_queues(channel).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented);
    }
}
