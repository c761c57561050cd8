//! The handle's calls that read and change the runtime configuration.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::runtime::calls::handle::Handle;
use crate::runtime::config::writer::ConfigWriter;
use crate::runtime::error::CallError;
use crate::runtime_config::{Entries, Entry};
use fila_store::{Expected, Version};

impl Handle {
    /// Returns the present runtime configuration, without waiting for changes under way.
    pub fn config(&self) -> Arc<Entries> {
        self.0.config.borrow().clone()
    }

    /// Sets an entry, if it is in the expected state. When this returns, the entry is stored and [`Handle::config`]
    /// shows it. Setting the present value changes nothing.
    ///
    /// # Errors
    /// If the key or the value is invalid, the entry is in another state, a limit is reached, or the store fails.
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

    /// Removes an entry, if `expected` is its version or `None`.
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
        // Waiting here blocks no thread, however many callers wait.
        let turn = self.0.config_turn.clone().acquire_owned().await;
        let changed = tokio::task::spawn_blocking(move || (change(&writer), turn)).await;
        let (changed, _turn) = changed.map_err(|_| self.stopped())?;
        changed
    }
}
