//! Random work on a store, and what the store is to hold after each step of it.
//!
//! Steps are marked in the recording: `2n` when the step after state `n` begins, `2n + 1` when it is confirmed, and with
//! it all before it that have only begun: commits are staged several at a time.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, ensure};
use bytes::Bytes;
use fastrand::Rng;
use fila_store::{
    Batch, ConfigKey, DeduplicationId, Engine, Expected, FairnessKey, Locator, MessageId, Meta,
    Origin, Payload, QueueName, Shard, StoredMessage, Timestamp,
};

use super::state::{Held, Shards, State, Store, open};
use crate::Watch;

const QUEUES: [&str; 5] = ["orders", "mail", "orders.dlq", "images", "audit"];
const KEYS: [&str; 4] = ["", "acme", "acme\0b", "zeta"];
const CONFIGS: [&str; 3] = ["throttle:mail:rate", "throttle:mail:burst", "limits"];

/// Nothing expires before the end of time, and nothing is swept for having expired.
const NEVER: Timestamp = Timestamp::from_millis(u64::MAX);

/// Work under way.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    watch: &'a Watch,
    rng: &'a mut Rng,
    path: PathBuf,
    /// The store and its queues; none between closing and opening.
    open: Option<(Store, Shards)>,
    /// The expected states of the store: at the beginning, and after each step.
    states: Vec<State>,
    counter: u64,
}

impl<'a> Work<'a> {
    /// Goes on with a store that is open.
    pub(crate) fn on(watch: &'a Watch, rng: &'a mut Rng, store: Store) -> anyhow::Result<Self> {
        let (state, shards) = State::read(&store)?;
        Ok(Self {
            path: watch.root().to_owned(),
            watch,
            rng,
            open: Some((store, shards)),
            states: vec![state],
            counter: 0,
        })
    }

    /// Returns what the store holds.
    pub(crate) fn state(&self) -> &State {
        self.states.last().expect("there is always the first")
    }

    /// Returns the epoch of some queue's owner.
    pub(crate) fn epoch(&self) -> Option<u32> {
        let (_, shards) = self.open.as_ref()?;
        shards.values().next().map(|shard| shard.epoch().get())
    }

    /// Does some steps, closes the store and returns what it was to hold before and after each.
    pub(crate) fn play(mut self, steps: usize) -> anyhow::Result<Vec<State>> {
        for step in 0..steps {
            self.watch.mark(2 * self.last());
            let next = self.step().with_context(|| format!("step {step}"))?;
            self.watch.mark(2 * self.last() + 1);
            self.states.push(next);
        }
        self.open = None;
        Ok(self.states)
    }

    /// Returns the number of the last state.
    fn last(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    fn store(&self) -> &Store {
        &self.open.as_ref().expect("open between steps").0
    }

    fn shards(&self) -> &Shards {
        &self.open.as_ref().expect("open between steps").1
    }

    fn step(&mut self) -> anyhow::Result<State> {
        let state = self.state().clone();
        match self.rng.u8(..100) {
            0..=4 => self.create(state),
            5..=6 => self.update(state),
            7 => self.delete(state),
            8..=12 => self.configure(state),
            13..=18 => self.sweep(state),
            19 => self.reopen(state),
            _ if state.queues.is_empty() => self.create(state),
            _ => self.commit(state),
        }
    }

    fn name(&mut self) -> anyhow::Result<QueueName> {
        let name = QUEUES[self.rng.usize(..QUEUES.len())];
        Ok(QueueName::parse(name)?)
    }

    fn bytes(&mut self, len: usize) -> Bytes {
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        bytes.into()
    }

    fn create(&mut self, mut state: State) -> anyhow::Result<State> {
        let name = self.name()?;
        let len = self.rng.usize(..300);
        let definition = self.bytes(len);
        if state.queues.contains_key(&name) {
            return Ok(state);
        }
        let queue = self.store().create_queue(&name, definition)?;
        let shard = self.store().claim(queue.id)?;
        let held = Arc::new(Held::new(queue));
        state.queues.insert(name.clone(), held);
        if let Some((_, shards)) = &mut self.open {
            shards.insert(name, shard);
        }
        Ok(state)
    }

    fn update(&mut self, mut state: State) -> anyhow::Result<State> {
        let name = self.name()?;
        let definition = self.bytes(100);
        if let Some(held) = state.queues.get_mut(&name) {
            let queue = &mut Arc::make_mut(held).queue;
            let expected = Expected::Version(queue.version);
            queue.version = self
                .store()
                .update_queue(queue.id, expected, definition.clone())?;
            queue.definition = definition;
        }
        Ok(state)
    }

    fn delete(&mut self, mut state: State) -> anyhow::Result<State> {
        let mut doomed = vec![self.name()?, self.name()?];
        doomed.dedup();
        doomed.retain(|name| state.queues.contains_key(name));
        let ids: Vec<_> = doomed
            .iter()
            .map(|name| state.queues[name].queue.id)
            .collect();
        self.store().delete_queues(&ids)?;
        for name in doomed {
            state.queues.remove(&name);
            if let Some((_, shards)) = &mut self.open {
                shards.remove(&name);
            }
        }
        Ok(state)
    }

    fn configure(&mut self, mut state: State) -> anyhow::Result<State> {
        let key = ConfigKey::parse(CONFIGS[self.rng.usize(..CONFIGS.len())])?;
        if self.rng.u8(..4) == 0 {
            self.store().remove_config(&key, Expected::Any)?;
            state.configs.remove(&key);
        } else {
            let len = self.rng.usize(..2_000);
            let value = self.bytes(len);
            let version = self
                .store()
                .set_config(&key, Expected::Any, value.clone())?;
            state.configs.insert(key, (version, value));
        }
        Ok(state)
    }

    /// Changes nothing that can be seen.
    fn sweep(&mut self, state: State) -> anyhow::Result<State> {
        let budget = self.rng.usize(1..200);
        self.store().sweep(Timestamp::from_millis(1), budget)?;
        Ok(state)
    }

    fn reopen(&mut self, state: State) -> anyhow::Result<State> {
        self.open = None;
        let store = open(&self.path)?;
        let (found, shards) = State::read(&store)?;
        ensure!(
            found == state,
            "closing has changed {}",
            state.difference(&found)
        );
        self.open = Some((store, shards));
        Ok(state)
    }

    /// Commits to some queues at once, after staging others that are settled with it.
    fn commit(&mut self, mut state: State) -> anyhow::Result<State> {
        let staged = if self.rng.u8(..4) == 0 {
            self.rng.usize(1..=2)
        } else {
            0
        };
        for before in 0..staged {
            state = self.stage(state, before == 0)?;
            self.states.push(state.clone());
            self.watch.mark(2 * self.last());
        }
        let state = self.stage(state, staged == 0)?;
        self.store().settle()?;
        Ok(state)
    }

    /// Stages a commit. One that comes after another cannot see what that does, and adopts nothing.
    fn stage(&mut self, mut state: State, is_first: bool) -> anyhow::Result<State> {
        let mut names: Vec<QueueName> = state.queues.keys().cloned().collect();
        self.rng.shuffle(&mut names);
        names.truncate(self.rng.usize(1..=3));
        let mut batches: Vec<(QueueName, Batch)> = Vec::new();
        for name in names {
            let mut batch = Batch::new();
            self.fill(&mut state, &name, &mut batch)?;
            batches.push((name, batch));
        }
        if let ([(from, taken), (to, given), ..], true) = (&mut batches[..], is_first) {
            self.adopt(&mut state, (from, taken), (to, given))?;
        }
        let shards = self.shards();
        let batches: Vec<_> = batches
            .iter()
            .map(|(name, batch)| (&shards[name], batch))
            .collect();
        self.store().stage(&batches)?;
        Ok(state)
    }

    /// Purges, puts, retries and deletes in one queue.
    fn fill(
        &mut self,
        state: &mut State,
        name: &QueueName,
        batch: &mut Batch,
    ) -> anyhow::Result<()> {
        let held = state.queues.get_mut(name).context("an unknown queue")?;
        let held = Arc::make_mut(held);
        if self.rng.u8(..60) == 0 {
            let next = self.shards()[name].generation().next();
            batch.purge(next.context("no more generations")?);
            held.messages.clear();
            held.remembered.clear();
        }
        for _ in 0..self.rng.usize(..8) {
            self.put(held, name, batch)?;
        }
        let places: Vec<Locator> = held.messages.keys().cloned().collect();
        // The fuller the queue, the more goes.
        let most = 1 + places.len() / 16;
        for _ in 0..self.rng.usize(..=most) {
            let Some(place) = self.rng.choice(&places) else {
                break;
            };
            let Some(message) = held.messages.get_mut(place) else {
                continue; // It has been deleted in this batch.
            };
            if self.rng.u8(..4) == 0 {
                message.meta.attempts += 1;
                batch.update(message.id, message.meta.clone());
            } else {
                held.messages.remove(place);
                batch.delete(place.clone());
            }
        }
        Ok(())
    }

    fn put(&mut self, held: &mut Held, name: &QueueName, batch: &mut Batch) -> anyhow::Result<()> {
        self.counter += 1;
        let key = KEYS[self.rng.usize(..KEYS.len())];
        let key = FairnessKey::new(key.as_bytes().to_vec())?;
        let len = match self.rng.u8(..10) {
            0 => 0,
            1..=5 => self.rng.usize(..400),
            6..=8 => self.rng.usize(..10_000),
            _ => self.rng.usize(..60_000),
        };
        let headers = vec![("number".to_owned(), self.counter.to_string())];
        let payload = Payload::new(headers, self.bytes(len))?;
        let mut meta = Meta::new(key.clone(), Timestamp::from_millis(self.counter));
        meta.sizes = payload.sizes();
        let id =
            MessageId::new(self.shards()[name].epoch(), self.counter).context("no more ids")?;
        if self.rng.u8(..3) == 0 {
            let once = DeduplicationId::new(self.rng.u16(..500).to_be_bytes().to_vec())?;
            meta.deduplication_id = Some(once.clone());
            batch.remember(once.clone(), id, NEVER);
            held.remembered.insert(once.into(), (id, NEVER));
        }
        batch.put(id, meta.clone(), payload.clone());
        let place = Locator {
            fairness_key: key,
            id,
        };
        held.messages.insert(
            place,
            StoredMessage {
                id,
                meta,
                payload: Some(payload),
            },
        );
        Ok(())
    }

    /// Moves a message that an earlier commit has stored from one queue to another.
    fn adopt(
        &mut self,
        state: &mut State,
        (from, taken): (&QueueName, &mut Batch),
        (to, given): (&QueueName, &mut Batch),
    ) -> anyhow::Result<()> {
        let stored = self.state().queues[from].clone();
        let source = Arc::make_mut(state.queues.get_mut(from).context("an unknown queue")?);
        // Still there, and as it was stored: this commit has not touched it.
        let untouched = source.messages.iter();
        let untouched: Vec<Locator> = untouched
            .filter(|(place, message)| stored.messages.get(place) == Some(message))
            .map(|(place, _)| place.clone())
            .collect();
        let Some(place) = self.rng.choice(&untouched) else {
            return Ok(());
        };
        let Some(mut message) = source.messages.remove(place) else {
            return Ok(());
        };
        taken.delete(place.clone());
        self.counter += 1;
        let origin = Origin {
            queue: stored.queue.id,
            generation: self.shards()[from].generation(),
            locator: place.clone(),
        };
        message.id =
            MessageId::new(self.shards()[to].epoch(), self.counter).context("no more ids")?;
        message.meta.attempts = 0;
        given.adopt(message.id, message.meta.clone(), origin);
        let place = Locator {
            fairness_key: place.fairness_key.clone(),
            id: message.id,
        };
        let target = Arc::make_mut(state.queues.get_mut(to).context("an unknown queue")?);
        target.messages.insert(place, message);
        Ok(())
    }
}
