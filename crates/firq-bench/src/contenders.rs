//! The queues under test, behind one small interface.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use firq_core as ours;
use firq_core_rival as rival;

/// Longer than any run.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// An item in a queue: its tenant, and the time it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) tenant: u64,
    pub(crate) sent: Instant,
}

/// The size of a contender's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) total: usize,
    pub(crate) per_tenant: usize,
    pub(crate) shards: usize,
}

/// A queue between threads.
pub(crate) trait Contender: Send + Sync {
    fn name(&self) -> String;

    /// Puts an item in; `false` if the queue is full.
    fn offer(&self, item: Item) -> bool;

    /// Puts an item in, and waits for room if the queue is full.
    fn put(&self, item: Item);

    /// Takes an item out. The queue must not be empty.
    fn take(&self) -> Item;

    /// Takes an item out, and waits for one if the queue is empty.
    fn take_wait(&self) -> Item;
}

/// A task as a plain queue would hold it: as large as the schedulers' own, with a timestamp.
#[derive(Debug)]
struct PlainTask {
    item: Item,
    enqueued: Instant,
    cost: u64,
}

impl PlainTask {
    fn new(item: Item) -> Self {
        Self {
            item,
            enqueued: Instant::now(),
            cost: 1,
        }
    }

    fn into_item(self) -> Item {
        std::hint::black_box((self.enqueued, self.cost));
        self.item
    }
}

/// The lower bound: one lock, one queue, no fairness.
#[derive(Debug)]
pub(crate) struct Fifo {
    state: Mutex<FifoState>,
    not_empty: Condvar,
    not_full: Condvar,
    room: usize,
}

/// Counts the waiting threads, because a notification costs a system call even if no thread waits.
#[derive(Debug, Default)]
struct FifoState {
    queue: VecDeque<PlainTask>,
    consumers: usize,
    producers: usize,
}

impl Fifo {
    pub(crate) fn new(room: Room) -> Self {
        Self {
            state: Mutex::default(),
            not_empty: Condvar::new(),
            not_full: Condvar::new(),
            room: room.total,
        }
    }

    fn lock(&self) -> MutexGuard<'_, FifoState> {
        self.state.lock().expect("not poisoned")
    }

    fn push(&self, mut state: MutexGuard<'_, FifoState>, task: PlainTask) {
        state.queue.push_back(task);
        let waits = state.consumers > 0;
        drop(state);
        if waits {
            self.not_empty.notify_one();
        }
    }

    fn pop(&self, mut state: MutexGuard<'_, FifoState>) -> Item {
        let task = state.queue.pop_front().expect("there is an item");
        let waits = state.producers > 0;
        drop(state);
        if waits {
            self.not_full.notify_one();
        }
        task.into_item()
    }
}

impl Contender for Fifo {
    fn name(&self) -> String {
        "Mutex<VecDeque>".to_owned()
    }

    fn offer(&self, item: Item) -> bool {
        let task = PlainTask::new(item);
        let state = self.lock();
        let fits = state.queue.len() < self.room;
        if fits {
            self.push(state, task);
        }
        fits
    }

    fn put(&self, item: Item) {
        let task = PlainTask::new(item);
        let mut state = self.lock();
        while state.queue.len() >= self.room {
            state.producers += 1;
            state = self.not_full.wait(state).expect("not poisoned");
            state.producers -= 1;
        }
        self.push(state, task);
    }

    fn take(&self) -> Item {
        self.pop(self.lock())
    }

    fn take_wait(&self) -> Item {
        let mut state = self.lock();
        while state.queue.is_empty() {
            state.consumers += 1;
            state = self.not_empty.wait(state).expect("not poisoned");
            state.consumers -= 1;
        }
        self.pop(state)
    }
}

/// A bounded channel of `crossbeam`.
#[derive(Debug)]
pub(crate) struct Crossbeam {
    sender: crossbeam_channel::Sender<Item>,
    receiver: crossbeam_channel::Receiver<Item>,
}

impl Crossbeam {
    pub(crate) fn new(room: Room) -> Self {
        let (sender, receiver) = crossbeam_channel::bounded(room.total);
        Self { sender, receiver }
    }
}

impl Contender for Crossbeam {
    fn name(&self) -> String {
        "crossbeam-channel".to_owned()
    }

    fn offer(&self, item: Item) -> bool {
        self.sender.try_send(item).is_ok()
    }

    fn put(&self, item: Item) {
        self.sender.send(item).expect("both ends are here");
    }

    fn take(&self) -> Item {
        self.receiver.try_recv().expect("there is an item")
    }

    fn take_wait(&self) -> Item {
        self.receiver.recv().expect("both ends are here")
    }
}

/// A bounded channel of `kanal`.
#[derive(Debug)]
pub(crate) struct Kanal {
    sender: kanal::Sender<Item>,
    receiver: kanal::Receiver<Item>,
}

impl Kanal {
    pub(crate) fn new(room: Room) -> Self {
        let (sender, receiver) = kanal::bounded(room.total);
        Self { sender, receiver }
    }
}

impl Contender for Kanal {
    fn name(&self) -> String {
        "kanal".to_owned()
    }

    fn offer(&self, item: Item) -> bool {
        self.sender.try_send(item).unwrap_or(false)
    }

    fn put(&self, item: Item) {
        self.sender.send(item).expect("both ends are here");
    }

    fn take(&self) -> Item {
        self.receiver
            .try_recv()
            .expect("both ends are here")
            .expect("there is an item")
    }

    fn take_wait(&self) -> Item {
        self.receiver.recv().expect("both ends are here")
    }
}

/// The crate of the same name that is published today.
pub(crate) struct Rival {
    scheduler: rival::Scheduler<Item>,
}

impl Rival {
    /// Returns a scheduler that refuses tasks without room, or lets the sender wait.
    pub(crate) fn new(room: Room, waits: bool) -> Self {
        let backpressure = match waits {
            true => rival::BackpressurePolicy::Timeout { wait: FOR_EVER },
            false => rival::BackpressurePolicy::Reject,
        };
        let scheduler = rival::Scheduler::new(rival::SchedulerConfig {
            shards: room.shards,
            max_global: room.total,
            max_per_tenant: room.per_tenant,
            quantum: 1,
            quantum_by_tenant: HashMap::new(),
            quantum_provider: None,
            backpressure,
            backpressure_by_tenant: HashMap::new(),
            top_tenants_capacity: 16,
        });
        Self { scheduler }
    }

    pub(crate) fn scheduler(&self) -> &rival::Scheduler<Item> {
        &self.scheduler
    }
}

/// Returns a task of the published crate.
pub(crate) fn rival_task(item: Item, cost: u64, deadline: Option<Instant>) -> rival::Task<Item> {
    rival::Task {
        payload: item,
        enqueue_ts: Instant::now(),
        deadline,
        priority: rival::Priority::Normal,
        cost,
    }
}

impl Contender for Rival {
    fn name(&self) -> String {
        "firq-core 0.1.3".to_owned()
    }

    fn offer(&self, item: Item) -> bool {
        let task = rival_task(item, 1, None);
        let result = self
            .scheduler
            .enqueue(rival::TenantKey::from(item.tenant), task);
        matches!(result, rival::EnqueueResult::Enqueued)
    }

    fn put(&self, item: Item) {
        assert!(self.offer(item), "it waits for room");
    }

    fn take(&self) -> Item {
        loop {
            // It sometimes answers `Empty` although there are tasks.
            if let rival::DequeueResult::Task { task, .. } = self.scheduler.try_dequeue() {
                return task.payload;
            }
        }
    }

    fn take_wait(&self) -> Item {
        match self.scheduler.dequeue_blocking() {
            rival::DequeueResult::Task { task, .. } => task.payload,
            rival::DequeueResult::Empty | rival::DequeueResult::Closed => {
                unreachable!("not closed")
            }
        }
    }
}

/// The crate of this repository.
#[derive(Debug)]
pub(crate) struct Ours {
    scheduler: ours::Scheduler<Item>,
    shards: usize,
}

impl Ours {
    pub(crate) fn new(room: Room, backpressure: ours::BackpressurePolicy) -> Self {
        Self::configured(room, backpressure, |config| config)
    }

    /// Returns a scheduler that keeps idle tenants in memory, and whose tenants nest if `group_of` says so.
    pub(crate) fn keeping_all(
        room: Room,
        group_of: Option<ours::GroupOf<ours::TenantKey>>,
    ) -> Self {
        let reject = ours::BackpressurePolicy::Reject;
        Self::configured(room, reject, |config| ours::SchedulerConfig {
            group_of,
            idle_tenants_max: room.total,
            ..config
        })
    }

    fn configured(
        room: Room,
        backpressure: ours::BackpressurePolicy,
        change: impl FnOnce(ours::SchedulerConfig<Item>) -> ours::SchedulerConfig<Item>,
    ) -> Self {
        let scheduler = ours::Scheduler::new(change(ours::SchedulerConfig {
            shards: room.shards,
            max_global: room.total,
            max_per_tenant: room.per_tenant,
            backpressure,
            ..ours::SchedulerConfig::default()
        }));
        Self {
            scheduler: scheduler.expect("a valid configuration"),
            shards: room.shards,
        }
    }

    /// Returns a scheduler whose senders wait for room.
    pub(crate) fn waiting(room: Room) -> Self {
        Self::new(room, ours::BackpressurePolicy::Timeout { wait: FOR_EVER })
    }

    pub(crate) fn scheduler(&self) -> &ours::Scheduler<Item> {
        &self.scheduler
    }
}

impl Contender for Ours {
    fn name(&self) -> String {
        match self.shards {
            1 => "firq-core (ours)".to_owned(),
            shards => format!("firq-core (ours), {shards} shards"),
        }
    }

    fn offer(&self, item: Item) -> bool {
        let result = self
            .scheduler
            .enqueue(ours::TenantKey::from(item.tenant), ours::Task::new(item));
        matches!(result, ours::EnqueueResult::Enqueued)
    }

    fn put(&self, item: Item) {
        assert!(self.offer(item), "it waits for room");
    }

    fn take(&self) -> Item {
        self.scheduler
            .try_dequeue()
            .into_task()
            .expect("there is an item")
            .1
            .payload
    }

    fn take_wait(&self) -> Item {
        self.scheduler
            .dequeue_blocking()
            .into_task()
            .expect("not closed")
            .1
            .payload
    }
}
