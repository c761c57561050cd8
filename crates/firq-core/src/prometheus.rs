//! Statistics in the text format that Prometheus scrapes.
//!
//! Names are constants, and times are in seconds. The only labels with values from outside are the tenant and the group;
//! there are at most `top_tenants_capacity` of each. Written by hand, because `prometheus-client` writes OpenMetrics only: it
//! ends the text with `# EOF`, so that it could not be joined with the metrics of others.

use std::fmt::{self, Display, Write};
use std::time::Duration;

use crate::stats::SchedulerStats;

/// A metric's name, type and help text.
#[derive(Clone, Copy)]
struct Metric(&'static str, &'static str, &'static str);

const OUTCOMES: Metric = Metric(
    "firq_tasks_total",
    "counter",
    "Tasks by what became of them.",
);
const REJECTIONS: Metric = Metric(
    "firq_rejections_total",
    "counter",
    "Tasks that were not accepted, by reason.",
);
const QUEUE_LEN: Metric = Metric("firq_queue_length", "gauge", "Tasks that are queued.");
const QUEUE_MAX: Metric = Metric(
    "firq_queue_capacity",
    "gauge",
    "The most tasks that may be queued.",
);
const SATURATION: Metric = Metric(
    "firq_queue_saturation_ratio",
    "gauge",
    "How full the queue is, from 0 to 1.",
);
const TENANTS: Metric = Metric("firq_tenants", "gauge", "Tenants that are kept in memory.");
const CONSUMERS: Metric = Metric(
    "firq_consumers_waiting",
    "gauge",
    "Consumers that wait for work.",
);
const WAKEUPS: Metric = Metric(
    "firq_consumer_wakeups_total",
    "counter",
    "How often a waiting consumer was woken.",
);
const QUEUE_TIME: Metric = Metric(
    "firq_queue_time_seconds",
    "histogram",
    "How long tasks were queued before they were delivered.",
);
const TOP_ENQUEUED: Metric = Metric(
    "firq_top_tenant_enqueued",
    "gauge",
    "Tasks accepted of the busiest tenants, since they were last idle for long.",
);
const TOP_LEN: Metric = Metric(
    "firq_top_tenant_queue_length",
    "gauge",
    "Tasks that the busiest tenants have queued.",
);

const GROUPS: Metric = Metric(
    "firq_groups",
    "gauge",
    "Groups of tenants that are kept in memory.",
);
const GROUP_ENQUEUED: Metric = Metric(
    "firq_top_group_enqueued",
    "gauge",
    "Tasks accepted of the members of the busiest groups, since the groups were made.",
);
const GROUP_LEN: Metric = Metric(
    "firq_top_group_queue_length",
    "gauge",
    "Tasks that the members of the busiest groups have queued.",
);

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
    /// let scheduler: Scheduler<&str> = Scheduler::new(SchedulerConfig::fair())?;
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
        let outcomes = [
            ("enqueued", self.enqueued),
            ("dequeued", self.dequeued),
            ("dropped", self.dropped),
            ("expired", self.expired),
            ("rejected", self.rejected),
            ("evicted", self.evicted),
            ("cancelled", self.cancelled),
            ("discarded", self.discarded),
        ];
        family(text, OUTCOMES, "outcome", outcomes)?;
        let rejections = [
            ("tenant_full", self.rejected_tenant_full),
            ("global_full", self.rejected_global_full),
            ("timeout", self.rejected_timeout),
        ];
        family(text, REJECTIONS, "reason", rejections)?;
        single(text, QUEUE_LEN, self.queue_len_estimate)?;
        single(text, QUEUE_MAX, self.max_global)?;
        single(text, SATURATION, self.saturation())?;
        single(text, TENANTS, self.tenants)?;
        single(text, CONSUMERS, self.consumers_waiting)?;
        single(text, WAKEUPS, self.wakeups)?;
        self.render_queue_time(text)?;
        let top = self.top_tenants.iter();
        let enqueued = top.clone().map(|top| (&top.tenant, top.enqueued));
        family(text, TOP_ENQUEUED, "tenant", enqueued)?;
        let lengths = top.map(|top| (&top.tenant, top.queue_len));
        family(text, TOP_LEN, "tenant", lengths)?;
        single(text, GROUPS, self.groups.count)?;
        let top = self.groups.top.iter();
        let enqueued = top.clone().map(|top| (&top.tenant, top.enqueued));
        family(text, GROUP_ENQUEUED, "group", enqueued)?;
        let lengths = top.map(|top| (&top.tenant, top.queue_len));
        family(text, GROUP_LEN, "group", lengths)
    }

    fn render_queue_time(&self, text: &mut String) -> fmt::Result {
        header(text, QUEUE_TIME)?;
        let name = QUEUE_TIME.0;
        for micros in BUCKETS {
            let end = Duration::from_micros(micros);
            let count = self.waits.at_most(micros * 1_000);
            writeln!(
                text,
                "{name}_bucket{{le=\"{}\"}} {count}",
                end.as_secs_f64()
            )?;
        }
        let samples = self.queue_time.samples;
        writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {samples}")?;
        writeln!(text, "{name}_sum {}", self.queue_time.sum.as_secs_f64())?;
        writeln!(text, "{name}_count {samples}")
    }
}

fn header(text: &mut String, Metric(name, kind, help): Metric) -> fmt::Result {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

/// Writes a metric without labels.
fn single(text: &mut String, metric: Metric, value: impl Display) -> fmt::Result {
    header(text, metric)?;
    writeln!(text, "{} {value}", metric.0)
}

/// Writes a metric with a sample for each value of a label.
fn family<L: Display, V: Display>(
    text: &mut String,
    metric: Metric,
    label: &str,
    samples: impl IntoIterator<Item = (L, V)>,
) -> fmt::Result {
    header(text, metric)?;
    for (value, count) in samples {
        write!(text, "{}{{{label}=\"", metric.0)?;
        write!(Escaped(text), "{value}")?;
        writeln!(text, "\"}} {count}")?;
    }
    Ok(())
}

/// Writes a label's value with its special characters escaped.
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
