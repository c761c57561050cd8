//! `perf record` on a running process, and its samples.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Samples a second.
const FREQUENCY: &str = "1999";

/// How long `perf` may take to begin.
const PATIENCE: Duration = Duration::from_secs(10);

/// One sample of one thread.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StackSample {
    pub(crate) thread: String,
    pub(crate) weight: u64,
    /// The innermost frame first.
    pub(crate) frames: Vec<Frame>,
}

/// A function, and the file that contains it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) function: String,
    pub(crate) object: String,
}

impl Frame {
    pub(crate) fn is_kernel(&self) -> bool {
        self.object.starts_with("[kernel") || self.object.starts_with("[guest.kernel")
    }
}

/// A recording that runs until it is read.
#[derive(Debug)]
pub(crate) struct Recording {
    perf: Child,
    file: PathBuf,
}

impl Recording {
    /// Begins to record all threads of a process.
    pub(crate) fn start(process: u32, file: &Path) -> anyhow::Result<Self> {
        let mut perf = Command::new("perf")
            .args(["record", "-q", "-g", "-F", FREQUENCY, "-p"])
            .arg(process.to_string())
            .arg("-o")
            .arg(file)
            .stdout(Stdio::null())
            .spawn()
            .context("`perf` cannot be started; it is in Debian's package linux-perf")?;
        let begun = Instant::now();
        while !file.exists() {
            if let Some(status) = perf.try_wait()? {
                bail!(
                    "`perf record` ended with {status}; unless run by root it needs kernel.perf_event_paranoid = 1 or less"
                );
            }
            ensure!(begun.elapsed() < PATIENCE, "`perf record` does not begin");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Self {
            perf,
            file: file.to_owned(),
        })
    }

    /// Ends the recording, and returns the samples.
    pub(crate) fn stop(mut self) -> anyhow::Result<Vec<StackSample>> {
        let perf = Pid::from_child(&self.perf);
        kill_process(perf, Signal::INT).context("`perf record` cannot be ended")?;
        self.perf.wait()?;
        let output = Command::new("perf")
            .args(["script", "-F", "comm,period,ip,sym,dso", "-i"])
            .arg(&self.file)
            .stderr(Stdio::null())
            .output()
            .context("`perf script`")?;
        ensure!(output.status.success(), "`perf script`: {}", output.status);
        let samples = samples(&String::from_utf8_lossy(&output.stdout));
        ensure!(!samples.is_empty(), "`perf` has seen nothing");
        Ok(samples)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.perf.kill();
        let _ = self.perf.wait();
    }
}

/// Parses the output of `perf script`: a line with the thread and the weight, then one for each frame, then an empty one.
fn samples(text: &str) -> Vec<StackSample> {
    let paragraphs = text.split("\n\n");
    paragraphs.filter_map(sample).collect()
}

fn sample(paragraph: &str) -> Option<StackSample> {
    let mut lines = paragraph.lines().filter(|line| !line.trim().is_empty());
    let (thread, weight) = lines.next()?.trim().rsplit_once(' ')?;
    Some(StackSample {
        thread: thread.trim().to_owned(),
        weight: weight.parse().ok()?,
        frames: lines.filter_map(frame).collect(),
    })
}

fn frame(line: &str) -> Option<Frame> {
    let (_address, rest) = line.trim().split_once(' ')?;
    let (function, object) = rest.rsplit_once(" (")?;
    Some(Frame {
        function: function.trim().to_owned(),
        object: object.trim_end_matches(')').to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perf_prints_is_read_with_spaces_in_names() {
        let text = "fila io     500250 \n\tffffffff81 schedule ([kernel.kallsyms])\n\t  d8e906 <a::B as c::D>::e (/bin/fila)\n\n\
                    fila-sched-0  7 \n\t  0 [unknown] ([unknown])\n\n";
        let frame = |function: &str, object: &str| Frame {
            function: function.to_owned(),
            object: object.to_owned(),
        };
        let expected = [
            StackSample {
                thread: "fila io".to_owned(),
                weight: 500_250,
                frames: vec![
                    frame("schedule", "[kernel.kallsyms]"),
                    frame("<a::B as c::D>::e", "/bin/fila"),
                ],
            },
            StackSample {
                thread: "fila-sched-0".to_owned(),
                weight: 7,
                frames: vec![frame("[unknown]", "[unknown]")],
            },
        ];
        assert_eq!(samples(text), expected);
    }
}
