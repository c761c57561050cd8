//! Dead letters that go back to the queue that they come from.
//!
//! A redrive walks once through what is stored of the dead letters, a page at a time. Of each page it takes those that
//! were asked for, lets them through what every new message goes through, and has the scheduler move them: in one
//! round with their deletion, and durable before the next page is read. So it can end at any time and another one goes on
//! with the rest; and it takes no more of a round than a page, behind all that calls and streams have in it.
//!
//! Live traffic comes first ([`Pace`]): while there is any, on whatever queue, pages are small, and between two of them there
//! is a rest of several times what the last one took. Without any it goes as fast as it can.
//!
//! What becomes a dead letter while it walks is left for another redrive: otherwise one of messages that fail at once
//! would have no end.

use std::sync::Arc;
use std::time::Duration;

use fila_core::{Command, EnqueueError, MovedMessage, RedriveError, RedriveResults, RedriveStamp};
use fila_store::{FairnessKey, Loaded, Locator, MessageId, Payload, StoredMessage, Timestamp};
use tokio::time::Instant;

use crate::hooks::Verdict;
use crate::runtime::calls::handle::Handle;
use crate::runtime::calls::peek::{PeekQuery, StoredPage};
use crate::runtime::error::CallError;
use crate::runtime::queues::registry::QueueEntry;
use crate::runtime::threads::inbox::Lane;

/// Messages of one page, while nobody else is at work. A round is about as large under load.
const PAGE: usize = 256;

/// Messages of one page beside live traffic, whose messages wait for the round that it is in.
const SMALL_PAGE: usize = 32;

/// How long the rest is between two pages beside live traffic, in times that the last one took; and at most.
const REST: u32 = 8;
const REST_MAX: Duration = Duration::from_millis(100);

/// How long nobody else has been at work when it is taken for quiet.
const QUIET: Duration = Duration::from_millis(250);

/// Bytes that a message takes in an inbox, about.
const MESSAGE_BYTES: usize = 512;

/// How long to wait before a page is looked at again whose messages are being read for a consumer, and how often.
const MOMENT: Duration = Duration::from_millis(5);
const MOMENTS: u32 = 400;

/// Which dead letters to redrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedriveQuery {
    /// Only those of this key.
    pub fairness_key: Option<FairnessKey>,
    /// Only those that have all of these headers.
    pub headers: Vec<(String, String)>,
}

impl RedriveQuery {
    fn wants(&self, payload: &Payload) -> bool {
        let has = |wanted: &(String, String)| payload.headers().contains(wanted);
        self.headers.iter().all(has)
    }
}

/// A redrive that is under way.
#[derive(Debug)]
pub struct Redriving {
    handle: Handle,
    from: Arc<QueueEntry>,
    to: Arc<QueueEntry>,
    query: RedriveQuery,
    /// What has come later is left.
    begun_at: Timestamp,
    stamp: Option<RedriveStamp>,
    after: Option<Locator>,
    moments: u32,
    pace: Pace,
    is_done: bool,
    progress: Progress,
}

/// How far a redrive is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Messages that were moved.
    pub redriven: u64,
    /// Messages that were left because a consumer has them.
    pub leased: u64,
    /// Messages that were looked at.
    pub seen: u64,
}

/// One page of stored dead letters.
#[derive(Debug)]
struct DeadLetterPage {
    /// The messages that the query asks for.
    candidates: Vec<StoredMessage>,
    /// How many messages were looked at.
    seen: u64,
    /// The last message that was looked at. `None` at the end of the queue.
    next: Option<Locator>,
}

/// What became of one page.
#[derive(Debug, Default)]
struct PageOutcome {
    moved: u64,
    leased: u64,
    /// How many can be moved in a moment: they are just being read for a consumer, or the round was full.
    unfinished: u64,
    /// Why the round took no more.
    full: Option<EnqueueError>,
    refused: Option<EnqueueError>,
}

impl Handle {
    /// Begins to move dead letters back to their queue.
    ///
    /// # Errors
    /// If the queue does not hold dead letters, or those of a queue that is gone.
    pub fn redrive(
        &self,
        from: &Arc<QueueEntry>,
        query: RedriveQuery,
    ) -> Result<Redriving, CallError> {
        let none = || CallError::NoDeadLetters(from.name.clone());
        let to = self.queue(from.dead_letters_of().ok_or_else(none)?)?;
        Ok(Redriving {
            handle: self.clone(),
            from: from.clone(),
            to,
            query,
            begun_at: self.clock().now(),
            stamp: None,
            after: None,
            moments: 0,
            // Nothing is moved in the millisecond in which it begins: what dies after the first step has died later than that.
            pace: Pace::new(Instant::now() + Duration::from_millis(1)),
            is_done: false,
            progress: Progress::default(),
        })
    }
}

impl Redriving {
    /// Returns how far it is.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Tells whether there is nothing more to look at.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Reads the next page, and moves at most `most` of its messages.
    ///
    /// # Errors
    /// If a queue is gone, the store fails, or the target queue refuses a message. Messages that were moved stay moved.
    ///
    /// # Cancel safety
    /// The scheduler moves a page that it has received, even if this future is dropped.
    pub async fn step(&mut self, most: usize) -> Result<(), CallError> {
        let stamp = match self.stamp {
            Some(stamp) => stamp,
            None => {
                let first = self.move_page(RedriveStamp::default(), Vec::new());
                first.await?.stamp
            }
        };
        self.stamp = Some(stamp);
        tokio::time::sleep_until(self.pace.rest_until).await;
        let began = Instant::now();
        self.pace.look(began, self.handle.puts());
        let mut page = self.read_page(most).await?;
        let messages = self.admit(std::mem::take(&mut page.candidates)).await?;
        let mut outcome = PageOutcome::default();
        if !messages.is_empty() {
            let moved = self.move_page(stamp, messages).await?;
            self.stamp = Some(moved.stamp);
            outcome = PageOutcome::of(moved.results);
        }
        self.progress.redriven += outcome.moved;
        self.pace.rest(began, Instant::now());
        self.finish_page(page, outcome).await
    }

    /// Reads the next page, and picks at most `most` messages that the query asks for.
    async fn read_page(&self, most: usize) -> Result<DeadLetterPage, CallError> {
        let found = self.read(self.pace.page()).await?;
        let mut page = DeadLetterPage {
            candidates: Vec::new(),
            seen: 0,
            next: found.next,
        };
        let mut last = None;
        for (mut message, loaded) in found.messages {
            if page.candidates.len() >= most {
                page.next = last;
                break;
            }
            last = Some(message.locator());
            page.seen += 1;
            // An unreadable message is skipped: the broker reports it when it tries to deliver it.
            if let Loaded::Found(payload) = loaded
                && !self.has_come_since(message.meta.enqueued_at)
                && self.query.wants(&payload)
            {
                message.payload = Some(payload);
                page.candidates.push(message);
            }
        }
        Ok(page)
    }

    /// Goes on to the next page, or stays on this one if some of its messages can be moved a moment later.
    async fn finish_page(
        &mut self,
        page: DeadLetterPage,
        outcome: PageOutcome,
    ) -> Result<(), CallError> {
        if let Some(refused) = outcome.refused {
            return Err(CallError::Redrive(refused));
        }
        if outcome.moved > 0 {
            self.moments = 0;
        }
        if outcome.unfinished > 0 && self.moments < MOMENTS {
            // Reads the same page again, which no longer has the messages that were moved.
            self.moments += 1;
            self.progress.seen += outcome.moved;
            tokio::time::sleep(MOMENT).await;
            return Ok(());
        }
        if let Some(full) = outcome.full {
            return Err(CallError::Redrive(full));
        }
        self.moments = 0;
        // A message that is still being read goes to a consumer.
        self.progress.leased += outcome.leased + outcome.unfinished;
        self.progress.seen += page.seen;
        self.is_done = page.next.is_none();
        self.after = page.next;
        Ok(())
    }

    /// Tells whether a message has become a dead letter since this began. One from the future has not: the clock was set
    /// back before the server was started.
    fn has_come_since(&self, moment: Timestamp) -> bool {
        is_between(self.begun_at, moment, self.handle.clock().now())
    }

    /// Reads the next page.
    async fn read(&self, messages: usize) -> Result<StoredPage, CallError> {
        let query = PeekQuery {
            fairness_key: self.query.fairness_key.clone(),
            after: self.after.clone(),
            messages,
            payload_bytes: Some(0),
        };
        self.handle.browse(&self.from, query).await
    }

    /// Lets messages through what every new message of their queue goes through.
    ///
    /// The queue's `on_enqueue` says anew whose share a message uses, and by which throttles it goes. Without one a
    /// message comes back under the key that it had.
    async fn admit(&self, messages: Vec<StoredMessage>) -> Result<Vec<MovedMessage>, CallError> {
        // Its script may be another one by now.
        let to = self.handle.queue(self.to.name.as_str())?;
        let (messages, verdicts) = self.handle.schedule_again(&to, messages).await?;
        let mut verdicts = verdicts.into_iter();
        let admitted = messages.into_iter().map(|message| {
            let mut moved = MovedMessage::from(message);
            match verdicts.next() {
                Some(Verdict::Scheduled(schedule)) => moved.meta.schedule = schedule,
                Some(Verdict::Refused(error)) => {
                    return Err(CallError::Redrive(EnqueueError::HookFailed { error }));
                }
                Some(Verdict::Unasked) | None => {}
            }
            Ok(moved)
        });
        admitted.collect()
    }

    async fn move_page(
        &mut self,
        stamp: RedriveStamp,
        messages: Vec<MovedMessage>,
    ) -> Result<RedriveResults, CallError> {
        let bytes = messages.len() * MESSAGE_BYTES;
        let (queue, to) = (self.from.id, self.to.id);
        self.pace.own += 1;
        self.handle
            .call(&self.from, Lane::Bulk, bytes, |ticket| Command::Redrive {
                queue,
                to,
                stamp,
                messages,
                ticket,
            })
            .await
    }
}

/// How fast a redrive goes: it gives way to whoever else puts anything in.
#[derive(Debug)]
struct Pace {
    /// How often this redrive has put anything in, and how often all others had when last looked at.
    own: u64,
    others: u64,
    /// When others were last seen at work. It begins as if they were just now.
    busy_at: Instant,
    is_quiet: bool,
    rest_until: Instant,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self {
            own: 0,
            others: 0,
            busy_at: now,
            is_quiet: false,
            rest_until: now,
        }
    }

    /// Takes note of how often all together have put anything in.
    fn look(&mut self, now: Instant, puts: u64) {
        let others = puts.wrapping_sub(self.own);
        if others != self.others {
            self.others = others;
            self.busy_at = now;
        }
        self.is_quiet = now.duration_since(self.busy_at) >= QUIET;
    }

    /// Returns how many messages to look at next.
    fn page(&self) -> usize {
        match self.is_quiet {
            true => PAGE,
            false => SMALL_PAGE,
        }
    }

    /// Says when to go on after a page that took from then till now.
    fn rest(&mut self, began: Instant, now: Instant) {
        let rest = match self.is_quiet {
            true => Duration::ZERO,
            false => (now.duration_since(began) * REST).min(REST_MAX),
        };
        self.rest_until = now + rest;
    }
}

fn is_between(begun_at: Timestamp, moment: Timestamp, now: Timestamp) -> bool {
    begun_at < moment && moment <= now
}

impl PageOutcome {
    fn of(results: Vec<Result<MessageId, RedriveError>>) -> Self {
        let mut outcome = Self::default();
        for result in results {
            match result {
                Ok(_) => outcome.moved += 1,
                Err(RedriveError::Leased) => outcome.leased += 1,
                Err(RedriveError::Busy | RedriveError::Stale) => outcome.unfinished += 1,
                Err(RedriveError::Refused(full @ EnqueueError::BufferFull { .. })) => {
                    outcome.unfinished += 1;
                    outcome.full = Some(full);
                }
                Err(RedriveError::Refused(refused)) => outcome.refused = Some(refused),
                // It was consumed, or another redrive has moved it.
                Err(_) => {}
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_while_it_walks_is_left_and_what_is_from_the_future_is_not() {
        let at = Timestamp::from_millis;
        let (begun_at, now) = (at(100), at(200));
        assert!(!is_between(begun_at, at(99), now));
        assert!(!is_between(begun_at, at(100), now), "just before it began");
        assert!(is_between(begun_at, at(101), now));
        assert!(is_between(begun_at, at(200), now));
        assert!(
            !is_between(begun_at, at(201), now),
            "the clock was set back"
        );
    }

    #[test]
    fn beside_others_pages_are_small_with_rests_between_and_when_it_is_quiet_they_are_not() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut pace = Pace::new(start);
        pace.look(at(0), 100);
        assert_eq!(pace.page(), SMALL_PAGE);
        pace.rest(at(0), at(3));
        assert_eq!(pace.rest_until, at(3) + REST * Duration::from_millis(3));
        // What it puts in itself is not taken for live traffic.
        pace.own += 7;
        pace.look(at(249), 107);
        assert_eq!(pace.page(), SMALL_PAGE);
        pace.look(at(250), 107);
        assert_eq!(pace.page(), PAGE);
        pace.rest(at(250), at(260));
        assert_eq!(pace.rest_until, at(260));
        pace.look(at(900), 108);
        assert_eq!(pace.page(), SMALL_PAGE, "somebody is there");
        pace.rest(at(900), at(1900));
        assert_eq!(pace.rest_until, at(1900) + REST_MAX, "it is not starved");
        pace.look(at(1900), 108);
        assert_eq!(pace.page(), PAGE);
    }

    #[test]
    fn what_the_round_had_no_room_for_is_tried_again_and_not_taken_for_moved() {
        let full = EnqueueError::BufferFull { max: 1 };
        let outcome = PageOutcome::of(vec![
            Err(RedriveError::Refused(full)),
            Err(RedriveError::Busy),
            Err(RedriveError::Stale),
            Err(RedriveError::Leased),
            Err(RedriveError::Gone),
        ]);
        let counted = (outcome.moved, outcome.leased, outcome.unfinished);
        assert_eq!(counted, (0, 1, 3));
        assert!(matches!(
            outcome.full,
            Some(EnqueueError::BufferFull { .. })
        ));
        assert!(outcome.refused.is_none());
    }
}
