//! A real server behind a port that speaks TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use fila_sdk::{Client, ClientBuilder};
use fila_server::Server;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::authority::{Authority, Signed};
use crate::basics::{in_memory, soon};

/// A server, and the port with TLS in front of it.
pub(crate) struct Front {
    /// Ends when it is dropped.
    _server: Server,
    address: SocketAddr,
}

impl Front {
    /// Starts one that asks clients for no certificate.
    pub(crate) async fn start(own: &Signed) -> Self {
        let config = builder().with_no_client_auth();
        Self::serve(with_certificate(config, own)).await
    }

    /// Starts one that accepts only clients with a certificate of this authority.
    pub(crate) async fn start_for(own: &Signed, clients: &Authority) -> Self {
        let mut roots = RootCertStore::empty();
        let pem = clients.pem();
        roots
            .add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
            .unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider())
            .build()
            .unwrap();
        let config = builder().with_client_cert_verifier(verifier);
        Self::serve(with_certificate(config, own)).await
    }

    async fn serve(mut config: ServerConfig) -> Self {
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let server = soon(Server::start(in_memory())).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let behind = server.address();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass_on(acceptor.clone(), client, behind));
            }
        });
        Self {
            _server: server,
            address,
        }
    }

    /// Returns the address of the port, which has no scheme.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Begins to build a client with TLS that trusts this authority.
    pub(crate) fn client(&self, trusted: &Authority) -> ClientBuilder {
        Client::builder(format!("https://{}", self.address)).ca_certificate(trusted.pem())
    }
}

async fn pass_on(acceptor: TlsAcceptor, client: TcpStream, server: SocketAddr) {
    // A client that does not agree is what the tests are about: it hears an alert.
    if let Ok(mut client) = acceptor.accept(client).await {
        let mut server = TcpStream::connect(server).await.unwrap();
        let _ended = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn builder() -> rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier> {
    ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
}

fn with_certificate(
    config: rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert>,
    own: &Signed,
) -> ServerConfig {
    let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
    config.with_single_cert(vec![certificate], key).unwrap()
}
