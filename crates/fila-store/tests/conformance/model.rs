//! Random histories, played on an engine and on a map beside it, compared after every step.

use std::collections::BTreeMap;

use fila_store::{
    Batch, Engine, FairnessKey, Limit, Locator, MessageId, Meta, Shard, StoredMessage,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::world::{Place, ShardOf, all, at, claim, id, payload, sweep};

#[derive(Clone, Debug)]
enum Step {
    /// Several changes in one commit, some of them committed twice.
    Commit {
        changes: Vec<Change>,
        repeat: bool,
    },
    /// Closes the engine and opens it anew.
    Reopen,
    /// Claims the queue anew.
    Claim,
    /// Deletes the queue and creates one of the same name.
    Recreate,
    Sweep,
}

#[derive(Clone, Debug)]
enum Change {
    Put {
        key: usize,
        bytes: usize,
    },
    /// Of the message at this place, if there is one.
    Retry(prop::sample::Index),
    Delete(prop::sample::Index),
    Purge,
}

const KEYS: [&[u8]; 4] = [b"", b"a", b"a\0", b"\xff"];

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        5 => (0..KEYS.len(), 0..300_usize).prop_map(|(key, bytes)| Change::Put { key, bytes }),
        2 => any::<prop::sample::Index>().prop_map(Change::Retry),
        4 => any::<prop::sample::Index>().prop_map(Change::Delete),
        1 => Just(Change::Purge),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let changes = prop::collection::vec(changes(), 0..12);
    let commit =
        (changes, any::<bool>()).prop_map(|(changes, repeat)| Step::Commit { changes, repeat });
    let step = prop_oneof![
        20 => commit,
        2 => Just(Step::Reopen),
        1 => Just(Step::Claim),
        1 => Just(Step::Recreate),
        2 => Just(Step::Sweep),
    ];
    prop::collection::vec(step, 1..30)
}

/// The messages that there should be, by place.
type Model = BTreeMap<Locator, StoredMessage>;

struct World<P: Place> {
    place: P,
    /// An engine and its shard; neither while the store is closed.
    open: Option<(P::Engine, ShardOf<P>)>,
    model: Model,
    counter: u64,
}

impl<P: Place> World<P> {
    fn new() -> Self {
        let place = P::new();
        let engine = place.open();
        let shard = claim(&engine, "orders");
        Self {
            place,
            open: Some((engine, shard)),
            model: Model::new(),
            counter: 0,
        }
    }

    fn engine(&self) -> &P::Engine {
        &self.open.as_ref().unwrap().0
    }

    fn shard(&self) -> &ShardOf<P> {
        &self.open.as_ref().unwrap().1
    }

    fn play(&mut self, step: &Step) {
        match step {
            Step::Commit { changes, repeat } => {
                let batch = self.batch(changes);
                for _ in 0..=usize::from(*repeat) {
                    self.shard().commit(&batch).unwrap();
                }
            }
            Step::Reopen => {
                self.open = None;
                let engine = self.place.open();
                let shard = claim(&engine, "orders");
                self.open = Some((engine, shard));
            }
            Step::Claim => {
                let engine = self.engine().clone();
                let shard = claim(&engine, "orders");
                self.open = Some((engine, shard));
            }
            Step::Recreate => {
                self.engine().delete_queue(self.shard().queue()).unwrap();
                self.model.clear();
                self.play(&Step::Claim);
            }
            Step::Sweep => {
                sweep(self.engine(), at(1));
            }
        }
    }

    /// Applies changes to the model and returns the batch for the store.
    fn batch(&mut self, changes: &[Change]) -> Batch {
        let mut batch = Batch::new();
        // A purge empties the queue before anything else in its batch happens.
        if changes.iter().any(|change| matches!(change, Change::Purge)) {
            batch.purge(self.shard().generation().next().unwrap());
            self.model.clear();
        }
        for change in changes {
            match change {
                Change::Put { key, bytes } => self.put(&mut batch, KEYS[*key], *bytes),
                Change::Retry(index) => {
                    if let Some(message) = pick(&mut self.model, *index) {
                        message.meta.attempts += 1;
                        message.meta.deliver_after = Some(at(message.meta.attempts.into()));
                        batch.update(message.id, message.meta.clone());
                    }
                }
                Change::Delete(index) => {
                    if let Some(message) = pick(&mut self.model, *index) {
                        let place = Locator {
                            fairness_key: message.meta.schedule.fairness_key.clone(),
                            id: message.id,
                        };
                        self.model.remove(&place);
                        batch.delete(place);
                    }
                }
                Change::Purge => {}
            }
        }
        batch
    }

    fn put(&mut self, batch: &mut Batch, key: &[u8], bytes: usize) {
        self.counter += 1;
        let id = id(self.shard(), self.counter);
        let fairness_key = FairnessKey::new(key.to_vec()).unwrap();
        let payload = payload(vec![self.counter as u8; bytes]);
        let mut meta = Meta::new(fairness_key.clone(), at(self.counter));
        meta.sizes = payload.sizes();
        batch.put(id, meta.clone(), payload.clone());
        let message = StoredMessage {
            id,
            meta,
            payload: Some(payload),
        };
        self.model.insert(Locator { fairness_key, id }, message);
    }

    fn check(&self) {
        let expected: Vec<_> = self.model.values().collect();
        let found = all(self.shard(), 7);
        let metas: Vec<_> = found.iter().map(|entry| (entry.id, &entry.meta)).collect();
        let known: Vec<_> = expected.iter().map(|m| (m.id, &m.meta)).collect();
        assert_eq!(metas, known);
        let mut read = Vec::new();
        for key in KEYS {
            let key = FairnessKey::new(key).unwrap();
            let mut after: Option<MessageId> = None;
            loop {
                let limit = Limit {
                    messages: 3,
                    bytes: 500,
                };
                let page = self.shard().backlog(&key, after, limit).unwrap();
                assert_eq!(page.damaged, []);
                read.extend(page.items);
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        assert_eq!(read.iter().collect::<Vec<_>>(), expected);
    }
}

fn pick(model: &mut Model, index: prop::sample::Index) -> Option<&mut StoredMessage> {
    let length = model.len();
    (length > 0).then(|| model.values_mut().nth(index.index(length)))?
}

pub(crate) fn random_histories_agree_with_a_map<P: Place>() {
    let cases = std::env::var("PROPTEST_CASES").ok();
    let cases = cases.and_then(|cases| cases.parse().ok()).unwrap_or(48);
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    runner
        .run(&steps(), |steps| {
            let mut world = World::<P>::new();
            for step in &steps {
                world.play(step);
                world.check();
            }
            Ok(())
        })
        .unwrap();
}
