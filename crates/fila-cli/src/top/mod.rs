//! `fila top`: queues and fairness keys of a server, live.
//!
//! [`sample`] makes rows of two samples of a server, [`state`] holds the choices of the user, and [`columns`], [`view`]
//! and [`once`] turn both into text and screens. All of these are pure. This file has the server, the clock and the
//! terminal.

mod columns;
mod ideals;
mod once;
mod sample;
#[cfg(test)]
mod samples;
mod state;
mod view;

use std::io;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Args;
use fila_sdk::{Admin, Client, Error, ErrorCode, ServerInfo};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::failure::Failure;
use crate::general::{General, Session};
use crate::output::Format;
use crate::queue::DeadLetters;
use crate::terminal::{self, Input, Palette, Screen};
use crate::units;
use crate::values;
use sample::{
    KEYS_MAX, KeyRow, Keys, QueueRow, Sample, ServerLine, group_rows, key_rows, queue_rows,
};
use state::{Listing, Reaction, Refresh, State};
use view::TopFrame;

/// How long an answer may take before the server counts as away.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The shortest time between two samples.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fila top
  fila top --addr broker:5555 --queue orders
  fila top --once --json | jq '.queues[] | {name, depth}'

docs/demo.md describes every column and every key.")]
pub(crate) struct TopArguments {
    /// The queue that is selected at the start
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,

    /// Time between two samples
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval, allow_hyphen_values = true)]
    interval: Duration,

    /// Show queues of dead letters as rows, too; with --json they always are
    #[arg(long)]
    dead_letters: bool,

    /// Print one sample and end, as without a terminal, and with --json
    #[arg(long)]
    once: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let time = values::duration(text)?;
    if time < INTERVAL_MIN {
        return Err(format!("at least {}", units::time(INTERVAL_MIN)));
    }
    Ok(time)
}

impl TopArguments {
    fn dead_letters(&self) -> DeadLetters {
        let is_chosen = self
            .queue
            .as_ref()
            .is_some_and(|name| name.ends_with(".dlq"));
        DeadLetters::from_flag(self.dead_letters || is_chosen)
    }
}

/// Shows a server until the user quits.
pub(crate) fn run(general: &General, arguments: &TopArguments) -> Result<(), Failure> {
    let is_for_programs = general.output().format == Format::Json;
    if arguments.once || is_for_programs || !terminal::is_watched() {
        let queue = arguments.queue.as_deref();
        return general.talk(queue, async |session| look_once(session, arguments).await);
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .thread_name("fila-top")
        .build()
        .context("the runtime cannot be started")?;
    let ended = runtime.block_on(async { Live::start(general, arguments)?.watch().await });
    // A pending sample is abandoned.
    runtime.shutdown_background();
    ended
}

async fn look_once(session: &Session, arguments: &TopArguments) -> Result<(), Failure> {
    let client = &session.client;
    let eye = Eye::new(client);
    let queue = match &arguments.queue {
        Some(name) => Some(eye.admin.queue(name).await?.name),
        // A server with a single queue, beside its queue of dead letters, needs no choice.
        None => {
            let mut queues = eye.admin.queues("").await?;
            queues.retain(|queue| !queue.name.ends_with(".dlq"));
            match queues.as_slice() {
                [only] => Some(only.name.clone()),
                _ => None,
            }
        }
    };
    let before = eye.look(queue.clone()).await?;
    sleep(arguments.interval).await;
    let now = eye.look(queue).await?;
    let address = client.address();
    let json = once::json(address, &before, &now);
    let text = || {
        let dead_letters = arguments.dead_letters();
        once::text(address, &before, &now, dead_letters, terminal::columns()).join("\n")
    };
    session.output.result(&json, text)
}

/// The connection that takes samples.
#[derive(Clone)]
struct Eye {
    admin: Admin,
    since: Instant,
}

impl Eye {
    fn new(client: &Client) -> Self {
        Self {
            admin: client.admin(),
            since: Instant::now(),
        }
    }

    /// Takes a sample of the server, and of the keys of one queue.
    async fn look(&self, queue: Option<String>) -> Result<Sample, Error> {
        let server = self.admin.server().await?;
        let queues = self.admin.queues("").await?;
        let at = self.since.elapsed();
        let keys = match queue {
            Some(queue) => {
                let found = queues.iter().find(|it| it.name == queue);
                let groups = found.map_or(0, |it| it.stats.active_groups);
                self.look_into(queue, groups).await?
            }
            None => None,
        };
        Ok(Sample {
            at,
            server: server_line(server),
            queues,
            keys,
        })
    }

    async fn list(&self, queue: String, groups: u64) -> Result<Keys, Error> {
        let keys = self.admin.keys(&queue, KEYS_MAX).await?;
        let groups = match groups {
            0 => Vec::new(),
            1.. => self.admin.groups(&queue, KEYS_MAX).await?,
        };
        Ok(Keys {
            queue,
            keys,
            groups,
        })
    }

    /// Takes a sample of the keys of a queue with this number of groups.
    async fn look_into(&self, queue: String, groups: u64) -> Result<Option<Keys>, Error> {
        match self.list(queue, groups).await {
            Ok(keys) => Ok(Some(keys)),
            // The queue has been deleted meanwhile, or does not exist yet.
            Err(error) if error.code() == Some(ErrorCode::QueueNotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn server_line(info: ServerInfo) -> ServerLine {
    let uptime = SystemTime::now().duration_since(info.started_at);
    ServerLine {
        version: info.version,
        durability: info.durability,
        writable: info.writable,
        connections: info.connections,
        consumers: info.consumers,
        memory_used: info.memory_used_bytes,
        memory_budget: info.memory_budget_bytes,
        // The server's clock may be ahead of ours.
        uptime: uptime.unwrap_or_default(),
    }
}

/// The live view.
struct Live {
    eye: Eye,
    address: String,
    interval: Duration,
    state: State,
    before: Option<Sample>,
    now: Option<Sample>,
    trouble: Option<String>,
    /// A pending sample.
    looking: Option<JoinHandle<Result<Sample, Error>>>,
    palette: Palette,
}

impl Live {
    fn start(general: &General, arguments: &TopArguments) -> Result<Self, Failure> {
        // The client connects on its first use: the view waits for a server that does not run yet as for a lost one.
        let client = general
            .client()?
            .connect_timeout(ANSWER_MAX)
            .deadline(ANSWER_MAX);
        let client = client.connect_lazy()?;
        let mut state = State::default();
        state.queues.chosen.clone_from(&arguments.queue);
        state.dead_letters = arguments.dead_letters();
        Ok(Self {
            eye: Eye::new(&client),
            address: client.address().to_owned(),
            interval: arguments.interval,
            state,
            before: None,
            now: None,
            trouble: None,
            looking: None,
            palette: Palette::chosen(),
        })
    }

    async fn watch(mut self) -> Result<(), Failure> {
        let mut told_to_end = std::pin::pin!(terminal::told_to_end());
        let mut screen = Screen::take().context("the terminal cannot be used; try --once")?;
        let mut inputs = terminal::inputs();
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                () = &mut told_to_end => return Ok(()),
                Some(input) = inputs.recv() => {
                    if self.take(input) == Reaction::Quit {
                        return Ok(());
                    }
                }
                seen = join(&mut self.looking) => self.note(seen),
                _ = ticks.tick() => {
                    // A pending sample is awaited: the server may be slower than the interval.
                    if self.state.refresh == Refresh::Running && self.looking.is_none() {
                        self.ask();
                    }
                }
            }
            self.draw(&mut screen).context("the terminal is gone")?;
        }
    }

    fn rows(&self) -> (Vec<QueueRow>, Vec<KeyRow>) {
        let Some(now) = &self.now else {
            return (Vec::new(), Vec::new());
        };
        let before = self.before.as_ref();
        let rows = queue_rows(before, now, self.state.dead_letters);
        let queues = self.state.queues.arranged(rows);
        let rows = match self.state.listing {
            Listing::Keys => key_rows(before, now),
            Listing::Groups => group_rows(before, now),
        };
        (queues, self.state.keys.arranged(rows))
    }

    fn take(&mut self, input: Input) -> Reaction {
        let key = match input {
            Input::Interrupt => return Reaction::Quit,
            Input::Resized => return Reaction::Draw,
            Input::Key(key) => key,
        };
        let (queues, keys) = self.rows();
        let reaction = self.state.press(key, &queues, &keys);
        if reaction == Reaction::Ask {
            self.ask();
        }
        reaction
    }

    /// Begins a sample. A pending one of another queue is given up.
    fn ask(&mut self) {
        let (queues, _) = self.rows();
        // Before the first sample it is the queue of the arguments.
        let queue = self
            .state
            .queue(&queues)
            .or_else(|| self.state.queues.chosen.clone());
        if let Some(looking) = self.looking.take() {
            looking.abort();
        }
        let eye = self.eye.clone();
        self.looking = Some(tokio::spawn(async move { eye.look(queue).await }));
    }

    fn note(&mut self, seen: Result<Sample, Error>) {
        match seen {
            Ok(sample) => {
                self.trouble = None;
                let is_first = self.now.is_none();
                self.turn_page(sample);
                if is_first {
                    // The first sample tells which queue is the first.
                    self.ask();
                }
            }
            Err(error) => self.trouble = Some(cause(error)),
        }
    }

    /// Makes the current sample the previous one, unless it is too recent: differences over a moment mean little.
    fn turn_page(&mut self, sample: Sample) {
        let at = sample.at;
        let old = self.now.replace(sample);
        if let Some(old) = old
            && at.saturating_sub(old.at) >= self.interval / 2
        {
            self.before = Some(old);
        }
    }

    fn draw(&self, screen: &mut Screen) -> io::Result<()> {
        let (queues, keys) = self.rows();
        let shown = TopFrame {
            address: &self.address,
            sample: self.now.as_ref(),
            state: &self.state,
            queues: &queues,
            keys: &keys,
            trouble: self.trouble.as_deref(),
        };
        screen.draw(|frame| view::draw(frame, &shown, self.palette))
    }
}

/// Returns the cause of an error, without its advice, which the view already follows.
fn cause(error: Error) -> String {
    match error {
        Error::Unreachable { cause, .. } => cause,
        error => error.to_string(),
    }
}

/// Waits for a pending sample; without one it waits without end.
async fn join(looking: &mut Option<JoinHandle<Result<Sample, Error>>>) -> Result<Sample, Error> {
    let Some(handle) = looking else {
        return std::future::pending().await;
    };
    let seen = handle.await;
    *looking = None;
    seen.unwrap_or(Err(Error::Closed))
}
