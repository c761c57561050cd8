//! The files with certificates and keys.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use x509_parser::parse_x509_certificate;
use x509_parser::time::ASN1Time;

use super::TlsError;
use crate::config::{ClientCertificates, TlsConfig};

/// The protocols of the port, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Where the certificates are.
#[derive(Clone, Debug)]
pub(super) struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    /// Whether a client without a certificate is served.
    is_optional: bool,
}

/// What the files hold.
#[derive(PartialEq, Eq)]
pub(super) struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// Prints nothing of the key.
impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contents").finish_non_exhaustive()
    }
}

/// Certificates that can be used.
#[derive(Debug)]
pub(super) struct LoadedTls {
    pub(super) config: ServerConfig,
    /// When the certificate expires, in seconds of Unix time.
    pub(super) expires: u64,
    /// The same for people.
    pub(super) expires_on: String,
}

impl Files {
    /// Returns the files of a configuration; none if it has no TLS.
    pub(super) fn of(config: &TlsConfig) -> Option<Self> {
        let (Some(certificate), Some(key)) = (&config.certificate_file, &config.key_file) else {
            return None;
        };
        let checks = config.client_certificates != ClientCertificates::Off;
        Some(Self {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: config.client_ca_file.clone().filter(|_| checks),
            is_optional: config.client_certificates == ClientCertificates::Optional,
        })
    }

    pub(super) fn read(&self) -> Result<Contents, TlsError> {
        Ok(Contents {
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
            client_ca: self.client_ca.as_deref().map(read).transpose()?,
        })
    }

    pub(super) fn load(&self, contents: &Contents) -> Result<LoadedTls, TlsError> {
        let chain = certificates(&self.certificate, &contents.certificate)?;
        let key = self.private_key(&contents.key)?;
        let expires = chain.first().and_then(expires);
        let provider = Arc::new(ring::default_provider());
        let pair = |source| TlsError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(pair)?;
        let builder = match (&self.client_ca, &contents.client_ca) {
            (Some(path), Some(pem)) => {
                builder.with_client_cert_verifier(self.verifier(path, pem, provider)?)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(pair)?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        Ok(LoadedTls {
            config,
            expires: expires.map_or(0, |it| it.timestamp().max(0).unsigned_abs()),
            expires_on: expires.map_or_else(|| "unknown".to_owned(), |it| it.to_string()),
        })
    }

    fn private_key(&self, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
        let path = self.key.clone();
        PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::NoKey { path },
            source => TlsError::Pem { path, source },
        })
    }

    fn verifier(
        &self,
        path: &Path,
        pem: &[u8],
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let unusable = |source| TlsError::ClientCa {
            path: path.to_owned(),
            source,
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path, pem)? {
            let added = roots.add(certificate);
            added.map_err(|error| unusable(error.into()))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = if self.is_optional {
            verifier.allow_unauthenticated()
        } else {
            verifier
        };
        verifier.build().map_err(|error| unusable(error.into()))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Reads certificates, at least one.
fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|source| TlsError::Pem {
        path: path.to_owned(),
        source,
    })?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(found)
}

/// Returns when a certificate expires.
fn expires(certificate: &CertificateDer<'_>) -> Option<ASN1Time> {
    let (_, parsed) = parse_x509_certificate(certificate).ok()?;
    Some(parsed.validity().not_after)
}
