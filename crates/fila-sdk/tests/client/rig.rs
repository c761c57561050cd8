//! A server in this process, a client of it, and the words that tests are written in.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use fila_sdk::{Client, ClientBuilder, Queue, QueueSettings, QueueStats};
use fila_server::Server;
use fila_server::config::{Config, StorageEngine};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for something that happens soon.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, future).await;
    waited.expect("it happens within patience")
}

/// Looks again and again until something is so.
pub(crate) async fn eventually<F: Future<Output = bool>>(mut is_so: impl FnMut() -> F) {
    soon(async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// A configuration in memory, on a port that is free.
pub(crate) fn in_memory() -> Config {
    let mut config = Config::default();
    config.server.address = ([127, 0, 0, 1], 0).into();
    config.storage.engine = StorageEngine::Memory;
    config
}

/// A configuration on disk.
pub(crate) fn on_disk(path: &Path) -> Config {
    let mut config = in_memory();
    config.storage.engine = StorageEngine::Fjall;
    config.storage.path = path.to_owned();
    config
}

/// A server, and a client of it.
pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) client: Client,
}

impl Rig {
    /// Starts a server in memory.
    pub(crate) async fn start() -> Self {
        Self::with(in_memory(), |client| client).await
    }

    pub(crate) async fn with(
        config: Config,
        client: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Self {
        let server = soon(Server::start(config)).await.unwrap();
        let builder = client(Client::builder(server.address().to_string()));
        let client = soon(builder.connect()).await.unwrap();
        Self { server, client }
    }

    /// Creates a queue.
    pub(crate) async fn queue(&self, name: &str) -> Queue {
        self.queue_with(name, QueueSettings::new()).await
    }

    pub(crate) async fn queue_with(&self, name: &str, settings: QueueSettings) -> Queue {
        let created = self.client.admin();
        soon(created.create_queue(name, settings)).await.unwrap();
        self.client.queue(name)
    }

    pub(crate) async fn stats(&self, queue: &str) -> QueueStats {
        let admin = self.client.admin();
        soon(admin.queue(queue)).await.unwrap().stats
    }
}
