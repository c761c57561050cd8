//! Tickets: they carry the answer to a command back to its caller.
//!
//! Every ticket is answered exactly once. A ticket that is dropped without an answer tells its caller that the server
//! has stopped.

use std::fmt;

use fila_core::{Refused, Tickets};
use tokio::sync::{mpsc, oneshot};

use crate::runtime::error::CallError;

/// The tickets of this server.
#[derive(Debug)]
pub(crate) struct ServerTickets;

impl Tickets for ServerTickets {
    type Ticket<A> = Ticket<A>;
}

/// The answer to a command.
#[derive(Debug)]
pub(crate) enum Reply<A> {
    /// The result, or the reason for a refusal.
    Done(Result<A, CallError>),
    /// The server stopped before it executed the command.
    Stopped,
}

/// Receives the answers to one stream of commands, each with the number of its command.
pub(crate) type Replies<A> = mpsc::UnboundedReceiver<(u64, Reply<A>)>;

/// The sending side of [`Replies`].
pub(crate) type ReplySender<A> = mpsc::UnboundedSender<(u64, Reply<A>)>;

/// Travels with a command and comes back with its answer.
pub(crate) struct Ticket<A>(Option<Caller<A>>);

enum Caller<A> {
    Call(oneshot::Sender<Reply<A>>),
    Stream(u64, ReplySender<A>),
}

impl<A> Ticket<A> {
    /// Returns a ticket for one call, and the receiver of its answer.
    pub(crate) fn call() -> (Self, oneshot::Receiver<Reply<A>>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Some(Caller::Call(sender))), receiver)
    }

    /// Returns a ticket whose answer goes to a stream, under this number. The owner of the stream bounds how many
    /// tickets are outstanding.
    pub(crate) fn numbered(number: u64, replies: &ReplySender<A>) -> Self {
        Self(Some(Caller::Stream(number, replies.clone())))
    }

    /// Passes the answer on, unless the caller has gone.
    pub(crate) fn answer(mut self, result: Result<A, Refused>) {
        self.reply(Reply::Done(result.map_err(CallError::Refused)));
    }

    fn reply(&mut self, reply: Reply<A>) {
        match self.0.take() {
            None => {}
            Some(Caller::Call(sender)) => drop(sender.send(reply)),
            Some(Caller::Stream(number, sender)) => drop(sender.send((number, reply))),
        }
    }
}

impl<A> Drop for Ticket<A> {
    fn drop(&mut self) {
        self.reply(Reply::Stopped);
    }
}

impl<A> fmt::Debug for Ticket<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_that_is_dropped_says_that_the_server_stopped() {
        let (ticket, mut reply) = Ticket::<()>::call();
        drop(ticket);
        assert!(matches!(reply.try_recv(), Ok(Reply::Stopped)));

        let (sender, mut replies) = mpsc::unbounded_channel();
        drop(Ticket::<()>::numbered(7, &sender));
        assert!(matches!(replies.try_recv(), Ok((7, Reply::Stopped))));
    }

    #[test]
    fn an_answer_is_given_once() {
        let (sender, mut replies) = mpsc::unbounded_channel();
        Ticket::numbered(7, &sender).answer(Ok(3));
        let first = replies.try_recv();
        assert!(matches!(first, Ok((7, Reply::Done(Ok(3))))));
        assert!(replies.try_recv().is_err());
    }
}
