//! Why a secure connection failed, in terms of what to change.
//!
//! The reason is an error of rustls, deep in the sources of an error of tonic. An alert that comes after the handshake
//! passes through h2, which keeps the text of an error and not the error; so this module looks for the text, too.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError};

/// The text of tokio-rustls for a connection that ends before the handshake does.
const HANDSHAKE_CUT: &str = "tls handshake eof";

/// What is probably wrong when a client and a server cannot agree on TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsFault {
    /// No trusted authority has signed the server's certificate.
    UnknownIssuer,
    /// The server's certificate has expired.
    Expired,
    /// The server's certificate is not valid yet.
    NotYetValid,
    /// The server's certificate is for other names.
    NameMismatch,
    /// Something else is wrong with the server's certificate.
    BadCertificate,
    /// The server wants a certificate of the client, and the client has none.
    ClientCertificateMissing,
    /// The server does not accept the client's certificate.
    ClientCertificateRefused,
    /// The client speaks TLS, and the server does not.
    ServerIsPlain,
    /// The handshake failed for another reason.
    Handshake,
}

impl TlsFault {
    /// Finds the fault in an error and its sources.
    pub(crate) fn find(error: &(dyn StdError + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<rustls::Error>() {
                return Some(Self::of(error));
            }
            let inside = error
                .downcast_ref::<io::Error>()
                .and_then(io::Error::get_ref);
            next = match inside {
                // It is not among the sources of the error that it is in.
                Some(inside) => Some(inside),
                None if error.source().is_none() => return Self::of_text(&error.to_string()),
                None => error.source(),
            };
        }
        None
    }

    fn of(error: &rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(error) => Self::of_certificate(error),
            rustls::Error::AlertReceived(alert) => Self::of_alert(*alert),
            // Not a record of TLS: the answer of an HTTP server, for example.
            rustls::Error::InvalidMessage(_) => Self::ServerIsPlain,
            _ => Self::Handshake,
        }
    }

    fn of_certificate(error: &CertificateError) -> Self {
        match error {
            // The signature is by another key if the CA was made anew under the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotYetValid
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::NameMismatch
            }
            _ => Self::BadCertificate,
        }
    }

    /// A server that complains about certificates means the client's.
    fn of_alert(alert: AlertDescription) -> Self {
        match alert {
            AlertDescription::CertificateRequired | AlertDescription::NoCertificate => {
                Self::ClientCertificateMissing
            }
            AlertDescription::AccessDenied
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate => Self::ClientCertificateRefused,
            _ => Self::Handshake,
        }
    }

    /// Recognizes an error by its text, which is all that is left of it.
    fn of_text(text: &str) -> Option<Self> {
        if text.ends_with(HANDSHAKE_CUT) {
            return Some(Self::Handshake);
        }
        let alerts = (0..=u8::MAX).map(AlertDescription::from);
        let said = alerts.filter(|alert| {
            let alert = rustls::Error::AlertReceived(*alert).to_string();
            text.ends_with(&alert)
        });
        said.map(Self::of_alert).next()
    }

    /// Returns what to do about it, in the names of the settings.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::UnknownIssuer => "set `ca_file` to the certificate of the CA that signed it",
            Self::Expired => "renew the server's certificate, and check the clock of this machine",
            Self::NotYetValid => "check the clocks of this machine and of the server's CA",
            Self::NameMismatch => {
                "use a name of the certificate in the address, or add this name to it"
            }
            Self::BadCertificate => "check the server's certificate and `ca_file`",
            Self::ClientCertificateMissing => {
                "set `cert_file` and `cert_key_file` to a certificate that the server accepts and its key"
            }
            Self::ClientCertificateRefused => {
                "check that the server trusts the CA of `cert_file`, and that the certificate has not expired"
            }
            Self::ServerIsPlain => {
                "write the address with http://, or switch TLS on in the server, and check the port"
            }
            Self::Handshake => "check that the port is that of a Fila server with TLS",
        }
    }
}

impl fmt::Display for TlsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownIssuer => "no trusted CA has signed the server's certificate",
            Self::Expired => "the server's certificate has expired",
            Self::NotYetValid => "the server's certificate is not valid yet",
            Self::NameMismatch => "the server's certificate is for another name",
            Self::BadCertificate => "the server's certificate cannot be used",
            Self::ClientCertificateMissing => "the server requires a client certificate",
            Self::ClientCertificateRefused => "the server rejected the client's certificate",
            Self::ServerIsPlain => "the server does not speak TLS on this port",
            Self::Handshake => "the TLS handshake failed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_inside_an_error_of_the_network_is_found() {
        let expired = rustls::Error::InvalidCertificate(CertificateError::Expired);
        let error = io::Error::new(io::ErrorKind::InvalidData, expired);
        assert_eq!(TlsFault::find(&error), Some(TlsFault::Expired));
    }

    #[test]
    fn an_alert_is_known_by_its_text() {
        let alert = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        let error = io::Error::other(format!("connection error: {alert}"));
        assert_eq!(
            TlsFault::find(&error),
            Some(TlsFault::ClientCertificateMissing)
        );
    }

    #[test]
    fn another_error_of_the_network_is_no_fault_of_tls() {
        let error = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(TlsFault::find(&error), None);
    }
}
