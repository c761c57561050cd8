//! Sending to a server that answers late, wrongly or never.

use std::time::Duration;

use fila_proto::v1;
use fila_sdk::{Client, Error, ErrorCode, Sent};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::script::{Script, Wire, cut, error, refusal};
use crate::soon;

/// A task that sends a message.
type Sending = JoinHandle<Result<Sent, Error>>;

/// The script's end of a stream of frames.
type Producing = Wire<v1::ProduceRequest, v1::ProduceResponse>;

/// Sends a message to `orders`, in a task of its own.
fn send(client: &Client, payload: &'static str) -> Sending {
    send_to(client, "orders", payload)
}

/// Sends a message for which a stream is opened, and returns the stream and the frame that came on it.
async fn send_first(
    script: &mut Script,
    client: &Client,
    payload: &'static str,
) -> (Sending, Producing, v1::ProduceRequest) {
    let sending = send(client, payload);
    let mut wire = script.produce().await;
    let frame = wire.hear().await;
    (sending, wire, frame)
}

/// Sends messages on a stream that is opened for them, each in a frame of its own.
async fn send_each(
    script: &mut Script,
    client: &Client,
    payloads: &[&'static str],
) -> (Vec<Sending>, Producing, Vec<v1::ProduceRequest>) {
    let (first, others) = payloads.split_first().expect("something to send");
    let (sending, mut wire, frame) = send_first(script, client, first).await;
    let (mut sends, mut frames) = (vec![sending], vec![frame]);
    for payload in others {
        sends.push(send(client, payload));
        frames.push(wire.hear().await);
    }
    (sends, wire, frames)
}

/// Waits for the end of a send whose sender was told that there was no answer.
async fn assert_given_up(sending: Sending) {
    let error = sending.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error:?}");
}

fn send_to(client: &Client, queue: &str, payload: &'static str) -> Sending {
    let queue = client.queue(queue);
    tokio::spawn(async move { queue.send(payload).await })
}

fn flush(client: &Client) -> JoinHandle<()> {
    let client = client.clone();
    tokio::spawn(async move { client.flush().await })
}

#[tokio::test(start_paused = true)]
async fn frames_behind_one_that_was_given_up_are_sent_though_they_go_one_by_one() {
    let (mut script, client) = Script::new();
    let (first, mut wire, _) = send_first(&mut script, &client, "first").await;
    sleep(Duration::from_secs(20)).await;
    let second = send(&client, "second");
    wire.hear().await;
    // One of the two is wrong, says the server, and does not say which.
    wire.fail(refusal(ErrorCode::InvalidArgument));
    let mut wire = script.produce().await;
    // It has no room for the first of them until no caller waits for it any more.
    let frame = loop {
        let frame = soon(wire.hear()).await;
        if frame.frame_id == 1 {
            break frame;
        }
        wire.refuse(&frame, ErrorCode::BufferFull);
    };
    wire.store(&frame);
    soon(second).await.unwrap().unwrap();
    assert_given_up(first).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_keeps_no_place_in_the_buffer() {
    let (mut script, client) = Script::with(|client| client.buffer(1));
    let (first, _wire, _) = send_first(&mut script, &client, "first").await;
    assert_given_up(first).await;
    soon(client.flush()).await;
    let second = send(&client, "second");
    let mut again = soon(script.produce()).await;
    let frame = soon(again.hear()).await;
    assert_eq!(frame.messages[0].payload, "second");
    again.store(&frame);
    soon(second).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_slowly_is_not_given_up() {
    let (mut script, client) = Script::new();
    let mut wire = None;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(120) {
        let sending = send(&client, "x");
        if wire.is_none() {
            wire = Some(script.produce().await);
        }
        let wire = wire.as_mut().unwrap();
        let frame = wire.hear().await;
        sleep(Duration::from_secs(29)).await;
        wire.store(&frame);
        sending.await.unwrap().unwrap();
        // An idle stream is not given up either.
        sleep(Duration::from_secs(60)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_flush_waits_for_what_was_handed_over_before_it_and_for_nothing_else() {
    let (mut script, client) = Script::new();
    let _before = send_to(&client, "orders", "before");
    let mut wire = script.produce().await;
    let orders = wire.hear().await;
    let _before = send_to(&client, "mails", "before");
    let mails = wire.hear().await;
    let flushing = flush(&client);
    tokio::task::yield_now().await;
    let _after = send_to(&client, "orders", "after");
    wire.hear().await; // and is not answered
    wire.store(&mails);
    sleep(Duration::from_secs(1)).await;
    assert!(!flushing.is_finished(), "one is unanswered");
    wire.store(&orders);
    let stored = Instant::now();
    flushing.await.unwrap();
    assert!(stored.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_sent_again_keeps_its_name_and_its_messages() {
    let (mut script, client) = Script::new();
    let payloads = ["first", "second"];
    let (sends, wire, before) = send_each(&mut script, &client, &payloads).await;
    wire.fail(cut());
    let mut wire = script.produce().await;
    let again = vec![wire.hear().await, wire.hear().await];
    assert_eq!(again, before);
    let name = again[0].batch_id.as_ref().unwrap();
    assert_eq!(name.producer.len(), 16);
    assert_eq!(name.remember_ms, 60_000, "twice the deadline");
    for frame in &again {
        wire.store(frame);
    }
    for (sending, payload) in sends.into_iter().zip(payloads) {
        assert_eq!(sending.await.unwrap().unwrap().id.as_str(), payload);
    }
}

#[tokio::test(start_paused = true)]
async fn a_frame_says_below_which_all_are_answered_and_no_more() {
    let (mut script, client) = Script::new();
    let (_, mut wire, frames) = send_each(&mut script, &client, &["x"; 3]).await;
    let below = |frame: &v1::ProduceRequest| frame.batch_id.as_ref().unwrap().answered_below;
    assert_eq!(frames.iter().map(below).collect::<Vec<_>>(), [0, 0, 0]);
    wire.store(&frames[1]);
    sleep(Duration::from_secs(1)).await;
    drop(send(&client, "x"));
    assert_eq!(below(&wire.hear().await), 0, "the first is unanswered");
    wire.store(&frames[0]);
    sleep(Duration::from_secs(1)).await;
    drop(send(&client, "x"));
    let frame = wire.hear().await;
    assert_eq!((frame.frame_id, below(&frame)), (4, 2));
    // On the next stream nothing is sent that was said to be answered.
    wire.fail(cut());
    let mut wire = script.produce().await;
    for sequence in 2..5 {
        let frame = wire.hear().await;
        assert_eq!((frame.frame_id, below(&frame)), (sequence, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_answers_hurt_only_their_own_calls() {
    let (mut script, client) = Script::new();
    let orders = client.queue("orders");
    let sending = tokio::spawn(async move { orders.send_all(["a", "b"]).await });
    let mut wire = script.produce().await;
    let frame = wire.hear().await;
    let answer = |frame_id, count| v1::ProduceResponse {
        frame_id,
        results: vec![v1::EnqueueResult::default(); count],
        window: 0,
    };
    wire.say(answer(77, 3)); // there was no such frame
    wire.say(answer(frame.frame_id, 1)); // it had two messages
    wire.say(answer(frame.frame_id, 2)); // it was answered
    let sent = soon(sending).await.unwrap();
    assert!(sent[0].is_ok());
    let error = sent[1].clone().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Unspecified), "{error:?}");
    let sending = send(&client, "c");
    let frame = wire.hear().await;
    wire.say(answer(frame.frame_id, 5)); // it had one
    soon(sending).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn results_come_back_in_the_order_of_their_messages() {
    let (mut script, client) = Script::new();
    let orders = client.queue("orders");
    let sending = tokio::spawn(async move { orders.send_all(["a", "b", "c"]).await });
    let mut wire = script.produce().await;
    let frame = wire.hear().await;
    assert_eq!(frame.messages.len(), 3);
    let result = |id: &str, error| v1::EnqueueResult {
        message_id: id.to_owned(),
        deduplicated: true,
        error,
    };
    wire.say(v1::ProduceResponse {
        frame_id: frame.frame_id,
        results: vec![
            result("1", None),
            result("", Some(error(ErrorCode::KeyFull))),
            result("3", None),
        ],
        window: 0,
    });
    let sent = sending.await.unwrap();
    let first = sent[0].clone().unwrap();
    assert_eq!((first.id.as_str(), first.deduplicated), ("1", false));
    let second = sent[1].clone().unwrap_err();
    assert_eq!(second.code(), Some(ErrorCode::KeyFull));
    assert_eq!(sent[2].clone().unwrap().id.as_str(), "3");
}

#[tokio::test(start_paused = true)]
async fn no_more_is_under_way_than_the_window() {
    let (mut script, client) = Script::new();
    let orders = client.queue("orders");
    let sending = tokio::spawn(async move { orders.send_all(["a", "b", "c", "d", "e"]).await });
    let mut wire = script.produce_with(2).await;
    for count in [2, 2, 1] {
        let frame = wire.hear().await;
        assert_eq!(frame.messages.len(), count);
        assert!(
            timeout(Duration::from_secs(1), wire.hear()).await.is_err(),
            "the next is not sent before this is answered"
        );
        wire.store(&frame);
    }
    assert!(sending.await.unwrap().iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn no_more_than_eight_frames_are_under_way_and_none_is_too_large() {
    let (mut script, client) = Script::new();
    let (_, mut wire, frames) = send_each(&mut script, &client, &["x"; 8]).await;
    let orders = client.queue("orders");
    let large = vec![0_u8; 700 << 10];
    let large = tokio::spawn(async move { orders.send_all([large.clone(), large]).await });
    let mails = client.queue("mails");
    let many = tokio::spawn(async move { mails.send_all(vec!["x"; 600]).await });
    let early = timeout(Duration::from_secs(1), wire.hear()).await;
    assert!(early.is_err(), "eight are under way");
    for frame in &frames {
        wire.store(frame);
    }
    // Queues take turns.
    for (queue, count) in [("orders", 1), ("mails", 512), ("orders", 1), ("mails", 88)] {
        let frame = wire.hear().await;
        assert_eq!((frame.queue.as_str(), frame.messages.len()), (queue, count));
        wire.store(&frame);
    }
    assert!(large.await.unwrap().iter().all(Result::is_ok));
    assert!(many.await.unwrap().iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn nothing_overtakes_a_frame_that_was_put_off() {
    let (mut script, client) = Script::new();
    let (_first, mut wire, first) = send_first(&mut script, &client, "first").await;
    let _second = send(&client, "second");
    let second = wire.hear().await;
    wire.refuse(&first, ErrorCode::BufferFull);
    let refused = Instant::now();
    tokio::task::yield_now().await;
    let _third = send(&client, "third");
    let again = wire.hear().await;
    assert_eq!(again, first);
    let wait = refused.elapsed().as_millis();
    assert!((25..=51).contains(&wait), "{wait} ms");
    wire.store(&again);
    let third = wire.hear().await;
    assert_eq!(third.messages[0].payload, "third");
    wire.store(&second);
    wire.store(&third);
    soon(client.flush()).await;
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_was_put_off_is_sent_once_on_the_next_stream() {
    let (mut script, client) = Script::new();
    let (sending, wire, frame) = send_first(&mut script, &client, "x").await;
    wire.refuse(&frame, ErrorCode::BufferFull);
    tokio::task::yield_now().await;
    wire.fail(cut());
    let mut wire = script.produce().await;
    assert_eq!(wire.hear().await, frame);
    assert!(timeout(Duration::from_secs(5), wire.hear()).await.is_err());
    let _other = send(&client, "y");
    let other = wire.hear().await;
    assert_eq!(other.messages[0].payload, "y");
    wire.store(&frame);
    soon(sending).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refused_stream_is_searched_frame_by_frame_for_the_one_at_fault() {
    let (mut script, client) = Script::new();
    let payloads = ["good", "bad", "good too"];
    let (sends, wire, _) = send_each(&mut script, &client, &payloads).await;
    let begun = Instant::now();
    wire.fail(refusal(ErrorCode::InvalidArgument));

    let mut wire = script.produce().await;
    let good = wire.hear().await;
    assert_eq!(good.messages[0].payload, "good");
    let early = timeout(Duration::from_secs(1), wire.hear()).await;
    assert!(early.is_err(), "one by one");
    wire.store(&good);
    let bad = wire.hear().await;
    assert_eq!(bad.messages[0].payload, "bad");
    wire.fail(refusal(ErrorCode::InvalidArgument));

    let mut wire = script.produce().await;
    let good = wire.hear().await;
    assert_eq!(good.messages[0].payload, "good too");
    wire.store(&good);
    let mut ended = Vec::new();
    for send in sends {
        ended.push(soon(send).await.unwrap());
    }
    assert!(ended[0].is_ok() && ended[2].is_ok(), "{ended:?}");
    let error = ended[1].clone().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InvalidArgument));
    assert_eq!(begun.elapsed().as_secs(), 1, "no call waits for a refusal");

    // Once the queue is found, sends do not wait for each other: two frames are in flight at once.
    drop((send(&client, "a"), wire.hear().await));
    drop((send(&client, "b"), soon(wire.hear()).await));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_refused_as_a_whole_fails_what_waits_for_it() {
    let (mut script, client) = Script::new();
    let sends = [send(&client, "a"), send_to(&client, "mails", "b")];
    let wire = script.produce_unopened().await;
    wire.fail(refusal(ErrorCode::InvalidArgument));
    for send in sends {
        let error = soon(send).await.unwrap().unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::InvalidArgument));
    }
    let sending = send(&client, "c");
    let mut wire = soon(script.produce()).await;
    let frame = wire.hear().await;
    assert_eq!(frame.messages[0].payload, "c");
    wire.store(&frame);
    sending.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn waits_for_a_lost_server_grow_and_begin_again_when_it_answers() {
    let (mut script, client) = Script::new();
    let mut sending = send(&client, "x");
    let mut wire = script.produce().await;
    for _ in 0..3 {
        let mut waits = Vec::new();
        for _ in 0..4 {
            wire.hear().await;
            wire.fail(cut());
            let broken = Instant::now();
            wire = script.produce().await;
            waits.push(broken.elapsed().as_millis());
        }
        for (wait, step) in waits.iter().zip([50, 100, 200, 400]) {
            assert!((step / 2..=step + 2).contains(wait), "{waits:?}");
        }
        let frame = wire.hear().await;
        wire.store(&frame);
        sending.await.unwrap().unwrap();
        sending = send(&client, "x");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_while_nothing_is_under_way_is_opened_when_it_is_needed() {
    let (mut script, client) = Script::new();
    let (sending, wire, frame) = send_first(&mut script, &client, "x").await;
    wire.store(&frame);
    sending.await.unwrap().unwrap();
    wire.fail(cut());
    let early = timeout(Duration::from_secs(60), script.produce()).await;
    assert!(early.is_err(), "the client sends nothing");
    let begun = Instant::now();
    let (sending, wire, frame) = send_first(&mut script, &client, "y").await;
    wire.store(&frame);
    sending.await.unwrap().unwrap();
    assert!(begun.elapsed().as_millis() <= 2, "no call waits");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_gives_up_returns_the_last_answer_of_the_server() {
    let (mut script, client) = Script::with(|client| client.deadline(Duration::from_secs(1)));
    let sending = send(&client, "x");
    let mut wire = script.produce().await;
    let answering = async {
        loop {
            let frame = wire.hear().await;
            wire.refuse(&frame, ErrorCode::BufferFull);
        }
    };
    let ended = tokio::select! {
        ended = sending => ended.unwrap(),
        () = answering => unreachable!("it goes on"),
    };
    let Err(Error::NoAnswer { cause, .. }) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(cause.as_deref(), Some("the script says so"));
    // The client sends no more results for leases that have ended.
    sleep(Duration::from_secs(5)).await;
    let sending = send(&client, "y");
    let frame = loop {
        let frame = wire.hear().await;
        if frame.messages[0].payload == "y" {
            break frame;
        }
    };
    wire.store(&frame);
    sending.await.unwrap().unwrap();
    let ended = send(&client, "z").await.unwrap();
    let Err(Error::NoAnswer { cause: None, .. }) = ended else {
        panic!("{ended:?}");
    };
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_when_the_client_is_dropped_is_seen_to_its_end() {
    let (mut script, client) = Script::new();
    let orders = client.queue("orders");
    let mut sending = Box::pin(orders.send("x"));
    assert!(futures_util::poll!(&mut sending).is_pending());
    drop(sending);
    let mut wire = script.produce().await;
    let frame = wire.hear().await;
    drop((client, orders));
    let early = timeout(Duration::from_secs(1), wire.is_over()).await;
    assert!(early.is_err(), "it is unanswered");
    wire.fail(cut());
    let mut wire = soon(script.produce()).await;
    assert_eq!(wire.hear().await, frame, "it is sent again");
    wire.store(&frame);
    assert!(soon(wire.is_over()).await, "no call is left");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_open_the_stream_is_tried_again() {
    let (mut script, client) = Script::new();
    let sending = send(&client, "x");
    let begun = Instant::now();
    let silent = script.produce_unopened().await;
    let mut wire = soon(script.produce()).await;
    assert_eq!(begun.elapsed().as_secs(), 5);
    drop(silent);
    let frame = wire.hear().await;
    wire.store(&frame);
    sending.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_always_behind_but_answers_is_not_given_up() {
    let (mut script, client) = Script::new();
    let mut last = send(&client, "x");
    let mut wire = script.produce().await;
    for _ in 0..10 {
        let frame = wire.hear().await;
        sleep(Duration::from_secs(8)).await;
        let next = send(&client, "x"); // so there is always one under way
        sleep(Duration::from_secs(8)).await;
        wire.store(&frame);
        last.await.unwrap().unwrap();
        last = next;
    }
}

#[tokio::test(start_paused = true)]
async fn a_send_that_gave_up_in_the_queue_is_left_out() {
    let (mut script, client) = Script::new();
    let first = send(&client, "first");
    let mut wire = script.produce_with(1).await;
    let frame = wire.hear().await;
    let second = send(&client, "second");
    sleep(Duration::from_secs(20)).await;
    wire.say(v1::ProduceResponse {
        frame_id: 77, // it is there, at least
        ..v1::ProduceResponse::default()
    });
    let third = send(&client, "third");
    for given_up in [first, second] {
        assert_given_up(given_up).await;
    }
    wire.store(&frame);
    let frame = soon(wire.hear()).await;
    assert_eq!(frame.messages[0].payload, "third");
    wire.store(&frame);
    third.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_frame_is_sent_again_as_long_as_anybody_waits_for_it() {
    let (mut script, client) = Script::new();
    let begun = Instant::now();
    let first = send(&client, "first");
    while begun.elapsed() < Duration::from_secs(20) {
        script.produce_unopened().await.fail(cut());
    }
    let second = send(&client, "second");
    tokio::task::yield_now().await;
    let (wire, frame) = loop {
        let mut wire = script.produce().await;
        let frame = wire.hear().await;
        assert_eq!(frame.messages.len(), 2);
        if begun.elapsed() > Duration::from_secs(35) {
            break (wire, frame);
        }
        wire.fail(cut());
    };
    wire.store(&frame);
    soon(second).await.unwrap().unwrap();
    assert_given_up(first).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_has_its_place_in_the_buffer_until_it_is_answered() {
    let (mut script, client) = Script::with(|client| client.buffer(512));
    let (first, mut wire, frame) = send_first(&mut script, &client, "first").await;
    let second = send(&client, "second");
    let early = timeout(Duration::from_secs(1), wire.hear()).await;
    assert!(early.is_err(), "the first has all the room there is");
    wire.store(&frame);
    first.await.unwrap().unwrap();
    let frame = soon(wire.hear()).await;
    wire.store(&frame);
    second.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_put_off_later_is_sent_again_with_what_was_put_off_first() {
    let (mut script, client) = Script::new();
    let (_first, mut wire, first) = send_first(&mut script, &client, "first").await;
    let _second = send(&client, "second");
    let second = wire.hear().await;
    let begun = Instant::now();
    wire.refuse(&first, ErrorCode::BufferFull);
    sleep(Duration::from_millis(20)).await;
    wire.refuse(&second, ErrorCode::BufferFull);
    assert_eq!(wire.hear().await, first);
    assert_eq!(wire.hear().await, second);
    let wait = begun.elapsed().as_millis();
    assert!((25..=52).contains(&wait), "{wait} ms");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_refused_while_a_frame_is_put_off_sends_that_frame_once() {
    let (mut script, client) = Script::new();
    let (_first, mut wire, first) = send_first(&mut script, &client, "first").await;
    let _second = send(&client, "second");
    wire.hear().await;
    wire.refuse(&first, ErrorCode::BufferFull);
    wire.fail(refusal(ErrorCode::InvalidArgument));
    let mut wire = script.produce().await;
    assert_eq!(wire.hear().await, first);
    let more = timeout(Duration::from_secs(1), wire.hear()).await;
    assert!(more.is_err(), "{more:?}");
}
