//! The order in which throttle sets that wait for one bucket get its tokens.
//!
//! A waiter is in the ring while it waits, with the weight of its fairness key. Waiters whose keys are in groups are in the
//! same groups here: a group gets the tokens of one key of its weight, however many waiters it has, and they share them.
//! A group belongs to its queue; groups of two queues that have the same path are two.
//!
//! What a waiter owes leaves with it, as its [`Standing`]. What a group owes stays, also while the group is empty, until it
//! is paid; but of at most about [`DEBTS_KEPT`] groups.

use drr::{Cost, Drr, Forecast, Group, Groups, Key, Quantum, Standing, Weight};
use foldhash::fast::RandomState;

use super::claim::{Claim, ClaimGroups, GroupNames};

/// The price of a token in the ring. A fairness key of weight 1 gets as much in a round.
pub(super) const TOKEN_COST: u64 = 1000;

/// The most groups without waiters that are kept for what they owe.
const DEBTS_KEPT: usize = 10_000;

#[derive(Debug)]
pub(super) struct WaitRing {
    engine: Drr,
    groups: Groups<Box<[u8]>, (), RandomState>,
}

/// What is left of a waiter that the ring has served: what it owes, and the group that has paid with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServedWaiter {
    pub(super) standing: Option<Standing>,
    group: Option<Group>,
}

impl WaitRing {
    pub(super) fn new() -> Self {
        let quantum = Quantum::new(TOKEN_COST).expect("it is not zero");
        Self {
            engine: Drr::new(quantum),
            groups: Groups::new(RandomState::default()).keep_debts(DEBTS_KEPT),
        }
    }

    /// Adds a waiter that was there before with this standing, or never.
    pub(super) fn add(&mut self, standing: Option<Standing>, claim: &Claim) -> Key {
        let home = claim.groups.as_ref().map(|groups| self.home(groups));
        // Its standing means nothing if its group is gone: the group owed nothing then.
        let readmitted = standing.and_then(|it| self.engine.readmit(it, claim.weight).ok());
        let key = match (readmitted, home) {
            (Some(key), home) => {
                self.move_home(key, home);
                key
            }
            (None, Some(home)) => registered(self.engine.register_in(home, claim.weight)),
            (None, None) => self.engine.register(claim.weight),
        };
        registered(self.engine.wake(key));
        key
    }

    /// Returns the lowest group of a claim, made if there is none, and lets all of them follow their weights.
    fn home(&mut self, groups: &ClaimGroups) -> Group {
        self.groups.tidy(&mut self.engine);
        let names = groups.names();
        let (engine, known) = (&mut self.engine, &mut self.groups);
        let home = known.home(engine, GroupNames::MEMBER, &names, |_, _| None);
        let home = home.expect("the claim is in a group");
        let mut next = Some(home);
        for weight in names.weights_upwards() {
            let Some(group) = next else {
                break;
            };
            if engine.weight(group) != Ok(weight) {
                registered(engine.set_weight(group, weight));
            }
            next = registered(engine.parent(group));
        }
        home
    }

    /// Moves a waiter whose key has got into another group since it was here.
    fn move_home(&mut self, key: Key, home: Option<Group>) {
        let before = registered(self.engine.parent(key));
        if before != home {
            registered(self.engine.transfer(key, home));
            if let Some(before) = before {
                self.groups.left(&mut self.engine, before);
            }
        }
    }

    /// Gives a waiter back what it has paid for a token.
    pub(super) fn refund(&mut self, key: Key) {
        let (paid, used) = (Cost::new(TOKEN_COST), Cost::new(0));
        registered(self.engine.settle(key, paid, used));
    }

    /// Gives a group back what it has paid for a waiter that takes no token and does not come back.
    pub(super) fn refund_group(&mut self, served: ServedWaiter) {
        let Some(group) = served.group else {
            return;
        };
        let member = match served.standing {
            Some(standing) => self.engine.readmit(standing, Weight::ONE),
            None => self.engine.register_in(group, Weight::ONE),
        };
        if let Ok(key) = member {
            self.refund(key);
            self.remove(key);
        }
    }

    /// Returns the waiter whose turn it is.
    pub(super) fn next(&mut self) -> Option<Key> {
        self.engine.next_key()
    }

    /// Lets the waiter whose turn it is pay for a token, and takes it out.
    pub(super) fn serve(&mut self, key: Key) -> ServedWaiter {
        registered(self.engine.charge(key, Cost::new(TOKEN_COST)));
        let group = registered(self.engine.parent(key));
        let standing = self.remove(key);
        ServedWaiter { standing, group }
    }

    /// Takes a waiter out. Returns what it owes.
    pub(super) fn remove(&mut self, key: Key) -> Option<Standing> {
        let group = registered(self.engine.parent(key));
        let standing = registered(self.engine.forget(key));
        if let Some(group) = group {
            self.groups.left(&mut self.engine, group);
        }
        standing
    }

    /// Returns a look ahead at the order.
    pub(super) fn forecast(&self) -> Forecast<'_> {
        self.engine.forecast()
    }
}

/// Unwraps the engine's answer about a waiter or group that is there.
#[track_caller]
fn registered<R>(result: Result<R, drr::Unknown>) -> R {
    result.expect("a waiter is forgotten only when it leaves, and a group only without members")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fila_store::{FairnessKey, QueueId};

    fn claim(group: &'static str, key: String) -> Claim {
        let groups = [(group.len(), Weight::ONE)].into_iter();
        let key = FairnessKey::new(key).unwrap();
        let groups = ClaimGroups::new(QueueId::new(1), key, groups);
        Claim {
            weight: Weight::ONE,
            groups: Some(groups),
        }
    }

    #[test]
    fn waiters_that_are_gone_cost_their_group_nothing() {
        let mut ring = WaitRing::new();
        for number in 0..100 {
            ring.add(None, &claim("acme", format!("acme/{number}")));
        }
        for _ in 0..100 {
            let key = ring.next().unwrap();
            let served = ring.serve(key);
            ring.refund_group(served);
        }
        assert_eq!(ring.next(), None);
        // So the group does not stand back behind another now.
        let alone = Claim::alone(Weight::ONE);
        let (mut other, mut acme) = (None, None);
        let mut tokens = 0;
        for _ in 0..10 {
            let first = ring.add(other.take(), &alone);
            let second = ring.add(acme.take(), &claim("acme", "acme/new".to_owned()));
            let key = ring.next().unwrap();
            tokens += u32::from(key == second);
            let served = ring.serve(key).standing;
            let waiting = if key == first { second } else { first };
            let left = ring.remove(waiting);
            (other, acme) = if key == first {
                (served, left)
            } else {
                (left, served)
            };
        }
        assert!((4..=6).contains(&tokens), "{tokens} of 10");
    }

    #[test]
    fn groups_that_came_and_went_leave_nothing_once_they_have_paid() {
        let mut ring = WaitRing::new();
        ring.add(None, &Claim::alone(Weight::ONE));
        let mut standing = None;
        for round in 0..1000 {
            let group = ["even", "odd"][round % 2];
            ring.add(None, &claim(group, format!("{group}/{round}")));
            for _ in 0..2 {
                let key = ring.next().unwrap();
                standing = ring.serve(key).standing.or(standing);
            }
            ring.add(None, &Claim::alone(Weight::ONE));
            assert!(ring.groups.len() <= 2);
        }
    }
}
