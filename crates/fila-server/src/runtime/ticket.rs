//! Who is to be told what came of a command.
//!
//! A ticket is answered exactly once: whoever drops one unanswered, by whatever way, has told its owner that the
//! server has stopped.

use std::fmt;

use fila_core::Answer;
use tokio::sync::{mpsc, oneshot};

use super::error::CallError;

/// What came of a command.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The core's answer.
    Answer(Answer),
    /// The call was refused before it was a command.
    Refused(CallError),
    /// The server stopped before it took the command.
    Stopped,
}

/// Where the answers to one stream of commands arrive, each with the number that the command was given.
pub(crate) type Replies = mpsc::UnboundedReceiver<(u64, Reply)>;

/// Travels with a command and comes back with its answer.
pub(crate) struct Ticket(Option<To>);

enum To {
    Call(oneshot::Sender<Reply>),
    Stream(u64, mpsc::UnboundedSender<(u64, Reply)>),
}

impl Ticket {
    /// Returns a ticket for one call, and where its answer arrives.
    pub(super) fn call() -> (Self, oneshot::Receiver<Reply>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Some(To::Call(sender))), receiver)
    }

    /// Returns a ticket whose answer arrives among others, under this number. How many are outstanding is for the
    /// owner of the stream to bound.
    pub(crate) fn numbered(number: u64, replies: &mpsc::UnboundedSender<(u64, Reply)>) -> Self {
        Self(Some(To::Stream(number, replies.clone())))
    }

    /// Passes the answer on. If nobody waits any more, nobody is told.
    pub(super) fn answer(mut self, answer: Answer) {
        self.reply(Reply::Answer(answer));
    }

    fn reply(&mut self, reply: Reply) {
        match self.0.take() {
            None => {}
            Some(To::Call(sender)) => drop(sender.send(reply)),
            Some(To::Stream(number, sender)) => drop(sender.send((number, reply))),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.reply(Reply::Stopped);
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_that_is_dropped_says_that_the_server_stopped() {
        let (ticket, mut reply) = Ticket::call();
        drop(ticket);
        assert!(matches!(reply.try_recv(), Ok(Reply::Stopped)));

        let (sender, mut replies) = mpsc::unbounded_channel();
        drop(Ticket::numbered(7, &sender));
        assert!(matches!(replies.try_recv(), Ok((7, Reply::Stopped))));
    }

    #[test]
    fn an_answer_is_given_once() {
        let (sender, mut replies) = mpsc::unbounded_channel();
        Ticket::numbered(7, &sender).answer(Answer::Purged(3));
        let first = replies.try_recv();
        assert!(matches!(first, Ok((7, Reply::Answer(Answer::Purged(3))))));
        assert!(replies.try_recv().is_err());
    }
}
