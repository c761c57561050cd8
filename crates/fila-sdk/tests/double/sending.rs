//! Sending while things break.

use std::task::Poll;
use std::time::Duration;

use fila_sdk::{Error, ErrorCode, Message, QueueSettings};
use futures_util::FutureExt as _;
use tokio::time::Instant;

use crate::Rig;

#[tokio::test(start_paused = true)]
async fn one_task_in_a_loop_sends_a_frame_for_each_message_and_waits_for_nothing_else() {
    let rig = Rig::new();
    let begun = Instant::now();
    for _ in 0..20 {
        rig.send("x").await;
    }
    assert_eq!(rig.broker.frames(), 20);
    assert_eq!(begun.elapsed(), Duration::ZERO, "a send does not linger");
}

#[tokio::test(start_paused = true)]
async fn a_key_is_a_path_under_the_separator_of_its_queue() {
    let rig = Rig::with(&QueueSettings::new().key_separator(":"));
    let refused = rig.orders.send(Message::new("x").key("acme::a")).await;
    let code = refused.unwrap_err().code();
    assert_eq!(code, Some(ErrorCode::InvalidFairnessKey));
    rig.orders
        .send(Message::new("x").key("acme:a//b"))
        .await
        .unwrap();
    let admin = rig.client.admin();
    let stats = admin.queue("orders").await.unwrap().stats;
    assert_eq!((stats.active_keys, stats.active_groups), (1, 1));
    let flat = QueueSettings::new().key_separator("");
    admin.create_queue("flat", flat).await.unwrap();
    let odd = Message::new("x").key("//");
    rig.client.queue("flat").send(odd).await.unwrap();
    let wrong = QueueSettings::new().key_separator("ab");
    let refused = admin.create_queue("wrong", wrong).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::InvalidArgument));
    assert!(admin.queue("wrong").await.is_err());
    assert!(admin.queue("wrong.dlq").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_thousand_tasks_at_once_share_a_handful_of_frames() {
    let rig = Rig::new();
    let begun = Instant::now();
    let sends = (0..1000).map(|number| {
        let orders = rig.orders.clone();
        tokio::spawn(async move { orders.send(format!("{number}")).await })
    });
    for send in sends.collect::<Vec<_>>() {
        send.await.unwrap().unwrap();
    }
    assert_eq!(rig.broker.depth("orders"), 1000);
    let frames = rig.broker.frames();
    assert!(frames <= 8, "{frames} frames");
    assert_eq!(begun.elapsed(), Duration::ZERO, "a send does not linger");
}

#[tokio::test(start_paused = true)]
async fn what_one_task_posts_shares_frames_and_stays_in_order() {
    let rig = Rig::new();
    let begun = Instant::now();
    let mut receipts = Vec::new();
    for number in 0..1000 {
        receipts.push(rig.orders.post(format!("{number:04}")).await.unwrap());
    }
    let mut ids = Vec::new();
    for receipt in receipts {
        ids.push(receipt.await.unwrap().id);
    }
    assert!(ids.is_sorted_by(|one, next| one < next));
    assert_eq!(rig.broker.depth("orders"), 1000);
    let frames = rig.broker.frames();
    assert!(frames <= 8, "{frames} frames");
    assert_eq!(begun.elapsed(), Duration::ZERO, "a send does not linger");
}

#[tokio::test(start_paused = true)]
async fn a_receipt_is_answered_by_the_deadline_and_what_it_is_for_is_sent_without_it() {
    let rig = Rig::new();
    let client = rig
        .broker
        .client_with(|client| client.deadline(Duration::from_secs(3)));
    let orders = client.queue("orders");
    rig.broker.go_away();
    let begun = Instant::now();
    let receipt = orders.post("x").await.unwrap();
    let failed = receipt.await.unwrap_err();
    assert!(matches!(failed, Error::NoAnswer { .. }), "{failed:?}");
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
    drop(orders.post("y").await.unwrap());
    rig.broker.come_back();
    client.flush().await;
    assert_eq!(rig.broker.depth("orders"), 1, "no task waits for it");
}

#[tokio::test(start_paused = true)]
async fn what_is_posted_waits_for_room() {
    let rig = Rig::new();
    let client = rig.broker.client_with(|client| client.buffer(1024));
    let orders = client.queue("orders");
    rig.broker.go_away();
    let _first = orders.post("1").await.unwrap();
    let _second = orders.post("2").await.unwrap();
    let mut third = Box::pin(orders.post("3"));
    assert!(futures_util::poll!(&mut third).is_pending());
    rig.broker.come_back();
    third.await.unwrap().await.unwrap();
    assert_eq!(rig.broker.depth("orders"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_answer_was_lost_is_stored_once() {
    let rig = Rig::new();
    rig.broker.lose_answer();
    let sent = rig.orders.send("x").await.unwrap();
    assert!(
        !sent.deduplicated,
        "it is the first of its name, which it has none of"
    );
    assert_eq!(rig.broker.frames(), 2, "it was sent again");
    assert_eq!(rig.broker.depth("orders"), 1);
}

#[tokio::test(start_paused = true)]
async fn batches_that_break_again_and_again_are_stored_once_and_in_order() {
    let rig = Rig::new();
    for round in 0..50 {
        let batch = (0..40).map(|number| format!("{:04}", round * 40 + number));
        match round % 3 {
            0 => rig.broker.lose_answer(),
            1 => rig.broker.cut(),
            _ => {}
        }
        let mut sending = Box::pin(rig.orders.send_all(batch));
        let mut sent = None;
        for _ in 0..round {
            if let Poll::Ready(results) = futures_util::poll!(&mut sending) {
                sent = Some(results);
                break;
            }
            tokio::task::yield_now().await;
        }
        // Somewhere on its way.
        rig.broker.cut();
        let sent = match sent {
            Some(sent) => sent,
            None => sending.await,
        };
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    }
    assert!(rig.broker.frames() > 60, "{} frames", rig.broker.frames());
    assert_eq!(rig.broker.depth("orders"), 2000);

    let mut consumer = rig.orders.consumer().subscribe();
    for number in 0..2000 {
        let order = consumer.next().await.unwrap().unwrap();
        assert_eq!(crate::text(&order), format!("{number:04}"));
        drop(order.ack()); // on its way already
    }
    consumer.stop().await;
    assert_eq!(rig.broker.acked("orders"), 2000);
}

#[tokio::test(start_paused = true)]
async fn a_send_outlasts_a_server_that_comes_back() {
    let rig = Rig::new();
    rig.send("before").await;
    rig.broker.go_away();
    let sending = tokio::spawn({
        let orders = rig.orders.clone();
        async move { orders.send("meanwhile").await }
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!sending.is_finished());
    rig.broker.come_back();
    sending.await.unwrap().unwrap();
    assert_eq!(rig.broker.depth("orders"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_send_gives_up_at_its_deadline_and_says_what_was_wrong() {
    let rig = Rig::new();
    rig.broker.go_away();
    let begun = Instant::now();
    let error = rig.orders.send("x").await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 30);
    let Error::NoAnswer { after, cause } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(after.as_secs(), 30);
    assert_eq!(cause.as_deref(), Some("connection refused"));
    assert!(error.is_temporary());

    // `flush` does not wait for messages that were given up, and the client does not send them later.
    crate::soon(rig.client.flush()).await;
    rig.broker.come_back();
    rig.send("y").await;
    assert_eq!(rig.broker.depth("orders"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_for_now_is_sent_again() {
    let rig = Rig::new();
    for code in [
        ErrorCode::BufferFull,
        ErrorCode::BufferFull,
        ErrorCode::ShuttingDown,
        ErrorCode::OutcomeUnknown,
        ErrorCode::StoreUnavailable,
    ] {
        rig.broker.refuse(code);
    }
    rig.send("x").await;
    assert_eq!(rig.broker.frames(), 6);
    assert_eq!(rig.broker.depth("orders"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_for_good_is_told_at_once() {
    let rig = Rig::new();
    // A failed store passes, too, but not before a restart.
    for (before, code) in (0..).zip([ErrorCode::QueueFull, ErrorCode::StoreUnavailable]) {
        rig.broker.refuse(code);
        let error = rig.orders.send("x").await.unwrap_err();
        assert_eq!(error.code(), Some(code));
        assert!(error.is_temporary());
        assert_eq!(rig.broker.frames(), before + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn one_queue_that_is_missing_does_not_hurt_the_messages_of_another() {
    let rig = Rig::new();
    let nowhere = rig.client.queue("nowhere");
    let (lost, kept) = tokio::join!(nowhere.send("x"), rig.orders.send("y"));
    assert_eq!(lost.unwrap_err().code(), Some(ErrorCode::QueueNotFound));
    kept.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_message_that_breaks_the_stream_fails_alone() {
    let rig = Rig::new();
    // More than the broker reads: it ends the stream without saying which frame it was.
    let huge = vec![0_u8; 65 << 20];
    let (before, huge, after) = tokio::join!(
        rig.orders.send("before"),
        rig.orders.send(huge),
        rig.orders.send("after")
    );
    before.unwrap();
    after.unwrap();
    let error = huge.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    assert_eq!(rig.broker.depth("orders"), 2);
}

#[tokio::test(start_paused = true)]
async fn the_buffer_is_a_bound() {
    let rig = Rig::new();
    let client = rig.broker.client_with(|client| client.buffer(4 << 10));
    let orders = client.queue("orders");
    rig.broker.go_away();
    // Three of 1 KiB and what each takes itself fit; the fourth waits for room.
    let payload = vec![0_u8; 1 << 10];
    let sends: Vec<_> = (0..4)
        .map(|_| {
            tokio::spawn({
                let (orders, payload) = (orders.clone(), payload.clone());
                async move { orders.send(payload).await }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    rig.broker.come_back();
    for send in sends {
        send.await.unwrap().unwrap();
    }
    assert_eq!(rig.broker.depth("orders"), 4);
    // The first frame cannot have had all four.
    assert!(rig.broker.frames() >= 2);
}

#[tokio::test(start_paused = true)]
async fn a_message_larger_than_the_buffer_is_sent_all_the_same() {
    let rig = Rig::new();
    let client = rig.broker.client_with(|client| client.buffer(1));
    client
        .queue("orders")
        .send(vec![0_u8; 100_000])
        .await
        .unwrap();
    assert_eq!(rig.broker.depth("orders"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_own_deduplication_id_is_told_of() {
    let rig = Rig::new();
    let message = Message::new("x").deduplication_id("order-7");
    let first = rig.orders.send(message.clone()).await.unwrap();
    let second = rig.orders.send(message).await.unwrap();
    assert!(!first.deduplicated);
    assert!(second.deduplicated);
    assert_eq!(first.id, second.id);
}

#[tokio::test(start_paused = true)]
async fn a_flush_waits_for_sends_that_no_task_awaits() {
    let rig = Rig::new();
    rig.broker.go_away();
    let mut send = Box::pin(rig.orders.send("x"));
    assert!(futures_util::poll!(&mut send).is_pending());
    drop(send);
    let flushing = tokio::spawn({
        let client = rig.client.clone();
        async move { client.flush().await }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!flushing.is_finished());
    rig.broker.come_back();
    flushing.await.unwrap();
    assert_eq!(rig.broker.depth("orders"), 1);
    rig.client.flush().await; // nothing to wait for
}

#[tokio::test(start_paused = true)]
async fn a_post_allocates_the_place_of_its_answer_and_nothing_else() {
    const POSTS: u64 = 960;
    let rig = Rig::new();
    rig.send("x").await; // the stream is open
    let mut receipts = Vec::with_capacity(POSTS as usize);
    let posted = allocation_counter::measure(|| {
        for _ in 0..POSTS {
            // There is room, so the first poll hands it over, and no other task runs in between.
            let receipt = rig.orders.post("x").now_or_never().unwrap();
            receipts.push(receipt.unwrap());
        }
    });
    // The channel adds a block of memory for each 32 messages.
    let most = POSTS + POSTS / 32 + 1;
    assert!(
        posted.count_total <= most,
        "{} allocations",
        posted.count_total
    );
    for receipt in receipts {
        receipt.await.unwrap();
    }
    assert_eq!(rig.broker.depth("orders"), POSTS + 1);
}

#[tokio::test(start_paused = true)]
async fn messages_handed_over_while_the_client_tries_to_connect_keep_their_deadlines() {
    let rig = Rig::new();
    let deadline = Duration::from_secs(3);
    let client = rig.broker.client_with(|client| {
        let hour = Duration::from_secs(3600);
        client.deadline(deadline).backoff(hour, hour)
    });
    rig.broker.go_away();
    let first = client.queue("orders").post("1").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    let second = client.queue("orders").post("2").await.unwrap(); // the client waits for an hour
    assert!(matches!(first.await, Err(Error::NoAnswer { .. })));
    assert_eq!(begun.elapsed(), deadline - Duration::from_secs(1));
    assert!(matches!(second.await, Err(Error::NoAnswer { .. })));
    assert_eq!(begun.elapsed(), deadline);
    crate::soon(client.flush()).await;
}
