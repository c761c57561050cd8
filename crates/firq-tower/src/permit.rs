//! The right to run.
//!
//! A permit is somewhere exactly once. It is made when it is taken, goes to its request through a oneshot
//! channel, and is given back when it is dropped, wherever it is then: with the running request, or in the
//! channel of one that has gone.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use firq_async::firq_core::Clock;
use firq_async::{TokioClock, cost_of_time};

use crate::gate::{Gate, Tenant};

pub(crate) struct Permit<K: Tenant> {
    /// None if the permit has been given back already.
    gate: Option<Arc<Gate<K>>>,
    /// Its tenant, and the cost that was charged so far.
    tenant: K,
    charged: u64,
    /// When the permit was granted, if that is measured.
    granted: Option<Instant>,
    is_served: bool,
}

impl<K: Tenant> Permit<K> {
    /// Wraps a permit that has been taken.
    pub(crate) fn new(gate: &Arc<Gate<K>>, tenant: K, charged: u64) -> Self {
        let is_timed = gate.unit.is_some() || gate.limit.is_adaptive();
        Self {
            gate: Some(Arc::clone(gate)),
            tenant,
            charged,
            granted: is_timed.then(|| TokioClock.now()),
            is_served: false,
        }
    }

    /// Notes that the request has been served to its end, so that the time it took tells something of the service.
    pub(crate) fn served(&mut self) {
        self.is_served = true;
    }

    /// Gives the permit back without admitting: the caller, which has just granted it, goes on admitting.
    pub(crate) fn return_to(mut self, gate: &Gate<K>) {
        self.gate = None;
        self.give_back(gate);
    }

    fn give_back(&self, gate: &Gate<K>) {
        if let Some(quota) = &gate.quota {
            quota.end(gate.scheduler.scheduler(), &self.tenant);
        }
        gate.limit.give_back();
    }

    /// Reports the duration of the request to the limit and to the scheduler.
    fn report(&self, gate: &Gate<K>, granted: Instant) {
        let now = TokioClock.now();
        let took = now.saturating_duration_since(granted);
        if let Some(unit) = gate.unit {
            let actual = cost_of_time(took, unit);
            if actual != self.charged {
                gate.scheduler.settle(&self.tenant, self.charged, actual);
            }
        }
        if self.is_served {
            gate.limit.observe(took, now);
        }
    }
}

impl<K: Tenant> Drop for Permit<K> {
    fn drop(&mut self) {
        let Some(gate) = self.gate.take() else { return };
        if let Some(granted) = self.granted {
            self.report(&gate, granted);
        }
        self.give_back(&gate);
        gate.admit();
        gate.note_idle();
    }
}

impl<K: Tenant> fmt::Debug for Permit<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").finish_non_exhaustive()
    }
}
