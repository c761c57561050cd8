//! The client's side of TLS: the authorities that it trusts, and its own certificate.

use std::fmt;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// The settings of secure connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsOptions {
    /// The certificates of the authorities that the client trusts instead of the system's, in PEM.
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) identity: Option<TlsIdentity>,
    /// The name that the server's certificate must have, if it is not the host of the address.
    pub(crate) server_name: Option<String>,
}

/// The certificate of a client, and its private key.
#[derive(Clone)]
pub(crate) struct TlsIdentity {
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl TlsOptions {
    pub(crate) fn is_empty(&self) -> bool {
        self.ca.is_none() && self.identity.is_none() && self.server_name.is_none()
    }

    /// Returns tonic's form of these settings, or what is wrong with them.
    pub(crate) fn config(&self, handshake_max: Duration) -> Result<ClientTlsConfig, String> {
        let mut config = ClientTlsConfig::new().timeout(handshake_max);
        config = match &self.ca {
            Some(ca) => {
                check_certificates(ca).map_err(|problem| format!("the CA: {problem}"))?;
                config.ca_certificate(Certificate::from_pem(ca))
            }
            None => config.with_native_roots(),
        };
        if let Some(TlsIdentity { certificate, key }) = &self.identity {
            check_certificates(certificate)
                .map_err(|problem| format!("the client's certificate: {problem}"))?;
            check_key(key).map_err(|problem| format!("the key of the certificate: {problem}"))?;
            config = config.identity(Identity::from_pem(certificate, key));
        }
        Ok(match &self.server_name {
            Some(name) => config.domain_name(name),
            None => config,
        })
    }
}

/// Refuses a text without certificates. rustls would take it as an empty list, and then trust no server.
pub(crate) fn check_certificates(pem: &[u8]) -> Result<(), String> {
    let mut found = false;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        certificate.map_err(|error| format!("not valid PEM ({error})"))?;
        found = true;
    }
    if found {
        return Ok(());
    }
    Err("it has no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----".to_owned())
}

/// Refuses a text without a private key.
pub(crate) fn check_key(pem: &[u8]) -> Result<(), String> {
    match PrivateKeyDer::from_pem_slice(pem) {
        Ok(_) => Ok(()),
        Err(rustls::pki_types::pem::Error::NoItemsFound) => Err(
            "it has no private key in PEM, which begins with -----BEGIN PRIVATE KEY-----"
                .to_owned(),
        ),
        Err(error) => Err(format!("not valid PEM ({error})")),
    }
}

impl fmt::Debug for TlsIdentity {
    /// Leaves the key out: settings are printed in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_certificates_is_refused() {
        assert!(check_certificates(b"").is_err());
        assert!(check_certificates(b"prod:5555").is_err());
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let problem = check_certificates(key.as_bytes()).unwrap_err();
        assert!(problem.contains("BEGIN CERTIFICATE"), "{problem}");
        assert_eq!(check_key(key.as_bytes()), Ok(()));
    }

    #[test]
    fn a_certificate_in_place_of_the_key_is_refused() {
        let made = rcgen::generate_simple_self_signed(["broker".to_owned()]).unwrap();
        let pem = made.cert.pem();
        assert_eq!(check_certificates(pem.as_bytes()), Ok(()));
        let problem = check_key(pem.as_bytes()).unwrap_err();
        assert!(problem.contains("BEGIN PRIVATE KEY"), "{problem}");
    }

    #[test]
    fn a_key_does_not_get_into_logs() {
        let identity = TlsIdentity {
            certificate: b"certificate".to_vec(),
            key: b"secret".to_vec(),
        };
        assert_eq!(format!("{identity:?}"), "TlsIdentity { .. }");
    }
}
