//! A program that consumes, as its users write it. The test starts it as a process of its own.

use std::io::Write;

use fila_sdk::{Client, Failure, Received};

/// How many messages it has at once.
pub(crate) const PREFETCH: u32 = 16;

/// Where it finds the server.
pub(crate) const ADDRESS: &str = "FILA_TEST_ADDRESS";

#[tokio::test]
#[ignore = "a process that another test starts and kills"]
async fn consume() {
    let address = std::env::var(ADDRESS).expect("the test says where the server is");
    let client = Client::builder(address).connect_lazy().unwrap();
    let worker = client
        .queue(super::QUEUE)
        .worker()
        .concurrency(8)
        .prefetch(PREFETCH);
    let ended = worker.run(|order: Received| async move {
        let number = std::str::from_utf8(&order.payload)?;
        // A line is whole or not there: it is one write.
        let line = format!("{number} {}\n", order.id);
        std::io::stdout().write_all(line.as_bytes())?;
        Ok::<(), Failure>(())
    });
    ended.await.unwrap();
}
