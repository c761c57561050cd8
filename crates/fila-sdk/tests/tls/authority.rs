//! Certificates made for one test.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};

/// An authority that signs certificates.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::named("the right CA")
    }

    pub(crate) fn named(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        Self { issuer }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Signs a certificate of a server with this name or IP address.
    pub(crate) fn server(&self, name: &str) -> Signed {
        self.sign(&server_params(name))
    }

    /// Signs a certificate of a server that has expired.
    pub(crate) fn expired_server(&self, name: &str) -> Signed {
        let mut params = server_params(name);
        params.not_after = date_time_ymd(2000, 1, 1);
        self.sign(&params)
    }

    /// Signs a certificate of a server that is valid in the future.
    pub(crate) fn future_server(&self, name: &str) -> Signed {
        let mut params = server_params(name);
        params.not_before = date_time_ymd(4000, 1, 1);
        self.sign(&params)
    }

    pub(crate) fn client(&self) -> Signed {
        let mut params = CertificateParams::new(["worker".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Signed {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Signed {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

fn server_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params
}
