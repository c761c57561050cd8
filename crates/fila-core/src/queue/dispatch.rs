//! How messages go out: while somebody wants one, the engine names a lane, and its head is leased.

use drr::Cost;
use fila_store::Timestamp;

use super::aisle::Take;
use super::failing::Cause;
use super::lane::{Loading, Promise};
use super::line::Join;
use super::message::{Handle, State};
use super::redriving::room_for_moves;
use super::{Context, Queue};
use crate::memory::Memory;
use crate::throttle::Waiter;
use crate::{Charge, Delivering, Delivery, LeaseId, Ordering};

/// What a message costs if every message costs the same: thousandths of a message.
pub(super) const MESSAGE: u64 = 1000;

/// How many may be found to lack a token in one go.
pub(crate) const TURNED_AWAY_MAX: usize = 1024;

/// What stands between a lane and its next delivery.
enum Outlook {
    /// Nothing: this message is in memory.
    Ready(Handle),
    /// It has to be read first: this message, or whatever comes next in the store.
    Stored(Option<Handle>),
    /// It waits for its time, in a strict line.
    Blocked,
    /// There is none.
    Empty,
}

impl Queue {
    /// Does what is due: messages whose time has come, leases that have run out, lives that have ended. Tells whether
    /// all of it was done: what is to be stored of it may be more than a round takes.
    pub(crate) fn fire<T>(&mut self, context: &mut Context<'_, T>) -> bool {
        let most = self.writes.batch.len().saturating_add(context.room);
        // Whoever is to leave and finds no room comes again in a moment: that is for one, and not for all of them.
        let moves = room_for_moves(*context.adopted).max(1);
        loop {
            if self.writes.batch.len() >= most || context.dying.len() >= moves {
                return self
                    .books
                    .wheel
                    .next_wake()
                    .is_none_or(|wake| wake > context.now);
            }
            let Some(slot) = self.books.wheel.next_due(context.now) else {
                break;
            };
            let message = &mut self.books.messages[slot as usize];
            message.timer = None;
            let is_expired = message.is_expired(context.now);
            match message.state {
                State::Leased { .. } => {
                    self.totals.lease_expired += 1;
                    self.fail(context, slot, &Cause::LeaseExpired);
                }
                State::Ready { .. } | State::Delayed | State::Failing { .. } if is_expired => {
                    self.expire(context, slot);
                }
                State::Failing { sentence, .. } => self.judge_late(context, slot, sentence),
                State::Delayed => self.become_ready(context.now, slot),
                State::Ready { .. } => {}
            }
        }
        self.books
            .release_held(context.settings.limits.delayed_per_queue, &self.definition);
        self.retry_failed_loads(context.now);
        true
    }

    /// Takes a message whose time has come to its place in the line.
    fn become_ready(&mut self, now: Timestamp, slot: u32) {
        let message = &mut self.books.messages[slot as usize];
        let since = message.meta.deliver_after.unwrap_or(now);
        message.state = State::Ready { since };
        let number = message.lane;
        let expires_at = message.meta.expires_at;
        self.books.stats.delayed -= 1;
        self.books.stats.ready += 1;
        let lane = self.books.lane_mut(number);
        lane.delayed -= 1;
        lane.ready_count += 1;
        match self.definition.ordering {
            Ordering::None => self.books.line_up(slot, Join::Between),
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
    ///
    /// A lane whose message is not in memory pays for its turn all the same, and owes the delivery: who is next does
    /// not depend on what has to be read.
    ///
    /// Tells whether it has come to its end: if very many lanes lack a token at the same time, the rest is for later.
    pub(crate) fn dispatch<T>(&mut self, context: &mut Context<'_, T>) -> bool {
        if self.definition.delivery == Delivering::Paused {
            return true;
        }
        let mut turned_away = 0;
        while let Some(consumer) = self.consumers.next() {
            let Some(key) = self.books.engine.next_key() else {
                return true;
            };
            if turned_away >= TURNED_AWAY_MAX {
                return false;
            }
            let number = key.index() as u32;
            match self.outlook(number) {
                Outlook::Ready(head) => {
                    if !self.pass(context, number, head, Take::Tokens) {
                        turned_away += 1;
                        continue; // somebody else's turn, or another message's
                    }
                    let promise = self.promise(context.now, number, consumer, Some(head));
                    self.deliver(context, number, head, promise);
                    self.load_ahead(context, number);
                }
                Outlook::Blocked => {
                    self.books.lane_mut(number).is_blocked = true;
                    self.books.refresh(number, &self.definition);
                }
                Outlook::Empty => self.books.refresh(number, &self.definition),
                Outlook::Stored(head) => {
                    if head.is_some_and(|it| !self.pass(context, number, it, Take::Nothing)) {
                        turned_away += 1;
                        continue;
                    }
                    if !self.ensure_load(context, number, head) {
                        if self.books.lane(number).loading == Loading::Failed {
                            continue; // it is out of the ring for a while
                        }
                        return true; // until some of what is being read is there
                    }
                    let promise = self.promise(context.now, number, consumer, head);
                    let lane = self.books.lane_mut(number);
                    lane.promises.push_back(promise);
                    // What comes may lack a token: then all that were promised would be broken.
                    lane.is_slow = lane.aisles.is_some();
                    self.books.refresh(number, &self.definition);
                }
            }
        }
        true
    }

    /// Tells whether there are tokens for a delivery of this message, and takes them if asked to. If there are none, its
    /// aisle waits for them from now on.
    fn pass<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        head: Handle,
        take: Take,
    ) -> bool {
        let Some(aisle) = self.books.messages[head.slot as usize].aisle else {
            return true;
        };
        let queue = self.id;
        let lane = self.books.lane_mut(number);
        let weight = lane.weight_in_force();
        let aisles = lane.aisles.as_mut().expect("its aisle is there");
        let passed = aisles.try_pass(context.gates, context.now, aisle, take, |seat, stamp| {
            let waiter = Waiter {
                queue,
                lane: number,
                aisle,
                seat,
                stamp,
            };
            (waiter, weight)
        });
        let Err(count) = passed else {
            return true;
        };
        let count = match self.definition.ordering {
            Ordering::None => count,
            Ordering::Key => {
                lane.held = Some(aisle);
                1
            }
        };
        lane.throttled += count;
        self.books.stats.throttled += count;
        self.books.refresh(number, &self.definition);
        false
    }

    /// Returns what stands between a lane and its next delivery.
    fn outlook(&mut self, number: u32) -> Outlook {
        let head = self.books.head(number);
        let lane = self.books.lane(number);
        let Some(head) = head else {
            return if lane.stored.is_some() && !lane.is_full {
                Outlook::Stored(None)
            } else {
                Outlook::Empty
            };
        };
        let message = &self.books.messages[head.slot as usize];
        match (&message.state, &message.payload) {
            // Only strict lines have such a head; its timer is set.
            (State::Delayed | State::Failing { .. }, _) => Outlook::Blocked,
            (_, None) => Outlook::Stored(Some(head)),
            // Whoever was promised something before is served first.
            (_, Some(_)) if !lane.promises.is_empty() => Outlook::Stored(Some(head)),
            (_, Some(_)) => Outlook::Ready(head),
        }
    }

    /// Charges a lane whose turn it is, and promises its message to a consumer.
    fn promise(
        &mut self,
        now: Timestamp,
        number: u32,
        consumer: u32,
        head: Option<Handle>,
    ) -> Promise {
        let lane = self.books.lane(number);
        let bytes = match (head, lane.stored) {
            (Some(head), _) => self.books.messages[head.slot as usize].carried(),
            // The mean of what is there: corrected when the message is.
            (None, Some(stored)) => stored.bytes / stored.count.max(1),
            (None, None) => 0,
        };
        let charged = cost(self.definition.charge, bytes, lane.expected);
        let key = lane.engine;
        let known = self.books.engine.charge(key, charged);
        known.expect("the engine has just named it");
        self.books.count(now, number, charged);
        Promise {
            consumer,
            name: self.consumers.promise(consumer),
            charged,
        }
    }

    /// Delivers what a lane owes, as far as it is in memory now.
    pub(super) fn keep_promises<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        may_deliver: bool,
    ) {
        while let Some(&promise) = self.books.lane(number).promises.front() {
            let lane = self.books.lane(number);
            let is_wanted = self.consumers.awaits(promise.consumer, promise.name);
            let may_deliver = may_deliver
                && self.definition.delivery == Delivering::Running
                && lane.may_deliver(lane.cap(&self.definition));
            let outlook = if is_wanted && may_deliver {
                // Without the promises, that is.
                let promises = std::mem::take(&mut self.books.lane_mut(number).promises);
                let outlook = self.outlook(number);
                self.books.lane_mut(number).promises = promises;
                outlook
            } else {
                Outlook::Empty
            };
            match outlook {
                // Otherwise it waits for a token, and perhaps another one does not.
                Outlook::Ready(head) => {
                    if self.pass(context, number, head, Take::Tokens) {
                        self.books.lane_mut(number).promises.pop_front();
                        self.deliver(context, number, head, promise);
                    }
                }
                Outlook::Stored(head) if self.ensure_load(context, number, head) => return,
                Outlook::Stored(_) | Outlook::Blocked | Outlook::Empty => {
                    self.break_promise(number, is_wanted);
                }
            }
        }
    }

    /// Takes back the first promise of a lane. The turn is paid for: like a delivery to a consumer that has gone, it
    /// comes to nothing, and a lane that got it back could save turns up. What was read only to wait for a token is
    /// another matter: nobody could know.
    fn break_promise(&mut self, number: u32, is_wanted: bool) {
        let lane = self.books.lane_mut(number);
        let Some(promise) = lane.promises.pop_front() else {
            return;
        };
        let (engine, is_throttled) = (lane.engine, lane.throttled > 0);
        if is_wanted {
            self.consumers.disappoint(promise.consumer);
            if is_throttled {
                let nothing = Cost::new(0);
                let known = self.books.engine.settle(engine, promise.charged, nothing);
                known.expect("a lane's key is registered");
            }
        }
    }

    /// Leases a message that is in memory to whom it was promised.
    fn deliver<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        head: Handle,
        promise: Promise,
    ) {
        let now = context.now;
        let lease = self.new_lease();
        let position = self.consumers.give(promise.consumer, head.slot);
        let books = &mut self.books;
        books.pop(number, head);
        let message = &mut books.messages[head.slot as usize];
        let charged = match self.definition.charge {
            // How long it will take is known no better now.
            Charge::Time => promise.charged,
            charge => cost(charge, message.carried(), promise.charged),
        };
        let payload = message
            .payload
            .take()
            .expect("only what is in memory is delivered");
        let waited = match message.state {
            State::Ready { since } if !message.was_delivered => Some(now.since(since)),
            State::Ready { .. } | State::Delayed | State::Failing { .. } | State::Leased { .. } => {
                None
            }
        };
        message.was_delivered = true;
        message.state = State::Leased {
            lease,
            consumer: promise.consumer,
            position,
            since: now,
            charged,
        };
        let (whole, bare) = (Memory::whole(message.meta.sizes), Memory::bare());
        let lane = books.lanes[number as usize]
            .as_mut()
            .expect("the engine names lanes that exist");
        context.effects.deliveries.push((
            promise.name,
            Delivery {
                message: message.id,
                lease,
                fairness_key: message.meta.schedule.fairness_key.clone(),
                payload,
                attempt: message.meta.attempts.saturating_add(1),
                weight: lane.weight_in_force().value(),
                enqueued_at: message.meta.enqueued_at,
                lease_time: self.definition.visibility_timeout,
                history: message.meta.history.clone(),
            },
        ));
        lane.ready_count -= 1;
        lane.leased += 1;
        lane.delivered += 1;
        if let Some(waited) = waited {
            lane.first_delivered += 1;
            lane.waited += waited;
            self.totals.first_delivered += 1;
            self.totals.waited += waited;
        }
        let key = lane.engine;
        books.stats.ready -= 1;
        books.stats.leased += 1;
        self.totals.delivered += 1;
        books.resize(context.memory, whole, bare);
        books.leases.insert(lease, head.slot);
        let deadline = now.saturating_add(self.definition.visibility_timeout);
        books.arm(head.slot, Some(deadline));
        if charged != promise.charged {
            let known = books.engine.settle(key, promise.charged, charged);
            known.expect("a lane's key is registered");
        }
        books.refresh(number, &self.definition);
    }

    fn new_lease(&mut self) -> LeaseId {
        // Numbers of another owner of the queue begin elsewhere; no owner lives to give 2^40.
        let number = u64::from(self.epoch.get()) << 40 | self.next_lease;
        self.next_lease += 1;
        LeaseId::from_number(number)
    }

    /// Lets lanes whose read has failed try again.
    fn retry_failed_loads(&mut self, now: Timestamp) {
        while let Some(&(moment, number)) = self.books.failed_loads.front() {
            if moment > now {
                return;
            }
            self.books.failed_loads.pop_front();
            if let Some(lane) = &mut self.books.lanes[number as usize]
                && (lane.loading == Loading::Failed || lane.is_full)
            {
                if lane.loading == Loading::Failed {
                    lane.loading = Loading::Nothing;
                }
                lane.is_full = false;
                self.books.refresh(number, &self.definition);
            }
        }
    }
}

/// Returns what the delivery of a message that carries so much is charged when it begins.
///
/// Where time is what counts, that is what its key's messages have taken of late. If it were less, a key whose messages
/// take long would get all places of a consumer before the first of its results shows what they cost.
pub(super) fn cost(charge: Charge, bytes: u64, expected: Cost) -> Cost {
    match charge {
        Charge::Message => Cost::new(MESSAGE),
        Charge::Time => expected,
        Charge::Bytes => Cost::new(bytes.saturating_mul(MESSAGE).div_ceil(1024)),
    }
}
