//! A client of a memory service, whose four ordered operations are jobs: each memory sees its writes in order, and a read
//! after `await_consistency` sees all of them.
//!
//! `cargo run -p shardqueue --example memory_client`

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use shardqueue::{Config, JobContext, JobError, ShardExecutor, SubmitError};

/// The remote side: entries and a context for each memory. It fails every third call.
#[derive(Debug, Default)]
struct MemoryService {
    calls: u32,
    memories: BTreeMap<String, (Vec<String>, String)>,
}

impl MemoryService {
    fn call(&mut self, memory: &str) -> Result<&mut (Vec<String>, String), JobError> {
        self.calls += 1;
        if self.calls.is_multiple_of(3) {
            return Err("503 service unavailable".into());
        }
        Ok(self.memories.entry(memory.to_owned()).or_default())
    }
}

struct MemoryClient {
    executor: ShardExecutor,
    service: Arc<Mutex<MemoryService>>,
}

impl MemoryClient {
    fn new(config: Config) -> Result<Self, shardqueue::ConfigError> {
        Ok(Self {
            executor: ShardExecutor::new(config)?,
            service: Arc::default(),
        })
    }

    /// Submits an operation, which the executor attempts until the service accepts it.
    async fn submit(
        &self,
        memory: &str,
        operation: impl Fn(&mut (Vec<String>, String)) + Clone + Send + 'static,
    ) -> Result<(), SubmitError> {
        let (service, name) = (Arc::clone(&self.service), memory.to_owned());
        let job = move |_: JobContext| {
            let mut service = service.lock().unwrap_or_else(PoisonError::into_inner);
            std::future::ready(service.call(&name).map(&operation))
        };
        self.executor.submit(memory, job).await.map(drop)
    }

    async fn add_entry(&self, memory: &str, entry: &str) -> Result<(), SubmitError> {
        let entry = entry.to_owned();
        self.submit(memory, move |(entries, _)| entries.push(entry.clone()))
            .await
    }

    async fn delete_entry(&self, memory: &str, entry: &str) -> Result<(), SubmitError> {
        let entry = entry.to_owned();
        self.submit(memory, move |(entries, _)| {
            entries.retain(|other| *other != entry)
        })
        .await
    }

    async fn put_context(&self, memory: &str, text: &str) -> Result<(), SubmitError> {
        let text = text.to_owned();
        self.submit(memory, move |(_, context)| context.clone_from(&text))
            .await
    }

    /// Waits until all operations before it have reached the service.
    async fn await_consistency(&self, memory: &str) {
        self.executor.barrier(memory).await;
    }

    fn read(&self, memory: &str) -> (Vec<String>, String) {
        let service = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        service.memories.get(memory).cloned().unwrap_or_default()
    }
}

async fn demo() -> Result<(Vec<String>, String), Box<dyn std::error::Error>> {
    let client = MemoryClient::new(Config::default())?;
    let operations = async {
        client.add_entry("memory-123", "likes tea").await?;
        client.add_entry("memory-123", "likes coffee").await?;
        client.delete_entry("memory-123", "likes tea").await?;
        client.put_context("memory-123", "drinks").await?;
        client.await_consistency("memory-123").await;
        Ok(client.read("memory-123"))
    };
    client.executor.stop_after(operations).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (entries, context) = demo().await?;
    println!("{context}: {entries:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[tokio::test(start_paused = true)]
    async fn reads_see_the_writes_before_them() {
        let (entries, context) = super::demo().await.unwrap();
        assert_eq!(entries, ["likes coffee"]);
        assert_eq!(context, "drinks");
    }
}
