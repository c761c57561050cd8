//! A consumer whose process is stopped for longer than its leases last.

use std::time::Duration;

use fila_sdk::{Message, QueueSettings};

use crate::consumer::{CREDIT, Process};
use crate::program::Running;
use crate::{QUEUE, client_of, inspect, server_on, soon, take};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_consumer_holds_its_credit_no_more_and_its_late_acknowledgements_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = Running::start(&mut server_on(directory.path()));
    let client = client_of(&server).await;
    let settings = QueueSettings::new()
        .visibility_timeout(Duration::from_secs(1))
        .retry_backoff(Duration::ZERO);
    soon(client.admin().create_queue(QUEUE, settings))
        .await
        .unwrap();
    let orders = client.queue(QUEUE);
    let messages =
        |range: std::ops::Range<u32>| range.map(|number| Message::new(number.to_string()));

    let mut stopped = Process::start(&server.address);
    for sent in soon(orders.send_all(messages(0..CREDIT))).await {
        sent.unwrap();
    }
    let mut held = stopped.says("took", CREDIT).await;
    stopped.signal("STOP");

    // There are more messages than it may hold. Another consumer gets all of them, and once also those that it holds.
    for sent in soon(orders.send_all(messages(CREDIT..200))).await {
        sent.unwrap();
    }
    let mut other = orders.consumer().subscribe();
    let taken = take(&mut other, 200).await;
    let again: Vec<&String> = taken.keys().filter(|text| taken[*text] > 1).collect();
    held.sort();
    assert_eq!(again, held.iter().collect::<Vec<_>>());
    assert!(taken.values().all(|attempt| *attempt <= 2), "{taken:?}");
    assert_eq!(inspect(&client, QUEUE).await.stats.depth, 0);

    stopped.signal("CONT");
    stopped.acknowledge().await;
    let mut refused = stopped.says("refused", CREDIT).await;
    refused.sort();
    assert_eq!(refused, held);
    let stats = inspect(&client, QUEUE).await.stats;
    assert_eq!((stats.depth, stats.totals.acked), (0, 200));
    assert_eq!(stats.totals.lease_expired, u64::from(CREDIT));

    // It goes on as if nothing had been.
    soon(other.stop()).await;
    for sent in soon(orders.send_all(messages(200..200 + CREDIT))).await {
        sent.unwrap();
    }
    let took = stopped.says("took", CREDIT).await;
    stopped.acknowledge().await;
    let mut confirmed = stopped.says("confirmed", CREDIT).await;
    confirmed.sort();
    assert_eq!(took, confirmed);
    let stats = inspect(&client, QUEUE).await.stats;
    let acked = 200 + u64::from(CREDIT);
    assert_eq!((stats.depth, stats.totals.acked), (0, acked));
}
