//! Consumers that ask for much and read nothing.

use anyhow::Context;
use fila_proto::v1::{ConsumeRequest, Message, ProduceRequest, WorkRequest};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

use super::trial::{BIG, Victim, count};
use crate::client;
use crate::honest;

/// The size of a message, in bytes.
const MESSAGE: usize = (1 << 20) - 1024;

/// Fills the queue with large messages.
pub(super) async fn fill(channel: &Channel, victim: &Victim) -> anyhow::Result<()> {
    let messages = if victim.is_quick { 400 } else { 2_500 };
    let payload = honest::payload(honest::NOISE, 0, MESSAGE);
    let (sender, frames) = mpsc::channel(4);
    let mut service = client::service(channel);
    let call = service.produce(ReceiverStream::new(frames));
    let mut responses = call.await?.into_inner();
    responses.message().await?.context("the window")?;
    for frame_id in 0..messages {
        let message = Message {
            fairness_key: "big".to_owned(),
            payload: payload.clone(),
            ..Message::default()
        };
        let frame = ProduceRequest {
            frame_id,
            queue: BIG.to_owned(),
            messages: vec![message],
            batch_id: None,
        };
        sender.send(frame).await.context("the stream has ended")?;
        // One at a time: the preparation must not be an attack itself.
        let response = responses.message().await?.context("the stream has ended")?;
        let error = response.results.first().and_then(|it| it.error.as_ref());
        anyhow::ensure!(error.is_none(), "refused: {error:?}");
    }
    Ok(())
}

/// Connects with the windows that HTTP/2 begins with.
async fn connect(victim: &Victim) -> anyhow::Result<Channel> {
    count(&victim.counts.connections, 1);
    count(&victim.counts.calls, 1);
    let endpoint = Endpoint::from_shared(victim.address.clone())?;
    Ok(endpoint.connect().await?)
}

/// Four streams with a huge credit.
pub(super) async fn streams(victim: &Victim) -> anyhow::Result<()> {
    let mut held = Vec::new();
    for _ in 0..4 {
        let channel = connect(victim).await?;
        let (requests, receiver) = mpsc::channel(1);
        let first = WorkRequest {
            queue: BIG.to_owned(),
            credit: 1_000_000,
            ..WorkRequest::default()
        };
        requests.send(first).await?;
        let mut service = client::service(&channel);
        let deliveries = service.work(ReceiverStream::new(receiver)).await?;
        held.push((requests, deliveries.into_inner()));
    }
    std::future::pending().await
}

/// Forty consumers with the default prefetch.
pub(super) async fn consumers(victim: &Victim) -> anyhow::Result<()> {
    let mut held = Vec::new();
    for _ in 0..40 {
        let channel = connect(victim).await?;
        let request = ConsumeRequest {
            queue: BIG.to_owned(),
            prefetch: 64,
        };
        let mut service = client::service(&channel);
        held.push(service.consume(request).await?.into_inner());
    }
    std::future::pending().await
}
