//! The options of all commands: the server, the files for TLS, and the format of the output.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};
use fila_sdk::{Client, ClientBuilder, ErrorCode, Settings, SettingsFlags};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::failure::Failure;
use crate::output::{Format, Output};

/// How long the search for similar names may take. Without them the error is shorter.
pub(crate) const SUGGESTION_TIMEOUT: Duration = Duration::from_secs(2);

/// The least similarity of a suggestion, between 0 and 1.
const LIKENESS_MIN: f64 = 0.8;

#[derive(Clone, Debug, Args)]
pub(crate) struct General {
    // Not by clap's `env` and `default_value`: its usage lines would show the flag as if it were required.
    /// The address of the server [env: FILA_ADDR] [default: http://127.0.0.1:5555]
    #[arg(
        long,
        global = true,
        value_name = "ADDRESS",
        help_heading = "Global options"
    )]
    addr: Option<String>,

    /// The profile to take the address and the files from [env: FILA_PROFILE]
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        help_heading = "Global options"
    )]
    profile: Option<String>,

    /// The CA to trust instead of the system's, for https [env: FILA_CA_FILE]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Global options"
    )]
    ca_file: Option<PathBuf>,

    /// The certificate of this client [env: FILA_CERT_FILE]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Global options"
    )]
    cert_file: Option<PathBuf>,

    /// The private key of that certificate [env: FILA_CERT_KEY_FILE]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Global options"
    )]
    cert_key_file: Option<PathBuf>,

    /// Print JSON, one object per line
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,

    /// When to print in colour; auto means on a terminal, unless NO_COLOR is set
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

/// A connection to the server, and the output.
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

    /// Returns the settings that the flags give.
    pub(crate) fn flags(&self) -> SettingsFlags {
        let mut flags = SettingsFlags::default();
        flags.address.clone_from(&self.addr);
        flags.profile.clone_from(&self.profile);
        flags.ca_file.clone_from(&self.ca_file);
        flags.cert_file.clone_from(&self.cert_file);
        flags.cert_key_file.clone_from(&self.cert_key_file);
        flags
    }

    /// Begins to build a client of the server that flags, environment and profile name.
    pub(crate) fn client(&self) -> Result<ClientBuilder, Failure> {
        let settings = Settings::resolve(&self.flags(), |name| std::env::var_os(name))?;
        Ok(settings.builder()?)
    }

    pub(crate) fn output(&self) -> Output {
        Output::new(if self.json {
            Format::Json
        } else {
            Format::Human
        })
    }

    /// Connects and runs a command. `queue` is the queue that the command needs, if it needs one.
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
                client: self.client()?.connect().await?,
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
        // The command has ended, so the remaining tasks are abandoned.
        runtime.shutdown_background();
        ended
    }
}

impl Session {
    /// Returns the failure for a queue that does not exist, with a similar name if there is one.
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

/// Returns the name that is most similar to `written`, if one is similar enough.
pub(crate) fn closest(written: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let alike = names.map(|name| (strsim::jaro_winkler(&name, written), name));
    let alike = alike.filter(|(likeness, _)| *likeness >= LIKENESS_MIN);
    let alike = alike.max_by(|(one, _), (other, _)| one.total_cmp(other));
    alike.map(|(_, name)| name)
}

/// Refuses the clients' flags for `fila server`. Clap accepts them for every command, and the server would ignore them.
pub(crate) fn refuse_with_server(matches: &ArgMatches) -> Result<(), Failure> {
    let Some(server) = matches.subcommand_matches("server") else {
        return Ok(());
    };
    let is_given = |flag| server.value_source(flag) == Some(ValueSource::CommandLine);
    if is_given("addr") {
        let text = "`fila server` takes no --addr; set its address with --address";
        return Err(Failure::Usage(text.to_owned()));
    }
    for (id, flag) in [
        ("profile", "--profile"),
        ("ca_file", "--ca-file"),
        ("cert_file", "--cert-file"),
        ("cert_key_file", "--cert-key-file"),
    ] {
        if is_given(id) {
            let text = format!("`fila server` takes no {flag}, which is for clients");
            return Err(Failure::Usage(text));
        }
    }
    if is_given("json") {
        let text =
            "`fila server` takes no --json; for its log, use --set telemetry.log_format=json";
        return Err(Failure::Usage(text.to_owned()));
    }
    Ok(())
}
