//! The threads that serve connections. Each has a runtime of its own, and a connection stays with its thread.
//!
//! In a runtime of several threads, an answer from a commit thread wakes one thread, which wakes a second one to look for
//! more work. With little to do there is none, and each of the two has cost as much as the answer. In a runtime of one
//! thread, an answer wakes that thread. A new connection goes to the thread that has the fewest, so that threads have
//! equal parts while connections come and go.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The threads that serve connections. Dropping them ends the threads, with all connections.
#[derive(Debug)]
pub(crate) struct IoThreads {
    threads: Vec<IoThread>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct IoThread {
    handle: Handle,
    connections: Arc<AtomicUsize>,
}

/// The thread of one connection, which counts for it until this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionThread {
    pub(crate) handle: Handle,
    connections: Arc<AtomicUsize>,
}

impl IoThreads {
    /// Starts this many threads.
    ///
    /// # Errors
    /// If a thread or its runtime cannot be started.
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let start = |number| {
            let (started, handle) = std::sync::mpsc::sync_channel(1);
            let stop = stop.clone();
            let thread = std::thread::Builder::new().name(format!("fila-io-{number}"));
            thread.spawn(move || {
                let runtime = Builder::new_current_thread().enable_all().build();
                let runtime = match runtime {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(started.send(Err(error))),
                };
                let _ = started.send(Ok(runtime.handle().clone()));
                runtime.block_on(stop.cancelled());
                // A blocking call of a connection that has ended may still run.
                runtime.shutdown_background();
            })?;
            let ended = || io::Error::other("the thread has ended");
            let handle = handle.recv().map_err(|_| ended())??;
            Ok(IoThread {
                handle,
                connections: Arc::default(),
            })
        };
        Ok(Self {
            threads: (0..count.max(1)).map(start).collect::<io::Result<_>>()?,
            _stop: stop.clone().drop_guard(),
        })
    }

    /// Returns the thread that has the fewest connections, for one more.
    pub(crate) fn choose(&self) -> ConnectionThread {
        let load = |thread: &&IoThread| thread.connections.load(Ordering::Relaxed);
        let thread = self.threads.iter().min_by_key(load);
        let thread = thread.expect("there is at least one thread");
        thread.connections.fetch_add(1, Ordering::Relaxed);
        ConnectionThread {
            handle: thread.handle.clone(),
            connections: thread.connections.clone(),
        }
    }
}

impl Drop for ConnectionThread {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_spread_evenly_while_they_come_and_go() {
        let threads = IoThreads::start(3).unwrap();
        let loads = || {
            let load = |thread: &IoThread| thread.connections.load(Ordering::Relaxed);
            threads.threads.iter().map(load).collect::<Vec<_>>()
        };
        let mut chosen: Vec<_> = (0..6).map(|_| threads.choose()).collect();
        assert_eq!(loads(), [2, 2, 2]);
        // The first thread has had the first and the fourth.
        drop(chosen.remove(3));
        drop(chosen.remove(0));
        assert_eq!(loads(), [0, 2, 2]);
        chosen.push(threads.choose());
        chosen.push(threads.choose());
        assert_eq!(loads(), [2, 2, 2]);
    }

    #[test]
    fn each_thread_runs_its_own_connections() {
        let threads = IoThreads::start(2).unwrap();
        let (name, named) = std::sync::mpsc::channel();
        let chosen = [threads.choose(), threads.choose()];
        for thread in &chosen {
            let name = name.clone();
            thread.handle.spawn(async move {
                let thread = std::thread::current();
                name.send(thread.name().unwrap().to_owned()).unwrap();
            });
        }
        let mut names = [named.recv().unwrap(), named.recv().unwrap()];
        names.sort();
        assert_eq!(names, ["fila-io-0", "fila-io-1"]);
    }
}
