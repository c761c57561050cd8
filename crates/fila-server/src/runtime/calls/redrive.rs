//! Redrives: they move dead letters back to the queue that they came from.
//!
//! A redrive walks once through the stored dead letters, page by page. It picks the messages that the query asks for,
//! passes them through the queue's `on_enqueue` hook, and lets the scheduler thread move them. One round stores the
//! messages in their queue and deletes the dead letters, and it is durable before the redrive reads the next page. So a
//! redrive can end at any time, and another one continues with the rest. A page is the most that a redrive adds to a
//! round.
//!
//! Live traffic comes first ([`Pace`]). While any queue has traffic, pages are small, and the redrive rests between two
//! pages for several times the duration of the last page. Without traffic it goes as fast as it can.
//!
//! A redrive skips messages that became dead letters after it began. Otherwise it would never end if the messages fail
//! again at once.

use std::sync::Arc;
use std::time::Duration;

use fila_core::{Command, EnqueueError, MovedMessage, RedriveError, RedriveResults, RedriveStamp};
use fila_store::{Loaded, Locator, MessageId, Payload, StoredMessage, Timestamp};
use tokio::time::Instant;

use crate::hooks::Verdict;
use crate::runtime::calls::handle::Handle;
use crate::runtime::calls::key_selection::KeySelection;
use crate::runtime::calls::peek::{PeekQuery, StoredPage};
use crate::runtime::error::CallError;
use crate::runtime::queues::registry::QueueEntry;
use crate::runtime::threads::inbox::Lane;

/// Messages of one page without live traffic. A round is about as large under load.
const PAGE: usize = 256;

/// Messages of one page beside live traffic, which waits for the round of the page.
const SMALL_PAGE: usize = 32;

/// The rest between two pages beside live traffic: a multiple of the duration of the last page, and its maximum.
const REST: u32 = 8;
const REST_MAX: Duration = Duration::from_millis(100);

/// After this time without live traffic, the redrive speeds up.
const QUIET: Duration = Duration::from_millis(250);

/// About how many bytes a message takes in an inbox.
const MESSAGE_BYTES: usize = 512;

/// If a message of a page cannot be moved yet, the redrive tries the page again after this time, and this often.
const RETRY_DELAY: Duration = Duration::from_millis(5);
const RETRIES_MAX: u32 = 400;

/// Which dead letters to redrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedriveQuery {
    /// Only dead letters of these keys.
    pub keys: KeySelection,
    /// Only dead letters that have all of these headers.
    pub headers: Vec<(String, String)>,
}

impl RedriveQuery {
    fn wants(&self, payload: &Payload) -> bool {
        let has = |wanted: &(String, String)| payload.headers().contains(wanted);
        self.headers.iter().all(has)
    }
}

/// A redrive under way.
#[derive(Debug)]
pub struct Redriving {
    handle: Handle,
    from: Arc<QueueEntry>,
    to: Arc<QueueEntry>,
    query: RedriveQuery,
    /// Messages that became dead letters later are skipped.
    begun_at: Timestamp,
    stamp: Option<RedriveStamp>,
    after: Option<Locator>,
    /// How often the present page was tried again.
    retries: u32,
    pace: Pace,
    is_done: bool,
    progress: Progress,
}

/// The progress of a redrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Messages that were moved.
    pub redriven: u64,
    /// Messages that were skipped because a consumer has leased them.
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

/// The outcome of one page.
#[derive(Debug, Default)]
struct PageOutcome {
    moved: u64,
    leased: u64,
    /// How many can be moved a little later: the broker is reading them for a consumer, or the round was full.
    unfinished: u64,
    /// Set if the round was full.
    full: Option<EnqueueError>,
    refused: Option<EnqueueError>,
}

impl Handle {
    /// Begins to move dead letters back to their queue.
    ///
    /// # Errors
    /// If `from` is no dead letter queue, or its queue was deleted.
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
            retries: 0,
            // The first page is moved after the millisecond of `begun_at`, so that a message which fails again is later
            // than it.
            pace: Pace::new(Instant::now() + Duration::from_millis(1)),
            is_done: false,
            progress: Progress::default(),
        })
    }
}

impl Redriving {
    /// Returns the progress so far.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Tells whether it has reached the end of the dead letters.
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

    /// Goes on to the next page, or stays on this one if some of its messages can be moved a little later.
    async fn finish_page(
        &mut self,
        page: DeadLetterPage,
        outcome: PageOutcome,
    ) -> Result<(), CallError> {
        if let Some(refused) = outcome.refused {
            return Err(CallError::Redrive(refused));
        }
        if outcome.moved > 0 {
            self.retries = 0;
        }
        if outcome.unfinished > 0 && self.retries < RETRIES_MAX {
            // The same page again, without the messages that were moved.
            self.retries += 1;
            self.progress.seen += outcome.moved;
            tokio::time::sleep(RETRY_DELAY).await;
            return Ok(());
        }
        if let Some(full) = outcome.full {
            return Err(CallError::Redrive(full));
        }
        self.retries = 0;
        // A message that is still being read will be leased to a consumer.
        self.progress.leased += outcome.leased + outcome.unfinished;
        self.progress.seen += page.seen;
        self.is_done = page.next.is_none();
        self.after = page.next;
        Ok(())
    }

    /// Tells whether a message became a dead letter after the redrive began. A time in the future does not count: the
    /// wall clock was set back before the server started.
    fn has_come_since(&self, moment: Timestamp) -> bool {
        is_between(self.begun_at, moment, self.handle.clock().now())
    }

    /// Reads the next page.
    async fn read(&self, messages: usize) -> Result<StoredPage, CallError> {
        let query = PeekQuery {
            keys: self.query.keys.clone(),
            after: self.after.clone(),
            messages,
            payload_bytes: Some(0),
        };
        self.handle.browse(&self.from, query).await
    }

    /// Passes messages through the `on_enqueue` hook of their queue.
    ///
    /// The hook decides anew on the fairness key and the throttle keys. Without a hook a message keeps its schedule.
    async fn admit(&self, messages: Vec<StoredMessage>) -> Result<Vec<MovedMessage>, CallError> {
        // The queue is looked up again because its script may have changed.
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

/// The pace of a redrive: it slows down while there is live traffic.
#[derive(Debug)]
struct Pace {
    /// Inputs of this redrive, and of all others at the last look.
    own: u64,
    others: u64,
    /// When live traffic was last seen. A redrive begins as if it had just seen some.
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

    /// Compares the number of all inputs with the last look.
    fn look(&mut self, now: Instant, puts: u64) {
        let others = puts.wrapping_sub(self.own);
        if others != self.others {
            self.others = others;
            self.busy_at = now;
        }
        self.is_quiet = now.duration_since(self.busy_at) >= QUIET;
    }

    /// Returns how many messages the next page has.
    fn page(&self) -> usize {
        if self.is_quiet { PAGE } else { SMALL_PAGE }
    }

    /// Sets the end of the rest after a page that took from `began` to `now`.
    fn rest(&mut self, began: Instant, now: Instant) {
        let rest = if self.is_quiet {
            Duration::ZERO
        } else {
            (now.duration_since(began) * REST).min(REST_MAX)
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
                // The message was consumed, or another redrive has moved it.
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
        // Its own inputs do not count as live traffic.
        pace.own += 7;
        pace.look(at(249), 107);
        assert_eq!(pace.page(), SMALL_PAGE);
        pace.look(at(250), 107);
        assert_eq!(pace.page(), PAGE);
        pace.rest(at(250), at(260));
        assert_eq!(pace.rest_until, at(260));
        pace.look(at(900), 108);
        assert_eq!(pace.page(), SMALL_PAGE, "there is live traffic");
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
