//! Requests that are being received: bounded in bytes, and fair to other clients.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use fila_proto::v1::EnqueueBatchRequest;
use http_body::{Body, Frame};
use tokio::runtime::Builder;
use tonic::transport::{Channel, Endpoint};
use tower::{Service, ServiceExt};

use crate::common::pipes::Producer;
use crate::common::{Rig, eventually, get, in_memory, message, soon};

const MIB: usize = 1 << 20;

/// The body of a request that announces a message, sends most of it, and stops.
struct Stalling {
    to_send: usize,
    is_new: bool,
}

impl Body for Stalling {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_new {
            self.is_new = false;
            let announced = u32::try_from(self.to_send + MIB).unwrap();
            let prefix = [&[0][..], &announced.to_be_bytes()].concat();
            return Poll::Ready(Some(Ok(Frame::data(prefix.into()))));
        }
        if self.to_send == 0 {
            return Poll::Pending;
        }
        let data = Bytes::from_static(&[0; 64 << 10]);
        self.to_send = self.to_send.saturating_sub(data.len());
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
}

/// Makes a call that stalls after so many bytes.
async fn stall(mut channel: Channel, method: &'static str, to_send: usize) {
    let request = http::Request::post(format!("http://fila/fila.v1.FilaService/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let body = Stalling {
        to_send,
        is_new: true,
    };
    let request = request.body(tonic::body::Body::new(body)).unwrap();
    let channel = channel.ready().await.unwrap();
    // A stream is answered at once; the answer is kept, so that the stream goes on.
    let answer = channel.call(request).await;
    std::future::pending::<()>().await;
    drop(answer);
}

/// Returns a figure of the metrics page.
async fn figure(rig: &Rig, name: &str) -> usize {
    let (_, page) = get(&rig.server, "/metrics").await;
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim().parse().unwrap()
}

async fn receiving(rig: &Rig) -> usize {
    figure(rig, "fila_receiving_bytes ").await
}

/// Enqueues a batch of messages of 1 MiB, of which all must be taken.
async fn enqueue_mib(rig: &Rig, messages: usize) {
    let large = "x".repeat(MIB);
    let request = EnqueueBatchRequest {
        queue: "orders".to_owned(),
        messages: vec![message("a", &large); messages],
        batch_id: None,
    };
    let mut client = rig.messages.clone();
    let results = client.enqueue_batch(request).await.unwrap().into_inner();
    assert!(results.results.iter().all(|result| result.error.is_none()));
}

#[tokio::test]
async fn calls_that_stall_are_bounded_and_other_clients_are_served() {
    for method in ["EnqueueBatch", "Produce", "Work"] {
        let mut rig = Rig::start().await;
        rig.create("orders").await;
        let budget = figure(&rig, "fila_receiving_budget_bytes ").await;
        assert_eq!(budget, 64 * MIB);
        // When its runtime is gone, so are its connections.
        let attack = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{}", rig.server.address())).unwrap();
        attack.spawn(async move {
            for _ in 0..3 {
                let channel = endpoint.connect().await.unwrap();
                for _ in 0..60 {
                    tokio::spawn(stall(channel.clone(), method, 15 * MIB));
                }
            }
        });
        // Two calls of 16 MiB are a connection's part.
        let rig = &mut rig;
        eventually(|| async { receiving(rig).await >= 32 * MIB }).await;
        for n in 0..20 {
            soon(rig.send("orders", message("quiet", "x")))
                .await
                .unwrap();
            if n % 5 == 0 {
                soon(enqueue_mib(rig, 2)).await;
            }
            assert!(receiving(rig).await <= budget);
        }
        let mut producer = Producer::open(rig).await;
        producer
            .send(1, "orders", vec![message("quiet", "x")])
            .await;
        assert!(producer.answer().await.results[0].error.is_none());
        drop(producer);
        attack.shutdown_background();
        eventually(|| async { receiving(rig).await == 0 }).await;
    }
}

#[tokio::test]
async fn an_honest_client_that_sends_more_than_the_budget_at_once_waits_and_succeeds() {
    let mut config = in_memory();
    config.limits.receiving_bytes = "32 MiB".parse().unwrap();
    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    let calls = (0..60).map(|_| enqueue_mib(&rig, 2));
    soon(futures_util::future::join_all(calls)).await;
    assert_eq!(rig.stats("orders").await.ready, 120);
    assert_eq!(figure(&rig, "fila_receiving_refused_total ").await, 0);
    let rig = &rig;
    eventually(|| async { receiving(rig).await == 0 }).await;
}

#[tokio::test]
async fn a_stream_gives_room_back_as_its_frames_are_handed_over() {
    let mut config = in_memory();
    config.limits.receiving_bytes = "32 MiB".parse().unwrap();
    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    let mut producer = Producer::open(&rig).await;
    let large = "x".repeat(MIB);
    for frame in 0..40 {
        producer
            .send(frame, "orders", vec![message("a", &large); 2])
            .await;
    }
    for _ in 0..40 {
        let answer = producer.answer().await;
        assert!(answer.results.iter().all(|result| result.error.is_none()));
    }
    let rig = &rig;
    eventually(|| async { receiving(rig).await == 0 }).await;
    producer.send(40, "orders", vec![message("a", "x")]).await;
    assert_eq!(producer.answer().await.frame_id, 40);
}
