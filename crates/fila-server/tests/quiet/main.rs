//! A server with little to do: how often its threads wait, and how often they write, while one message is sent, alone. A
//! thread that waits has to be woken, by a write to an event's file among other ways, and that costs more than most of what
//! is done for the message. A program of its own: servers of other tests have threads of the same names.
#![cfg(test)] // helpers may unwrap, as tests do
#![cfg(target_os = "linux")] // `/proc` counts

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod common;

use std::collections::BTreeMap;
use std::fs;

use fila_server::config::Durability;

use common::pipes::Producer;
use common::{Rig, message, on_disk};

const MESSAGES: u64 = 500;

/// What a thread of the server has done.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    waits: f64,
    /// System calls that write: to the log, to a socket, or to an event that wakes a thread.
    writes: f64,
}

/// Returns the number behind a name in a file of `/proc`.
fn number(file: &str, name: &str) -> Option<f64> {
    let number = file.lines().find_map(|line| line.strip_prefix(name))?;
    Some(number.trim().parse().unwrap())
}

/// Returns what each thread of the server has done so far, by its name and id.
fn counts() -> BTreeMap<String, Counts> {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let counts = threads.filter_map(|thread| {
        let path = thread.unwrap().path();
        // A thread may have ended meanwhile.
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let status = fs::read_to_string(path.join("status")).ok()?;
        let io = fs::read_to_string(path.join("io")).ok()?;
        let counts = Counts {
            waits: number(&status, "voluntary_ctxt_switches:")?,
            writes: number(&io, "syscw:")?,
        };
        let id = path.file_name()?.to_str()?;
        let is_ours = name.starts_with("fila-");
        is_ours.then(|| (format!("{} {id}", name.trim()), counts))
    });
    counts.collect()
}

/// Sends messages to a server at this level, each when the one before is confirmed. Returns what each of the server's
/// threads has done per message.
async fn counts_per_message(durability: Durability) -> BTreeMap<String, Counts> {
    let directory = tempfile::tempdir().unwrap();
    let mut config = on_disk(directory.path());
    config.storage.durability = durability;
    let mut rig = Rig::with(config).await;
    rig.create("alone").await;
    let mut producer = Producer::open(&rig).await;
    let mut before = counts();
    // The first message is not counted: it makes what the others use.
    for frame_id in 0..=MESSAGES {
        let messages = vec![message("a", "x")];
        producer.send(frame_id, "alone", messages).await;
        assert_eq!(producer.answer().await.frame_id, frame_id);
        if frame_id == 0 {
            before = counts();
        }
    }
    let since = counts().into_iter().map(|(thread, after)| {
        let before = before.get(&thread).copied().unwrap_or_default();
        let per_message = Counts {
            waits: (after.waits - before.waits) / MESSAGES as f64,
            writes: (after.writes - before.writes) / MESSAGES as f64,
        };
        (thread, per_message)
    });
    let since: BTreeMap<_, _> = since.collect();
    assert!(!since.is_empty(), "the kernel counts no threads");
    println!("{durability:?}: {since:#?}");
    since
}

/// One test, because two would count each other's threads.
#[tokio::test]
async fn a_message_alone_wakes_no_thread_that_need_not_do_anything_for_it() {
    let waits = |counts: &BTreeMap<String, Counts>| counts.values().map(|it| it.waits).sum::<f64>();
    let writes =
        |counts: &BTreeMap<String, Counts>| counts.values().map(|it| it.writes).sum::<f64>();

    // The thread of the connection waits for the next message. It writes this one to the log, and the answer.
    let counts = counts_per_message(Durability::Os).await;
    assert!(waits(&counts) <= 2.0, "{} waits", waits(&counts));
    assert!(writes(&counts) <= 2.1, "{} writes", writes(&counts));

    // The thread of the connection waits for the message and for the commit thread, which writes to the log and wakes it.
    // How often the commit thread waits while it syncs is up to the file system.
    let mut counts = counts_per_message(Durability::Fsync).await;
    assert!(writes(&counts) <= 3.1, "{} writes", writes(&counts));
    counts.retain(|thread, _| !thread.starts_with("fila-commit"));
    assert!(waits(&counts) <= 2.5, "{} waits", waits(&counts));
}
