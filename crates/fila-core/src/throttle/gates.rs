//! Who waits for tokens, and who is called next.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use drr::{Cost, Drr, Quantum, Standing, Weight};
use fila_store::{QueueId, ThrottleKey, Timestamp};
use foldhash::fast::RandomState;
use slab::Slab;

use super::{TokenSource, Tokens};

/// What a token costs in the ring of a gate: as much as a key of weight 1 gets in a round.
const TURN: u64 = 1000;

/// How many are called in one go, so that a throttle that is taken away does not stop everything else.
const CALLS_MAX: usize = 1024;

/// How many that wait are looked at to tell how many come before one.
const FORESEEN: usize = 1000;

/// How many that wait at a gate are looked at when one more comes, to find those who have gone without a word, and from
/// how many on.
const TIDY_STEPS: usize = 2;
const TIDY_MIN: usize = 64;

/// Gates that nobody uses are looked for when there are so many, and then whenever their number has doubled.
const SWEEP_MIN: usize = 64;

/// The waiting at all buckets that messages of one broker name.
#[derive(Debug)]
pub(crate) struct Gates {
    source: Box<dyn TokenSource>,
    gates: Slab<Gate>,
    names: HashMap<ThrottleKey, u32, RandomState>,
    /// When to look at which gate.
    alarms: BTreeSet<(Timestamp, u32)>,
    /// Gates to be looked at as soon as possible.
    due: Vec<u32>,
    /// Gates that have called somebody since the last [`settle`](Self::settle).
    lively: Vec<u32>,
    /// The gates at which somebody waits since the last [`tidy`](Self::tidy), once for each of them.
    joined: Vec<u32>,
    sweep_at: usize,
    stamps: u64,
    polls: u64,
    /// How many have been called so far.
    calls: u64,
}

#[derive(Debug)]
struct Gate {
    key: ThrottleKey,
    /// None if the key is not throttled.
    bucket: Option<Box<dyn Tokens>>,
    /// Shared with the seats of those who may wait here.
    name: Arc<u32>,
    /// Who is next. Made when somebody waits for the first time.
    ring: Option<Box<Drr>>,
    /// At the index of their keys in the ring. Who has gone since, with a purge, say, is found out when he is called or
    /// looked at.
    waiters: Vec<Option<(drr::Key, Waiter)>>,
    waiting: usize,
    /// Who is looked at next.
    hand: usize,
    /// Those who keep a token of a slower bucket apart: called before the others.
    urgent: VecDeque<Waiter>,
    /// How many were called in this poll, for each of whom there is a token.
    live: u64,
    /// Tokens that are kept apart.
    holds: Vec<Hold>,
    alarm: Option<Timestamp>,
    is_due: bool,
}

/// A token that is kept apart for a while.
#[derive(Clone, Copy, Debug)]
struct Hold {
    holder: u64,
    until: Timestamp,
}

/// Where a throttle set may wait for a token.
#[derive(Debug)]
pub(crate) struct Seat {
    gate: Arc<u32>,
    /// What it owes in the ring, since it was called last.
    standing: Option<Standing>,
    /// In which poll it was called, if it has not taken its token since.
    called: Option<u64>,
    /// Whether it has paid for that in the ring.
    has_paid: bool,
}

/// A throttle set that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) queue: QueueId,
    pub(crate) lane: u32,
    pub(crate) set: u32,
    /// At which of its seats.
    pub(crate) seat: usize,
    /// Of this waiting, and no other.
    pub(crate) stamp: u64,
}

/// Somebody for whom there is a token.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) waiter: Waiter,
    gate: u32,
    turn: Turn,
}

/// What somebody owes who is called.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// It was its turn in the ring, and has paid for that.
    Paid(Option<Standing>),
    /// What it owes is what it owed before.
    Urgent,
}

/// Whose token a throttle set lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lacking {
    pub(crate) seat: usize,
}

impl Gates {
    pub(crate) fn new(source: Box<dyn TokenSource>) -> Self {
        Self {
            source,
            gates: Slab::new(),
            names: HashMap::default(),
            alarms: BTreeSet::new(),
            due: Vec::new(),
            lively: Vec::new(),
            joined: Vec::new(),
            sweep_at: SWEEP_MIN,
            stamps: 0,
            polls: 0,
            calls: 0,
        }
    }

    /// Returns a seat at the gate of each of these keys.
    pub(crate) fn seats(&mut self, keys: &[ThrottleKey]) -> Vec<Seat> {
        let mut seats: Vec<Seat> = Vec::with_capacity(keys.len());
        for key in keys {
            let name = self.find_or_add(key);
            if seats.iter().all(|seat| seat.gate != name) {
                seats.push(Seat {
                    gate: name,
                    standing: None,
                    called: None,
                    has_paid: false,
                });
            }
        }
        seats
    }

    fn find_or_add(&mut self, key: &ThrottleKey) -> Arc<u32> {
        if let Some(&number) = self.names.get(key) {
            return self.gates[number as usize].name.clone();
        }
        if self.gates.len() >= self.sweep_at {
            self.sweep();
        }
        let entry = self.gates.vacant_entry();
        let number = entry.key() as u32;
        let name = Arc::new(number);
        entry.insert(Gate {
            key: key.clone(),
            bucket: self.source.find(key),
            name: name.clone(),
            ring: None,
            waiters: Vec::new(),
            waiting: 0,
            hand: 0,
            urgent: VecDeque::new(),
            live: 0,
            holds: Vec::new(),
            alarm: None,
            is_due: false,
        });
        self.names.insert(key.clone(), number);
        name
    }

    /// Forgets the gates that nobody has a seat at.
    fn sweep(&mut self) {
        let (names, alarms) = (&mut self.names, &mut self.alarms);
        self.gates.retain(|number, gate| {
            let is_used = Arc::strong_count(&gate.name) > 1;
            if !is_used {
                names.remove(&gate.key);
                if let Some(alarm) = gate.alarm {
                    alarms.remove(&(alarm, number as u32));
                }
            }
            is_used
        });
        let gates = &self.gates;
        let is_there = |number: &u32| gates.contains(*number as usize);
        self.due.retain(is_there);
        self.lively.retain(is_there);
        self.joined.retain(is_there);
        self.sweep_at = (self.gates.len() * 2).max(SWEEP_MIN);
    }

    /// Follows changed throttles: what waits there is looked at in the next poll.
    pub(crate) fn rethrottle(&mut self, keys: &[ThrottleKey]) {
        for key in keys {
            if let Some(&number) = self.names.get(key) {
                let gate = &mut self.gates[number as usize];
                gate.bucket = self.source.find(key);
                self.put_on_list(number);
            }
        }
    }

    /// Tells whether there is a token at each of these seats for whoever has them, or at which one to wait.
    ///
    /// Who was not called has no right to a token that others wait for.
    pub(crate) fn check(
        &mut self,
        now: Timestamp,
        seats: &[Seat],
        stamp: u64,
        is_called: bool,
    ) -> Result<(), Lacking> {
        let mut slowest: Option<(u128, Lacking)> = None;
        for (index, seat) in seats.iter().enumerate() {
            let gate = &mut self.gates[*seat.gate as usize];
            let others = gate.held_by_others(now, stamp);
            let Some(bucket) = &mut gate.bucket else {
                continue;
            };
            let free = bucket.available(now).saturating_sub(others);
            let is_free = if is_called {
                free > 0
            } else {
                free > gate.live && gate.waiting + gate.urgent.len() == 0
            };
            if is_free {
                continue;
            }
            let rate = bucket.rate();
            if slowest.is_none_or(|(least, _)| rate < least) {
                slowest = Some((rate, Lacking { seat: index }));
            }
        }
        slowest.map_or(Ok(()), |(_, lacking)| Err(lacking))
    }

    /// Takes a token at each of these seats, or none of them.
    pub(crate) fn take(
        &mut self,
        now: Timestamp,
        seats: &mut [Seat],
        stamp: u64,
    ) -> Result<(), Lacking> {
        for index in 0..seats.len() {
            let gate = &mut self.gates[*seats[index].gate as usize];
            let is_taken = gate.bucket.as_mut().is_none_or(|bucket| bucket.take(now));
            if !is_taken {
                // Another broker was faster.
                for seat in &seats[..index] {
                    if let Some(bucket) = &mut self.gates[*seat.gate as usize].bucket {
                        bucket.give_back();
                    }
                }
                return Err(Lacking { seat: index });
            }
        }
        for seat in seats {
            let gate = &mut self.gates[*seat.gate as usize];
            gate.answer(seat, self.polls);
            gate.holds.retain(|hold| hold.holder != stamp);
        }
        Ok(())
    }

    /// Returns a stamp for a throttle set that waits, or waits on.
    pub(crate) fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    /// Lets a throttle set wait at one of its seats. `holder` is the stamp of its waiting before this one.
    pub(crate) fn wait(
        &mut self,
        now: Timestamp,
        seats: &mut [Seat],
        waiter: Waiter,
        weight: Weight,
        holder: u64,
    ) {
        let is_urgent = self.hold(now, seats, waiter, holder);
        let seat = &mut seats[waiter.seat];
        let number = *seat.gate;
        let gate = &mut self.gates[number as usize];
        if is_urgent {
            gate.urgent.push_back(waiter);
        } else {
            gate.line_up(seat, waiter, weight, self.polls);
            if gate.waiting >= TIDY_MIN {
                self.joined.push(number);
            }
        }
        self.watch(now, number);
    }

    /// Keeps the tokens apart to which a throttle set was called, if the one that it lacks comes sooner than another of them
    /// would; tells whether there are such.
    fn hold(&mut self, now: Timestamp, seats: &mut [Seat], waiter: Waiter, holder: u64) -> bool {
        let lacking = *seats[waiter.seat].gate;
        let gate = &mut self.gates[lacking as usize];
        let Some(bucket) = &mut gate.bucket else {
            return false;
        };
        let until = bucket.when(now, 1 + gate.urgent.len() as u64);
        let Some(until) = until.or_else(|| bucket.when(now, 1)) else {
            return false;
        };
        let rate = bucket.rate();
        let mut is_holding = false;
        for (index, seat) in seats.iter_mut().enumerate() {
            let number = *seat.gate;
            let gate = &mut self.gates[number as usize];
            let was_held = gate.holds.iter().any(|hold| hold.holder == holder);
            gate.holds.retain(|hold| hold.holder != holder);
            if index == waiter.seat {
                continue;
            }
            let bucket = gate.bucket.as_ref();
            let is_slower = bucket.is_some_and(|it| (it.rate(), number) < (rate, lacking));
            if is_slower && (seat.called.is_some() || was_held) {
                gate.answer(seat, self.polls);
                gate.holds.push(Hold {
                    holder: waiter.stamp,
                    until: until.saturating_add(Duration::from_millis(1)),
                });
                is_holding = true;
                self.watch(now, number);
            }
        }
        is_holding
    }

    /// Returns somebody for whom there is a token, of the gates that are due at `now`.
    pub(crate) fn call(&mut self, now: Timestamp) -> Option<Call> {
        while let Some(number) = self.next_due(now) {
            let gate = &mut self.gates[number as usize];
            let free = gate.free(now);
            let called = if free > 0 { gate.next() } else { None };
            let Some((waiter, turn)) = called else {
                gate.is_due = false;
                self.due.pop();
                self.watch(now, number);
                continue;
            };
            if gate.live == 0 {
                self.lively.push(number);
            }
            gate.live += 1;
            self.calls += 1;
            return Some(Call {
                waiter,
                gate: number,
                turn,
            });
        }
        None
    }

    /// Returns the most that are called in one poll.
    pub(crate) const fn calls_max() -> usize {
        CALLS_MAX
    }

    /// Returns a gate that is to be looked at. It stays on the list until it has nobody left to call.
    fn next_due(&mut self, now: Timestamp) -> Option<u32> {
        while let Some(&(moment, number)) = self.alarms.first() {
            if moment > now {
                break;
            }
            self.alarms.pop_first();
            self.gates[number as usize].alarm = None;
            self.put_on_list(number);
        }
        self.due.last().copied()
    }

    /// Takes a call that has reached somebody.
    pub(crate) fn reached(&self, call: &Call, seat: &mut Seat) {
        seat.called = Some(self.polls);
        match call.turn {
            Turn::Paid(standing) => (seat.standing, seat.has_paid) = (standing, true),
            Turn::Urgent => seat.has_paid = false,
        }
    }

    /// Takes back a call to somebody who has gone.
    pub(crate) fn missed(&mut self, call: &Call) {
        let gate = &mut self.gates[call.gate as usize];
        gate.live = gate.live.saturating_sub(1);
    }

    /// Looks at some of those who wait where others have joined them, and forgets whoever has gone. So there are never
    /// many more than `is_there` says there are.
    pub(crate) fn tidy(&mut self, is_there: impl Fn(&Waiter) -> bool) {
        for number in self.joined.drain(..) {
            let gate = &mut self.gates[number as usize];
            for _ in 0..TIDY_STEPS {
                gate.look_at_one(&is_there);
            }
        }
    }

    /// Ends a poll: tokens for whoever was called and has not come are there for others.
    pub(crate) fn settle(&mut self, now: Timestamp) {
        self.polls += 1;
        while let Some(number) = self.lively.pop() {
            self.gates[number as usize].live = 0;
            self.watch(now, number);
        }
    }

    /// Returns when to look at a gate again.
    pub(crate) fn next_alarm(&self) -> Option<Timestamp> {
        self.alarms.first().map(|(moment, _)| *moment)
    }

    /// Tells whether there is a gate to look at right now.
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Returns the key of the gate at which a throttle set waits, and when the token comes that is for it, if those before it
    /// take theirs; never, if none comes.
    pub(crate) fn outlook(
        &mut self,
        now: Timestamp,
        seat: &Seat,
        stamp: u64,
    ) -> (&ThrottleKey, Option<Timestamp>) {
        let gate = &mut self.gates[*seat.gate as usize];
        let others = gate.held(now) + gate.live + gate.before(stamp);
        let when = match &mut gate.bucket {
            Some(bucket) => bucket.arrival(now, others + 1),
            None => Some(now),
        };
        (&gate.key, when)
    }

    /// Returns how many gates there are, and how many have been called so far.
    #[cfg(test)]
    pub(crate) fn work(&self) -> (usize, u64) {
        (self.gates.len(), self.calls)
    }

    /// Returns how many wait, with those who have gone.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        let waiting = self
            .gates
            .iter()
            .map(|(_, gate)| gate.waiting + gate.urgent.len());
        waiting.sum()
    }

    /// Sees to it that a gate is looked at when there is a token for somebody who waits.
    fn watch(&mut self, now: Timestamp, number: u32) {
        let gate = &mut self.gates[number as usize];
        if let Some(bucket) = &mut gate.bucket {
            bucket.set_waiting(gate.waiting + gate.urgent.len() > 0);
        }
        let next = gate.next_look(now);
        if next.is_some_and(|next| next <= now) {
            return self.put_on_list(number);
        }
        if next != gate.alarm {
            if let Some(alarm) = gate.alarm {
                self.alarms.remove(&(alarm, number));
            }
            gate.alarm = next;
            self.alarms.extend(next.map(|next| (next, number)));
        }
    }

    fn put_on_list(&mut self, number: u32) {
        let gate = &mut self.gates[number as usize];
        if !std::mem::replace(&mut gate.is_due, true) {
            self.due.push(number);
        }
    }
}

impl Gate {
    fn held(&mut self, now: Timestamp) -> u64 {
        self.holds.retain(|hold| hold.until > now);
        self.holds.len() as u64
    }

    fn held_by_others(&mut self, now: Timestamp, stamp: u64) -> u64 {
        let held = self.held(now);
        let own = self
            .holds
            .iter()
            .filter(|hold| hold.holder == stamp)
            .count();
        held - own as u64
    }

    /// Returns for how many there are tokens that nobody has been called for.
    fn free(&mut self, now: Timestamp) -> u64 {
        let promised = self.held(now) + self.live;
        self.bucket.as_mut().map_or(u64::MAX, |bucket| {
            bucket.available(now).saturating_sub(promised)
        })
    }

    /// Returns when there is a token that nobody has been called for, if somebody waits.
    fn next_look(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.waiting + self.urgent.len() == 0 {
            return None;
        }
        let promised = self.held(now) + self.live;
        let Some(bucket) = &mut self.bucket else {
            return Some(now);
        };
        let mut token = bucket.when(now, promised + 1);
        if token.is_some_and(|token| token <= now) && bucket.available(now) <= promised {
            // It is another broker's turn, for a moment.
            token = Some(now.saturating_add(Duration::from_millis(1)));
        }
        let lapse = self.holds.iter().map(|hold| hold.until).min();
        [token, lapse].into_iter().flatten().min()
    }

    /// Returns how many are called before the set with this stamp, if all that are called wait again; all that wait, if
    /// they are too many to be looked at.
    fn before(&self, stamp: u64) -> u64 {
        let mut urgent = self.urgent.iter().take(FORESEEN);
        if let Some(place) = urgent.position(|waiter| waiter.stamp == stamp) {
            return place as u64;
        }
        let urgent = self.urgent.len() as u64;
        let Some(ring) = &self.ring else {
            return urgent;
        };
        let mut forecast = ring.forecast();
        for place in 0..FORESEEN {
            let Some(key) = forecast.next_key() else {
                break;
            };
            if self.waiters[key.index()].is_some_and(|(_, waiter)| waiter.stamp == stamp) {
                return urgent + place as u64;
            }
            let known = forecast.charge(key, Cost::new(TURN));
            known.expect("the forecast has just named it");
        }
        urgent + self.waiting as u64
    }

    /// Takes note that a throttle set that was called, if it was, takes its token or passes it on; tells whether it was.
    fn answer(&mut self, seat: &mut Seat, poll: u64) -> bool {
        let called = seat.called.take();
        if called == Some(poll) {
            self.live -= 1;
        }
        called.is_some()
    }

    fn line_up(&mut self, seat: &mut Seat, waiter: Waiter, weight: Weight, poll: u64) {
        let is_owed = self.answer(seat, poll) && seat.has_paid;
        let ring = self.ring.get_or_insert_with(|| {
            let quantum = Quantum::new(TURN).expect("it is not zero");
            Box::new(Drr::new(quantum))
        });
        let key = match seat.standing.take() {
            Some(standing) => ring
                .readmit(standing, weight)
                .expect("there are no groups in it"),
            None => ring.register(weight),
        };
        if is_owed {
            // It paid for a turn that has come to nothing.
            let known = ring.settle(key, Cost::new(TURN), Cost::new(0));
            known.expect("it was registered above");
        }
        ring.wake(key).expect("it was registered above");
        let index = key.index();
        if self.waiters.len() <= index {
            self.waiters.resize(index + 1, None);
        }
        self.waiters[index] = Some((key, waiter));
        self.waiting += 1;
    }

    /// Looks at the next of those who wait, and forgets him if he has gone.
    fn look_at_one(&mut self, is_there: impl Fn(&Waiter) -> bool) {
        self.hand = (self.hand + 1) % self.waiters.len().max(1);
        let Some(place) = self.waiters.get_mut(self.hand) else {
            return;
        };
        if let (Some((key, waiter)), Some(ring)) = (*place, &mut self.ring)
            && !is_there(&waiter)
        {
            *place = None;
            self.waiting -= 1;
            // Nobody comes back for what it owes.
            let _ = ring.forget(key);
        }
    }

    /// Takes whoever is next out of the line.
    fn next(&mut self) -> Option<(Waiter, Turn)> {
        if let Some(waiter) = self.urgent.pop_front() {
            return Some((waiter, Turn::Urgent));
        }
        let ring = self.ring.as_mut()?;
        let key = ring.next_key()?;
        let waiter = self.waiters[key.index()].take().map(|(_, waiter)| waiter);
        ring.charge(key, Cost::new(TURN))
            .expect("the ring has just named it");
        let standing = ring.forget(key).expect("the ring has just named it");
        self.waiting -= 1;
        let waiter = waiter.expect("whoever is in the ring waits");
        Some((waiter, Turn::Paid(standing)))
    }
}
