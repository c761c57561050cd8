//! Messages per second, produced, consumed and both at the same time, at each level of durability. A durable message costs
//! a sync; the level `memory` in the same run shows the rate without one.

use anyhow::Context;

use crate::client::{self, StreamLoad};
use crate::key_shape::KeyShape;
use crate::server::Server;

#[derive(Debug, clap::Args)]
pub(crate) struct SpeedArguments {
    /// A tenth of the messages
    #[arg(long)]
    quick: bool,
    /// Bytes of a payload
    #[arg(long, default_value_t = 1024)]
    pub(crate) size: usize,
}

impl SpeedArguments {
    /// Returns the divisor of the number of messages.
    pub(crate) fn scale(&self) -> u64 {
        if self.quick { 10 } else { 1 }
    }
}

pub(crate) async fn run(arguments: SpeedArguments) -> anyhow::Result<()> {
    let scale = arguments.scale();
    println!(
        "{} bytes, 10 keys, one connection; messages/s",
        arguments.size
    );
    println!(
        "{:<8} {:>12} {:>12} {:>12} {:>12}",
        "level", "produce 256", "produce 1", "drain", "through"
    );
    for level in ["memory", "os", "fsync"] {
        let directory = tempfile::tempdir()?;
        let settings = [format!("storage.durability={level}")];
        let server = Server::start(directory.path(), &settings)?;
        let load = StreamLoad {
            messages: 200_000 / scale,
            keys: KeyShape::flat(10),
            size: arguments.size,
            outstanding: 256,
            frame: 16,
        };
        let rate = |load: StreamLoad, elapsed: std::time::Duration| {
            load.messages as f64 / elapsed.as_secs_f64()
        };
        let channel = client::connect(&server.address).await?;
        client::create(&channel, "backlog").await?;
        let filled = client::produce(&channel, "backlog", load, |_| {}).await?;
        let drained = client::consume(&channel, "backlog", load, 256, |_| {}).await?;

        let one = StreamLoad {
            messages: 5_000 / scale,
            outstanding: 1,
            frame: 1,
            ..load
        };
        client::create(&channel, "one").await?;
        let single = client::produce(&channel, "one", one, |_| {}).await?;

        client::create(&channel, "through").await?;
        let other = client::connect(&server.address).await?;
        let begun = std::time::Instant::now();
        let (sent, seen) = tokio::join!(
            client::produce(&channel, "through", load, |_| {}),
            client::consume(&other, "through", load, 256, |_| {}),
        );
        sent.context("producing")?;
        seen.context("consuming")?;
        println!(
            "{level:<8} {:>12.0} {:>12.0} {:>12.0} {:>12.0}",
            rate(load, filled),
            rate(one, single),
            rate(load, drained.elapsed),
            rate(load, begun.elapsed()),
        );
    }
    Ok(())
}
