//! How messages come back from the store.
//!
//! A lane whose next message is not in memory has it read when its turn has come; so what is read is what is about to
//! be delivered, however many keys have a backlog. The turn is paid for and the consumer's credit taken at once, and
//! the delivery is owed until the message is there: reading takes time, but nobody's share. While there is room in
//! memory the next stretch is read ahead, so that a lane that is busy need not wait.

use std::time::Duration;

use fila_store::record::DecodeError;
use fila_store::{
    Damaged, Limit, Loaded, Locator, MessageId, Meta, Page, StoredMessage, Timestamp,
};

use super::lane::{Loading, Stretch};
use super::message::{Handle, State, carried, ready_since};
use super::{Context, Queue};
use crate::effects::{Load, LoadRequest, LoadToken};
use crate::memory::Memory;
use crate::{LoadedMessages, Ordering};

/// The most messages to read at once.
const CHUNK: usize = 512;

/// How many reads may be under way for one queue, before deliveries wait for them.
const LOADS_MAX: usize = 64;

/// When to try again what could not be read.
const RETRY: Duration = Duration::from_secs(1);

impl Queue {
    /// Sees to it that a lane's next message is being read; tells whether it is, or will be.
    ///
    /// That is `head`, if it is in memory but for its payload, or else whatever comes next in the store.
    pub(super) fn ensure_load<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        head: Option<Handle>,
    ) -> bool {
        match self.books.lane(number).loading {
            // If it is something else that is being read, this comes after it.
            Loading::Backlog(_) | Loading::Payloads(_) => return true,
            Loading::Failed => return false,
            Loading::Nothing => {}
        }
        if self.books.loads >= LOADS_MAX {
            return false;
        }
        match head {
            Some(head) => self.load_payloads(context, number, head),
            None => self.load_backlog(context, number),
        }
        true
    }

    fn load_later(&mut self, now: Timestamp, number: u32) {
        self.books.lane_mut(number).loading = Loading::Failed;
        let moment = now.saturating_add(RETRY);
        self.books.failed_loads.push_back((moment, number));
    }

    /// Reads on in a lane that is about to run dry, if there is room for it.
    pub(super) fn load_ahead<T>(&mut self, context: &mut Context<'_, T>, number: u32) {
        let lane = self.books.lane(number);
        if lane.stored.is_some()
            && lane.loading == Loading::Nothing
            && lane.ready_count < CHUNK as u64 / 2
            && !lane.is_full
            && self.books.loads < LOADS_MAX
            && context.memory.has_room_ahead()
        {
            self.load_backlog(context, number);
        }
    }

    fn load_backlog<T>(&mut self, context: &mut Context<'_, T>, number: u32) {
        let bytes = context.memory.chunk();
        let lane = self.books.lane_mut(number);
        let stored = lane.stored.expect("the caller has looked");
        let stretch = Stretch {
            last: stored.last,
            count: stored.count,
        };
        let request = LoadRequest::Backlog {
            key: lane.key.clone(),
            after: Some(stored.after),
            limit: Limit {
                messages: Memory::messages(bytes).clamp(1, CHUNK),
                bytes,
            },
        };
        self.ask(context, number, Loading::Backlog(stretch), bytes, request);
    }

    /// Reads the payload of the head of a lane, and those of some others that have none.
    fn load_payloads<T>(&mut self, context: &mut Context<'_, T>, number: u32, head: Handle) {
        let most = context.memory.chunk();
        let mut wanted = vec![head];
        let mut bytes = 0;
        for other in self.books.beside(number, head).take(CHUNK) {
            let Some(message) = self.books.messages.get(other.slot as usize) else {
                continue;
            };
            let is_wanted = message.id == other.id
                && other != head
                && matches!(message.state, State::Ready { .. })
                && message.payload.is_none();
            bytes += if is_wanted { message.carried() } else { 0 };
            if bytes > most as u64 {
                break;
            }
            if is_wanted {
                wanted.push(other);
            }
        }
        let locators = wanted
            .iter()
            .map(|handle| self.books.messages[handle.slot as usize].locator())
            .collect();
        let request = LoadRequest::Payloads(locators);
        self.ask(context, number, Loading::Payloads(wanted), most, request);
    }

    fn ask<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        purpose: Loading,
        bytes: usize,
        request: LoadRequest,
    ) {
        self.books.reserve(context.memory, bytes);
        let lane = self.books.lane_mut(number);
        lane.loading = purpose;
        lane.reserved = bytes;
        context.effects.loads.push(Load {
            queue: self.id,
            request,
            token: LoadToken {
                generation: self.books.serial,
                lane: number,
            },
        });
    }

    /// Takes what was read, and delivers what was promised of it, unless that may not be: then promises are broken.
    pub(crate) fn loaded<T>(
        &mut self,
        context: &mut Context<'_, T>,
        token: LoadToken,
        found: LoadedMessages,
        may_deliver: bool,
    ) {
        if token.generation != self.books.serial {
            // Purged since.
            return;
        }
        let number = token.lane;
        let lane = self.books.lane_mut(number);
        let purpose = std::mem::replace(&mut lane.loading, Loading::Nothing);
        lane.is_slow = false;
        let reserved = std::mem::take(&mut lane.reserved);
        self.books.release(context.memory, reserved);
        match (purpose, found) {
            (_, LoadedMessages::Failed(_)) => self.load_later(context.now, number),
            (Loading::Payloads(wanted), LoadedMessages::Payloads(payloads)) => {
                self.take_payloads(context, number, &wanted, payloads);
            }
            (Loading::Backlog(stretch), LoadedMessages::Backlog(page)) => {
                self.take_page(context, number, stretch, page);
            }
            // Nobody has asked for this.
            (_, LoadedMessages::Backlog(_) | LoadedMessages::Payloads(_)) => {}
        }
        self.keep_promises(context, number, may_deliver);
        self.books.refresh(number, &self.definition);
    }

    fn take_payloads<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        wanted: &[Handle],
        payloads: Vec<Loaded>,
    ) {
        for (handle, loaded) in wanted.iter().zip(payloads) {
            let Some(message) = self.books.messages.get_mut(handle.slot as usize) else {
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
                    self.books.resize(context.memory, before, after);
                }
                Loaded::Missing => {
                    self.lose(context, number, *handle, DecodeError::Missing);
                }
                Loaded::Damaged(error) => self.lose(context, number, *handle, error),
            }
        }
    }

    /// Lets go of a message that cannot be read. It stays in the store for whoever wants to look.
    fn lose<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        handle: Handle,
        error: DecodeError,
    ) {
        let message = self.books.remove(context.memory, handle.slot);
        self.books.lane_mut(number).is_blocked = false;
        self.totals.damaged += 1;
        let damaged = Damaged {
            record: "payload",
            message: Some(message.locator()),
            error,
        };
        context.effects.damaged.push((self.id, damaged));
    }

    fn take_page<T>(
        &mut self,
        context: &mut Context<'_, T>,
        number: u32,
        stretch: Stretch,
        page: Page<StoredMessage, MessageId>,
    ) {
        let Some(mut stored) = self.books.lane(number).stored else {
            return;
        };
        // What lies behind was perhaps not confirmed when this was read.
        let mut last = stretch.last;
        let (mut is_stopped, mut is_full) = (false, false);
        let is_ours = |id: MessageId, last: MessageId| id > stored.after && id <= last;
        let mut taken = 0;
        let mut damaged = 0;
        for message in page.items {
            if !is_ours(message.id, last) {
                continue;
            }
            if !self.has_room_to_wait(context, &message.meta) {
                // It stays where it is, and what is behind it, too. Other keys do not notice.
                last = MessageId::from_number(message.id.get() - 1);
                is_stopped = true;
                break;
            }
            if !self.has_room_to_park(context, number, &message.meta) {
                last = MessageId::from_number(message.id.get() - 1);
                (is_stopped, is_full) = (true, true);
                break;
            }
            taken += 1;
            self.books.stats.ready -= 1;
            self.books.stats.stored_only -= 1;
            let meta = &message.meta;
            stored.bytes = stored.bytes.saturating_sub(carried(meta));
            // The one behind it is not older.
            stored.since = ready_since(meta);
            if meta.expires_at.is_some_and(|end| end <= context.now) {
                self.expire_stored(message.locator(), carried(meta));
            } else {
                self.take_in(context, number, message);
            }
        }
        for found in page.damaged {
            let id = found.message.as_ref().map(|message| message.id);
            if id.is_none_or(|id| is_ours(id, last)) {
                damaged += 1;
                context.effects.damaged.push((self.id, found));
            }
        }
        let reached = page.next.map_or(last, |next| next.min(last));
        if reached == last && !is_stopped {
            // Whatever was confirmed and not found is lost: the store has been damaged.
            damaged = stretch.count.saturating_sub(taken);
        }
        let lost = damaged.min(stretch.count.saturating_sub(taken));
        self.books.depth -= lost;
        self.books.stats.ready -= lost;
        self.books.stats.stored_only -= lost;
        self.totals.damaged += lost;
        stored.after = reached;
        stored.count -= taken + lost;
        if stored.count == 0 {
            // What is left is what the lost ones carried.
            self.books.stats.bytes -= stored.bytes;
        }
        let lane = self.books.lane_mut(number);
        lane.stored = (stored.count > 0).then_some(stored);
        if is_full {
            self.park(context.now, number);
        } else if is_stopped && taken == 0 {
            self.load_later(context.now, number);
        }
    }

    /// Tells whether a message that was read is due, or there is room in memory for one more that waits.
    fn has_room_to_wait<T>(&self, context: &Context<'_, T>, meta: &Meta) -> bool {
        let is_early = meta.deliver_after.is_some_and(|due| due > context.now);
        !is_early || self.books.stats.delayed < context.settings.limits.delayed_per_queue
    }

    /// Tells whether a message that was read need not wait for a token, as far as that is known, or there is room in
    /// memory for one more that does.
    fn has_room_to_park<T>(&self, context: &Context<'_, T>, number: u32, meta: &Meta) -> bool {
        context.memory.has_room_to_park()
            || self.definition.ordering == Ordering::Key
            || match &self.books.lane(number).aisles {
                Some(aisles) => !aisles.is_shut(&meta.schedule.throttle_keys),
                None => true,
            }
    }

    /// Reads no more of a lane until one of those goes out that wait for a token, or for a while.
    fn park(&mut self, now: Timestamp, number: u32) {
        self.books.lane_mut(number).is_full = true;
        let moment = now.saturating_add(RETRY);
        self.books.failed_loads.push_back((moment, number));
    }

    /// Deletes a message that was read back too late.
    fn expire_stored(&mut self, locator: Locator, bytes: u64) {
        self.books.depth -= 1;
        self.books.stats.bytes -= bytes;
        self.totals.expired += 1;
        self.writes.batch.delete(locator);
    }
}
