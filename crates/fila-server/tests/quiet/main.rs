//! A server with little to do: how often its threads wait while one message is sent, alone. A thread that waits has to be
//! woken, and that costs more than most of what is done for the message. A program of its own: servers of other tests have
//! threads of the same names.
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

/// Returns how often each thread of the server has waited so far, by its name and id.
fn waits() -> BTreeMap<String, u64> {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let waits = threads.filter_map(|thread| {
        let path = thread.unwrap().path();
        // A thread may have ended meanwhile.
        let name = fs::read_to_string(path.join("comm")).ok()?;
        let status = fs::read_to_string(path.join("status")).ok()?;
        let count = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        let count = count.trim().parse().unwrap();
        let id = path.file_name()?.to_str()?;
        let is_ours = name.starts_with("fila-");
        is_ours.then(|| (format!("{} {id}", name.trim()), count))
    });
    waits.collect()
}

/// Sends messages to a server at this level, each when the one before is confirmed. Returns how often each of the server's
/// threads has waited per message.
async fn waits_per_message(durability: Durability) -> BTreeMap<String, f64> {
    let directory = tempfile::tempdir().unwrap();
    let mut config = on_disk(directory.path());
    config.storage.durability = durability;
    let mut rig = Rig::with(config).await;
    rig.create("alone").await;
    let mut producer = Producer::open(&rig).await;
    let mut before = waits();
    // The first message is not counted: it makes what the others use.
    for frame_id in 0..=MESSAGES {
        let messages = vec![message("a", "x")];
        producer.send(frame_id, "alone", messages).await;
        assert_eq!(producer.answer().await.frame_id, frame_id);
        if frame_id == 0 {
            before = waits();
        }
    }
    let since = waits().into_iter().map(|(thread, after)| {
        let before = before.get(&thread).copied().unwrap_or_default();
        (thread, (after - before) as f64 / MESSAGES as f64)
    });
    since.filter(|(_, waits)| *waits > 0.0).collect()
}

/// One test, because two would count each other's threads.
#[tokio::test]
async fn a_message_alone_wakes_no_thread_that_need_not_do_anything_for_it() {
    // The thread of the connection waits for the next message.
    let waits = waits_per_message(Durability::Os).await;
    println!("os: {waits:#?}");
    let all: f64 = waits.values().sum();
    assert!(all <= 2.0, "{all} waits per message: {waits:#?}");

    // The thread of the connection waits for the message and for the answer. How often a commit thread waits while it syncs
    // is up to the file system.
    let mut waits = waits_per_message(Durability::Fsync).await;
    println!("fsync: {waits:#?}");
    waits.retain(|thread, _| !thread.starts_with("fila-commit"));
    let all: f64 = waits.values().sum();
    assert!(all <= 2.5, "{all} waits per message: {waits:#?}");
}
