//! Deliveries between the broker and a consumer's socket, counted in bytes.
//!
//! The broker bounds these bytes, so it must learn when they leave memory: when the socket takes them, and when they are
//! dropped with a stream. An [`InTransit`] stands for some of them and goes with them: through the consumer's channel,
//! the buffer of its stream, and the frames that wait in HTTP/2. Dropping it notes the bytes, and the scheduler
//! collects the notes in its next turn. So a socket never waits for the scheduler, and each turn has one note per consumer.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender};
use fila_core::{ConsumerId, Delivery};

use crate::runtime::calls::consumer::Consumer;
use crate::runtime::threads::scheduler::Scheduler;
use crate::runtime::threads::seat::Seat;

/// The way of notes to a scheduler.
#[derive(Debug)]
pub(crate) struct Notes {
    queue: Sender<Arc<Outflow>>,
    /// Whether the scheduler takes a turn for the next note.
    is_awaited: AtomicBool,
    seat: Arc<Seat<Scheduler>>,
}

impl Notes {
    /// Returns the way to the scheduler on this seat, and its end.
    pub(crate) fn new(seat: Arc<Seat<Scheduler>>) -> (Arc<Self>, Receiver<Arc<Outflow>>) {
        let (queue, notes) = crossbeam_channel::unbounded();
        let way = Arc::new(Self {
            queue,
            is_awaited: AtomicBool::new(false),
            seat,
        });
        (way, notes)
    }

    /// Has the next note call the scheduler, or not. Notes that were sent before are in the queue when this returns.
    pub(crate) fn set_awaited(&self, is_awaited: bool) {
        self.is_awaited.swap(is_awaited, Ordering::AcqRel);
    }

    fn send(&self, outflow: Arc<Outflow>) {
        // If the scheduler has ended, there is no broker to tell.
        let _ = self.queue.send(outflow);
        if self.is_awaited.swap(false, Ordering::AcqRel) {
            // The connection may be locked.
            self.seat.summon();
        }
    }
}

/// The way of deliveries to one consumer.
#[derive(Debug)]
pub(crate) struct Outflow {
    pub(crate) consumer: ConsumerId,
    /// Bytes that have left memory, and that the scheduler does not know of yet.
    taken: AtomicUsize,
    notes: Arc<Notes>,
}

impl Outflow {
    pub(crate) fn new(consumer: ConsumerId, notes: Arc<Notes>) -> Arc<Self> {
        Arc::new(Self {
            consumer,
            taken: AtomicUsize::new(0),
            notes,
        })
    }

    /// Takes the bytes that have left memory.
    pub(crate) fn take(&self) -> usize {
        self.taken.swap(0, Ordering::AcqRel)
    }
}

/// Bytes of deliveries on their way to a socket. Dropping it tells the broker that they have left memory.
#[derive(Debug)]
pub(crate) struct InTransit {
    outflow: Arc<Outflow>,
    bytes: usize,
}

impl InTransit {
    /// Splits off some of the bytes.
    pub(crate) fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self {
            outflow: self.outflow.clone(),
            bytes,
        }
    }

    /// Adds bytes on their way to the same consumer.
    pub(crate) fn add(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.outflow, &other.outflow));
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for InTransit {
    fn drop(&mut self) {
        if self.bytes > 0 && self.outflow.taken.fetch_add(self.bytes, Ordering::AcqRel) == 0 {
            self.outflow.notes.send(self.outflow.clone());
        }
    }
}

/// Deliveries to one consumer, and the bytes that they count.
#[derive(Debug)]
pub struct Parcel {
    /// The deliveries.
    pub deliveries: Vec<Delivery>,
    pub(crate) transit: InTransit,
}

impl Parcel {
    pub(crate) fn new(deliveries: Vec<Delivery>, outflow: &Arc<Outflow>) -> Self {
        let bytes = deliveries.iter().map(Delivery::bytes).sum();
        let outflow = outflow.clone();
        let transit = InTransit { outflow, bytes };
        Self {
            deliveries,
            transit,
        }
    }
}

#[cfg(test)]
impl Parcel {
    /// Returns deliveries that are counted nowhere.
    pub(crate) fn uncounted(deliveries: Vec<Delivery>) -> Self {
        let (notes, _) = Notes::new(Arc::new(Seat::new()));
        Self::new(deliveries, &Outflow::new(ConsumerId::new(1), notes))
    }
}

/// The bytes of frames that a stream or a call has handed over to be encoded, and that are in no chunk of its response
/// yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Framed(Arc<Mutex<FramedBytes>>);

#[derive(Debug, Default)]
struct FramedBytes {
    transit: Option<InTransit>,
    /// The call that the response answers. If the response is dropped before, the messages go back to their queue.
    call: Option<Consumer>,
}

impl Framed {
    /// Adds the bytes of a frame.
    pub(crate) fn add(&self, frame: InTransit) {
        let transit = &mut self.lock().transit;
        match transit {
            Some(transit) => transit.add(frame),
            None => *transit = Some(frame),
        }
    }

    /// Keeps a call until its answer is sent.
    pub(crate) fn answer(&self, call: Consumer) {
        self.lock().call = Some(call);
    }

    /// Takes the bytes of all frames, for the chunk that contains them.
    pub(crate) fn take(&self) -> Option<InTransit> {
        self.lock().transit.take()
    }

    /// Notes that the connection has accepted all chunks so far. A call whose answer is in them has ended.
    pub(crate) fn accepted(&self) {
        let mut framed = self.lock();
        let call = match framed.transit {
            Some(_) => None,
            None => framed.call.take(),
        };
        drop(framed);
        if let Some(call) = call {
            call.answered();
        }
    }

    fn lock(&self) -> MutexGuard<'_, FramedBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transit(bytes: usize) -> (InTransit, crossbeam_channel::Receiver<Arc<Outflow>>) {
        let (notes, to_take) = Notes::new(Arc::new(Seat::new()));
        let outflow = Outflow::new(ConsumerId::new(1), notes);
        (InTransit { outflow, bytes }, to_take)
    }

    #[test]
    fn bytes_are_noted_once_wherever_they_are_dropped() {
        let (mut buffered, notes) = transit(100);
        let framed = Framed::default();
        framed.add(buffered.split(30));
        framed.add(buffered.split(20));
        assert!(notes.is_empty());
        drop(framed.take());
        assert!(framed.take().is_none());
        assert_eq!(notes.recv().unwrap().take(), 50);
        drop(buffered.split(10));
        drop(buffered);
        assert_eq!(notes.recv().unwrap().take(), 50, "one note for both");
        assert!(notes.is_empty());
    }

    #[test]
    fn a_stream_that_ends_drops_its_frames() {
        let (buffered, notes) = transit(100);
        let framed = Framed::default();
        framed.add(buffered);
        drop(framed);
        assert_eq!(notes.recv().unwrap().take(), 100);
    }
}
