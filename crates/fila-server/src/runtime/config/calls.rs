//! The runtime configuration, as a handle has it.

use std::net::SocketAddr;
use std::sync::Arc;

use fila_store::{Expected, Version};
use tokio::sync::watch;

use crate::runtime::calls::handle::Handle;
use crate::runtime::config::writer::ConfigWriter;
use crate::runtime::error::CallError;
use crate::runtime_config::{Entries, Entry};

impl Handle {
    /// Returns the runtime configuration as it is now. It waits for nobody: what is stored meanwhile is in the next one.
    pub fn config(&self) -> Arc<Entries> {
        self.0.config.borrow().clone()
    }

    /// Returns the runtime configuration, now and from now on. Whoever waits for a change is woken before the change is
    /// answered; of changes in quick succession only the last may be seen.
    pub fn watch_config(&self) -> watch::Receiver<Arc<Entries>> {
        self.0.config.subscribe()
    }

    /// Sets an entry, if it is in the expected state. When this returns it is stored, and whoever looks sees it. To set
    /// what is set already changes nothing.
    ///
    /// # Errors
    /// If the key or the value is refused, the entry is in another state, there is no room, or the store fails.
    pub async fn set_config(
        &self,
        key: String,
        value: String,
        expected: Expected,
        client: Option<SocketAddr>,
    ) -> Result<Arc<Entry>, CallError> {
        self.write_config(move |writer| writer.set(&key, value, expected, client))
            .await
    }

    /// Removes an entry, if `expected` is its version or none is expected.
    ///
    /// # Errors
    /// If there is no such entry, it has another version, or the store fails.
    pub async fn delete_config(
        &self,
        key: String,
        expected: Option<Version>,
        client: Option<SocketAddr>,
    ) -> Result<(), CallError> {
        self.write_config(move |writer| writer.delete(&key, expected, client))
            .await
    }

    async fn write_config<T: Send + 'static>(
        &self,
        change: impl FnOnce(&ConfigWriter) -> Result<T, CallError> + Send + 'static,
    ) -> Result<T, CallError> {
        let writer = self.managers()?.config;
        // Waiting here takes no thread, however many want to change something.
        let turn = self.0.config_turn.clone().acquire_owned().await;
        let changed = tokio::task::spawn_blocking(move || (change(&writer), turn)).await;
        let (changed, _turn) = changed.map_err(|_| self.stopped())?;
        changed
    }
}
