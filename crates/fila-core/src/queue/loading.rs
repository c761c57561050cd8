//! How messages come back from the store.
//!
//! The engine names a lane, and only then the queue reads the lane's next message, if it is not in memory. So the queue
//! reads only messages that it delivers next, for any number of keys with a backlog. It charges the lane and takes the
//! consumer's credit at once, and the lane owes the delivery until the message is there: a read takes time, but no key's
//! share. While memory has room, a lane that is being served reads ahead.

use std::time::Duration;

use fila_store::record::DecodeError;
use fila_store::{Damaged, Limit, Loaded, MessageId, Meta, Page, StoredMessage, Timestamp};

use super::counts::Stage;
use super::lane::{ConfirmedBacklog, Loading, PendingRead, Wanted};
use super::message::{Handle, State, carried, ready_since};
use super::{Context, Queue};
use crate::effects::{Load, LoadRequest, LoadToken};
use crate::memory::Memory;
use crate::{LoadedMessages, Ordering};

/// The most messages that one read asks for.
const CHUNK: usize = 512;

/// The most reads of one queue that may be under way at the same time.
const READS_MAX: usize = 64;

/// When to try again after a failed read.
const RETRY: Duration = Duration::from_secs(1);

impl Queue {
    /// Has a lane's next message read; tells whether a read is under way.
    ///
    /// `head` is the next message, if it is in memory but for its payload; else the backlog is read.
    pub(super) fn ensure_load<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        head: Option<Handle>,
    ) -> bool {
        match self.index.lane(number).loading {
            // If the message is not part of that read, the next one asks for it.
            Loading::UnderWay(_) => return true,
            Loading::Failed => return false,
            Loading::Idle => {}
        }
        if self.index.reads >= READS_MAX {
            return false;
        }
        match head {
            Some(head) => self.load_payloads(context, number, head),
            None => self.load_backlog(context, number),
        }
        true
    }

    fn load_later(&mut self, now: Timestamp, number: u32) {
        self.index.lane_mut(number).loading = Loading::Failed;
        self.index.retry_read_at(now.saturating_add(RETRY), number);
    }

    /// Reads on in a lane that has few messages left in memory, if there is room.
    pub(super) fn load_ahead<T>(&mut self, context: &mut Context<'_, T>, number: u32) {
        let lane = self.index.lane(number);
        let in_memory = lane.counts[Stage::Ready] + lane.counts[Stage::Throttled];
        if lane.backlog.is_some_and(|backlog| !backlog.is_parked)
            && matches!(lane.loading, Loading::Idle)
            && in_memory < CHUNK as u64 / 2
            && self.index.reads < READS_MAX
            && context.memory.has_room_ahead()
        {
            self.load_backlog(context, number);
        }
    }

    fn load_backlog<T>(&mut self, context: &mut Context<'_, T>, number: u32) {
        let bytes = context.memory.chunk();
        let lane = self.index.lane(number);
        let Some(backlog) = lane.backlog else {
            return;
        };
        let confirmed = ConfirmedBacklog {
            last: backlog.last,
            count: lane.counts[Stage::Stored],
        };
        let request = LoadRequest::Backlog {
            key: self.index.lanes.key(number).clone(),
            after: Some(backlog.after),
            limit: Limit {
                messages: Memory::messages(bytes).clamp(1, CHUNK),
                bytes,
            },
        };
        self.ask(context, number, Wanted::Backlog(confirmed), bytes, request);
    }

    /// Reads the payload of the first message of a lane, and those of some others that have none.
    fn load_payloads<T>(&mut self, context: &mut Context<'_, T>, number: u32, head: Handle) {
        let most = context.memory.chunk();
        let mut wanted = vec![head];
        let mut bytes = 0;
        for other in self.index.beside(number, head).take(CHUNK) {
            let Some(message) = self.index.messages.get(other.slot as usize) else {
                continue;
            };
            let is_wanted = message.id == other.id
                && other != head
                && matches!(message.state, State::Ready { .. })
                && message.payload.is_none();
            if !is_wanted {
                continue;
            }
            bytes += message.carried();
            if bytes > most as u64 {
                break;
            }
            wanted.push(other);
        }
        let locators = wanted
            .iter()
            .map(|handle| self.index.messages[handle.slot as usize].locator())
            .collect();
        let request = LoadRequest::Payloads(locators);
        self.ask(context, number, Wanted::Payloads(wanted), most, request);
    }

    fn ask<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        wanted: Wanted,
        reserved: usize,
        request: LoadRequest,
    ) {
        self.index.reserve(context.memory, reserved);
        self.index.lane_mut(number).loading = Loading::UnderWay(PendingRead {
            wanted,
            reserved,
            is_last_owed: false,
        });
        context.effects.loads.push(Load {
            queue: self.id,
            request,
            token: LoadToken {
                generation: self.index.serial,
                lane: number,
            },
        });
    }

    /// Takes what was read, and makes the deliveries that were owed. If `may_deliver` is not given, cancels them.
    pub(crate) fn loaded<T>(
        &mut self,
        context: &mut Context<'_, T>,
        token: LoadToken,
        found: LoadedMessages,
        may_deliver: bool,
    ) {
        if token.generation != self.index.serial {
            return; // purged since
        }
        let number = token.lane;
        let loading = &mut self.index.lane_mut(number).loading;
        let Loading::UnderWay(read) = std::mem::replace(loading, Loading::Idle) else {
            return;
        };
        self.index.release(context.memory, read.reserved);
        match (read.wanted, found) {
            (_, LoadedMessages::Failed(_)) => self.load_later(context.now, number),
            (Wanted::Payloads(wanted), LoadedMessages::Payloads(payloads)) => {
                self.take_payloads(context, &wanted, payloads);
            }
            (Wanted::Backlog(confirmed), LoadedMessages::Backlog(page)) => {
                self.take_page(context, number, confirmed, page);
            }
            // The driver mixed up its answers.
            (_, LoadedMessages::Backlog(_) | LoadedMessages::Payloads(_)) => {}
        }
        self.deliver_owed(context, number, may_deliver);
    }

    fn take_payloads<T>(
        &mut self,
        context: &mut Context<'_, T>,
        wanted: &[Handle],
        payloads: Vec<Loaded>,
    ) {
        for (handle, loaded) in wanted.iter().zip(payloads) {
            let Some(message) = self.index.messages.get_mut(handle.slot as usize) else {
                continue;
            };
            if message.id != handle.id || message.payload.is_some() {
                continue;
            }
            match loaded {
                Loaded::Found(payload) => {
                    let before = message.footprint();
                    message.payload = Some(payload);
                    let after = message.footprint();
                    self.index.resize(context.memory, before, after);
                }
                Loaded::Missing => self.lose(context, *handle, DecodeError::Missing),
                Loaded::Damaged(error) => self.lose(context, *handle, error),
            }
        }
    }

    /// Drops a message that cannot be read. It stays in the store, where it can be examined.
    fn lose<T>(&mut self, context: &mut Context<'_, T>, handle: Handle, error: DecodeError) {
        let message = self.index.remove(context.memory, handle.slot);
        self.totals.damaged += 1;
        let damaged = Damaged {
            record: "payload",
            message: Some(message.locator()),
            error,
        };
        context.effects.damaged.push((self.id, damaged));
    }

    /// Takes the next messages of a backlog into memory, as far as there is room.
    fn take_page<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        confirmed: ConfirmedBacklog,
        page: Page<StoredMessage, MessageId>,
    ) {
        let Some(backlog) = self.index.lane(number).backlog else {
            return;
        };
        let mut reader = PageReader {
            after: backlog.after,
            last: confirmed.last,
            taken: 0,
            stopped: None,
        };
        for message in page.items {
            if !reader.is_ours(message.id) {
                continue;
            }
            if let Some(stop) = self.no_room_for(context, number, &message.meta) {
                reader.stop_before(message.id, stop);
                break;
            }
            reader.taken += 1;
            self.take_stored(context, number, message);
        }
        let mut damaged = 0;
        for found in page.damaged {
            let id = found.message.as_ref().map(|message| message.id);
            if id.is_none_or(|id| reader.is_ours(id)) {
                damaged += 1;
                context.effects.damaged.push((self.id, found));
            }
        }
        let reached = page.next.map_or(reader.last, |next| next.min(reader.last));
        let rest = confirmed.count.saturating_sub(reader.taken);
        if reached == reader.last && reader.stopped.is_none() {
            // The store is damaged: it has lost confirmed messages without a trace.
            damaged = rest;
        }
        self.lose_stored(number, damaged.min(rest), reached);
        match reader.stopped {
            Some(NoRoom::Throttled) => self.park(context.now, number),
            Some(NoRoom::Delayed) if reader.taken == 0 => self.load_later(context.now, number),
            Some(NoRoom::Delayed) | None => {}
        }
    }

    /// Takes one message of a backlog into memory, or deletes it if it has expired.
    fn take_stored<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        message: StoredMessage,
    ) {
        let meta = &message.meta;
        let bytes = carried(meta);
        if let Some(backlog) = &mut self.index.lane_mut(number).backlog {
            backlog.bytes = backlog.bytes.saturating_sub(bytes);
            // The one behind it is not older.
            backlog.since = ready_since(meta);
        }
        if meta.expires_at.is_some_and(|end| end <= context.now) {
            self.totals.expired += 1;
            self.index.count(number, 1, Stage::Stored, None);
            self.index.subtract_bytes(bytes);
            self.writes.batch.delete(message.locator());
        } else {
            self.take_in(context, number, message, Stage::Stored);
        }
    }

    /// Drops messages of a backlog that cannot be read. The backlog begins after `reached` now.
    fn lose_stored(&mut self, number: u32, lost: u64, reached: MessageId) {
        if let Some(backlog) = &mut self.index.lane_mut(number).backlog {
            backlog.after = reached;
            self.totals.damaged += lost;
            self.index.count(number, lost, Stage::Stored, None);
        }
    }

    /// Tells whether memory has no room for a message that was read and cannot be delivered at once. It stays in the
    /// store, and those behind it do, too. Other keys are not affected.
    fn no_room_for<T>(&self, context: &Context<'_, T>, number: u32, meta: &Meta) -> Option<NoRoom> {
        let is_early = meta.deliver_after.is_some_and(|due| due > context.now);
        let delayed_max = context.settings.limits.delayed_per_queue;
        if is_early && !self.index.may_delay(number, delayed_max) {
            return Some(NoRoom::Delayed);
        }
        let lane = self.index.lane(number);
        let is_throttled = lane.ordering == Ordering::None
            && lane
                .sets
                .as_ref()
                .is_some_and(|sets| sets.are_throttled(&meta.schedule.throttle_keys));
        (is_throttled && !context.memory.has_room_to_park()).then_some(NoRoom::Throttled)
    }

    /// Reads no more of a lane until a message that waits for a token leaves, or for a while.
    fn park(&mut self, now: Timestamp, number: u32) {
        if let Some(backlog) = &mut self.index.lane_mut(number).backlog {
            backlog.is_parked = true;
        }
        self.index.retry_read_at(now.saturating_add(RETRY), number);
    }
}

/// Which messages of a page are taken into memory.
struct PageReader {
    after: MessageId,
    /// Later messages were perhaps not confirmed when the page was read.
    last: MessageId,
    taken: u64,
    stopped: Option<NoRoom>,
}

/// For which messages there is no room in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoRoom {
    Delayed,
    Throttled,
}

impl PageReader {
    fn is_ours(&self, id: MessageId) -> bool {
        id > self.after && id <= self.last
    }

    fn stop_before(&mut self, id: MessageId, reason: NoRoom) {
        self.last = MessageId::from_number(id.get() - 1);
        self.stopped = Some(reason);
    }
}
