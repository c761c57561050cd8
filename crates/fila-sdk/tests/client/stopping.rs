//! Consumers that end while messages are on their way to them.

use crate::rig::{Rig, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_stops_while_deliveries_come_gives_all_of_them_back() {
    let rig = Rig::start().await;
    let orders = rig.queue("orders").await;
    for sent in soon(orders.send_all((0..64).map(|n| format!("{n}")))).await {
        sent.unwrap();
    }
    for round in 0..200 {
        let mut consumer = orders.consumer().prefetch(3).subscribe();
        for _ in 0..3 {
            let order = soon(consumer.next()).await.unwrap().unwrap();
            // Given back, it makes room: the next one is on its way while we stop.
            drop(order.release());
        }
        let stopped = tokio::time::timeout(crate::rig::PATIENCE, consumer.stop()).await;
        assert!(
            stopped.is_ok(),
            "round {round}: {:?}",
            rig.stats("orders").await
        );
    }
    let stats = rig.stats("orders").await;
    assert_eq!((stats.ready, stats.leased), (64, 0));
}
