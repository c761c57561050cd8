//! A server of another project, in its own process group, on loopback, with its own directory.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

use super::driver::Running;

/// A process and its children. Dropping it kills them.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("{command:?} cannot be started"))?;
        Ok(Self { child })
    }

    /// Sums a figure over its processes. The fields are those of `/proc/PID/stat` after the program's name.
    fn sum(&self, figure: impl Fn(&[&str]) -> Option<u64>) -> anyhow::Result<u64> {
        let group = self.child.id().to_string();
        let mut sum = 0;
        for entry in std::fs::read_dir("/proc")? {
            let path = entry?.path().join("stat");
            // The process may have ended meanwhile, and most entries of `/proc` are not processes.
            let Ok(stat) = std::fs::read_to_string(path) else {
                continue;
            };
            let fields = stat.rsplit(')').next().unwrap_or_default();
            let fields: Vec<&str> = fields.split_whitespace().collect();
            if fields.get(2) == Some(&group.as_str()) {
                sum += figure(&fields).context("/proc/PID/stat is short")?;
            }
        }
        ensure!(sum > 0, "the server has ended");
        Ok(sum)
    }
}

impl Running for Process {
    fn memory(&self) -> anyhow::Result<u64> {
        const PAGE: u64 = 4096;
        let pages = self.sum(|fields| fields.get(21)?.parse().ok())?;
        Ok((pages * PAGE) >> 20)
    }

    fn processor_time(&self) -> anyhow::Result<Duration> {
        let ticks = self.sum(|fields| {
            let time = |place: usize| fields.get(place)?.parse::<u64>().ok();
            Some(time(11)? + time(12)?)
        })?;
        Ok(Duration::from_millis(10 * ticks))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Returns a free port of loopback.
pub(crate) fn port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
