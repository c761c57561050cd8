//! The executor's metrics, read from its shards at the moment of the scrape.
//!
//! The metrics have no counters of their own: they read a snapshot of each shard under its lock, so a gauge cannot lag
//! behind a counter. The client library adds `_total` to the names of counters and `_seconds` to that of the
//! histogram.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::core::BOUNDS_MS;
use crate::shard::{Shard, Snapshot};

const SUBSYSTEM: &str = "shardqueue";

const SUBMISSIONS: Metric = ("submissions", "Jobs accepted");
const QUEUE_FULL: Metric = (
    "queue_full",
    "Submissions refused because the queue was full",
);
const RUN_DURATION: Metric = ("run_duration", "How long attempts took");
const QUEUE_DEPTH: Metric = ("queue_depth", "Jobs that wait for their first attempt");

/// The last part of a metric's name, and its help text.
type Metric = (&'static str, &'static str);

#[derive(Debug)]
pub(crate) struct ShardCollector {
    prefix: String,
    shards: Arc<[Arc<Shard>]>,
}

impl ShardCollector {
    pub(crate) fn new(namespace: &str, shards: Arc<[Arc<Shard>]>) -> Self {
        Self {
            prefix: format!("{namespace}_{SUBSYSTEM}"),
            shards,
        }
    }

    fn name(&self, (name, _): Metric) -> String {
        format!("{}_{name}", self.prefix)
    }

    fn counter(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        metric: Metric,
        snapshots: &[Snapshot],
        value: impl Fn(&Snapshot) -> u64,
    ) -> fmt::Result {
        let name = self.name(metric);
        let mut family = encoder.encode_descriptor(&name, metric.1, None, MetricType::Counter)?;
        for (shard, snapshot) in snapshots.iter().enumerate() {
            let labels = [("shard", shard.to_string())];
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value(snapshot), None)?;
        }
        Ok(())
    }
}

impl Collector for ShardCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshots: Vec<Snapshot> = self.shards.iter().map(|shard| shard.snapshot()).collect();
        self.counter(&mut encoder, SUBMISSIONS, &snapshots, |snapshot| {
            snapshot.counters.accepted
        })?;
        self.counter(&mut encoder, QUEUE_FULL, &snapshots, |snapshot| {
            snapshot.counters.refused_full
        })?;

        let name = self.name(RUN_DURATION);
        let unit = Unit::Seconds;
        let kind = MetricType::Histogram;
        let mut family = encoder.encode_descriptor(&name, RUN_DURATION.1, Some(&unit), kind)?;
        for (shard, snapshot) in snapshots.iter().enumerate() {
            let bounds = BOUNDS_MS.map(|bound| f64::from(bound) / 1000.0);
            let bounds = bounds.into_iter().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(snapshot.runs.buckets).collect();
            let (sum, count) = (snapshot.runs.sum.as_secs_f64(), snapshot.runs.count());
            let labels = [("shard", shard.to_string())];
            family
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }

        let name = self.name(QUEUE_DEPTH);
        let mut family =
            encoder.encode_descriptor(&name, QUEUE_DEPTH.1, None, MetricType::Gauge)?;
        for (shard, snapshot) in snapshots.iter().enumerate() {
            let depth = i64::try_from(snapshot.gauges.0).unwrap_or(i64::MAX);
            let labels = [("shard", shard.to_string())];
            family.encode_family(&labels)?.encode_gauge(&depth)?;
        }
        Ok(())
    }
}
