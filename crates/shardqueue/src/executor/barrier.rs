//! Waiting for jobs that were accepted before.

use std::future::poll_fn;
use std::sync::Arc;

use super::ShardExecutor;
use crate::bell::Bell;
use crate::core::BarrierId;
use crate::shard::Shard;

impl ShardExecutor {
    /// Waits until every job of a key that was accepted before has ended, with any outcome.
    ///
    /// It is no job itself: it takes no room, delays nothing, and does not wait for jobs that are accepted later.
    ///
    /// ```
    /// use shardqueue::{Config, JobContext, ShardExecutor};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let executor = ShardExecutor::new(Config::default())?;
    /// let handle = executor.submit("user-7", async |_: JobContext| {}).await?;
    /// executor.barrier("user-7").await;
    /// assert!(handle.await.is_done());
    /// # Ok(())
    /// # }
    /// ```
    /// A job must not wait for its own key: it would wait for itself.
    pub async fn barrier(&self, key: impl AsRef<str>) {
        let key = key.as_ref();
        let barrier = BarrierGuard::set(self.shard_of(key), Some(key));
        if let Some(barrier) = barrier {
            barrier.wait().await;
        }
    }

    /// Waits until every job that was accepted before has ended, with any outcome.
    ///
    /// A job must not wait for it: it would wait for itself.
    pub async fn flush(&self) {
        let shards = self.shards.iter();
        let barriers: Vec<BarrierGuard> = shards
            .filter_map(|shard| BarrierGuard::set(shard, None))
            .collect();
        for barrier in barriers {
            barrier.wait().await;
        }
    }
}

/// A barrier that is taken down on drop.
struct BarrierGuard {
    shard: Arc<Shard>,
    id: BarrierId,
    bell: Arc<Bell>,
}

impl BarrierGuard {
    /// Sets a barrier; `None` if there is nothing to wait for.
    fn set(shard: &Arc<Shard>, key: Option<&str>) -> Option<Self> {
        let (id, bell) = shard.barrier(key)?;
        Some(Self {
            shard: Arc::clone(shard),
            id,
            bell,
        })
    }

    async fn wait(&self) {
        poll_fn(|cx| self.bell.poll_rung(cx)).await;
    }
}

impl Drop for BarrierGuard {
    fn drop(&mut self) {
        self.shard.take_down(self.id);
    }
}
