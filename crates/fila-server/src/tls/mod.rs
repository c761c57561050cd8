//! TLS of the port: certificates from files, which are read again while the server runs.
//!
//! A renewed certificate replaces the old one for new connections. Those that are open keep theirs. If the new files cannot
//! be used, the server keeps the old certificate, logs why and counts it.

mod error;
mod files;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tracing::{error, info};

pub use error::TlsError;
use files::{Contents, Files};

use crate::config::TlsConfig;

/// How often the server looks whether the files have changed. It compares contents: orchestrators replace files by
/// changing a link, which does not touch the files themselves.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The certificates of a server that speaks TLS. Clones share them.
#[derive(Clone, Debug)]
pub struct Tls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    files: Files,
    /// For the next connection.
    config: RwLock<Arc<ServerConfig>>,
    last: Mutex<LastRead>,
    expires: AtomicU64,
    failures: AtomicU64,
}

/// What the files were the last time.
#[derive(Debug)]
struct LastRead {
    /// Of the certificates in use.
    contents: Contents,
    /// What was wrong with the files. Logged once.
    complaint: Option<String>,
}

/// The result of reading the files again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// New connections get the new certificate.
    Changed,
    /// The files are as they were.
    Unchanged,
}

impl Tls {
    /// Reads the certificates; none if the configuration names no files.
    ///
    /// # Errors
    /// If a file cannot be read or used.
    pub(crate) fn open(config: &TlsConfig) -> Result<Option<Self>, TlsError> {
        let Some(files) = Files::of(config) else {
            return Ok(None);
        };
        let contents = files.read()?;
        let loaded = files.load(&contents)?;
        info!(expires = loaded.expires_on, "the certificate was read");
        Ok(Some(Self(Arc::new(Shared {
            files,
            config: RwLock::new(Arc::new(loaded.config)),
            last: Mutex::new(LastRead {
                contents,
                complaint: None,
            }),
            expires: AtomicU64::new(loaded.expires),
            failures: AtomicU64::new(0),
        }))))
    }

    /// Reads the files again. If they have changed and can be used, new connections get the new certificate.
    ///
    /// # Errors
    /// If a file cannot be read or used. The old certificate stays.
    pub fn reload(&self) -> Result<Reloaded, TlsError> {
        let shared = &self.0;
        let mut last = shared.last.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = self.replace(&mut last);
        match &replaced {
            Ok(_) => last.complaint = None,
            Err(error) => {
                let complaint = error::chain(error);
                if last.complaint.as_ref() != Some(&complaint) {
                    shared.failures.fetch_add(1, Ordering::Relaxed);
                    error!(
                        error = complaint,
                        "the certificate cannot be renewed; the old one stays"
                    );
                    last.complaint = Some(complaint);
                }
            }
        }
        replaced
    }

    fn replace(&self, last: &mut LastRead) -> Result<Reloaded, TlsError> {
        let shared = &self.0;
        let contents = shared.files.read()?;
        if contents == last.contents {
            return Ok(Reloaded::Unchanged);
        }
        let loaded = shared.files.load(&contents)?;
        let mut config = shared
            .config
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *config = Arc::new(loaded.config);
        drop(config);
        shared.expires.store(loaded.expires, Ordering::Relaxed);
        last.contents = contents;
        info!(expires = loaded.expires_on, "the certificate was renewed");
        Ok(Reloaded::Changed)
    }

    /// Reads the files again from time to time, without end.
    pub(crate) async fn watch(self) {
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first one is at once.
        looks.tick().await;
        loop {
            looks.tick().await;
            let tls = self.clone();
            // It logs what is wrong.
            let _ = tokio::task::spawn_blocking(move || tls.reload()).await;
        }
    }

    /// Returns what begins a connection with the present certificate.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let config = self.0.config.read().unwrap_or_else(PoisonError::into_inner);
        config.clone().into()
    }

    /// Returns when the certificate expires, in seconds of Unix time.
    pub(crate) fn expires(&self) -> u64 {
        self.0.expires.load(Ordering::Relaxed)
    }

    /// Returns how often the files had changed and could not be used.
    pub(crate) fn failures(&self) -> u64 {
        self.0.failures.load(Ordering::Relaxed)
    }
}
