//! Consuming from a server whose every word is the test's: credit and leases, counted exactly.

use std::time::Duration;

use fila_proto::v1::{WorkRequest, WorkResponse};
use fila_sdk::{Client, Consumer, Delivery, Error, ErrorCode, Failure, Received};
use tokio::time::{Instant, sleep, timeout};

use crate::script::{Script, Wire, cut, refusal};
use crate::soon;

type Work = Wire<WorkRequest, WorkResponse>;

/// Subscribes, and returns the server's end with the first request heard.
async fn subscribe(script: &mut Script, client: &Client, prefetch: u32) -> (Consumer, Work) {
    let consumer = client.queue("orders").consumer();
    let consumer = consumer.prefetch(prefetch).subscribe();
    let mut wire = script.work().await;
    let first = wire.hear().await;
    assert_eq!((first.queue.as_str(), first.credit), ("orders", prefetch));
    (consumer, wire)
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_ever_for_a_server_that_never_answers() {
    let (mut script, client) = Script::new();
    let (mut consumer, wire) = subscribe(&mut script, &client, 1).await;
    wire.deliver([7]);
    let order = consumer.next().await.unwrap().unwrap();
    let acked = tokio::spawn(order.ack());
    soon(consumer.stop()).await;
    let error = acked.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. } | Error::LeaseLost));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_with_its_stream_though_the_consumer_is_gone() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 1).await;
    wire.deliver([7]);
    let order = consumer.next().await.unwrap().unwrap();
    drop(consumer);
    assert!(wire.hear().await.drain);
    drop(wire); // as a server does that is told to stop
    soon(order.lost()).await;
    assert!(order.is_lost());
    assert!(matches!(order.ack().await, Err(Error::LeaseLost)));
}

#[tokio::test(start_paused = true)]
async fn an_own_extension_is_not_cut_short_by_those_that_come_by_themselves() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 1).await;
    wire.deliver([7]);
    let order = consumer.next().await.unwrap().unwrap();
    let begun = Instant::now();
    let extended = tokio::spawn(order.extend(Duration::from_secs(600)));
    assert_eq!(wire.hear().await.extensions[0].lease_ms, 600_000);
    wire.confirm(&[7]);
    extended.await.unwrap().unwrap();
    let next = wire.hear().await;
    assert_eq!(next.extensions[0].lease_ms, 30_000);
    let at = begun.elapsed().as_secs();
    assert!((570..600).contains(&at), "{at} s");
}

#[tokio::test(start_paused = true)]
async fn a_short_extension_is_followed_by_others_in_time() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 1).await;
    wire.deliver([7]);
    let order = consumer.next().await.unwrap().unwrap();
    let begun = Instant::now();
    let extended = tokio::spawn(order.extend(Duration::from_secs(1)));
    assert_eq!(wire.hear().await.extensions[0].lease_ms, 1000);
    wire.confirm(&[7]);
    extended.await.unwrap().unwrap();
    assert_eq!(wire.hear().await.extensions[0].lease_ms, 30_000);
    assert!(begun.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_counts_us_twice_for_a_while_is_asked_again() {
    let (mut script, client) = Script::new();
    let (mut consumer, wire) = subscribe(&mut script, &client, 1).await;
    // Nothing has ever come: the queue is empty.
    sleep(Duration::from_secs(60)).await;
    wire.fail(cut());
    for _ in 0..3 {
        let wire = soon(script.work()).await;
        wire.fail(refusal(ErrorCode::TooManyConsumers));
    }
    let mut wire = soon(script.work()).await;
    assert_eq!(wire.hear().await.credit, 1);
    wire.deliver([7]);
    drop(soon(consumer.next()).await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_too_many_consumers_says_so_to_a_new_one() {
    let (mut script, client) = Script::new();
    let (mut consumer, wire) = subscribe(&mut script, &client, 1).await;
    wire.fail(refusal(ErrorCode::TooManyConsumers));
    let error = soon(consumer.next()).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::TooManyConsumers));
    assert!(soon(consumer.next()).await.is_none());
}

/// Delivers under these leases, and takes them all.
async fn take(consumer: &mut Consumer, wire: &Work, leases: &[u64]) -> Vec<Delivery> {
    wire.deliver(leases.iter().copied());
    let mut taken = Vec::new();
    for _ in leases {
        taken.push(soon(consumer.next()).await.unwrap().unwrap());
    }
    taken
}

/// Whether nothing is said for a second.
async fn is_silent(wire: &mut Work) -> bool {
    timeout(Duration::from_secs(1), wire.hear()).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn every_result_gives_credit_for_one_and_an_extension_for_none() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 4).await;
    let mut taken = take(&mut consumer, &wire, &[1, 2, 3, 4]).await;
    let (fourth, third) = (taken.pop().unwrap(), taken.pop().unwrap());
    let (second, first) = (taken.pop().unwrap(), taken.pop().unwrap());

    drop(first.extend(Duration::from_millis(1500)));
    let said = wire.hear().await;
    assert_eq!((said.credit, said.extensions[0].lease_ms), (0, 1500));
    wire.confirm(&[1]);
    drop(first.ack());
    let said = wire.hear().await;
    assert_eq!((said.credit, said.acks), (1, vec![1]));
    drop(second.nack_after("why", Duration::from_millis(70)));
    let said = wire.hear().await;
    let nack = &said.nacks[0];
    assert_eq!((nack.error.as_str(), nack.delay_ms), ("why", Some(70)));
    assert_eq!((said.credit, nack.lease_id), (1, 2));
    drop(third.release());
    let said = wire.hear().await;
    assert_eq!((said.credit, said.releases), (1, vec![3]));
    drop(fourth);
    let said = wire.hear().await;
    assert_eq!((said.credit, said.nacks[0].lease_id), (1, 4));
    assert_eq!(said.nacks[0].delay_ms, None);

    // Confirmed, refused or neither: that gives no more credit.
    wire.confirm(&[1, 2]);
    wire.refuse(3, ErrorCode::LeaseNotFound);
    assert!(is_silent(&mut wire).await);
}

/// Returns the leases that a request extends.
fn extended(said: &WorkRequest) -> Vec<u64> {
    let mut leases: Vec<u64> = said.extensions.iter().map(|it| it.lease_id).collect();
    leases.sort_unstable();
    leases
}

#[tokio::test(start_paused = true)]
async fn credit_and_what_is_in_hands_are_the_prefetch_on_every_stream() {
    let (mut script, client) = Script::new();
    let (mut consumer, wire) = subscribe(&mut script, &client, 5).await;
    let mut taken = take(&mut consumer, &wire, &[1, 2, 3]).await;
    wire.deliver([4]); // and is not taken
    sleep(Duration::from_millis(1)).await;
    wire.fail(cut());
    sleep(Duration::from_millis(1)).await;
    // One has its result while there is no stream, and one on the next stream.
    drop(taken.pop().unwrap().ack());
    let mut wire = script.work().await;
    let said = wire.hear().await;
    assert_eq!(said.credit, 2, "two taken, one in the channel");
    assert_eq!(
        (said.acks.clone(), extended(&said)),
        (vec![3], vec![1, 2, 4])
    );
    assert!(said.reports_begun);
    wire.confirm(&[1, 2, 3, 4]);
    drop(taken.pop().unwrap().ack());
    let said = wire.hear().await;
    assert_eq!((said.credit, said.acks), (1, vec![2]));
    // What came over the old stream and was not taken is still to be had.
    let order = soon(consumer.next()).await.unwrap().unwrap();
    assert_eq!(order.id.as_str(), "message of 4");
    drop(order.ack());
    let said = wire.hear().await;
    assert_eq!((said.credit, said.acks), (1, vec![4]));
    assert!(is_silent(&mut wire).await);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_has_ended_meanwhile_is_lost_and_not_handed_out() {
    let (mut script, client) = Script::new();
    let (mut consumer, wire) = subscribe(&mut script, &client, 5).await;
    let order = take(&mut consumer, &wire, &[1]).await.pop().unwrap();
    wire.deliver([2]); // and is not taken
    sleep(Duration::from_millis(1)).await;
    wire.fail(cut());
    let mut wire = script.work().await;
    assert_eq!(extended(&wire.hear().await), [1, 2]);
    for lease in [1, 2] {
        wire.refuse(lease, ErrorCode::LeaseNotFound);
    }
    soon(order.lost()).await;
    wire.deliver([3]);
    let next = soon(consumer.next()).await.unwrap().unwrap();
    assert_eq!(next.id.as_str(), "message of 3");
    let said = wire.hear().await;
    assert_eq!((said.credit, said.releases.len()), (1, 0), "for the second");
    assert_eq!(order.ack().await, Err(Error::LeaseLost));
    let said = wire.hear().await;
    assert_eq!((said.credit, said.acks.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_when_its_time_is_over_and_the_server_is_away() {
    let (mut script, client) = Script::with(|client| {
        let hour = Duration::from_secs(60 * 60);
        client.backoff(hour, hour)
    });
    let (mut consumer, wire) = subscribe(&mut script, &client, 1).await;
    let order = take(&mut consumer, &wire, &[1]).await.pop().unwrap();
    wire.fail(cut());
    let begun = Instant::now();
    soon(order.lost()).await;
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert_eq!(order.ack().await, Err(Error::LeaseLost));
}

#[tokio::test(start_paused = true)]
async fn the_server_hears_what_has_begun_after_a_moment_and_of_no_quick_work() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 3).await;
    let mut taken = take(&mut consumer, &wire, &[1, 2]).await;
    wire.deliver([3]); // and is not taken
    drop(taken.pop().unwrap().ack());
    assert_eq!(wire.hear_next().await.acks, [2]);
    wire.confirm(&[2]);
    let begun = Instant::now();
    let said = wire.hear_next().await;
    assert_eq!((said.begun, said.extensions.len()), (vec![1], 0));
    assert!(begun.elapsed() <= Duration::from_millis(101));
    wire.confirm(&[1]);
    let more = timeout(Duration::from_secs(10), wire.hear_next()).await;
    assert!(more.is_err(), "once is enough: {more:?}");
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_consumers_were_lost_begins_when_the_server_knows() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 3).await;
    wire.deliver_lost(1);
    let early = timeout(Duration::from_secs(5), consumer.next()).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(wire.hear_next().await.begun, [1]);
    // The stream breaks before the answer, so the next one says it again.
    wire.fail(cut());
    let next = tokio::spawn(async move { (consumer.next().await, consumer) });
    let mut wire = script.work().await;
    let said = wire.hear_next().await;
    assert_eq!((extended(&said), said.begun), (vec![1], vec![1]));
    wire.confirm(&[1]);
    sleep(Duration::from_secs(1)).await;
    assert!(!next.is_finished(), "only the extension is confirmed");
    wire.confirm(&[1]);
    let (order, _consumer) = soon(next).await.unwrap();
    let order = order.unwrap().unwrap();
    assert_eq!((order.id.as_str(), order.lost), ("message of 1", 1));
    drop(order.ack());
    assert_eq!(wire.hear_next().await.acks, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_to_begin_is_released_by_a_stop() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 3).await;
    wire.deliver_lost(1);
    let early = timeout(Duration::from_secs(5), consumer.next()).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(wire.hear_next().await.begun, [1]);
    let stopping = tokio::spawn(consumer.stop());
    let (mut released, mut is_draining) = (Vec::new(), false);
    while released.is_empty() || !is_draining {
        let said = wire.hear_next().await;
        released.extend(said.releases);
        is_draining |= said.drain;
    }
    assert_eq!(released, [1]);
    wire.confirm(&[1, 1]);
    drop(wire);
    soon(stopping).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_refused_an_extension_is_lost_and_gives_credit_once() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 2).await;
    let mut taken = take(&mut consumer, &wire, &[1]).await;
    wire.deliver([2]); // and is not taken
    let said = wire.hear().await;
    assert_eq!(said.extensions.len(), 2);
    for lease in [1, 2] {
        wire.refuse(lease, ErrorCode::LeaseNotFound);
    }
    let order = taken.pop().unwrap();
    soon(order.lost()).await;
    let more = timeout(Duration::from_secs(120), wire.hear()).await;
    assert!(more.is_err(), "there is nothing to extend: {more:?}");
    let acked = tokio::spawn(order.ack());
    let said = wire.hear().await;
    assert_eq!((said.acks.len(), said.credit), (0, 1));
    assert_eq!(acked.await.unwrap(), Err(Error::LeaseLost));
    wire.refuse(1, ErrorCode::LeaseNotFound); // once more, for nothing
    // The consumer does not hand out the message that was not taken: another consumer may have it by now.
    let next = timeout(Duration::from_secs(1), consumer.next()).await;
    assert!(next.is_err());
    let said = wire.hear().await;
    assert_eq!((said.releases.len(), said.credit), (0, 1));
    // Nothing is left that would be extended.
    let more = timeout(Duration::from_secs(120), wire.hear()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_outlives_a_refusal_that_does_not_end_it() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 1).await;
    let order = take(&mut consumer, &wire, &[1]).await.pop().unwrap();
    let extended = tokio::spawn(order.extend(Duration::from_secs(9999)));
    wire.hear().await;
    wire.refuse(1, ErrorCode::DelayTooLong);
    let error = extended.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::DelayTooLong));
    assert!(!order.is_lost());
    // The refused extension has not extended the lease: the client keeps it as before.
    let said = timeout(Duration::from_secs(23), wire.hear()).await.unwrap();
    assert_eq!(said.extensions[0].lease_ms, 30_000);
    wire.confirm(&[1]);
    let nacked = tokio::spawn(order.nack_after("why", Duration::from_secs(9999)));
    assert_eq!(wire.hear().await.nacks.len(), 1);
    wire.refuse(1, ErrorCode::DelayTooLong);
    let error = nacked.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::DelayTooLong));
}

#[tokio::test(start_paused = true)]
async fn what_is_said_of_a_lease_is_answered_in_its_order() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 1).await;
    let order = take(&mut consumer, &wire, &[1]).await.pop().unwrap();
    let extended = tokio::spawn(order.extend(Duration::from_secs(1)));
    let acked = tokio::spawn(order.ack());
    let said = wire.hear().await;
    assert_eq!((said.extensions.len(), said.acks.len()), (1, 0));
    assert_eq!(wire.hear().await.acks, [1], "of its own, behind the other");
    wire.confirm(&[99, 1]);
    extended.await.unwrap().unwrap();
    assert!(!acked.is_finished());
    wire.refuse(1, ErrorCode::LeaseNotFound);
    assert_eq!(acked.await.unwrap(), Err(Error::LeaseLost));
    wire.confirm(&[1, 1, 99]); // for nothing
    assert!(is_silent(&mut wire).await);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_extended_when_half_of_it_is_over_and_one_extension_is_under_way() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 2).await;
    let mut taken = take(&mut consumer, &wire, &[1, 2]).await;
    let begun = Instant::now();
    drop(taken.pop().unwrap().ack());
    assert_eq!(wire.hear().await.acks, [2]); // and is not confirmed
    for _ in 0..5 {
        let begun = Instant::now();
        let said = wire.hear().await;
        let extensions: Vec<_> = said.extensions.iter().map(|one| one.lease_id).collect();
        assert_eq!(extensions, [1]);
        assert_eq!(said.extensions[0].lease_ms, 30_000);
        let at = begun.elapsed().as_millis();
        assert!((14_999..22_600).contains(&at), "{at} ms");
        wire.confirm(&[1]);
    }
    assert!(begun.elapsed() > Duration::from_secs(70));
    // The client sends no other extension before the server has confirmed this one.
    assert_eq!(wire.hear().await.extensions.len(), 1);
    let more = timeout(Duration::from_secs(120), wire.hear()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test(start_paused = true)]
async fn a_result_that_was_on_its_way_when_the_stream_broke_is_sent_again_and_may_be_stored() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 3).await;
    let mut taken = take(&mut consumer, &wire, &[1, 2, 3]).await;
    let third = tokio::spawn(taken.pop().unwrap().ack());
    let second = tokio::spawn(taken.pop().unwrap().ack());
    let extension = tokio::spawn(taken[0].extend(Duration::from_secs(60)));
    let (mut acks, mut extensions) = (0, 0);
    while acks < 2 || extensions < 1 {
        let said = wire.hear().await;
        (acks, extensions) = (acks + said.acks.len(), extensions + said.extensions.len());
    }
    wire.fail(cut());
    let mut wire = script.work().await;
    let mut said = wire.hear().await;
    said.acks.sort_unstable();
    assert_eq!(
        (said.acks.as_slice(), extended(&said)),
        (&[2, 3][..], vec![1])
    );
    assert_eq!(said.extensions[0].lease_ms, 60_000);
    wire.confirm(&[1, 2]);
    wire.refuse(3, ErrorCode::LeaseNotFound);
    assert_eq!(soon(extension).await.unwrap(), Ok(()));
    assert_eq!(soon(second).await.unwrap(), Ok(()));
    // It may have been stored the first time.
    let error = soon(third).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn what_comes_after_the_consumer_is_gone_goes_back_and_gives_no_credit() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 3).await;
    let order = take(&mut consumer, &wire, &[1]).await.pop().unwrap();
    let stopping = tokio::spawn(consumer.stop());
    let said = wire.hear().await;
    assert!(said.drain);
    wire.deliver([2, 3]);
    let said = wire.hear().await;
    assert_eq!((said.releases, said.credit), (vec![2, 3], 0));
    wire.confirm(&[2, 3]);
    drop(order.ack());
    let said = wire.hear().await;
    assert_eq!((said.acks, said.credit), (vec![1], 0));
    sleep(Duration::from_secs(1)).await;
    assert!(!stopping.is_finished(), "its result is not stored");
    wire.confirm(&[1]);
    // The server should end the stream now. It does not.
    let confirmed = Instant::now();
    soon(stopping).await.unwrap();
    assert_eq!(confirmed.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_stops_at_once_while_its_server_is_away() {
    let (mut script, client) = Script::with(|client| {
        let hour = Duration::from_secs(60 * 60);
        client.backoff(hour, hour)
    });
    let (consumer, wire) = subscribe(&mut script, &client, 1).await;
    wire.fail(cut());
    sleep(Duration::from_secs(60)).await;
    soon(consumer.stop()).await;
}

#[tokio::test(start_paused = true)]
async fn waits_for_a_lost_server_begin_again_when_a_consumer_hears_from_it() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 100).await;
    for lease in 0..3 {
        let mut waits = Vec::new();
        for _ in 0..4 {
            wire.fail(cut());
            let broken = Instant::now();
            wire = script.work().await;
            waits.push(broken.elapsed().as_millis());
            wire.hear().await;
        }
        for (wait, step) in waits.iter().zip([50, 100, 200, 400]) {
            assert!((step / 2..=step + 2).contains(wait), "{waits:?}");
        }
        drop(take(&mut consumer, &wire, &[lease]).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_shuts_down_is_waited_for() {
    let (mut script, client) = Script::new();
    let (mut consumer, wire) = subscribe(&mut script, &client, 1).await;
    wire.fail(refusal(ErrorCode::ShuttingDown));
    drop(soon(script.work()).await); // ends without a word
    let mut wire = soon(script.work()).await;
    wire.hear().await;
    wire.deliver([1]);
    drop(soon(consumer.next()).await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_worker_has_as_many_waiting_as_in_work_and_never_fewer_than_can_be() {
    let (mut script, client) = Script::new();
    let queue = client.queue("orders");
    let handler = |_: Received| async { Ok::<(), Failure>(()) };
    for (worker, credit) in [
        (queue.worker().concurrency(4), 8),
        (queue.worker().concurrency(4).prefetch(1), 4),
        (queue.worker().concurrency(4).prefetch(30), 30),
        (queue.worker().concurrency(0), 2),
        (queue.worker(), 16),
    ] {
        let running = tokio::spawn(worker.run(handler));
        let mut wire = script.work().await;
        assert_eq!(wire.hear().await.credit, credit);
        running.abort();
    }
    let none = queue.consumer().prefetch(0).subscribe();
    assert_eq!(script.work().await.hear().await.credit, 1);
    drop(none);
}

#[tokio::test(start_paused = true)]
async fn a_result_is_waited_for_until_the_deadline() {
    let (mut script, client) = Script::new();
    let (mut consumer, mut wire) = subscribe(&mut script, &client, 1).await;
    let order = take(&mut consumer, &wire, &[1]).await.pop().unwrap();
    let begun = Instant::now();
    let error = soon(order.ack()).await.unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error:?}");
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert_eq!(wire.hear().await.acks, [1]);
}
