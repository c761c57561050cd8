//! `fila server --dev-tls`: TLS for trying it out, with an authority and a certificate of its own.
//!
//! The files are made once and stay in the data directory. The key of the authority is not kept: an attacker who reads the
//! directory cannot sign certificates with it.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use fila_server::config::Config;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// How long the certificate is valid.
const VALID: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The directory of the files, in the data directory.
const DIRECTORY: &str = "dev-tls";

/// Sets the files of TLS in a configuration, makes them unless they are there, and returns the file of the authority,
/// which clients need.
pub(crate) fn set_up(config: &mut Config) -> anyhow::Result<PathBuf> {
    anyhow::ensure!(
        !config.tls.is_on(),
        "--dev-tls makes a certificate, and tls.certificate_file names one; choose one of them"
    );
    let directory = config.storage.path.join(DIRECTORY);
    let files = ["ca.pem", "server.pem", "server.key"].map(|name| directory.join(name));
    if !files.iter().all(|file| is_usable(file)) {
        let made = make(config.server.address.ip(), &files);
        made.with_context(|| format!("cannot make certificates in {}", directory.display()))?;
    }
    let [authority, certificate, key] = files;
    config.tls.certificate_file = Some(certificate);
    config.tls.key_file = Some(key);
    Ok(authority)
}

/// Returns whether a file is there and will be valid for a while.
fn is_usable(file: &Path) -> bool {
    let modified = fs::metadata(file).and_then(|file| file.modified());
    let age = modified.ok().and_then(|modified| modified.elapsed().ok());
    age.is_some_and(|age| age < VALID / 2)
}

fn make(address: IpAddr, [authority, certificate, key]: &[PathBuf; 3]) -> anyhow::Result<()> {
    if let Some(directory) = authority.parent() {
        fs::create_dir_all(directory)?;
    }
    let now = SystemTime::now();
    let params = |names: Vec<String>, name: &str| {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, name);
        // Clocks of clients may be behind.
        params.not_before = (now - Duration::from_secs(60 * 60)).into();
        params.not_after = (now + VALID).into();
        anyhow::Ok(params)
    };
    let mut issuer = params(Vec::new(), "Fila dev authority")?;
    issuer.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let issuer = CertifiedIssuer::self_signed(issuer, KeyPair::generate()?)?;
    let mut names = ["localhost", "127.0.0.1", "::1"].map(String::from).to_vec();
    if !address.is_unspecified() && !address.is_loopback() {
        names.push(address.to_string());
    }
    let own_key = KeyPair::generate()?;
    let own = params(names, "fila")?.signed_by(&own_key, &issuer)?;
    write_secret(key, &own_key.serialize_pem())?;
    fs::write(certificate, own.pem())?;
    fs::write(authority, issuer.pem())?;
    Ok(())
}

/// Writes a file that only its owner can read.
fn write_secret(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(text.as_bytes())
}
