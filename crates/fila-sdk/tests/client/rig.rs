//! A server in this process, a client of it, and the words that tests are written in.

use fila_sdk::{Client, ClientBuilder, Queue, QueueSettings, QueueStats};
use fila_server::Server;
use fila_server::config::Config;

pub(crate) use crate::basics::{PATIENCE, eventually, in_memory, on_disk, soon};

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
