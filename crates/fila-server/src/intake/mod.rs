//! What comes in, and how much of it at once.
//!
//! The bytes of all requests that are being received count against one budget, [`Receiving`]. A call takes room for a
//! whole message before it reads that message, so no call waits for more while it holds a part, and calls cannot lock
//! each other out. Waiters take turns by connection ([`FairRoom`]).

mod body;
mod fair_room;
mod message_reader;
mod receiving;
mod requests;

pub(crate) use body::{Receipt, receive};
pub(crate) use fair_room::FairRoom;
pub(crate) use message_reader::ReceiveError;
pub(crate) use receiving::{Receiving, Room, Share, Windows};
pub(crate) use requests::Requests;
