//! The storage engine without its type.

use std::sync::Arc;

use bytes::Bytes;
use fila_store::{
    ConfigKey, Engine, EngineError, Expected, Queue, QueueId, QueueName, ReadError, Shard, Version,
    Writes,
};

/// The part of an [`Engine`] that changes queues and the runtime configuration. It hides the type of the engine from
/// the [handle](super::Handle). All calls block.
pub(crate) trait Store: Send + Sync + 'static {
    fn create_queue(&self, name: &QueueName, definition: Bytes) -> Result<Queue, EngineError>;

    fn update_queue(
        &self,
        queue: QueueId,
        expected: Expected,
        definition: Bytes,
    ) -> Result<Version, EngineError>;

    fn delete_queues(&self, queues: &[QueueId]) -> Result<(), EngineError>;

    fn queues(&self) -> Result<Vec<Queue>, ReadError>;

    fn claim(&self, queue: QueueId) -> Result<Arc<dyn Shard>, EngineError>;

    fn set_config(
        &self,
        key: &ConfigKey,
        expected: Expected,
        value: Bytes,
    ) -> Result<Version, EngineError>;

    fn remove_config(&self, key: &ConfigKey, expected: Expected) -> Result<(), EngineError>;

    fn writes(&self) -> Writes;
}

impl<E: Engine> Store for E {
    fn create_queue(&self, name: &QueueName, definition: Bytes) -> Result<Queue, EngineError> {
        Engine::create_queue(self, name, definition)
    }

    fn update_queue(
        &self,
        queue: QueueId,
        expected: Expected,
        definition: Bytes,
    ) -> Result<Version, EngineError> {
        Engine::update_queue(self, queue, expected, definition)
    }

    fn delete_queues(&self, queues: &[QueueId]) -> Result<(), EngineError> {
        Engine::delete_queues(self, queues)
    }

    fn queues(&self) -> Result<Vec<Queue>, ReadError> {
        Engine::queues(self)
    }

    fn claim(&self, queue: QueueId) -> Result<Arc<dyn Shard>, EngineError> {
        Ok(Arc::new(Engine::claim(self, queue)?))
    }

    fn set_config(
        &self,
        key: &ConfigKey,
        expected: Expected,
        value: Bytes,
    ) -> Result<Version, EngineError> {
        Engine::set_config(self, key, expected, value)
    }

    fn remove_config(&self, key: &ConfigKey, expected: Expected) -> Result<(), EngineError> {
        Engine::remove_config(self, key, expected)
    }

    fn writes(&self) -> Writes {
        Engine::writes(self)
    }
}
