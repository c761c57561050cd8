//! Queues by name and id, and the runtime configuration.

use bytes::Bytes;
use fila_store::{CONFIG_MAX, ConfigKey, DEFINITION_MAX, Engine, EngineError, Expected, QueueId};

use crate::world::{Place, name};

fn config(key: &str) -> ConfigKey {
    ConfigKey::parse(key).unwrap()
}

pub(crate) fn a_queue_is_found_by_its_name_and_listed_in_order_of_creation<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let zebra = engine.create_queue(&name("zebra"), "z".into()).unwrap();
    let ape = engine.create_queue(&name("ape"), "a".into()).unwrap();
    assert_eq!(engine.queue(&name("ape")).unwrap(), Some(ape.clone()));
    assert_eq!(engine.queue(&name("ap")).unwrap(), None);
    assert_eq!(engine.queues().unwrap(), [zebra, ape]);
}

pub(crate) fn a_name_is_taken_once<P: Place>() {
    let place = P::new();
    let engine = place.open();
    engine.create_queue(&name("orders"), "".into()).unwrap();
    let again = engine.create_queue(&name("orders"), "".into());
    assert!(matches!(again, Err(EngineError::AlreadyExists(_))));
}

pub(crate) fn a_definition_changes_only_from_the_expected_version<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let queue = engine.create_queue(&name("orders"), "1".into()).unwrap();
    let first = Expected::Version(queue.version);
    let version = engine.update_queue(queue.id, first, "2".into()).unwrap();
    assert!(version > queue.version);
    let late = engine.update_queue(queue.id, first, "3".into());
    assert!(matches!(late, Err(EngineError::Conflict { found: Some(found) }) if found == version));
    let found = engine.queue(&name("orders")).unwrap().unwrap();
    assert_eq!((found.version, found.definition), (version, "2".into()));
    let unknown = QueueId::new(queue.id.get() + 1);
    let unknown = engine.update_queue(unknown, Expected::Any, "".into());
    assert!(matches!(unknown, Err(EngineError::UnknownQueue(_))));
}

pub(crate) fn an_id_is_not_given_again_after_deletion_and_reopening<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let first = engine.create_queue(&name("orders"), "".into()).unwrap();
    engine.delete_queue(first.id).unwrap();
    assert_eq!(engine.queue(&name("orders")).unwrap(), None);
    let gone = engine.delete_queue(first.id);
    assert!(matches!(gone, Err(EngineError::UnknownQueue(_))));
    drop(engine);
    let engine = place.open();
    let second = engine.create_queue(&name("orders"), "".into()).unwrap();
    assert!(second.id > first.id);
    let gone = engine.claim(first.id);
    assert!(matches!(gone, Err(EngineError::UnknownQueue(_))));
}

pub(crate) fn versions_do_not_go_back_when_an_entry_is_set_anew<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let key = config("a");
    let first = engine.set_config(&key, Expected::Any, "1".into()).unwrap();
    engine.remove_config(&key, Expected::Any).unwrap();
    drop(engine);
    let engine = place.open();
    let second = engine.set_config(&key, Expected::Any, "1".into()).unwrap();
    assert!(second > first);
}

pub(crate) fn config_changes_only_from_the_expected_state<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let key = config("throttle:api:rate");
    let set = |expected, value: &'static str| engine.set_config(&key, expected, value.into());
    let first = set(Expected::Absent, "10").unwrap();
    let taken = set(Expected::Absent, "11");
    assert!(matches!(taken, Err(EngineError::Conflict { found: Some(found) }) if found == first));
    let second = set(Expected::Version(first), "12").unwrap();
    let late = engine.remove_config(&key, Expected::Version(first));
    assert!(matches!(late, Err(EngineError::Conflict { .. })));
    let found = engine.config(&key).unwrap().unwrap();
    assert_eq!((found.version, found.value), (second, "12".into()));
    engine
        .remove_config(&key, Expected::Version(second))
        .unwrap();
    assert_eq!(engine.config(&key).unwrap(), None);
    engine.remove_config(&key, Expected::Any).unwrap();
}

pub(crate) fn config_is_listed_by_prefix<P: Place>() {
    let place = P::new();
    let engine = place.open();
    for key in ["b:2", "a", "b:1", "b", "c", "b:\u{10ffff}"] {
        let value = Bytes::copy_from_slice(key.as_bytes());
        engine
            .set_config(&config(key), Expected::Any, value)
            .unwrap();
    }
    let listed = |prefix| {
        let entries = engine.configs(prefix).unwrap();
        for entry in &entries {
            assert_eq!(entry.value, entry.key.as_str());
        }
        let keys = entries.iter().map(|entry| entry.key.to_string());
        keys.collect::<Vec<_>>()
    };
    assert_eq!(listed("b:"), ["b:1", "b:2", "b:\u{10ffff}"]);
    assert_eq!(listed("").len(), 6);
    assert_eq!(listed("d"), Vec::<String>::new());
}

pub(crate) fn what_is_too_large_is_refused_and_nothing_changes<P: Place>() {
    let place = P::new();
    let engine = place.open();
    let large = Bytes::from(vec![0; DEFINITION_MAX + 1]);
    let refused = engine.create_queue(&name("orders"), large);
    assert!(matches!(refused, Err(EngineError::OutOfRange(_))));
    let large = Bytes::from(vec![0; CONFIG_MAX + 1]);
    let refused = engine.set_config(&config("a"), Expected::Any, large);
    assert!(matches!(refused, Err(EngineError::OutOfRange(_))));
    assert_eq!(engine.queues().unwrap(), []);
    assert_eq!(engine.configs("").unwrap(), []);
}

pub(crate) fn the_catalogue_survives_reopening<P: Place>() {
    let place = P::new();
    let engine = place.open();
    engine.create_queue(&name("orders"), "o".into()).unwrap();
    engine.create_queue(&name("mails"), "m".into()).unwrap();
    let key = config("a");
    engine.set_config(&key, Expected::Any, "1".into()).unwrap();
    let before = (engine.queues().unwrap(), engine.configs("").unwrap());
    drop(engine);
    let engine = place.open();
    assert_eq!(
        before,
        (engine.queues().unwrap(), engine.configs("").unwrap())
    );
}
