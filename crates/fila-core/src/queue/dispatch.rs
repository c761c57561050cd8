//! How messages go out: while somebody wants one, the engine names a lane, and its head is leased.

use drr::Cost;
use fila_store::Timestamp;

use super::lane::Loading;
use super::message::{Handle, Message, State, carried};
use super::{Context, Queue};
use crate::memory::Memory;
use crate::{Charge, Delivering, Delivery, LeaseId, Ordering};

/// How many lanes may wait for what comes next in them to be read, before deliveries wait too.
const LOADS_MAX: usize = 64;

/// What a message costs if every message costs the same: thousandths of a message.
const MESSAGE: u64 = 1000;

impl Queue {
    /// Does what is due: messages whose time has come, leases that have run out, lives that have ended.
    pub(crate) fn fire<T>(&mut self, context: &mut Context<'_, T>) {
        while let Some(slot) = self.books.wheel.next_due(context.now) {
            let message = &mut self.books.messages[slot as usize];
            message.timer = None;
            let is_expired = message.is_expired(context.now);
            match message.state {
                State::Leased { .. } => {
                    self.totals.lease_expired += 1;
                    self.give_back(context, slot, true, std::time::Duration::ZERO);
                }
                State::Ready | State::Delayed if is_expired => self.expire(context, slot),
                State::Delayed => self.become_ready(slot),
                State::Ready => {}
            }
        }
        self.retry_failed_loads(context.now);
    }

    /// Takes a message whose time has come to its place in the line.
    fn become_ready(&mut self, slot: u32) {
        let message = &mut self.books.messages[slot as usize];
        message.state = State::Ready;
        let (number, handle) = (message.lane, message.handle(slot));
        let expires_at = message.meta.expires_at;
        self.books.stats.delayed -= 1;
        self.books.stats.ready += 1;
        let lane = self.books.lane_mut(number);
        lane.delayed -= 1;
        lane.ready_count += 1;
        match self.definition.ordering {
            Ordering::None => lane.returned.push(std::cmp::Reverse(handle)),
            // It stands in line, perhaps at the head.
            Ordering::Key => lane.is_blocked = false,
        }
        self.books.arm(slot, expires_at);
        self.books.refresh(number, &self.definition);
    }

    /// Deletes a message that is no longer worth delivering.
    pub(super) fn expire<T>(&mut self, context: &mut Context<'_, T>, slot: u32) {
        let message = self.books.remove(context.memory, slot);
        self.writes.batch.delete(message.locator());
        self.totals.expired += 1;
        // If it held up a strict line, the next one is to be looked at.
        self.books.lane_mut(message.lane).is_blocked = false;
        self.books.refresh(message.lane, &self.definition);
    }

    /// Delivers while there is somebody to deliver to, and something that may be delivered.
    pub(crate) fn dispatch<T>(&mut self, context: &mut Context<'_, T>) {
        if self.definition.delivery == Delivering::Paused {
            return;
        }
        while let Some(consumer) = self.consumers.next() {
            if self.books.waiting_for_loads >= LOADS_MAX {
                return;
            }
            let Some(key) = self.books.engine.next_key() else {
                return;
            };
            let number = key.index() as u32;
            match self.books.head(number) {
                Some(head) => self.offer(context, number, head, consumer),
                None => self.load_next(context, number),
            }
        }
    }

    /// Delivers the head of a lane whose turn it is, unless it has to wait for something.
    fn offer<T>(&mut self, context: &mut Context<'_, T>, number: u32, head: Handle, consumer: u32) {
        let message = &self.books.messages[head.slot as usize];
        match (&message.state, &message.payload) {
            (State::Delayed, _) => {
                // Only strict lines have such a head; its timer is set.
                self.books.lane_mut(number).is_blocked = true;
                self.books.refresh(number, &self.definition);
            }
            (_, None) => self.load_payloads(context, number, head),
            (_, Some(_)) => self.deliver(context, number, head, consumer),
        }
    }

    fn deliver<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        head: Handle,
        consumer: u32,
    ) {
        let now = context.now;
        let lease = self.new_lease();
        let (name, position) = self.consumers.give(consumer, head.slot);
        let books = &mut self.books;
        books.pop(number, head);
        let message = &mut books.messages[head.slot as usize];
        let charged = cost(self.definition.charge, message);
        let payload = message
            .payload
            .take()
            .expect("only what is in memory is delivered");
        message.state = State::Leased {
            lease,
            consumer,
            position,
            since: now,
            charged,
        };
        let (whole, bare) = (Memory::whole(message.meta.sizes), Memory::bare());
        let lane = books.lanes[number as usize]
            .as_mut()
            .expect("the engine names lanes that exist");
        context.effects.deliveries.push((
            name,
            Delivery {
                message: message.id,
                lease,
                fairness_key: message.meta.fairness_key.clone(),
                payload,
                attempt: message.meta.attempts.saturating_add(1),
                weight: lane.weight_in_force().value(),
                enqueued_at: message.meta.enqueued_at,
                lease_time: self.definition.visibility_timeout,
            },
        ));
        lane.ready_count -= 1;
        lane.leased += 1;
        lane.delivered += 1;
        let key = lane.engine;
        books.stats.ready -= 1;
        books.stats.leased += 1;
        self.totals.delivered += 1;
        books.resize(context.memory, whole, bare);
        books.leases.insert(lease, head.slot);
        let deadline = now.saturating_add(self.definition.visibility_timeout);
        books.arm(head.slot, Some(deadline));
        let known = books.engine.charge(key, charged);
        known.expect("the engine has just named it");
        books.refresh(number, &self.definition);
        self.load_ahead(context, number);
    }

    fn new_lease(&mut self) -> LeaseId {
        // Numbers of another owner of the queue begin elsewhere; no owner lives to give 2^40.
        let number = u64::from(self.epoch.get()) << 40 | self.next_lease;
        self.next_lease += 1;
        LeaseId::from_number(number)
    }

    /// Tells whether some lane waits for a read of its own.
    pub(super) fn retry_failed_loads(&mut self, now: Timestamp) {
        while let Some(&(moment, number)) = self.books.failed_loads.front() {
            if moment > now {
                return;
            }
            self.books.failed_loads.pop_front();
            if let Some(lane) = &mut self.books.lanes[number as usize]
                && lane.loading == Loading::Failed
            {
                lane.loading = Loading::Nothing;
                self.books.refresh(number, &self.definition);
            }
        }
    }
}

/// Returns what a delivery is charged when it begins.
fn cost(charge: Charge, message: &Message) -> Cost {
    match charge {
        // An estimate, if time is what counts.
        Charge::Message | Charge::Time => Cost::new(MESSAGE),
        Charge::Bytes => {
            let bytes = carried(&message.meta);
            Cost::new(bytes.saturating_mul(MESSAGE).div_ceil(1024))
        }
    }
}
