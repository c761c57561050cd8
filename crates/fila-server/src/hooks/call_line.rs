//! The calls of one queue that wait for its hook: who may wait, and whose turn it is.
//!
//! Producers share three pools by the rule of [`drr::Pool`], so that none of them shuts out the others: the calls that
//! wait or run, their bytes, and the places on the way to the hook threads. A call beyond its producer's part of the
//! first two is refused. Producers take turns at the places, so a call waits for at most one call of each other
//! producer, however many calls they have.
//!
//! A producer is a tenant: the top of the path of a fairness key. Were it the whole key, a tenant would have a part and a
//! turn for each key that it names. Calls of one tenant take their turns in the order in which they come, as those of one
//! key do: the broker does not know their final keys before the hook has answered.
//!
//! What always holds: a permit counts in each pool until it is dropped, also if its caller gave up, and a place that
//! becomes free goes to the next call at once.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drr::Pool;
use fila_core::Source;
use fila_store::FairnessKey;
use foldhash::quality::RandomState;
use tokio::sync::oneshot;

/// Calls that may wait for the hook of one queue or run. At 10 ms for each message that is half a minute.
const CALLS_MAX: u64 = 4_096;

/// Calls of one queue that may be with the hook threads at the same time. The others wait for their turn here.
const PLACES: u64 = 16;

/// The bounds of the time after which a refused producer may come back.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Who sent a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Producer {
    /// The tenant of its first message, as far as it is known before the hook is called: the top of a path.
    Key(FairnessKey),
    /// A client that names no tenant.
    Client(Source),
    /// An operator, who moves dead letters back.
    Operator,
}

/// A producer has as many calls or bytes at the hook as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookPartUsed {
    /// The pool.
    pub pool: HookPool,
    /// How many of them the producer has.
    pub held: u64,
    /// How many it may have.
    pub part: u64,
    /// When the hook has probably answered them.
    pub retry_after: Duration,
}

/// A pool that the producers of a queue with a hook share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPool {
    /// The calls that wait for the hook or run.
    Calls,
    /// The KiB of these calls.
    Kib,
}

impl fmt::Display for HookPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Calls => "calls",
            Self::Kib => "KiB",
        })
    }
}

/// The calls of one queue.
#[derive(Debug)]
pub(super) struct CallLine {
    kib_max: u64,
    state: Mutex<LineState>,
}

#[derive(Debug, Default)]
struct LineState {
    all: Held,
    producers: HashMap<Producer, Held, RandomState>,
    /// Producers with waiting calls. The first one has the next turn.
    turns: VecDeque<Producer>,
    waiting: HashMap<Producer, BTreeMap<u64, oneshot::Sender<HookPlace>>, RandomState>,
    next_number: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    calls: u64,
    kib: u64,
    places: u64,
}

/// The permit of a call. It belongs to the job, which may outlive its caller.
#[derive(Debug)]
pub(crate) struct CallPermit {
    // Dropped before the call, which it is a part of.
    _place: HookPlace,
    _call: Call,
}

/// A call that is counted, and may wait for a place.
#[derive(Debug)]
pub(crate) struct Call {
    line: Arc<CallLine>,
    producer: Producer,
    kib: u64,
    number: Option<u64>,
}

/// A place on the way to the hook threads.
#[derive(Debug)]
struct HookPlace {
    line: Arc<CallLine>,
    producer: Producer,
}

impl CallLine {
    /// Makes a line for calls of up to `kib_max` KiB together.
    pub(super) fn new(kib_max: u64) -> Self {
        Self {
            kib_max,
            state: Mutex::default(),
        }
    }

    /// Waits for the turn of a call with this many bytes of messages. At this pace the hook answers one call.
    ///
    /// # Errors
    /// If the producer's part of the calls or of their bytes is used up.
    ///
    /// # Cancel safety
    /// If it is dropped before it completes, the call has left the line.
    pub(super) async fn enter(
        self: &Arc<Self>,
        producer: Producer,
        bytes: usize,
        pace: Duration,
    ) -> Result<CallPermit, HookPartUsed> {
        let mut call = self.admit(producer, bytes, pace)?;
        let turn = self.wait(&mut call);
        let place = turn.await.expect("a call in the line keeps its sender");
        call.number = None;
        Ok(CallPermit {
            _place: place,
            _call: call,
        })
    }

    /// Lets a call wait for its turn.
    fn wait(self: &Arc<Self>, call: &mut Call) -> oneshot::Receiver<HookPlace> {
        let (sender, turn) = oneshot::channel();
        let mut state = self.state();
        let number = state.next_number;
        state.next_number += 1;
        call.number = Some(number);
        let producer = call.producer.clone();
        if !state.waiting.contains_key(&producer) {
            state.turns.push_back(producer.clone());
        }
        let waiting = state.waiting.entry(producer).or_default();
        waiting.insert(number, sender);
        self.give_places(state);
        turn
    }

    /// Counts a call, without a turn.
    ///
    /// # Errors
    /// If the producer's part of the calls or of their bytes is used up.
    pub(super) fn admit(
        self: &Arc<Self>,
        producer: Producer,
        bytes: usize,
        pace: Duration,
    ) -> Result<Call, HookPartUsed> {
        let kib = 1 + (bytes as u64 >> 10);
        // A call that is larger than the bound must find room one day.
        let kib = kib.min(self.kib_max / 2);
        let mut state = self.state();
        let all = state.all;
        let held = state.producers.get(&producer).copied().unwrap_or_default();
        let pools = [
            (HookPool::Calls, CALLS_MAX, all.calls, held.calls, 1),
            (HookPool::Kib, self.kib_max, all.kib, held.kib, kib),
        ];
        let calls = u32::try_from(held.calls).unwrap_or(u32::MAX);
        let retry_after = pace.saturating_mul(calls);
        for (shared, capacity, used, held, more) in pools {
            let pool = Pool { capacity, used };
            if !pool.admits(held, more) {
                return Err(HookPartUsed {
                    pool: shared,
                    held,
                    part: pool.part().min(held + pool.free()),
                    retry_after: retry_after.clamp(RETRY_MIN, RETRY_MAX),
                });
            }
        }
        let more = Held {
            calls: 1,
            kib,
            places: 0,
        };
        state.take(&producer, more);
        Ok(Call {
            line: self.clone(),
            producer,
            kib,
            number: None,
        })
    }

    fn state(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the free places to producers by turns.
    fn give_places(self: &Arc<Self>, mut state: MutexGuard<'_, LineState>) {
        let mut given = Vec::new();
        while let Some((producer, sender)) = state.next() {
            let line = self.clone();
            given.push((sender, HookPlace { line, producer }));
        }
        drop(state);
        for (sender, place) in given {
            // A caller that has just given up drops its place, which gives it to the next one.
            let _ = sender.send(place);
        }
    }
}

impl LineState {
    /// Takes the call that has the next turn, and counts its place. Producers whose part of the places is used up keep
    /// their turn.
    fn next(&mut self) -> Option<(Producer, oneshot::Sender<HookPlace>)> {
        let pool = Pool {
            capacity: PLACES,
            used: self.all.places,
        };
        if pool.free() == 0 {
            return None;
        }
        let held = |producer: &Producer| self.producers.get(producer).map_or(0, |held| held.places);
        let mut turns = self.turns.iter();
        let at = turns.position(|producer| pool.admits(held(producer), 1))?;
        let producer = self.turns.remove(at)?;
        let Entry::Occupied(mut calls) = self.waiting.entry(producer.clone()) else {
            return None;
        };
        let (_, sender) = calls.get_mut().pop_first()?;
        if calls.get().is_empty() {
            calls.remove();
        } else {
            self.turns.push_back(producer.clone());
        }
        let place = Held {
            places: 1,
            ..Held::default()
        };
        self.take(&producer, place);
        Some((producer, sender))
    }

    /// Forgets a call that no longer waits.
    fn leave(&mut self, producer: &Producer, number: u64) {
        let Some(calls) = self.waiting.get_mut(producer) else {
            return;
        };
        calls.remove(&number);
        if calls.is_empty() {
            self.waiting.remove(producer);
            self.turns.retain(|it| it != producer);
        }
    }

    /// Adds this much to the account of a producer.
    fn take(&mut self, producer: &Producer, more: Held) {
        let held = self.producers.entry(producer.clone()).or_default();
        for held in [&mut self.all, held] {
            held.calls += more.calls;
            held.kib += more.kib;
            held.places += more.places;
        }
    }

    /// Takes this much off the account of a producer.
    fn give_back(&mut self, producer: &Producer, back: Held) {
        let Some(held) = self.producers.get_mut(producer) else {
            return;
        };
        for held in [&mut self.all, &mut *held] {
            held.calls -= back.calls;
            held.kib -= back.kib;
            held.places -= back.places;
        }
        if held.calls == 0 && held.places == 0 {
            self.producers.remove(producer);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.line.state();
        if let Some(number) = self.number {
            state.leave(&self.producer, number);
        }
        let back = Held {
            calls: 1,
            kib: self.kib,
            places: 0,
        };
        state.give_back(&self.producer, back);
    }
}

impl Drop for HookPlace {
    fn drop(&mut self) {
        let mut state = self.line.state();
        let back = Held {
            places: 1,
            ..Held::default()
        };
        state.give_back(&self.producer, back);
        self.line.give_places(state);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn of(name: &str) -> Producer {
        Producer::Key(FairnessKey::new(name.to_owned()).unwrap())
    }

    fn line() -> Arc<CallLine> {
        Arc::new(CallLine::new(1 << 20))
    }

    #[test]
    fn one_producer_leaves_room_for_others_and_is_told_its_part() {
        let line = line();
        let mut calls = Vec::new();
        let refused = loop {
            match line.admit(of("noisy"), 0, MS) {
                Ok(call) => calls.push(call),
                Err(refused) => break refused,
            }
        };
        assert_eq!(calls.len(), 3_072);
        assert_eq!((refused.pool, refused.held), (HookPool::Calls, 3_072));
        assert!(refused.part <= 3_072, "{refused:?}");
        assert_eq!(refused.retry_after, 3_072 * MS);
        let quiet: Vec<Call> = (0..100)
            .map(|_| line.admit(of("quiet"), 0, MS).unwrap())
            .collect();
        drop(quiet);
        drop(calls);
        let state = line.state();
        assert_eq!((state.all.calls, state.all.kib), (0, 0));
        assert!(state.producers.is_empty());
    }

    #[test]
    fn bytes_have_parts_and_a_call_beyond_the_bound_is_possible() {
        let line = Arc::new(CallLine::new(1_024));
        let huge = line.admit(of("noisy"), usize::MAX, MS).unwrap();
        let more = line.admit(of("noisy"), 400 << 10, MS).unwrap();
        let refused = line.admit(of("noisy"), 100 << 10, MS).unwrap_err();
        assert_eq!((refused.pool, refused.held), (HookPool::Kib, 512 + 401));
        let quiet = line.admit(of("quiet"), 100 << 10, MS).unwrap();
        drop((huge, more, quiet));
        assert_eq!(line.state().all.kib, 0);
    }

    #[test]
    fn producers_take_turns_however_many_calls_they_have() {
        let line = line();
        let mut noisy: Vec<_> = (0..100)
            .map(|_| Box::pin(line.enter(of("noisy"), 0, MS)))
            .collect();
        let mut entered: Vec<CallPermit> = Vec::new();
        for call in &mut noisy {
            entered.extend(call.as_mut().now_or_never().map(Result::unwrap));
        }
        assert_eq!(entered.len() as u64, PLACES * 3 / 4);
        // Places are left for others, and they need not wait.
        let quiet = line.enter(of("quiet"), 0, MS).now_or_never();
        drop(quiet.expect("there is a place").unwrap());
        // When all places are taken, the quiet producer has the next turn but one.
        let others: Vec<CallPermit> = (0..16)
            .filter_map(|other| line.enter(of(&format!("{other}")), 0, MS).now_or_never())
            .map(Result::unwrap)
            .collect();
        assert_eq!(entered.len() + others.len(), PLACES as usize);
        let mut quiet = Box::pin(line.enter(of("quiet"), 0, MS));
        assert!(quiet.as_mut().now_or_never().is_none());
        for _ in 0..2 {
            entered.pop();
        }
        assert!(quiet.as_mut().now_or_never().is_some());
    }

    #[test]
    fn calls_that_give_up_leave_nothing() {
        let line = line();
        let mut permits = Vec::new();
        let mut waiting = Vec::new();
        for number in 0..100 {
            let mut call = Box::pin(line.enter(of(&format!("{}", number % 7)), 0, MS));
            match call.as_mut().now_or_never() {
                Some(permit) => permits.push(permit.unwrap()),
                None => waiting.push(call),
            }
        }
        assert_eq!(permits.len() as u64, PLACES);
        drop(waiting);
        assert_eq!(line.state().turns.len(), 0);
        assert_eq!(line.state().waiting.len(), 0);
        // A place whose call gives up at this moment goes to the next call.
        let mut late = Box::pin(line.enter(of("late"), 0, MS));
        let mut later = Box::pin(line.enter(of("later"), 0, MS));
        assert!(late.as_mut().now_or_never().is_none());
        assert!(later.as_mut().now_or_never().is_none());
        permits.pop();
        drop(late);
        assert!(later.as_mut().now_or_never().is_some());
        drop(permits);
        drop(later);
        let state = line.state();
        assert_eq!((state.all.calls, state.all.places), (0, 0));
        assert!(state.producers.is_empty());
    }
}
