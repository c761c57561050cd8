//! The server under test: the real program, in its own process.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

/// A running server. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Server {
    /// Starts the program in this program's directory, on a free port.
    pub(crate) fn start(data: &Path, settings: &[String]) -> anyhow::Result<Self> {
        Self::start_with(data, settings, &[])
    }

    /// Starts it with these additional environment variables.
    pub(crate) fn start_with(
        data: &Path,
        settings: &[String],
        variables: &[(&str, &Path)],
    ) -> anyhow::Result<Self> {
        let program = program()?;
        let mut command = Command::new(&program);
        command
            .args(["server", "--address", "127.0.0.1:0", "--log", "warn"])
            .arg("--data")
            .arg(data)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped());
        for setting in settings {
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
            child,
        })
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

    /// Kills it without a shutdown.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
