//! What all commands have in common: which server they talk to, and how they print.

use std::time::Duration;

use anyhow::Context;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};
use fila_sdk::{Client, ErrorCode};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::failure::Failure;
use crate::output::{Format, Output};

/// How long the neighbours of something that is missing may take to be looked up. Without them the message is shorter.
pub(crate) const SUGGESTION_TIMEOUT: Duration = Duration::from_secs(2);

/// From which likeness on a name is worth suggesting, between 0 and 1.
const LIKENESS_MIN: f64 = 0.8;

#[derive(Clone, Debug, Args)]
pub(crate) struct General {
    /// Where the server is
    #[arg(
        long,
        global = true,
        env = "FILA_ADDR",
        hide_env_values = true,
        default_value = "http://127.0.0.1:5555",
        value_name = "ADDRESS",
        help_heading = "Global options"
    )]
    addr: String,

    /// Print JSON, one object per line
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,

    /// When to print in colour; auto is on a terminal, unless NO_COLOR is set
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t = When::Auto,
        value_name = "auto|always|never",
        hide_possible_values = true,
        help_heading = "Global options"
    )]
    color: When,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    Auto,
    Always,
    Never,
}

/// A connection to the server, and the way to whoever reads.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) output: Output,
}

impl General {
    pub(crate) fn choose_colors(&self) {
        match self.color {
            When::Auto => anstream::ColorChoice::Auto,
            When::Always => anstream::ColorChoice::Always,
            When::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }

    /// Returns where the server is.
    pub(crate) fn address(&self) -> &str {
        &self.addr
    }

    pub(crate) fn output(&self) -> Output {
        Output::new(if self.json {
            Format::Json
        } else {
            Format::Human
        })
    }

    /// Connects, and runs a command that is about this queue, if it is about one.
    pub(crate) fn talk(
        &self,
        queue: Option<&str>,
        command: impl AsyncFnOnce(&Session) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let runtime = Builder::new_multi_thread()
            .enable_all()
            .thread_name("fila-io")
            .build()
            .context("the runtime cannot be started")?;
        let ended = runtime.block_on(async {
            let session = Session {
                client: Client::connect(&self.addr).await?,
                output: self.output(),
            };
            match (command(&session).await, queue) {
                (Err(Failure::Client(error)), Some(queue))
                    if error.code() == Some(ErrorCode::QueueNotFound) =>
                {
                    Err(session.missing(queue).await)
                }
                (ended, _) => ended,
            }
        });
        // Whatever still waits for the server now, nobody waits for.
        runtime.shutdown_background();
        ended
    }
}

impl Session {
    /// Says that a queue does not exist, and which one may be meant.
    async fn missing(&self, queue: &str) -> Failure {
        let queues = timeout(SUGGESTION_TIMEOUT, self.client.admin().queues("")).await;
        let names = queues.into_iter().flatten().flatten();
        let alike = closest(queue, names.map(|queue| queue.name));
        Failure::NotFound(match alike {
            Some(name) => format!(
                "queue `{queue}` does not exist; did you mean `{name}`? See `fila queue list`"
            ),
            None => format!(
                "queue `{queue}` does not exist; see `fila queue list`, or create it with `fila queue create {queue}`"
            ),
        })
    }
}

/// Returns the name that is most like what was written, if one is like it.
pub(crate) fn closest(written: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let alike = names.map(|name| (strsim::jaro_winkler(&name, written), name));
    let alike = alike.filter(|(likeness, _)| *likeness >= LIKENESS_MIN);
    let alike = alike.max_by(|(one, _), (other, _)| one.total_cmp(other));
    alike.map(|(_, name)| name)
}

/// Flags of clients are known to all commands, so that they can stand anywhere. A server must not seem to heed them.
pub(crate) fn refuse_with_server(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(server) = matches.subcommand_matches("server") else {
        return Ok(());
    };
    let is_given = |flag| server.value_source(flag) == Some(ValueSource::CommandLine);
    if is_given("addr") {
        let text = "`fila server` takes no --addr; say where it listens with --address";
        return Err(Failure::Usage(text.to_owned()));
    }
    if is_given("json") {
        let text =
            "`fila server` takes no --json; for its log, use --set telemetry.log_format=json";
        return Err(Failure::Usage(text.to_owned()));
    }
    Ok(())
}
