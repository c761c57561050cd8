//! Why certificates cannot be used.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use tokio_rustls::rustls;

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read.
    #[error("cannot read {}; the server needs it for TLS", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not PEM.
    #[error("{} is damaged; it must have certificates or a key in PEM", path.display())]
    Pem {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: rustls::pki_types::pem::Error,
    },
    /// The file has no certificate.
    #[error("{} has no certificate; it begins with `-----BEGIN CERTIFICATE-----`", path.display())]
    NoCertificate {
        /// Which file.
        path: PathBuf,
    },
    /// The file has no key.
    #[error("{} has no private key without a password, in PEM", path.display())]
    NoKey {
        /// Which file.
        path: PathBuf,
    },
    /// The key and the certificate do not belong together, or cannot be used.
    #[error(
        "the certificate in {} and the key in {} cannot be used together",
        certificate.display(), key.display()
    )]
    Pair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The certificates that sign those of clients cannot be used.
    #[error("certificates of clients cannot be checked with {}", path.display())]
    ClientCa {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Returns the text of an error and of its causes.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
