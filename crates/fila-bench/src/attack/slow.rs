//! Connections that begin something and do not end it, as many as the server allows.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

use super::trial::{CONNECTIONS, Victim, count};
use crate::wire::{PREFACE, Wire, message_head};

/// The pause between two bytes of a slow client.
const PAUSE: Duration = Duration::from_secs(1);

/// Opens all connections, does the same on each, and counts those that the server closes.
async fn on_each<F>(victim: &Victim, act: impl Fn(Victim) -> F) -> anyhow::Result<()>
where
    F: Future<Output = io::Result<()>> + 'static,
{
    let mut connections = JoinSet::new();
    for number in 0..CONNECTIONS {
        count(&victim.counts.connections, 1);
        let (act, counts) = (act(victim.clone()), victim.counts.clone());
        connections.spawn_local(async move {
            let _ = act.await;
            count(&counts.closed, 1);
        });
        if number % 50 == 49 {
            // The listener's backlog is not the target here.
            sleep(Duration::from_millis(50)).await;
        }
    }
    while connections.join_next().await.is_some() {}
    Ok(())
}

/// Sends some bytes, and waits until the server hangs up.
async fn say(victim: Victim, bytes: &[u8]) -> io::Result<()> {
    let mut stream = TcpStream::connect(&victim.socket).await?;
    stream.write_all(bytes).await?;
    stream.read_to_end(&mut Vec::new()).await?;
    Ok(())
}

/// The first half of the preface of HTTP/2.
pub(super) async fn half_prefaces(victim: &Victim) -> anyhow::Result<()> {
    on_each(victim, |victim| say(victim, &PREFACE[..16])).await
}

/// A frame of headers that does not end the headers. Any other frame than their rest would be an error.
pub(super) async fn half_requests(victim: &Victim) -> anyhow::Result<()> {
    /// Empty settings, and headers with `:method POST` and more to come.
    const HALF: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0x83];
    on_each(victim, |victim| async move {
        count(&victim.counts.calls, 1);
        say(victim, &[PREFACE, HALF].concat()).await
    })
    .await
}

/// A request of HTTP/1 with a header that grows by a byte a second.
pub(super) async fn slow_headers(victim: &Victim) -> anyhow::Result<()> {
    on_each(victim, |victim| async move {
        let mut stream = TcpStream::connect(&victim.socket).await?;
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: fila\r\nx-slow: ")
            .await?;
        count(&victim.counts.calls, 1);
        let mut ticks = interval(PAUSE);
        let mut answer = [0; 256];
        loop {
            tokio::select! {
                _ = ticks.tick() => stream.write_all(b"a").await?,
                read = stream.read(&mut answer) => if read? == 0 { return Ok(()) },
            }
        }
    })
    .await
}

/// A call whose body grows by a byte a second.
pub(super) async fn slow_bodies(victim: &Victim) -> anyhow::Result<()> {
    on_each(victim, |victim| async move {
        let mut wire = Wire::open(&victim.socket).await?;
        let call = wire.begin("/fila.v1.FilaService/Enqueue").await?;
        wire.send(call, &message_head(1 << 20)).await?;
        count(&victim.counts.calls, 1);
        let mut ticks = interval(PAUSE);
        let mut is_answered = false;
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    wire.send_zeros(call, 1).await?;
                }
                readable = wire.readable() => {
                    readable?;
                    wire.attend().await?;
                }
            }
            if !is_answered && !wire.is_under_way(call) {
                is_answered = true;
                count(&victim.counts.answered, 1);
            }
        }
    })
    .await
}
