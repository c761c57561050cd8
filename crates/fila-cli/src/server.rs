//! `fila server`.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use fila_server::Server;
use fila_server::config::{Config, ConfigError, Loader};
use fila_server::runtime::Stopped;
use fila_server::telemetry::{self, Telemetry};
use tokio::runtime::Builder;
use tracing::{info, warn};

use crate::failure::Failure;
use crate::{dev_tls, signals};

/// How long the export of the last traces may take, after the server's own time to shut down.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// The loader weighs flags against file and environment, so they are texts here.
#[derive(Debug, Args)]
#[command(
    after_help = "docs/configuration.md and --print-config describe every value.\n\
    The server also reads values from the environment, as FILA_SERVER__ADDRESS=127.0.0.1:5555."
)]
pub(crate) struct ServerArguments {
    /// The configuration file [default: the value of FILA_CONFIG, else ./fila.toml if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The address to listen on (server.address)
    #[arg(long, value_name = "IP:PORT")]
    address: Option<String>,

    /// The directory of the database (storage.path)
    #[arg(long, value_name = "DIRECTORY")]
    data: Option<String>,

    /// The storage engine: lsm, memory, or rocksdb in a build with it (storage.engine)
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,

    /// When the server confirms a message: after fsync, os or memory (storage.durability)
    #[arg(long, value_name = "LEVEL")]
    durability: Option<String>,

    /// How many bytes of fresh messages the server keeps in memory, as `256 MiB` (storage.memory_budget)
    #[arg(long, value_name = "SIZE")]
    memory_budget: Option<String>,

    /// Number of threads that schedule (scheduler.threads)
    #[arg(long, value_name = "NUMBER")]
    threads: Option<String>,

    /// Filter of the log, as `info` or `warn,fila_server=debug` (telemetry.log)
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,

    /// Allow an address that other machines can reach, without TLS and authentication (server.insecure)
    #[arg(long)]
    insecure: bool,

    /// Speak TLS with a certificate of its own, made in the data directory: to try it out
    #[arg(long)]
    dev_tls: bool,

    /// Set any value; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,

    /// Print the effective configuration, as a file with comments, and end
    #[arg(long)]
    print_config: bool,
}

/// Runs the server until a signal ends it.
pub(crate) fn run(arguments: ServerArguments) -> Result<(), Failure> {
    let (is_to_print, has_dev_tls) = (arguments.print_config, arguments.dev_tls);
    let mut config = arguments.load()?;
    if is_to_print {
        return print(&config);
    }
    let authority = if has_dev_tls {
        Some(dev_tls::set_up(&mut config)?)
    } else {
        None
    };
    refuse_huge_pages();
    // It accepts connections and waits for signals. The server has threads of its own for everything else.
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the runtime cannot be started")?;
    let served = runtime.block_on(serve(config, authority));
    // A reader of the standard error that is stuck must not keep the process from ending.
    match served {
        Ok(()) => {
            telemetry::flush_log();
            Ok(())
        }
        Err(error) => {
            telemetry::print_last_line(&format!("error: {error:#}"));
            Err(Failure::Reported)
        }
    }
}

/// Has the kernel back the server's memory with small pages only. It clears a huge page as a whole when it is first used,
/// and memory that comes and goes with messages costs that again and again: without huge pages the server takes in up to
/// 1.7 times as many messages, and needs half the memory when idle. The allocator asks for none, but a system may give
/// them to every program.
fn refuse_huge_pages() {
    // A system without huge pages gives none.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

async fn serve(config: Config, dev_authority: Option<PathBuf>) -> anyhow::Result<()> {
    let telemetry = Telemetry::start(&config.telemetry)?;
    telemetry::log_panics();
    info!(
        version = crate::VERSION,
        address = %config.server.address,
        path = %config.storage.path.display(),
        engine = %config.storage.engine,
        durability = %config.storage.durability,
        memory_budget = %config.storage.memory_budget,
        threads = config.scheduler.threads,
        "configuration read"
    );
    if config.server.insecure {
        warn!(
            tls = config.tls.is_on(),
            client_certificates = %config.tls.client_certificates,
            "insecure is set: any program that can reach the address can read and delete messages"
        );
    }
    let announce = |server: &Server| announce(server, dev_authority);
    let served = fila_server::run(config, announce, signals::shutdown()).await;
    if let Err(error) = telemetry.shutdown(FLUSH_MAX).await {
        warn!(error = %error, "telemetry has lost data at its end");
    }
    match served? {
        Stopped::Complete => Ok(()),
        Stopped::TimedOut => anyhow::bail!(
            "the store did not finish in time; confirmed messages are kept, as after a crash"
        ),
    }
}

fn announce(server: &Server, dev_authority: Option<PathBuf>) {
    print_address(server.address(), dev_authority);
    if let Some(tls) = server.tls() {
        signals::on_hangup(move || {
            info!("SIGHUP: the certificate is read again");
            // It logs what is wrong.
            drop(tls.reload());
        });
    }
}

/// Prints the address of the server, and how clients reach it with the certificate of `--dev-tls`. Programs that start one
/// wait for the first line.
fn print_address(address: SocketAddr, dev_authority: Option<PathBuf>) {
    let mut text = format!("fila is listening on {address}\n");
    if let Some(authority) = dev_authority {
        let (port, authority) = (address.port(), authority.display());
        text += &format!(
            "connect with: fila --addr https://localhost:{port} --ca-file {authority} queue list\n"
        );
    }
    // The server does not wait for a reader of its output. The reader may also have closed it.
    let print = move || drop(io::stdout().write_all(text.as_bytes()));
    if let Err(error) = thread::Builder::new().spawn(print) {
        warn!(%error, "the address cannot be printed to standard output");
    }
}

fn print(config: &Config) -> Result<(), Failure> {
    let written = io::stdout().lock().write_all(config.to_toml().as_bytes());
    match written {
        // The reader has closed our output.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written.context("the configuration cannot be printed")?),
    }
}

impl ServerArguments {
    fn load(self) -> Result<Config, ConfigError> {
        // A relative directory, so that messages show the file's name as the user wrote it.
        let mut loader = Loader::new().directory("").variables(std::env::vars_os());
        if let Some(path) = self.config {
            loader = loader.file(path);
        }
        let flags = [
            ("--address", "server.address", self.address),
            ("--data", "storage.path", self.data),
            ("--engine", "storage.engine", self.engine),
            ("--durability", "storage.durability", self.durability),
            (
                "--memory-budget",
                "storage.memory_budget",
                self.memory_budget,
            ),
            ("--threads", "scheduler.threads", self.threads),
            ("--log", "telemetry.log", self.log),
            (
                "--insecure",
                "server.insecure",
                self.insecure.then(|| "true".to_owned()),
            ),
        ];
        for (flag, key, text) in flags {
            if let Some(text) = text {
                loader = loader.flag(flag, key, text);
            }
        }
        self.set.into_iter().fold(loader, Loader::set).load()
    }
}
