//! The server's complaints about connections: counted, and logged at a bounded rate.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tracing::warn;

use super::places::NoPlace;
use crate::metrics::ConnectionCounts;
use crate::telemetry::LogGate;

/// The most log lines of one kind in a second.
const LINES_MAX: u32 = 5;

/// Why the server turns a connection away, or closes one that its client would keep.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Complaint {
    TurnedAway(NoPlace),
    /// The client has not sent the begin of a connection.
    Silent,
    /// The client has not sent the headers of a request to their end, or does not answer pings.
    Unresponsive,
    /// The client does not read.
    Unread,
    /// The client and the server have not agreed on how to encrypt, or the client's certificate is not accepted.
    Handshake(String),
    /// The client does not speak TLS, and the server does.
    Plaintext,
}

/// Counts complaints, and logs some of them.
#[derive(Debug)]
pub(super) struct Complaints {
    counts: Arc<ConnectionCounts>,
    places: Mutex<LogGate>,
    timeouts: Mutex<LogGate>,
    handshakes: Mutex<LogGate>,
}

impl Complaints {
    pub(super) fn new(counts: Arc<ConnectionCounts>) -> Self {
        Self {
            counts,
            places: Mutex::new(LogGate::new(LINES_MAX)),
            timeouts: Mutex::new(LogGate::new(LINES_MAX)),
            handshakes: Mutex::new(LogGate::new(LINES_MAX)),
        }
    }

    pub(super) fn add(&self, client: SocketAddr, complaint: Complaint) {
        let (count, gate) = match complaint {
            Complaint::TurnedAway(_) => (&self.counts.refused, &self.places),
            Complaint::Silent | Complaint::Unresponsive | Complaint::Unread => {
                (&self.counts.timed_out, &self.timeouts)
            }
            Complaint::Handshake(_) | Complaint::Plaintext => {
                (&self.counts.unencrypted, &self.handshakes)
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
        let mut gate = gate.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(held_back) = gate.pass(Instant::now()) else {
            return;
        };
        drop(gate);
        match complaint {
            Complaint::TurnedAway(why) => {
                warn!(%client, lines_held_back = held_back, reason = %why, "a connection was turned away");
            }
            Complaint::Silent => {
                warn!(%client, lines_held_back = held_back, "a connection was closed: it sent no request in time");
            }
            Complaint::Unresponsive => {
                warn!(%client, lines_held_back = held_back, "a connection was closed: its client does not answer");
            }
            Complaint::Unread => {
                warn!(%client, lines_held_back = held_back, "a connection was closed: its client does not read");
            }
            Complaint::Handshake(error) => {
                warn!(%client, lines_held_back = held_back, error, "a connection was closed: its TLS handshake failed");
            }
            Complaint::Plaintext => {
                warn!(%client, lines_held_back = held_back, "a connection was closed: its client does not speak TLS");
            }
        }
    }
}
