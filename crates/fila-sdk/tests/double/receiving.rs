//! Programs without a stream: messages by a call, and their results by another.

use std::time::Duration;

use fila_sdk::testing::Broker;
use fila_sdk::{Error, ErrorCode, Leased, Queue, QueueSettings, Verdict};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

fn orders() -> (Broker, Queue) {
    let broker = Broker::new();
    let settings = QueueSettings::new().visibility_timeout(20 * SECOND);
    broker.create_queue_with("orders", &settings);
    let queue = broker.client().queue("orders");
    (broker, queue)
}

async fn take(queue: &Queue, messages: u32) -> Vec<Leased> {
    queue.receive().limit(messages).run().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn messages_are_taken_and_settled_by_calls() {
    let (broker, queue) = orders();
    for payload in ["1", "2", "3"] {
        queue.send(payload).await.unwrap();
    }
    let taken = take(&queue, 3).await;
    let payloads: Vec<_> = taken.iter().map(|it| it.payload.clone()).collect();
    assert_eq!(payloads, ["1", "2", "3"]);
    assert_eq!(taken[0].lease_time, 20 * SECOND);
    assert_eq!(take(&queue, 3).await, []);

    let [first, second, third] = [0, 1, 2].map(|number| taken[number].lease);
    assert_eq!(queue.settle([first], Verdict::Ack).await.unwrap(), []);
    let nack = Verdict::Nack {
        error: "no paper".to_owned(),
        delay: None,
    };
    assert_eq!(queue.settle([second], nack).await.unwrap(), []);
    assert_eq!(queue.settle([third], Verdict::Release).await.unwrap(), []);
    let again = take(&queue, 3).await;
    let mut attempts: Vec<_> = again
        .iter()
        .map(|it| (&it.payload[..], it.attempt))
        .collect();
    attempts.sort_unstable();
    assert_eq!(attempts, [(&b"2"[..], 2), (b"3", 1)]);
    assert_eq!((broker.depth("orders"), broker.acked("orders")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_the_first_message() {
    let (_broker, queue) = orders();
    let begun = Instant::now();
    let nothing = queue.receive().wait(7 * SECOND).run().await.unwrap();
    assert_eq!((nothing, begun.elapsed().as_secs()), (vec![], 7));

    // Longer than the deadline of the client's other calls.
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.receive().wait(60 * SECOND).run().await }
    });
    sleep(50 * SECOND).await;
    queue.send("work").await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_lasts_for_its_time_and_can_be_extended() {
    let (broker, queue) = orders();
    queue.send("work").await.unwrap();
    let first = queue.receive().lease(5 * SECOND).run().await.unwrap();
    broker.cut();
    sleep(4 * SECOND).await;
    let extended = queue.settle([first[0].lease], Verdict::Extend(10 * SECOND));
    assert_eq!(extended.await.unwrap(), []);
    sleep(9 * SECOND).await;
    assert_eq!(take(&queue, 1).await, []);
    let second = queue.receive().wait(2 * SECOND).run().await.unwrap();
    assert_eq!(second[0].attempt, 2);
    let late = queue.settle([first[0].lease, second[0].lease], Verdict::Ack);
    assert_eq!(late.await.unwrap(), [(first[0].lease, Error::LeaseLost)]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_leaves_the_messages_to_others() {
    let (broker, queue) = orders();
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.receive().wait(60 * SECOND).run().await }
    });
    sleep(SECOND).await;
    waiting.abort();
    sleep(SECOND).await;
    queue.send("work").await.unwrap();
    let taken = take(&queue, 1).await;
    assert_eq!((taken[0].attempt, broker.depth("orders")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_does_not_exist_is_an_error() {
    let nowhere = Broker::new().client().queue("nowhere");
    let received = nowhere.receive().run().await.unwrap_err();
    assert_eq!(received.code(), Some(ErrorCode::QueueNotFound));
    let settled = nowhere.settle([], Verdict::Ack).await.unwrap_err();
    assert_eq!(settled.code(), Some(ErrorCode::QueueNotFound));
}
