//! The server under test: the real program, in its own process.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// A running server. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    log_reader: Option<LogReader>,
}

/// Reads the server's log until it is told to stop, and keeps the pipe open then.
#[derive(Debug)]
struct LogReader {
    stop: Arc<AtomicBool>,
    _thread: JoinHandle<ChildStderr>,
}

impl LogReader {
    fn of(mut log: ChildStderr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while !stopped.load(Ordering::Relaxed) && matches!(log.read(&mut bytes), Ok(1..)) {}
            log
        });
        Self {
            stop,
            _thread: thread,
        }
    }
}

/// How to start a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StartOptions<'a> {
    /// The program; the one in this program's directory if absent.
    pub(crate) program: Option<&'a Path>,
    pub(crate) settings: &'a [String],
    /// Additional environment variables.
    pub(crate) variables: &'a [(&'a str, &'a Path)],
    pub(crate) log: ServerLog,
}

/// The destination of the server's log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum ServerLog {
    /// Warnings, to this program's standard error.
    #[default]
    Shown,
    /// Warnings, to nowhere.
    Discarded,
    /// Everything, into a pipe that is read until [`Server::stop_reading_its_log`].
    Read,
}

impl Server {
    /// Starts the program in this program's directory, on a free port.
    pub(crate) fn start(data: &Path, settings: &[String]) -> anyhow::Result<Self> {
        let options = StartOptions {
            settings,
            ..StartOptions::default()
        };
        Self::start_with(data, options)
    }

    /// Starts a program on a free port.
    pub(crate) fn start_with(data: &Path, options: StartOptions<'_>) -> anyhow::Result<Self> {
        let program = match options.program {
            Some(program) => program.to_owned(),
            None => program()?,
        };
        let (level, log) = match options.log {
            ServerLog::Shown => ("warn", Stdio::inherit()),
            ServerLog::Discarded => ("warn", Stdio::null()),
            ServerLog::Read => ("debug", Stdio::piped()),
        };
        let mut command = Command::new(&program);
        command
            .args(["server", "--address", "127.0.0.1:0", "--log", level])
            .arg("--data")
            .arg(data)
            .envs(options.variables.iter().copied())
            .stderr(log)
            .stdout(Stdio::piped());
        for setting in options.settings {
            command.arg("--set").arg(setting);
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("`{}` cannot be started", program.display()))?;
        let output = child.stdout.take().context("its output is ours")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let Some(address) = line.trim().strip_prefix("fila is listening on ") else {
            let status = child.wait()?;
            bail!("the server said {line:?} and ended with {status}");
        };
        Ok(Self {
            address: format!("http://{address}"),
            log_reader: child.stderr.take().map(LogReader::of),
            child,
        })
    }

    /// Leaves its log unread from now on, in a pipe that stays open.
    pub(crate) fn stop_reading_its_log(&self) {
        if let Some(reader) = &self.log_reader {
            reader.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Returns its address without the scheme, for plain sockets.
    pub(crate) fn socket(&self) -> &str {
        self.address.trim_start_matches("http://")
    }

    /// Makes the peak of its memory begin again at the current value.
    pub(crate) fn reset_peak(&self) -> anyhow::Result<()> {
        let path = format!("/proc/{}/clear_refs", self.child.id());
        std::fs::write(&path, "5").with_context(|| path)
    }

    /// Asks it to shut down, and tells whether it has ended within this time.
    pub(crate) async fn terminate(&mut self, within: Duration) -> anyhow::Result<bool> {
        let id = i32::try_from(self.child.id())?;
        let id = rustix::process::Pid::from_raw(id).context("a process has an id")?;
        rustix::process::kill_process(id, rustix::process::Signal::TERM)?;
        let asked = Instant::now();
        while asked.elapsed() < within {
            if self.child.try_wait()?.is_some() {
                return Ok(true);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(false)
    }

    /// Returns the id of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its current memory and its peak, in MiB.
    pub(crate) fn memory(&self) -> anyhow::Result<(u64, u64)> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let figure = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
            Some(kib >> 10)
        };
        let figures = figure("VmRSS:").zip(figure("VmHWM:"));
        figures.with_context(|| format!("{path} says nothing of memory"))
    }

    /// Returns the processor time that it has used so far.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        // In ticks of 10 ms, as the kernel counts for programs.
        const TICK: Duration = Duration::from_millis(10);
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        // The name of the program may have spaces.
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let mut fields = fields.split_whitespace().skip(11);
        let mut ticks = || fields.next()?.parse::<u32>().ok();
        let ticks = ticks().zip(ticks());
        let (user, system) = ticks.with_context(|| format!("{path} says nothing of time"))?;
        Ok(TICK * (user + system))
    }

    /// Returns what its threads have used so far. The figures of threads that have ended are not in it.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        let mut usage = Usage::default();
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let path = thread?.path();
            // A thread may have ended meanwhile.
            let (Ok(times), Ok(status)) = (
                std::fs::read_to_string(path.join("schedstat")),
                std::fs::read_to_string(path.join("status")),
            ) else {
                continue;
            };
            let nanos = times.split_whitespace().next();
            let nanos = nanos.and_then(|nanos| nanos.parse().ok());
            usage.processor += Duration::from_nanos(nanos.context("schedstat has a time")?);
            for line in status.lines() {
                // Both kinds, voluntary and not.
                if let Some((_, count)) = line.split_once("voluntary_ctxt_switches:") {
                    usage.switches += count.trim().parse::<u64>()?;
                }
            }
        }
        Ok(usage)
    }

    /// Kills it without a shutdown.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

/// What the threads of a server have used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) processor: Duration,
    /// How often a thread has stopped running: because it waits, or because another one runs.
    pub(crate) switches: u64,
}

impl Usage {
    /// Returns what was used since then.
    pub(crate) fn since(self, then: Self) -> Self {
        Self {
            processor: self.processor.saturating_sub(then.processor),
            switches: self.switches.saturating_sub(then.switches),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the values that a server has with these settings, by `section.key`.
pub(crate) fn configuration(
    program: Option<&Path>,
    settings: &[String],
) -> anyhow::Result<HashMap<String, String>> {
    let program = match program {
        Some(program) => program.to_owned(),
        None => self::program()?,
    };
    let mut command = Command::new(program);
    command.args(["server", "--print-config"]);
    for setting in settings {
        command.arg("--set").arg(setting);
    }
    let printed = String::from_utf8(command.output()?.stdout)?;
    let mut section = String::new();
    let mut values = HashMap::new();
    for line in printed.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
        } else if let Some((key, value)) = line.split_once(" = ")
            && !key.starts_with('#')
        {
            values.insert(format!("{section}.{key}"), value.to_owned());
        }
    }
    Ok(values)
}

fn program() -> anyhow::Result<PathBuf> {
    let here = std::env::current_exe()?;
    let program = here.with_file_name("fila");
    if !program.exists() {
        bail!(
            "there is no `{}`; build it with `cargo build --release -p fila-cli`",
            program.display()
        );
    }
    Ok(program)
}
