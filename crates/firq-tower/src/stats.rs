//! How the layer is doing.

use std::fmt::{self, Display, Write};

use firq_async::{SchedulerStats, TenantKey};

use crate::error::Cause;

const ACTIVE: &str = "firq_in_flight_active";
const LIMIT: &str = "firq_in_flight_limit";
const SATURATION: &str = "firq_in_flight_saturation_ratio";
const REFUSED: &str = "firq_requests_refused_total";

/// Counters of the layer, and its present state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FirqStats<K = TenantKey> {
    /// Requests that are running.
    pub in_flight_active: usize,
    /// Requests that may run at once, now.
    pub in_flight_limit: usize,
    /// The scheduler's statistics.
    pub queue: SchedulerStats<K>,
    refused: [u64; Cause::ALL.len()],
}

impl<K> FirqStats<K> {
    pub(crate) const fn new(
        in_flight_active: usize,
        in_flight_limit: usize,
        refused: [u64; Cause::ALL.len()],
        queue: SchedulerStats<K>,
    ) -> Self {
        Self {
            in_flight_active,
            in_flight_limit,
            queue,
            refused,
        }
    }

    /// Returns how many of the requests that may run are running, from 0 to 1. It can be above 1 for a while
    /// after an adaptive limit has fallen.
    #[must_use]
    pub fn saturation(&self) -> f64 {
        self.in_flight_active as f64 / self.in_flight_limit.max(1) as f64
    }

    /// Returns how many requests were refused for this cause.
    #[must_use]
    pub const fn refused(&self, cause: Cause) -> u64 {
        self.refused[cause.index()]
    }
}

impl<K: Display> FirqStats<K> {
    /// Returns the statistics in the text format that Prometheus scrapes (version 0.0.4).
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        let mut text = self.queue.to_prometheus();
        self.render(&mut text)
            .expect("writing to a string does not fail");
        text
    }

    fn render(&self, text: &mut String) -> fmt::Result {
        let gauges = [
            (
                ACTIVE,
                "Requests that are running.",
                self.in_flight_active as f64,
            ),
            (
                LIMIT,
                "Requests that may run at once.",
                self.in_flight_limit as f64,
            ),
            (
                SATURATION,
                "Running requests over the limit.",
                self.saturation(),
            ),
        ];
        for (name, help, value) in gauges {
            writeln!(
                text,
                "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}"
            )?;
        }
        writeln!(
            text,
            "# HELP {REFUSED} Requests that did not reach the service, by reason."
        )?;
        writeln!(text, "# TYPE {REFUSED} counter")?;
        for cause in Cause::ALL {
            let (label, count) = (cause.as_str(), self.refused(cause));
            writeln!(text, "{REFUSED}{{reason=\"{label}\"}} {count}")?;
        }
        Ok(())
    }
}
