//! Patience, and configurations for tests: shared with the tests of `fila-sdk`.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use fila_server::config::{Config, StorageEngine};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

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

/// The engine on disk under test: that of `FILA_TEST_ENGINE`, which `scripts/rocksdb` sets.
fn disk_engine() -> StorageEngine {
    match std::env::var("FILA_TEST_ENGINE") {
        Err(_) => StorageEngine::Lsm,
        Ok(name) => {
            let mut engines = StorageEngine::ALL.iter();
            let engine = engines.find(|engine| engine.name() == name);
            *engine.unwrap_or_else(|| panic!("this build has no engine `{name}`"))
        }
    }
}

/// A configuration on disk.
pub(crate) fn on_disk(path: &Path) -> Config {
    let mut config = in_memory();
    config.storage.engine = disk_engine();
    config.storage.path = path.to_owned();
    config
}
