//! The state of the server.

use std::time::{Duration, SystemTime};

use fila_proto::v1;

use super::Admin;
use crate::Error;

impl Admin {
    /// Returns the state of the server.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn server(&self) -> Result<ServerInfo, Error> {
        let answer = self.look(v1::ServerInfoRequest {}, |mut admin, request| async move {
            admin.server_info(request).await
        });
        answer.await.map(ServerInfo::from)
    }
}

/// The state of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// Its version.
    pub version: String,
    /// When the server confirms a message, `fsync`, `os` or `memory`: once it is synced, written, or in memory.
    pub durability: String,
    /// Whether the store accepts writes.
    pub writable: bool,
    /// How many queues there are.
    pub queues: u64,
    /// How many consumers there are.
    pub consumers: u64,
    /// How many connections are open.
    pub connections: u64,
    /// How many bytes of messages the server may keep in memory.
    pub memory_budget_bytes: u64,
    /// How many bytes of messages the server keeps in memory now.
    pub memory_used_bytes: u64,
    /// When it was started.
    pub started_at: SystemTime,
}

impl From<v1::ServerInfoResponse> for ServerInfo {
    fn from(wire: v1::ServerInfoResponse) -> Self {
        Self {
            version: wire.version,
            durability: wire.durability,
            writable: wire.writable,
            queues: wire.queues,
            consumers: wire.consumers,
            connections: wire.connections,
            memory_budget_bytes: wire.memory_budget_bytes,
            memory_used_bytes: wire.memory_used_bytes,
            started_at: SystemTime::UNIX_EPOCH + Duration::from_millis(wire.started_at_ms),
        }
    }
}
