//! The broker of one scheduler thread: queues, what they want stored, and when they want to be woken.

use fila_store::{QueueId, Timestamp};

use crate::{
    Command, Committed, Effects, LoadToken, LoadedMessages, QueueStats, Recovery, Round, Settings,
};

/// Any number of queues, on one scheduler thread.
#[derive(Debug)]
pub struct Broker<T> {
    effects: Effects<T>,
}

impl<T> Broker<T> {
    /// Returns a broker without queues.
    pub fn new(settings: Settings) -> Self {
        let _ = settings;
        todo!()
    }

    /// Takes over a queue.
    pub fn open(&mut self, now: Timestamp, recovery: Recovery) {
        let _ = (now, recovery);
        todo!()
    }

    /// Does what a command says. Answers and deliveries are among the effects, at once or later.
    pub fn handle(&mut self, now: Timestamp, command: Command<T>) {
        let _ = (now, command);
        todo!()
    }

    /// Takes what a read has found.
    pub fn loaded(
        &mut self,
        now: Timestamp,
        queue: QueueId,
        token: LoadToken,
        found: LoadedMessages,
    ) {
        let _ = (now, queue, token, found);
        todo!()
    }

    /// Takes what became of the round under way.
    pub fn committed(&mut self, now: Timestamp, committed: Committed) {
        let _ = (now, committed);
        todo!()
    }

    /// Does what is due at `now`, and delivers what can be delivered. To be called after any of the others, once for
    /// as many as there were.
    pub fn poll(&mut self, now: Timestamp) {
        let _ = now;
        todo!()
    }

    /// Returns the changes to be stored next, if there are any and none are under way.
    pub fn seal(&mut self) -> Option<Round> {
        todo!()
    }

    /// Tells whether so much waits to be stored that no more commands should come before a round is done.
    pub fn is_full(&self) -> bool {
        todo!()
    }

    /// Returns when to [poll](Self::poll) again, if nothing else happens.
    pub fn next_timer(&self) -> Option<Timestamp> {
        todo!()
    }

    /// Returns what is to be done, to be taken and left empty.
    pub fn effects(&mut self) -> &mut Effects<T> {
        &mut self.effects
    }

    /// Returns the queues whose figures have changed since the last call, with their figures.
    pub fn changed(&mut self, report: impl FnMut(QueueId, &QueueStats)) {
        let _ = report;
        todo!()
    }

    /// Returns how many bytes of messages are in memory.
    pub fn memory_used(&self) -> usize {
        todo!()
    }
}
