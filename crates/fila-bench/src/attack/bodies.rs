//! Requests that are large: announced and never finished, or many at once.

use std::io;

use fila_proto::v1::{EnqueueBatchRequest, Message};
use tokio::task::JoinSet;

use super::trial::{AttackCounts, BIG, Victim, count};
use crate::client;
use crate::honest;
use crate::wire::{Wire, message_head};

/// How many connections stall how many calls each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    connections: usize,
    calls: usize,
}

pub(super) const FEW: Stall = Stall {
    connections: 3,
    calls: 60,
};
pub(super) const MANY: Stall = Stall {
    connections: 1_000,
    calls: 3,
};

/// What a stalled call announces and what it sends, in bytes.
const ANNOUNCED: u32 = 16 << 20;
const SENT: usize = 15 << 20;

/// Calls that announce 16 MiB, send 15 MiB and stall.
pub(super) async fn stalled(victim: &Victim, stall: Stall) -> anyhow::Result<()> {
    let mut connections = JoinSet::new();
    for _ in 0..stall.connections {
        let victim = victim.clone();
        connections.spawn_local(async move {
            count(&victim.counts.connections, 1);
            // The server may close the connection: that is a defence.
            let _ = stall_calls(&victim, stall.calls).await;
            count(&victim.counts.closed, 1);
        });
    }
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn stall_calls(victim: &Victim, calls: usize) -> io::Result<()> {
    let counts: &AttackCounts = &victim.counts;
    let mut wire = Wire::open(&victim.socket).await?;
    let mut unsent = Vec::new();
    for _ in 0..calls {
        let call = wire.begin("/fila.v1.FilaService/EnqueueBatch").await?;
        wire.send(call, &message_head(ANNOUNCED)).await?;
        count(&counts.calls, 1);
        unsent.push((call, SENT));
    }
    loop {
        wire.attend().await?;
        let mut any = false;
        for (call, left) in &mut unsent {
            let sent = wire.send_zeros(*call, *left).await?;
            *left -= sent;
            any |= sent > 0;
            count(&counts.bytes, sent as u64);
        }
        let before = unsent.len();
        unsent.retain(|(call, _)| wire.is_under_way(*call));
        count(&counts.answered, (before - unsent.len()) as u64);
        if any {
            // Other connections of this thread take their turn.
            tokio::task::yield_now().await;
        } else {
            wire.readable().await?;
        }
    }
}

/// An honest client in a hurry: many batches of 15 MiB at once.
pub(super) async fn large_batches(victim: &Victim) -> anyhow::Result<()> {
    const MESSAGE: usize = 1 << 20;
    let batches = if victim.is_quick { 20 } else { 60 };
    let channel = client::connect(&victim.address).await?;
    count(&victim.counts.connections, 1);
    let payload = honest::payload(honest::NOISE, 0, MESSAGE - 1024);
    let mut calls = JoinSet::new();
    for _ in 0..batches {
        let message = Message {
            fairness_key: "hurry".to_owned(),
            payload: payload.clone(),
            ..Message::default()
        };
        let request = EnqueueBatchRequest {
            queue: BIG.to_owned(),
            messages: vec![message; 15],
            batch_id: None,
        };
        let mut service = client::service(&channel);
        count(&victim.counts.calls, 1);
        let counts = victim.counts.clone();
        calls.spawn_local(async move {
            let answer = service.enqueue_batch(request).await;
            count(&counts.answered, 1);
            if let Ok(answer) = answer {
                let stored = answer.into_inner().results.into_iter();
                let stored = stored.filter(|result| result.error.is_none()).count();
                count(&counts.bytes, (stored * MESSAGE) as u64);
            }
        });
    }
    while calls.join_next().await.is_some() {}
    Ok(())
}
