use std::convert::Infallible;

use futures_util::FutureExt;
use http_body::Frame;
use tokio::sync::mpsc;

use super::super::receiving::Receiving;
use super::*;

const MIB: usize = 1 << 20;

/// A body whose data comes through a channel.
struct Channel(mpsc::UnboundedReceiver<Bytes>);

impl Body for Channel {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = ready!(self.0.poll_recv(context));
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }
}

struct Call {
    data: mpsc::UnboundedSender<Bytes>,
    reader: MessageReader<Channel>,
}

impl Call {
    fn new(share: &Arc<Share>) -> Self {
        let (data, body) = mpsc::unbounded_channel();
        let reader = MessageReader::new(Channel(body), share.clone());
        Self { data, reader }
    }

    fn send(&self, bytes: &[u8]) {
        self.data.send(Bytes::copy_from_slice(bytes)).unwrap();
    }

    async fn next(&mut self) -> Option<Result<Received, ReceiveError>> {
        std::future::poll_fn(|context| self.reader.poll_message(context)).await
    }

    /// Returns what is there without waiting.
    fn now(&mut self) -> Option<Option<Result<Received, ReceiveError>>> {
        self.next().now_or_never()
    }
}

fn receiving(budget: usize) -> Arc<Receiving> {
    Arc::new(Receiving::new(budget as u64, 16 * MIB))
}

fn message(byte: u8, length: usize) -> Vec<u8> {
    let mut message = vec![0];
    message.extend(u32::try_from(length).unwrap().to_be_bytes());
    message.resize(PREFIX + length, byte);
    message
}

/// The beginning of a message that announces this length.
fn beginning(length: usize) -> Vec<u8> {
    message(1, length)[..100].to_vec()
}

#[tokio::test]
async fn messages_come_out_as_they_went_in_however_they_are_cut() {
    let receiving = receiving(64 * MIB);
    let share = Arc::new(receiving.share());
    let sent = [
        message(1, 0),
        message(2, 1),
        message(3, 300),
        message(4, 70_000),
        message(5, 9),
    ];
    let all = sent.concat();
    for size in [1, 2, 3, 4, 5, 6, 7, 100, 305, 306, 307, 65_536, all.len()] {
        let mut call = Call::new(&share);
        for piece in all.chunks(size) {
            call.send(piece);
        }
        for sent in &sent {
            let received = call.next().await.unwrap().unwrap();
            assert!(received.bytes == sent, "pieces of {size}");
            // A message counts for its own bytes, or the bytes of it that came with others.
            assert!(received.room.bytes() <= sent.len() as u64);
        }
        let Call { data, reader } = call;
        drop(data);
        let mut call = Call {
            data: mpsc::unbounded_channel().0,
            reader,
        };
        assert!(call.next().await.is_none());
        assert_eq!(receiving.used(), 0, "pieces of {size}");
    }
}

#[tokio::test]
async fn a_message_counts_in_full_from_its_prefix_to_its_end() {
    let receiving = receiving(64 * MIB);
    let share = Arc::new(receiving.share());
    let mut call = Call::new(&share);
    let whole = message(1, 15 * MIB);
    call.send(&whole[..PREFIX + 1]);
    assert!(call.now().is_none());
    assert_eq!(receiving.used(), whole.len() as u64);
    call.send(&whole[PREFIX + 1..]);
    let received = call.next().await.unwrap().unwrap();
    assert_eq!(receiving.used(), whole.len() as u64);
    drop(received);
    assert_eq!(receiving.used(), 0);
    call.send(&whole[..PREFIX + 1]);
    assert!(call.now().is_none());
    drop(call);
    assert_eq!(receiving.used(), 0);
}

#[tokio::test]
async fn a_message_without_room_waits_and_those_of_other_connections_do_not() {
    let receiving = receiving(64 * MIB);
    let share = Arc::new(receiving.share());
    let mut calls: Vec<Call> = (0..60).map(|_| Call::new(&share)).collect();
    for call in &mut calls {
        call.send(&beginning(15 * MIB));
        assert!(call.now().is_none());
    }
    assert!(receiving.used() <= 64 * MIB as u64);
    let other = Arc::new(receiving.share());
    for length in [0, 1_000, 65_000, 70_000, MIB] {
        let mut call = Call::new(&other);
        call.send(&message(7, length));
        let received = call.now();
        assert!(
            matches!(received, Some(Some(Ok(_)))),
            "{length}: {received:?}"
        );
    }
    // Each call that ends lets in another.
    let held = receiving.used();
    while calls.len() > 2 {
        calls.remove(0);
        for call in &mut calls {
            assert!(call.now().is_none());
        }
        assert_eq!(receiving.used(), held);
    }
    drop(calls);
    assert_eq!(receiving.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_stalls_ends_and_gives_its_room_back() {
    let receiving = receiving(64 * MIB);
    let share = Arc::new(receiving.share());
    let begun = Instant::now();
    let mut call = Call::new(&share);
    call.send(&beginning(15 * MIB));
    let ended = call.next().await;
    assert!(
        matches!(ended, Some(Err(ReceiveError::Stalled))),
        "{ended:?}"
    );
    assert_eq!(begun.elapsed().as_secs(), PATIENT.pause.as_secs());
    drop(call);
    assert_eq!((receiving.used(), receiving.refused()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_stalls_ends_sooner_if_another_connection_waits() {
    let receiving = receiving(64 * MIB);
    let (share, other) = (Arc::new(receiving.share()), Arc::new(receiving.share()));
    let mut stalled: Vec<Call> = (0..2).map(|_| Call::new(&share)).collect();
    for call in &mut stalled {
        call.send(&beginning(15 * MIB));
        assert!(call.now().is_none());
    }
    let mut honest = Call::new(&other);
    honest.send(&message(1, 14 * MIB));
    assert!(honest.now().is_none());
    let begun = Instant::now();
    let ended = stalled[0].next().await;
    assert!(
        matches!(ended, Some(Err(ReceiveError::Stalled))),
        "{ended:?}"
    );
    assert_eq!(begun.elapsed().as_secs(), CROWDED.pause.as_secs());
    stalled.remove(0);
    assert!(honest.next().await.unwrap().is_ok());
}

#[tokio::test]
async fn each_connection_can_receive_small_messages_whatever_others_hold() {
    let receiving = receiving(64 * MIB);
    let mut held = Vec::new();
    for _ in 0..20 {
        let share = Arc::new(receiving.share());
        for _ in 0..400 {
            // A task of tokio has to pause after 128 steps.
            tokio::task::yield_now().await;
            let mut call = Call::new(&share);
            call.send(&beginning(60_000));
            assert!(call.now().is_none() || receiving.refused() > 0);
            held.push(call);
        }
    }
    assert!(receiving.used() > 15 * MIB as u64, "{}", receiving.used());
    let share = Arc::new(receiving.share());
    for _ in 0..3 {
        let mut call = Call::new(&share);
        call.send(&message(1, 5_000));
        assert!(matches!(call.now(), Some(Some(Ok(_)))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_trickles_ends_too() {
    let receiving = receiving(64 * MIB);
    let share = Arc::new(receiving.share());
    let mut call = Call::new(&share);
    call.send(&beginning(MIB));
    let data = call.data.clone();
    let trickle = async move {
        while data.send(Bytes::from_static(&[0])).is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let begun = Instant::now();
    let ended = tokio::select! {
        ended = call.next() => ended,
        () = trickle => unreachable!("the call is there"),
    };
    assert!(
        matches!(ended, Some(Err(ReceiveError::Stalled))),
        "{ended:?}"
    );
    // 30 seconds, and a second for each 64 KiB.
    assert_eq!(begun.elapsed().as_secs(), 46);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_silent_between_messages_goes_on() {
    let receiving = receiving(64 * MIB);
    let share = Arc::new(receiving.share());
    let mut call = Call::new(&share);
    call.send(&message(1, 10));
    assert!(call.next().await.unwrap().is_ok());
    let silent = tokio::time::timeout(Duration::from_secs(100_000), call.next()).await;
    assert!(silent.is_err());
    call.send(&message(1, 10));
    assert!(call.next().await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_gets_no_room_in_time_is_refused_and_so_are_too_many_that_wait() {
    let receiving = receiving(64 * MIB);
    let share = Arc::new(receiving.share());
    let mut holders: Vec<Call> = (0..2).map(|_| Call::new(&share)).collect();
    let mut calls: Vec<Call> = (0..100).map(|_| Call::new(&share)).collect();
    for call in holders.iter_mut().chain(&mut calls) {
        call.send(&beginning(15 * MIB));
    }
    assert!(holders.iter_mut().all(|call| call.now().is_none()));
    let refused = calls.extract_if(.., |call| call.now().is_some()).count();
    assert_eq!((refused, receiving.refused()), (40, 40));
    // Those that have room stall after half of the time that others wait for it, so keep them busy.
    let busy = async {
        loop {
            for call in &mut holders {
                call.send(&vec![0; MIB]);
                assert!(call.now().is_none());
            }
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
    };
    let call = &mut calls[59];
    let ended = tokio::select! {
        ended = call.next() => ended,
        () = busy => unreachable!("it goes on"),
    };
    assert!(
        matches!(ended, Some(Err(ReceiveError::Crowded))),
        "{ended:?}"
    );
}

#[tokio::test]
async fn a_message_beyond_the_limit_is_refused_by_its_prefix() {
    let receiving = receiving(64 * MIB);
    let share = Arc::new(receiving.share());
    let mut call = Call::new(&share);
    call.send(&message(1, 16 * MIB + 1)[..PREFIX]);
    let refused = call.now();
    assert!(
        matches!(refused, Some(Some(Err(ReceiveError::TooLarge { .. })))),
        "{refused:?}"
    );
    let mut call = Call::new(&share);
    call.send(&message(1, 10)[..7]);
    drop(std::mem::replace(
        &mut call.data,
        mpsc::unbounded_channel().0,
    ));
    let cut = call.now();
    assert!(matches!(cut, Some(Some(Err(ReceiveError::Cut)))), "{cut:?}");
}

#[test]
fn the_windows_of_all_connections_are_bounded_and_come_back() {
    let receiving = receiving(64 * MIB);
    let first = receiving.share().windows();
    assert_eq!((first.connection, first.stream), (4 << 20, 64 << 10));
    let shares: Vec<Share> = (0..10_000).map(|_| receiving.share()).collect();
    let windows = shares
        .iter()
        .map(|share| u64::from(share.windows().connection));
    assert!(windows.sum::<u64>() <= 32 * MIB as u64 + 10_000 * (64 << 10));
    let last = receiving.share().windows();
    assert_eq!((last.connection, last.stream), (64 << 10, 16 << 10));
    drop(shares);
    assert_eq!(receiving.share().windows(), first);
}
