//! Statistics in the text format that Prometheus scrapes.
//!
//! Names are constants, times are in seconds, and the only label whose values come from outside is the
//! tenant, of which there are at most `top_tenants_capacity`.

use std::fmt::{self, Display, Write};
use std::time::Duration;

use crate::stats::SchedulerStats;

/// Tasks that left the queue or never got in, by what became of them.
const OUTCOMES: &str = "firq_tasks_total";
/// Tasks that were not accepted, by reason.
const REJECTIONS: &str = "firq_rejections_total";
const QUEUE_LEN: &str = "firq_queue_length";
const QUEUE_MAX: &str = "firq_queue_capacity";
const SATURATION: &str = "firq_queue_saturation_ratio";
const TENANTS: &str = "firq_tenants";
const CONSUMERS: &str = "firq_consumers_waiting";
const WAKEUPS: &str = "firq_consumer_wakeups_total";
const QUEUE_TIME: &str = "firq_queue_time_seconds";
const TOP_ENQUEUED: &str = "firq_top_tenant_enqueued";
const TOP_LEN: &str = "firq_top_tenant_queue_length";

/// Upper ends of the buckets that queue times are shown in, in microseconds.
const BUCKETS: [u64; 14] = [
    10, 50, 100, 500, 1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000,
    10_000_000, 60_000_000,
];

impl<K: Display> SchedulerStats<K> {
    /// Returns the statistics in the text format that Prometheus scrapes (version 0.0.4).
    ///
    /// ```
    /// use firq_core::{Scheduler, SchedulerConfig, Task, TenantKey};
    /// # fn main() -> Result<(), firq_core::ConfigError> {
    /// let scheduler: Scheduler<&str> = Scheduler::new(SchedulerConfig::default())?;
    /// let _ = scheduler.enqueue(TenantKey::from(7), Task::new("work"));
    /// let text = scheduler.stats().to_prometheus();
    /// assert!(text.contains("firq_tasks_total{outcome=\"enqueued\"} 1\n"));
    /// assert!(text.contains("firq_top_tenant_queue_length{tenant=\"7\"} 1\n"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn to_prometheus(&self) -> String {
        let mut text = String::with_capacity(4096);
        self.render(&mut text)
            .expect("writing to a string does not fail");
        text
    }

    fn render(&self, text: &mut String) -> fmt::Result {
        header(text, OUTCOMES, "counter", "Tasks by what became of them.")?;
        for (outcome, count) in [
            ("enqueued", self.enqueued),
            ("dequeued", self.dequeued),
            ("dropped", self.dropped),
            ("expired", self.expired),
            ("rejected", self.rejected),
            ("evicted", self.evicted),
            ("cancelled", self.cancelled),
            ("discarded", self.discarded),
        ] {
            sample(text, OUTCOMES, ("outcome", outcome), count)?;
        }
        header(
            text,
            REJECTIONS,
            "counter",
            "Tasks that were not accepted, by reason.",
        )?;
        for (reason, count) in [
            ("tenant_full", self.rejected_tenant_full),
            ("global_full", self.rejected_global_full),
            ("timeout", self.rejected_timeout),
        ] {
            sample(text, REJECTIONS, ("reason", reason), count)?;
        }
        gauge(
            text,
            QUEUE_LEN,
            "Tasks that are queued.",
            self.queue_len_estimate,
        )?;
        gauge(
            text,
            QUEUE_MAX,
            "The most tasks that may be queued.",
            self.max_global,
        )?;
        gauge(
            text,
            SATURATION,
            "How full the queue is, from 0 to 1.",
            self.saturation(),
        )?;
        gauge(
            text,
            TENANTS,
            "Tenants that are kept in memory.",
            self.tenants,
        )?;
        gauge(
            text,
            CONSUMERS,
            "Consumers that wait for work.",
            self.consumers_waiting,
        )?;
        header(
            text,
            WAKEUPS,
            "counter",
            "How often a waiting consumer was woken.",
        )?;
        writeln!(text, "{WAKEUPS} {}", self.wakeups)?;
        self.render_queue_time(text)?;
        self.render_top_tenants(text)
    }

    fn render_queue_time(&self, text: &mut String) -> fmt::Result {
        let help = "How long tasks were queued before they were delivered.";
        header(text, QUEUE_TIME, "histogram", help)?;
        for micros in BUCKETS {
            let end = Duration::from_micros(micros);
            let count = self.waits.at_most(micros * 1_000);
            writeln!(
                text,
                "{QUEUE_TIME}_bucket{{le=\"{}\"}} {count}",
                end.as_secs_f64()
            )?;
        }
        let samples = self.queue_time_samples;
        writeln!(text, "{QUEUE_TIME}_bucket{{le=\"+Inf\"}} {samples}")?;
        writeln!(
            text,
            "{QUEUE_TIME}_sum {}",
            self.queue_time_sum.as_secs_f64()
        )?;
        writeln!(text, "{QUEUE_TIME}_count {samples}")
    }

    fn render_top_tenants(&self, text: &mut String) -> fmt::Result {
        let help = "Tasks accepted of the busiest tenants, since they were last idle for long.";
        header(text, TOP_ENQUEUED, "gauge", help)?;
        for top in &self.top_tenants {
            sample(text, TOP_ENQUEUED, ("tenant", &top.tenant), top.enqueued)?;
        }
        header(
            text,
            TOP_LEN,
            "gauge",
            "Tasks that the busiest tenants have queued.",
        )?;
        for top in &self.top_tenants {
            sample(text, TOP_LEN, ("tenant", &top.tenant), top.queue_len)?;
        }
        Ok(())
    }
}

fn header(text: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

fn gauge(text: &mut String, name: &str, help: &str, value: impl Display) -> fmt::Result {
    header(text, name, "gauge", help)?;
    writeln!(text, "{name} {value}")
}

fn sample(
    text: &mut String,
    name: &str,
    (label, value): (&str, impl Display),
    count: impl Display,
) -> fmt::Result {
    write!(text, "{name}{{{label}=\"")?;
    write!(Escaped(text), "{value}")?;
    writeln!(text, "\"}} {count}")
}

/// Writes a label's value: whatever a tenant is called, it stays one label.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        for c in part.chars() {
            match c {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::TopTenant;

    fn rendered() -> String {
        let mut stats = SchedulerStats::new();
        stats.waits.record(70_000);
        stats.waits.record(3_000_000_000);
        let nasty = TopTenant {
            tenant: "a\"} 1\nb\\",
            enqueued: 3,
            queue_len: 2,
        };
        stats.offer_top(nasty, 1);
        stats.finish();
        stats.to_prometheus()
    }

    #[test]
    fn every_sample_has_a_type_and_a_help_line_before_it() {
        let text = rendered();
        let mut known = std::collections::HashSet::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("# TYPE ") {
                known.insert(name.split(' ').next().unwrap());
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                let family = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|end| name.strip_suffix(end))
                    .filter(|family| known.contains(family));
                assert!(known.contains(family.unwrap_or(name)), "{line}");
                let value = line.rsplit(' ').next().unwrap();
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
        assert_eq!(
            text.matches("# TYPE").count(),
            text.matches("# HELP").count()
        );
    }

    #[test]
    fn the_book_has_every_metric() {
        let book = include_str!("../../../docs/metrics.md");
        let text = rendered();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        for name in types.filter_map(|line| line.split(' ').next()) {
            assert!(book.contains(&format!("`{name}")), "{name}");
        }
    }

    #[test]
    fn a_label_cannot_break_out() {
        let text = rendered();
        assert!(
            text.contains(r#"firq_top_tenant_enqueued{tenant="a\"} 1\nb\\"} 3"#),
            "{text}"
        );
    }

    #[test]
    fn buckets_grow_to_the_number_of_samples() {
        let text = rendered();
        assert!(text.contains("firq_queue_time_seconds_bucket{le=\"0.00005\"} 0\n"));
        assert!(text.contains("firq_queue_time_seconds_bucket{le=\"0.0001\"} 1\n"));
        assert!(text.contains("firq_queue_time_seconds_bucket{le=\"5\"} 2\n"));
        assert!(text.contains("firq_queue_time_seconds_bucket{le=\"+Inf\"} 2\n"));
        assert!(text.contains("firq_queue_time_seconds_count 2\n"));
    }
}
