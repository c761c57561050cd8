//! One tenant floods a queue and others send a little. Measures how long the messages of the others wait in one FIFO, and
//! with a share for each tenant.
//!
//! Each side has its own server, the same messages at the same times, and as many workers. The only difference is the
//! fairness key: in the FIFO all messages have the same key, which makes a plain queue.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use fila_sdk::{Client, Failure, Message, Queue, QueueSettings, Received};
use lab::{Latencies, Svg, thousands};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};

use crate::server::Server;

const QUIET: usize = 3;
const WORKERS: usize = 8;

/// How long a worker takes for a message. It sleeps.
const WORK: Duration = Duration::from_millis(2);

/// The interval between two messages of a quiet tenant.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the last message of a quiet tenant may take.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, clap::Args)]
pub(crate) struct FloodArguments {
    /// A short run: a tenth of the messages
    #[arg(long)]
    quick: bool,

    /// Messages of the flood
    #[arg(long, default_value_t = 20_000)]
    messages: u32,

    /// Seconds for which the quiet tenants send
    #[arg(long, default_value_t = 12)]
    seconds: u32,

    /// Also draw the waits
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// One FIFO for all tenants.
    Fifo,
    /// A share for each tenant.
    Fair,
}

impl Side {
    const BOTH: [Self; 2] = [Self::Fifo, Self::Fair];

    fn name(self) -> &'static str {
        match self {
            Self::Fifo => "FIFO: one line for all",
            Self::Fair => "Fila: a share for each",
        }
    }

    /// Returns the class of its points in the picture.
    fn class(self) -> &'static str {
        match self {
            Self::Fifo => "f",
            Self::Fair => "o",
        }
    }

    fn key(self, tenant: usize) -> String {
        match self {
            Self::Fifo => "everybody".to_owned(),
            Self::Fair => format!("tenant-{tenant}"),
        }
    }
}

/// A message of a quiet tenant: the time it was sent, counted from the flood, and how long it waited for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QuietWait {
    sent: Duration,
    wait: Duration,
}

/// The results of one side.
#[derive(Debug, Default)]
struct SideResult {
    quiet: Vec<QuietWait>,
    served: u32,
    /// When the last message of the flood was served.
    flood_over: Option<Duration>,
}

impl SideResult {
    /// Returns the waits of the quiet tenants.
    fn waits(&self) -> Latencies {
        self.quiet.iter().map(|sample| sample.wait).collect()
    }
}

pub(crate) async fn run(arguments: FloodArguments) -> anyhow::Result<()> {
    let scale = if arguments.quick { 10 } else { 1 };
    let flood = arguments.messages / scale;
    let length = Duration::from_secs(u64::from(arguments.seconds)) / scale;
    println!(
        "one tenant sends {flood} messages at once, {QUIET} others send {} a second each for {length:?}; {WORKERS} workers of \
         {WORK:?} a message; fsync; waits in ms, from sending to a worker",
        1000 / PAUSE.as_millis()
    );
    println!(
        "\n{:<24} {:>10} {:>10} {:>10} {:>12}",
        "quiet tenants", "p50", "p99", "worst", "messages/s"
    );
    let mut sides = Vec::new();
    for side in Side::BOTH {
        let seen = play(side, flood, length).await?;
        let waits = {
            let waits = seen.waits();
            [waits.p50(), waits.p99(), waits.max()].map(milliseconds)
        };
        let over = seen.flood_over.context("the flood was served")?;
        println!(
            "{:<24} {:>10} {:>10} {:>10} {:>12.0}",
            side.name(),
            waits[0],
            waits[1],
            waits[2],
            f64::from(flood) / over.as_secs_f64()
        );
        sides.push((side, seen));
    }
    if let Some(file) = arguments.svg {
        std::fs::write(&file, draw(flood, length, &sides))
            .with_context(|| file.display().to_string())?;
    }
    Ok(())
}

fn milliseconds(wait: Duration) -> String {
    format!("{:.1}", wait.as_secs_f64() * 1e3)
}

/// Formats a wait in a fitting unit.
fn shown(wait: Duration) -> String {
    match wait.as_secs_f64() {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        _ => format!("{} ms", milliseconds(wait)),
    }
}

/// Runs one side until all messages are served.
async fn play(side: Side, flood: u32, length: Duration) -> anyhow::Result<SideResult> {
    let directory = tempfile::tempdir()?;
    let server = Server::start(directory.path(), &[])?;
    let client = Client::connect(&server.address).await?;
    let admin = client.admin();
    admin.create_queue("flood", QueueSettings::new()).await?;
    let queue = client.queue("flood");

    let seen = Arc::new(Mutex::new(SideResult::default()));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    tasks.spawn(work(queue.clone(), start, seen.clone()));
    let mut senders = JoinSet::new();
    senders.spawn(send_flood(queue.clone(), side, flood));
    let count = (length.as_millis() / PAUSE.as_millis()) as u32;
    for tenant in 1..=QUIET {
        senders.spawn(send_quiet(queue.clone(), side, tenant, start, count));
    }
    while let Some(sent) = senders.join_next().await {
        sent??;
    }
    let all = flood + count * QUIET as u32;
    let served = async {
        let mut looks = interval(Duration::from_millis(20));
        while look(&seen).served < all {
            looks.tick().await;
        }
    };
    tokio::select! {
        served = timeout(PATIENCE, served) => served.context("not all messages were served")?,
        Some(ended) = tasks.join_next() => {
            ended??;
            bail!("the workers have ended");
        }
    }
    Ok(std::mem::take(&mut *look(&seen)))
}

fn look(seen: &Mutex<SideResult>) -> std::sync::MutexGuard<'_, SideResult> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn send_flood(queue: Queue, side: Side, flood: u32) -> anyhow::Result<()> {
    let messages = (0..flood).map(|_| Message::new(b"".as_slice()).key(side.key(0)));
    for sent in queue.send_all(messages).await {
        sent?;
    }
    Ok(())
}

async fn send_quiet(
    queue: Queue,
    side: Side,
    tenant: usize,
    start: Instant,
    count: u32,
) -> anyhow::Result<()> {
    // The tenants do not send at the same moment.
    sleep(PAUSE * tenant as u32 / QUIET as u32).await;
    let mut moments = interval(PAUSE);
    let mut sending = JoinSet::new();
    for _ in 0..count {
        moments.tick().await;
        let sent = start.elapsed().as_nanos() as u64;
        let message = Message::new(sent.to_le_bytes().to_vec()).key(side.key(tenant));
        let queue = queue.clone();
        // The tenant sends the next message on time even if this one is not confirmed by then.
        sending.spawn(async move { queue.send(message).await });
    }
    while let Some(sent) = sending.join_next().await {
        sent??;
    }
    Ok(())
}

async fn work(queue: Queue, start: Instant, seen: Arc<Mutex<SideResult>>) -> anyhow::Result<()> {
    // The worker prefetches only as many messages as it has handlers, so the server decides which message is next.
    let worker = queue
        .worker()
        .concurrency(WORKERS)
        .prefetch(u32::try_from(WORKERS)?);
    let ended = worker.run(move |message: Received| {
        let seen = seen.clone();
        async move {
            note(&mut look(&seen), &message.payload, start.elapsed());
            sleep(WORK).await;
            Ok::<(), Failure>(())
        }
    });
    ended.await?;
    Ok(())
}

/// Records that a worker has a message. A message of a quiet tenant contains the time it was sent.
fn note(seen: &mut SideResult, payload: &[u8], now: Duration) {
    seen.served += 1;
    match <[u8; 8]>::try_from(payload) {
        Ok(sent) => {
            let sent = Duration::from_nanos(u64::from_le_bytes(sent));
            let wait = now.saturating_sub(sent);
            seen.quiet.push(QuietWait { sent, wait });
        }
        Err(_) => seen.flood_over = Some(now),
    }
}

const WIDTH: f64 = 680.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 660.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 286.0;

/// The range of waits in the picture, in seconds.
const SHOWN: (f64, f64) = (1e-3, 10.0);

/// Returns the position of a wait on a logarithmic scale.
fn height(wait: f64) -> f64 {
    let (least, most) = SHOWN;
    let part = (wait.clamp(least, most) / least).ln() / (most / least).ln();
    BOTTOM - (BOTTOM - TOP) * part
}

/// Draws every wait of a quiet message, as a picture for light and dark pages.
fn draw(flood: u32, length: Duration, sides: &[(Side, SideResult)]) -> String {
    let mut svg = Svg::new();
    let end = length.as_secs_f64().max(1.0);
    let flood = thousands(f64::from(flood));
    let title = format!("How long messages of quiet tenants wait after another has sent {flood}");
    svg.text(12.0, 24.0, "h", &title);
    draw_axes(&mut svg, end);
    for (side, seen) in sides {
        for sample in &seen.quiet {
            let point = (
                column(sample.sent.as_secs_f64(), end),
                height(sample.wait.as_secs_f64()),
            );
            svg.circle(point, 2.2, side.class());
        }
    }
    for (row, (side, seen)) in sides.iter().enumerate() {
        let x = LEFT + row as f64 * 300.0;
        let label = format!("{}, p50 {}", side.name(), shown(seen.waits().p50()));
        svg.circle((x + 4.0, 44.0), 4.0, side.class());
        svg.text(x + 14.0, 48.0, "", &label);
    }
    let style = ".e{text-anchor:end}.m{text-anchor:middle}line{stroke:#e3e3e3}.f{fill:#c4622d}.o{fill:#2f7ebc}";
    svg.finish((WIDTH, HEIGHT), &title, style)
}

/// Returns the position of a time.
fn column(moment: f64, end: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * (moment / end).min(1.0)
}

fn draw_axes(svg: &mut Svg, end: f64) {
    for (wait, label) in [
        (1e-3, "1 ms"),
        (1e-2, "10 ms"),
        (0.1, "100 ms"),
        (1.0, "1 s"),
        (10.0, "10 s"),
    ] {
        let y = height(wait);
        svg.line((LEFT, y), (RIGHT, y), "");
        svg.text(LEFT - 8.0, y + 4.0, "e", label);
    }
    for second in (0..=end as u32).step_by(2) {
        let x = column(f64::from(second), end);
        svg.text(x, BOTTOM + 18.0, "m", &format!("{second} s"));
    }
    let middle = f64::midpoint(LEFT, RIGHT);
    svg.text(middle, HEIGHT - 8.0, "m", "sent after the flood");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(waits: &[u64]) -> SideResult {
        let mut seen = SideResult::default();
        for &wait in waits {
            let sent = Duration::from_millis(500);
            let payload = (sent.as_nanos() as u64).to_le_bytes();
            note(&mut seen, &payload, sent + Duration::from_millis(wait));
        }
        seen
    }

    #[test]
    fn quiet_messages_are_told_from_the_flood_by_what_they_carry() {
        let mut seen = seen(&[3]);
        note(&mut seen, b"", Duration::from_secs(9));
        assert_eq!(seen.served, 2);
        assert_eq!(seen.flood_over, Some(Duration::from_secs(9)));
        let sample = QuietWait {
            sent: Duration::from_millis(500),
            wait: Duration::from_millis(3),
        };
        assert_eq!(seen.quiet, [sample]);
    }

    #[test]
    fn the_picture_has_a_point_for_every_quiet_message_within_its_frame() {
        let sides = [
            (Side::Fifo, seen(&[20_000, 1])),
            (Side::Fair, seen(&[0, 2])),
        ];
        let picture = draw(1000, Duration::from_secs(1), &sides);
        // The legend has one more point of each.
        assert_eq!(picture.matches("<circle class=\"f\"").count(), 3);
        assert_eq!(picture.matches("<circle class=\"o\"").count(), 3);
        assert!((height(0.0) - BOTTOM).abs() < 1e-9 && (height(60.0) - TOP).abs() < 1e-9);
        assert!((height(0.1) - f64::midpoint(TOP, BOTTOM)).abs() < 1e-9);
    }
}
