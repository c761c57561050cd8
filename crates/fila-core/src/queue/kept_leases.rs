//! Leases that outlive a planned stop.
//!
//! A delivery writes nothing: leases are in memory. A broker that stops in order writes one row for each live lease, and the
//! next start restores them. Such a row is a deduplication row whose name has a first byte of its own. Earlier versions
//! ignore it.
//!
//! ```text
//! fb ‖ epoch: u32 ‖ key: 2 × u64 ‖ next: u64                         the ids of leases go on from here
//! fc ‖ epoch: u32 ‖ key length: u16 ‖ fairness key ‖ lease: u64
//!    ‖ since: u64 ‖ deadline: u64 ‖ charged: u64 ‖ flags: u8 ‖ lost: u8    a lease; flags: 1 begun, 2 its consumer was lost
//! ```
//! The record of a lease names its message.
//!
//! # What always holds
//! - A row is valid for the next owner of the queue, and for no other: the owner's epoch is one greater than the row's. So
//!   opening the store uses the rows up, without a write. After a crash of the next owner there are none.
//! - A lane that has restored leases has all its messages up to the last of them in memory, as before the stop. So its
//!   backlog begins behind them, as always.

use std::collections::HashMap;
use std::time::Duration;

use drr::Cost;
use fila_store::{
    Epoch, FairnessKey, GroupWeights, MessageId, Meta, Remembered, RememberedName, StoredMessage,
    Timestamp,
};
use foldhash::fast::RandomState;

use super::groups::weight_of;
use super::message::{Holder, State, carried};
use super::parts::Newcomer;
use super::{Context, Queue};
use crate::LeaseId;
use crate::lease_ids::{LeaseIdState, LeaseIds};
use crate::memory::Memory;

const IDS: u8 = 0xfb;
const LEASE: u8 = 0xfc;

const BEGUN: u8 = 1;
const LOST: u8 = 2;

/// When a row may be swept. The next start reads it before any sweep, whatever the time is then.
const SWEPT_AFTER: Duration = Duration::from_secs(3600);

/// The leases of a queue that an earlier start has kept, and the messages that it had in memory.
#[derive(Debug, Default)]
pub(crate) struct KeptLeases {
    ids: Option<LeaseIdState>,
    leases: HashMap<MessageId, KeptLease, RandomState>,
    /// The last leased message of each key.
    last: HashMap<FairnessKey, MessageId, RandomState>,
    /// The messages up to these, in the order of keys and ids.
    pub(crate) messages: Vec<StoredMessage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeptLease {
    lease: LeaseId,
    since: Timestamp,
    deadline: Timestamp,
    charged: Cost,
    is_begun: bool,
    is_lost: bool,
    /// As in [`Message`](super::message::Message).
    lost: u8,
}

impl KeptLeases {
    /// Takes a row of the owner before this one, and drops those of earlier ones. Tells whether it is such a row at all.
    pub(crate) fn recover(&mut self, epoch: Epoch, row: &Remembered) -> bool {
        let (of, rest) = match row.name.as_bytes() {
            [IDS, rest @ ..] => (IDS, rest),
            [LEASE, rest @ ..] => (LEASE, rest),
            _ => return false,
        };
        let Some((written, rest)) = rest.split_first_chunk() else {
            return true;
        };
        if u32::from_be_bytes(*written).checked_add(1) != Some(epoch.get()) {
            return true;
        }
        match of {
            IDS => self.ids = decode_ids(rest),
            // Without the ids, which come first, a new id might be one of these.
            _ if self.ids.is_none() => {}
            _ => {
                if let Some((key, lease)) = KeptLease::decode(rest) {
                    let last = self.last.entry(key).or_insert(row.id);
                    *last = row.id.max(*last);
                    self.leases.insert(row.id, lease);
                }
            }
        }
        true
    }

    /// Returns the last leased message of a key; the first id there is if it has none.
    pub(crate) fn last_of(&self, key: &FairnessKey) -> MessageId {
        let last = self.last.get(key).copied();
        last.unwrap_or(MessageId::from_number(0))
    }
}

impl KeptLease {
    fn encode(&self, epoch: Epoch, key: &FairnessKey) -> RememberedName {
        let key = key.as_bytes();
        let mut bytes = begin(LEASE, epoch);
        bytes.extend((key.len() as u16).to_be_bytes());
        bytes.extend(key);
        for number in [
            self.lease.get(),
            self.since.as_millis(),
            self.deadline.as_millis(),
            self.charged.value(),
        ] {
            bytes.extend(number.to_be_bytes());
        }
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        bytes.push(flag(self.is_begun, BEGUN) | flag(self.is_lost, LOST));
        bytes.push(self.lost);
        name(bytes)
    }

    fn decode(bytes: &[u8]) -> Option<(FairnessKey, Self)> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (key, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        let (lease, rest) = number(rest)?;
        let (since, rest) = number(rest)?;
        let (deadline, rest) = number(rest)?;
        let (charged, rest) = number(rest)?;
        let &[flags, lost] = rest else {
            return None;
        };
        let kept = Self {
            lease: LeaseId::from_number(lease),
            since: Timestamp::from_millis(since),
            deadline: Timestamp::from_millis(deadline),
            charged: Cost::new(charged),
            is_begun: flags & BEGUN != 0,
            is_lost: flags & LOST != 0,
            lost,
        };
        Some((FairnessKey::new(key.to_vec()).ok()?, kept))
    }
}

fn encode_ids(epoch: Epoch, state: LeaseIdState) -> RememberedName {
    let mut bytes = begin(IDS, epoch);
    for number in [state.key[0], state.key[1], state.next] {
        bytes.extend(number.to_be_bytes());
    }
    name(bytes)
}

fn decode_ids(bytes: &[u8]) -> Option<LeaseIdState> {
    let (first, rest) = number(bytes)?;
    let (second, rest) = number(rest)?;
    let (next, rest) = number(rest)?;
    let key = [first, second];
    rest.is_empty().then_some(LeaseIdState { key, next })
}

fn begin(first: u8, epoch: Epoch) -> Vec<u8> {
    let mut bytes = vec![first];
    bytes.extend(epoch.get().to_be_bytes());
    bytes
}

fn name(bytes: Vec<u8>) -> RememberedName {
    RememberedName::new(bytes).expect("it has room for the longest key and a lease")
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}

impl Queue {
    /// Writes the rows of up to `room` live leases, and forgets these leases. Returns how many.
    pub(crate) fn keep_leases(&mut self, now: Timestamp, room: usize) -> usize {
        let leases = self.index.leases.iter().take(room.saturating_sub(1));
        let leases: Vec<(LeaseId, u32)> = leases.map(|(&lease, &slot)| (lease, slot)).collect();
        if leases.is_empty() {
            return 0;
        }
        let swept_at = now.saturating_add(SWEPT_AFTER);
        let ids = encode_ids(self.epoch, self.lease_ids.state());
        let none = MessageId::from_number(0);
        self.writes.batch.remember(ids, none, swept_at);
        for &(lease, slot) in &leases {
            self.index.leases.remove(&lease);
            let message = &self.index.messages[slot as usize];
            let State::Leased {
                holder,
                is_begun,
                since,
                charged,
                ..
            } = message.state
            else {
                continue;
            };
            let timer = message.timer.expect("a lease has an end");
            let kept = KeptLease {
                lease,
                since,
                deadline: self.index.wheel.deadline(timer),
                charged,
                is_begun,
                is_lost: holder == Holder::Lost,
                lost: message.lost,
            };
            let name = kept.encode(self.epoch, &message.meta.schedule.fairness_key);
            self.writes.batch.remember(name, message.id, swept_at);
        }
        leases.len()
    }

    /// Takes back the leases that an earlier start has kept, and the messages that it had in memory with them.
    pub(crate) fn restore<T>(&mut self, context: &mut Context<'_, T>, kept: KeptLeases) {
        let KeptLeases {
            ids,
            mut leases,
            messages,
            last: _,
        } = kept;
        if let Some(ids) = ids {
            self.lease_ids = LeaseIds::resume(ids);
        }
        for message in messages {
            let number = self.enter_restored(&message.meta);
            let lease = leases.remove(&message.id);
            let is_expired = message
                .meta
                .expires_at
                .is_some_and(|end| end <= context.now);
            if let Some(lease) = lease {
                self.restore_lease(context, number, message, lease);
            } else if is_expired {
                self.totals.expired += 1;
                self.writes.batch.delete(message.locator());
            } else {
                self.index.add_bytes(carried(&message.meta));
                self.take_in(context, number, message, None);
            }
        }
    }

    /// Returns the lane of a message that was in memory. The messages behind it decide the weight, if there are any.
    fn enter_restored(&mut self, meta: &Meta) -> u32 {
        let key = &meta.schedule.fairness_key;
        let lane = self.index.lanes.find(key);
        if let Some(number) = lane
            && self.index.lane(number).backlog.is_some()
        {
            return number;
        }
        let weight = weight_of(meta.schedule.weight);
        let newcomer = Newcomer {
            key,
            group_weights: GroupWeights::NONE,
            is_delayed: false,
            source: None,
        };
        self.enter_lane(usize::MAX, lane, newcomer, weight)
    }

    fn restore_lease<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        message: StoredMessage,
        kept: KeptLease,
    ) {
        self.index.add_bytes(carried(&message.meta));
        let mut message = self.ready_message(context, number, message);
        message.was_delivered = true;
        message.lost = kept.lost;
        message.state = State::Leased {
            lease: kept.lease,
            holder: match kept.is_lost {
                true => Holder::Lost,
                false => Holder::Call,
            },
            is_begun: kept.is_begun,
            since: kept.since,
            charged: kept.charged,
        };
        let slot = self.index.insert(context.memory, message, None);
        self.index.leases.insert(kept.lease, slot);
        self.index.arm(slot, Some(kept.deadline));
    }

    /// Returns the leases of a consumer whose deliveries its socket has not taken: the last ones.
    pub(crate) fn unsent(&self, consumer: u32) -> Vec<LeaseId> {
        let (slots, mut bytes) = self.consumers.held(consumer);
        let mut leases = Vec::with_capacity(slots.len());
        for &slot in slots {
            let message = &self.index.messages[slot as usize];
            if let State::Leased { lease, .. } = message.state {
                let history = message.meta.history.as_ref();
                let history = history.map_or(0, |history| history.bytes());
                let size = Memory::whole(message.meta.sizes) + history;
                leases.push((self.lease_ids.number(lease), lease, size));
            }
        }
        leases.sort_unstable_by_key(|&(number, ..)| std::cmp::Reverse(number));
        let on_their_way = leases.into_iter().take_while(|&(_, _, size)| {
            let is_on_its_way = bytes > 0;
            bytes = bytes.saturating_sub(size);
            is_on_its_way
        });
        on_their_way.map(|(_, lease, _)| lease).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> KeptLease {
        KeptLease {
            lease: LeaseId::from_number(0x0102_0304_0506_0708),
            since: Timestamp::from_millis(9),
            deadline: Timestamp::from_millis(10),
            charged: Cost::new(1000),
            is_begun: true,
            is_lost: false,
            lost: 3,
        }
    }

    fn row(name: RememberedName, message: u64) -> Remembered {
        Remembered {
            name,
            id: MessageId::from_number(message),
            expires_at: Timestamp::from_millis(77),
        }
    }

    fn rows(epoch: Epoch) -> [Remembered; 2] {
        let key = FairnessKey::new("acme").unwrap();
        let state = LeaseIdState {
            key: [1, 2],
            next: 3,
        };
        [
            row(encode_ids(epoch, state), 0),
            row(kept().encode(epoch, &key), 5),
        ]
    }

    #[test]
    fn the_bytes_are_those_of_the_book() {
        let [ids, lease] = rows(Epoch::FIRST);
        let mut expected = vec![0xfb, 0, 0, 0, 1];
        for number in [1_u64, 2, 3] {
            expected.extend(number.to_be_bytes());
        }
        assert_eq!(ids.name.as_bytes(), expected);
        let mut expected = vec![0xfc, 0, 0, 0, 1, 0, 4];
        expected.extend(b"acme");
        expected.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        for number in [9_u64, 10, 1000] {
            expected.extend(number.to_be_bytes());
        }
        expected.extend([1, 3]);
        assert_eq!(lease.name.as_bytes(), expected);
    }

    #[test]
    fn only_the_next_owner_takes_the_rows() {
        let next = Epoch::FIRST.next().unwrap();
        for (owner, is_valid) in [
            (Epoch::FIRST, false),
            (next, true),
            (next.next().unwrap(), false),
        ] {
            let mut found = KeptLeases::default();
            for row in rows(Epoch::FIRST) {
                assert!(found.recover(owner, &row), "it is no deduplication id");
            }
            let lease = found.leases.get(&MessageId::from_number(5));
            assert_eq!(lease, is_valid.then_some(&kept()));
            assert_eq!(found.ids.is_some(), is_valid);
        }
    }

    #[test]
    fn a_lease_without_the_ids_is_dropped_and_other_bytes_are_no_lease() {
        let next = Epoch::FIRST.next().unwrap();
        let [ids, lease] = rows(Epoch::FIRST);
        let mut found = KeptLeases::default();
        assert!(found.recover(next, &lease));
        assert!(found.leases.is_empty());
        assert!(found.recover(next, &ids));
        let bytes = lease.name.as_bytes();
        for end in 1..bytes.len() {
            let cut = RememberedName::new(bytes[..end].to_vec()).unwrap();
            assert!(found.recover(next, &row(cut, 5)));
        }
        assert!(found.leases.is_empty() && found.last.is_empty());
        let other = RememberedName::new(&b"\xfe\x00\x04acmeinvoice-17"[..]).unwrap();
        assert!(!found.recover(next, &row(other, 5)));
    }
}
