//! Counts the memory that a fairness key takes, alone and in groups. The messages stay in the store.
//!
//! `FILA_MEMORY_KEYS=n` takes another number of keys than 100,000.

#![cfg(test)] // helpers may unwrap, as tests do

use allocation_counter::measure;
use fila_core::{Broker, QueueSettings, Recovery, Settings};
use fila_store::{
    Epoch, FairnessKey, Generation, MessageId, Meta, QueueId, StoredMessage, Timestamp,
};

/// Returns the bytes that a broker takes for each of these keys, if each of them has one message in the store.
fn bytes_per_key(name: impl Fn(u64) -> String) -> u64 {
    let keys = std::env::var("FILA_MEMORY_KEYS").map_or(100_000, |keys| keys.parse().unwrap());
    let now = Timestamp::from_millis(1_700_000_000_000);
    let mut broker = Broker::<()>::new(Settings::default());
    let used = measure(|| {
        let (epoch, generation) = (Epoch::FIRST, Generation::new(0));
        let definition = QueueSettings::default();
        let queue = QueueId::new(1);
        let mut recovery = Recovery::new(queue, epoch, generation, definition);
        for number in 0..keys {
            let key = FairnessKey::new(name(number)).unwrap();
            recovery.message(&StoredMessage {
                id: MessageId::new(epoch, number).unwrap(),
                meta: Meta::new(key, now),
                payload: None,
            });
        }
        broker.open(now, recovery);
        broker.poll(now);
    });
    u64::try_from(used.bytes_current).unwrap() / keys
}

#[test]
fn a_key_in_a_group_takes_no_more_than_twice_the_memory_of_a_key_alone() {
    let alone = bytes_per_key(|number| format!("key-{number}"));
    let one_group = bytes_per_key(|number| format!("acme/{number}"));
    let groups_of_one = bytes_per_key(|number| format!("tenant-{number}/user"));
    let shares = [one_group, groups_of_one].map(|bytes| bytes as f64 / alone as f64);
    println!("bytes per key: {alone} alone");
    println!("in one group: {one_group} ({:.2} times as much)", shares[0]);
    println!(
        "each in a group of its own, and that group: {groups_of_one} ({:.2} times as much)",
        shares[1]
    );
    assert!(one_group <= 2 * alone);
    assert!(groups_of_one <= 2 * alone);
}
