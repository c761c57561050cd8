//! The thread that writes log lines to standard error.
//!
//! A thread that logs must not wait for the reader of the log: a pipe that is not read is full after 64 KiB, and a
//! server that waits for it answers no calls and no signals. So lines go into a buffer of bounded size, and one thread
//! writes them. While the buffer is full, lines are dropped and counted; when the reader comes back, one line says how
//! many are missing, at the place where they are missing.
//!
//! The process has one log, so it has one writer. The writer uses a copy of the file descriptor, because the lock of
//! [`io::stderr`] would be held while a write blocks.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::error;
use tracing_subscriber::fmt::MakeWriter;

/// How many bytes of lines wait for the reader, besides as many that are being written.
const BUFFER_MAX: usize = 1 << 20;

/// How long the writer waits before it tries again to write to a pipe that does not block.
const RETRY: Duration = Duration::from_millis(20);

/// How long the end of the process waits for the reader of the log.
const FLUSH_MAX: Duration = Duration::from_millis(500);

static WRITER: OnceLock<LogWriter> = OnceLock::new();

/// Takes log lines and returns at once.
#[derive(Debug, Default)]
pub(super) struct LogWriter {
    lines: Mutex<Lines>,
    /// There are lines to write.
    filled: Condvar,
    /// All lines are written.
    drained: Condvar,
    /// Lines that were dropped since the start.
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Lines {
    buffer: Vec<u8>,
    /// Lines dropped since the writer took the last ones.
    dropped: u64,
    /// Whether the writer has lines that are not written yet.
    is_writing: bool,
}

/// Returns the writer of this process, and starts its thread if it is the first call.
pub(super) fn start() -> io::Result<&'static LogWriter> {
    if let Some(writer) = WRITER.get() {
        return Ok(writer);
    }
    let output = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let writer = WRITER.get_or_init(LogWriter::default);
    thread::Builder::new()
        .name("fila-log".to_owned())
        .spawn(move || writer.work(output))?;
    Ok(writer)
}

/// Returns how many log lines of this process were dropped because standard error was not read.
pub(crate) fn log_lines_dropped() -> u64 {
    WRITER
        .get()
        .map_or(0, |writer| writer.dropped.load(Ordering::Relaxed))
}

/// Prints a line to standard error, behind the log lines, and waits until it is written, but not long: also if standard
/// error is not read, this returns.
pub fn print_last_line(line: &str) {
    match WRITER.get() {
        Some(writer) => {
            writer.push(format!("{line}\n").as_bytes());
            writer.flush();
        }
        // Nothing has been started, so there is nothing that must not wait.
        None => eprintln!("{line}"),
    }
}

/// Waits until all log lines are written, but not long: also if standard error is not read, this returns.
pub fn flush_log() {
    if let Some(writer) = WRITER.get() {
        writer.flush();
    }
}

impl LogWriter {
    fn push(&self, line: &[u8]) {
        let mut lines = self.lock();
        if lines.buffer.len() + line.len() > BUFFER_MAX {
            lines.dropped += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let was_empty = lines.buffer.is_empty();
        lines.buffer.extend_from_slice(line);
        drop(lines);
        if was_empty {
            self.filled.notify_one();
        }
    }

    fn flush(&self) {
        let is_busy = |lines: &mut Lines| lines.is_writing || !lines.buffer.is_empty();
        let waited = self
            .drained
            .wait_timeout_while(self.lock(), FLUSH_MAX, is_busy);
        drop(waited);
    }

    /// Writes lines to an output, as they come.
    fn work(&self, mut output: impl Write) {
        let mut batch = Vec::new();
        loop {
            let dropped = self.take(&mut batch);
            write_out(&mut output, &batch);
            batch.clear();
            if dropped > 0 {
                error!(
                    lines = dropped,
                    "log lines were dropped here, because standard error was not read"
                );
            }
        }
    }

    /// Waits for lines and takes them all. Returns how many were dropped behind them.
    fn take(&self, batch: &mut Vec<u8>) -> u64 {
        let mut lines = self.lock();
        lines.is_writing = false;
        if lines.buffer.is_empty() {
            self.drained.notify_all();
        }
        let lines = self
            .filled
            .wait_while(lines, |lines| lines.buffer.is_empty());
        let mut lines = lines.unwrap_or_else(PoisonError::into_inner);
        lines.is_writing = true;
        std::mem::swap(&mut lines.buffer, batch);
        std::mem::take(&mut lines.dropped)
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes bytes, as far as the output takes them. A reader that has closed the output loses them.
fn write_out(output: &mut impl Write, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(0) => return,
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY),
            Err(_) => return,
        }
    }
}

/// The layer writes each line by one call.
impl Write for &LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for &'static LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// An output whose writes wait until they are read, one at a time.
    struct Pipe(SyncSender<Vec<u8>>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let sent = self.0.send(bytes.to_vec());
            sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Starts a writer whose output takes bytes only while the receiver reads.
    fn writer() -> (Arc<LogWriter>, Receiver<Vec<u8>>) {
        let (pipe, reader) = sync_channel(0);
        let writer = Arc::new(LogWriter::default());
        let own = Arc::clone(&writer);
        thread::spawn(move || own.work(Pipe(pipe)));
        (writer, reader)
    }

    #[test]
    fn lines_come_out_in_order() {
        let (writer, reader) = writer();
        for number in 0..100 {
            writer.push(format!("{number}\n").as_bytes());
        }
        let mut lines = Vec::new();
        while !lines.ends_with(b"99\n") {
            lines.extend(reader.recv().unwrap());
        }
        let expected: String = (0..100).map(|number| format!("{number}\n")).collect();
        assert_eq!(String::from_utf8(lines).unwrap(), expected);
        writer.flush();
        assert_eq!(writer.dropped.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_reader_that_is_stuck_costs_lines_and_a_bounded_amount_of_memory() {
        let (writer, reader) = writer();
        let line = [b'x'; 1024];
        for _ in 0..10 * BUFFER_MAX / line.len() {
            writer.push(&line);
        }
        let dropped = writer.dropped.load(Ordering::Relaxed) as usize;
        let taken = 10 * BUFFER_MAX / line.len() - dropped;
        let most = 2 * BUFFER_MAX / line.len();
        assert!((most / 2..=most).contains(&taken), "{taken} of {most}");
        writer.flush(); // returns

        // When the reader comes back, it gets what was taken, and lines are taken again.
        let mut read = 0;
        while read < taken * line.len() {
            read += reader.recv().unwrap().len();
        }
        writer.push(b"again\n");
        assert_eq!(reader.recv().unwrap(), b"again\n");
        assert_eq!(writer.dropped.load(Ordering::Relaxed) as usize, dropped);
    }

    #[test]
    fn a_reader_that_has_gone_stops_no_writer() {
        let (writer, reader) = writer();
        drop(reader);
        for _ in 0..10 {
            writer.push(b"line\n");
            writer.flush();
        }
        assert_eq!(writer.dropped.load(Ordering::Relaxed), 0);
    }
}
