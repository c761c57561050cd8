//! The events on one side of a scene, and the figures computed from them.
//!
//! Every message has a row: when its tenant sent it, when a worker got it, when the worker finished it. The record
//! computes all figures from the rows on demand, so they are exact and consistent. A scene has some ten thousand
//! messages, and a few frames a second.

use std::ops::Range;
use std::time::Duration;

use super::ideal;
use super::script::{Scene, Unit};

/// A moment of a scene, counted from its start.
pub(crate) type Moment = Duration;

/// The events on one side of a scene.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    tenants: Vec<Vec<Row>>,
    deliveries: u64,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    sent: Moment,
    /// How many deliveries there were before it was sent.
    turn_sent: u64,
    delivery: Option<Delivery>,
}

#[derive(Clone, Copy, Debug)]
struct Delivery {
    at: Moment,
    /// How many deliveries there were before this one.
    turn: u64,
    done: Option<Moment>,
}

impl Record {
    pub(crate) fn new(tenants: usize) -> Self {
        Self {
            tenants: vec![Vec::new(); tenants],
            deliveries: 0,
        }
    }

    /// Records that a tenant sends a message, and returns the message's number within the tenant.
    pub(crate) fn sent(&mut self, tenant: usize, now: Moment) -> u32 {
        let rows = &mut self.tenants[tenant];
        rows.push(Row {
            sent: now,
            turn_sent: self.deliveries,
            delivery: None,
        });
        u32::try_from(rows.len() - 1).expect("a scene has fewer messages than that")
    }

    /// Records that a worker has got a message. Only the first delivery counts.
    pub(crate) fn delivered(&mut self, tenant: usize, number: u32, now: Moment) {
        let row = &mut self.tenants[tenant][number as usize];
        if row.delivery.is_none() {
            row.delivery = Some(Delivery {
                at: now,
                turn: self.deliveries,
                done: None,
            });
            self.deliveries += 1;
        }
    }

    /// Records that a worker has finished a message.
    pub(crate) fn done(&mut self, tenant: usize, number: u32, now: Moment) {
        let row = &mut self.tenants[tenant][number as usize];
        if let Some(delivery) = &mut row.delivery {
            delivery.done.get_or_insert(now);
        }
    }

    pub(crate) fn sends(&self, tenant: usize) -> u64 {
        self.tenants[tenant].len() as u64
    }

    pub(crate) fn served(&self, tenant: usize) -> u64 {
        self.deliveries_of(tenant).count() as u64
    }

    /// Returns how long workers have worked for a tenant.
    fn busy(&self, tenant: usize, now: Moment) -> Duration {
        let deliveries = self.deliveries_of(tenant);
        deliveries
            .map(|delivery| delivery.done.unwrap_or(now).saturating_sub(delivery.at))
            .sum()
    }

    /// Returns the deliveries per second in a span of time.
    pub(crate) fn rate(&self, span: Range<Moment>) -> f64 {
        let all = (0..self.tenants.len()).flat_map(|tenant| self.deliveries_of(tenant));
        let within = all.filter(|delivery| span.contains(&delivery.at)).count();
        per_second(within, &span)
    }

    /// Returns the deliveries per second of one tenant in a span of time.
    pub(crate) fn rate_of(&self, tenant: usize, span: Range<Moment>) -> f64 {
        let own = self.deliveries_of(tenant);
        let within = own.filter(|delivery| span.contains(&delivery.at)).count();
        per_second(within, &span)
    }

    /// Returns when the last message of a tenant was delivered; none if messages still wait.
    pub(crate) fn last_delivery(&self, tenant: usize) -> Option<Moment> {
        let moments = self.tenants[tenant]
            .iter()
            .map(|row| Some(row.delivery?.at));
        moments.collect::<Option<Vec<Moment>>>()?.into_iter().max()
    }

    /// Returns the waits of these tenants' messages that were sent within this span.
    pub(crate) fn waits(&self, tenants: &[usize], sent: Range<Moment>, now: Moment) -> Waits {
        let rows = tenants.iter().flat_map(|&tenant| &self.tenants[tenant]);
        let rows = rows.filter(|row| sent.contains(&row.sent));
        let waits = rows.map(|row| match row.delivery {
            Some(delivery) => Wait::Over(delivery.at.saturating_sub(row.sent)),
            None => Wait::SoFar(now.saturating_sub(row.sent)),
        });
        Waits::new(&waits.collect::<Vec<Wait>>())
    }

    /// Returns the median number of deliveries to other tenants between the sending and the delivery of these tenants'
    /// messages. A message that still waits counts with the deliveries so far.
    pub(crate) fn overtaken(&self, tenants: &[usize]) -> Option<u64> {
        let rows = tenants.iter().flat_map(|&tenant| &self.tenants[tenant]);
        let mut passed: Vec<u64> = rows
            .map(|row| {
                let turn = row
                    .delivery
                    .map_or(self.deliveries, |delivery| delivery.turn);
                turn.saturating_sub(row.turn_sent)
            })
            .collect();
        passed.sort_unstable();
        let middle = passed.len().checked_sub(1)? / 2;
        passed.get(middle).copied()
    }

    /// Returns the share of each tenant so far, and its fair share.
    pub(crate) fn shares(&self, scene: &Scene, now: Moment) -> Vec<Share> {
        let tenants = || scene.tenants.iter().enumerate();
        let got: Vec<f64> = match scene.unit {
            Unit::Messages => tenants().map(|(at, _)| self.served(at) as f64).collect(),
            Unit::Time => tenants()
                .map(|(at, _)| self.busy(at, now).as_secs_f64())
                .collect(),
        };
        let wanted: Vec<f64> = tenants()
            .map(|(at, tenant)| match scene.unit {
                Unit::Messages => self.sends(at) as f64,
                Unit::Time => self.sends(at) as f64 * tenant.work.as_secs_f64(),
            })
            .collect();
        let weights: Vec<f64> = tenants().map(|(_, tenant)| tenant.weight.into()).collect();
        let total: f64 = got.iter().sum();
        let ideal = ideal::shares(&weights, &wanted, total);
        let part = |amount: f64| if total > 0.0 { amount / total } else { 0.0 };
        let pairs = got.into_iter().zip(ideal);
        pairs
            .map(|(got, ideal)| Share {
                got: part(got),
                ideal: part(ideal),
            })
            .collect()
    }

    /// Returns when the last message of the scene was served; none if messages still wait.
    pub(crate) fn finished(&self, scene: &Scene) -> Option<Moment> {
        let tenants = 0..scene.tenants.len();
        let ends = tenants.map(|tenant| {
            let is_sent = self.sends(tenant) == scene.sends(tenant);
            is_sent.then(|| self.last_delivery(tenant)).flatten()
        });
        ends.collect::<Option<Vec<Moment>>>()?.into_iter().max()
    }

    /// Returns the figures of this side.
    pub(crate) fn figures(&self, scene: &Scene, now: Moment) -> Figures {
        let shares = self.shares(scene, now);
        let tenants = shares.into_iter().enumerate().map(|(tenant, share)| {
            let waits = self.waits(&[tenant], Duration::ZERO..Duration::MAX, now);
            TenantFigures {
                sent: self.sends(tenant),
                served: self.served(tenant),
                share,
                wait_half: waits.quantile(0.5),
                wait_most: waits.quantile(0.99),
            }
        });
        let second = Duration::from_secs(1).min(now);
        Figures {
            tenants: tenants.collect(),
            per_second: self.rate(now.saturating_sub(second)..now),
            finished: self.finished(scene),
        }
    }

    fn deliveries_of(&self, tenant: usize) -> impl Iterator<Item = Delivery> + '_ {
        self.tenants[tenant].iter().filter_map(|row| row.delivery)
    }
}

fn per_second(count: usize, span: &Range<Moment>) -> f64 {
    let time = span.end.saturating_sub(span.start).as_secs_f64();
    if time > 0.0 { count as f64 / time } else { 0.0 }
}

/// The figures of one side.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figures {
    pub(crate) tenants: Vec<TenantFigures>,
    /// Deliveries in the last second.
    pub(crate) per_second: f64,
    /// When the last message of the scene was served.
    pub(crate) finished: Option<Moment>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TenantFigures {
    pub(crate) sent: u64,
    pub(crate) served: u64,
    pub(crate) share: Share,
    /// The median wait of its messages.
    pub(crate) wait_half: Option<Wait>,
    /// The 99th percentile of the waits of its messages.
    pub(crate) wait_most: Option<Wait>,
}

/// The share of a tenant, and its fair share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) got: f64,
    pub(crate) ideal: f64,
}

/// A wait that has ended, or one that still lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Over(Duration),
    SoFar(Duration),
}

impl Wait {
    pub(crate) fn time(self) -> Duration {
        match self {
            Self::Over(time) | Self::SoFar(time) => time,
        }
    }
}

/// The waits of some messages.
#[derive(Clone, Debug)]
pub(crate) struct Waits {
    /// Waits that have ended, in ascending order.
    over: Vec<Duration>,
    /// All waits, including those that still last, with their time so far.
    all: Vec<Duration>,
}

impl Waits {
    fn new(waits: &[Wait]) -> Self {
        let over = waits.iter().filter(|wait| matches!(wait, Wait::Over(_)));
        let mut over: Vec<Duration> = over.map(|wait| wait.time()).collect();
        let mut all: Vec<Duration> = waits.iter().map(|wait| wait.time()).collect();
        over.sort_unstable();
        all.sort_unstable();
        Self { over, all }
    }

    /// Returns a quantile of the waits. If enough waits have ended, the answer is final, however long the others last.
    /// Otherwise it is a lower bound.
    pub(crate) fn quantile(&self, part: f64) -> Option<Wait> {
        let count = self.all.len();
        let rank = (part * count as f64).ceil() as usize;
        let rank = rank.clamp(1, count.max(1)) - 1;
        let over = self.over.get(rank).copied().map(Wait::Over);
        over.or_else(|| self.all.get(rank).copied().map(Wait::SoFar))
    }

    pub(crate) fn longest(&self) -> Option<Wait> {
        self.quantile(1.0)
    }

    /// Returns the shortest wait.
    pub(crate) fn shortest(&self) -> Option<Wait> {
        self.quantile(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::script::{SECONDS, scenes};
    use super::*;

    fn at(millis: u64) -> Moment {
        Duration::from_millis(millis)
    }

    /// Returns a record of tenants whose messages were sent and delivered at these moments.
    fn record(tenants: &[&[(u64, Option<u64>)]]) -> Record {
        let mut record = Record::new(tenants.len());
        let mut events = Vec::new();
        for (tenant, messages) in tenants.iter().enumerate() {
            for (number, &(sent, delivered)) in messages.iter().enumerate() {
                events.push((sent, 0, tenant, number));
                events.extend(delivered.map(|delivered| (delivered, 1, tenant, number)));
            }
        }
        events.sort_unstable();
        for (moment, kind, tenant, number) in events {
            match kind {
                0 => drop(record.sent(tenant, at(moment))),
                _ => record.delivered(tenant, number as u32, at(moment)),
            }
        }
        record
    }

    #[test]
    fn a_quantile_is_the_wait_that_so_many_did_not_exceed() {
        let messages: Vec<(u64, Option<u64>)> = (1..=100).map(|wait| (0, Some(wait))).collect();
        let waits = record(&[&messages]).waits(&[0], at(0)..at(1), at(500));
        assert_eq!(waits.quantile(0.5), Some(Wait::Over(at(50))));
        assert_eq!(waits.quantile(0.99), Some(Wait::Over(at(99))));
        assert_eq!(waits.longest(), Some(Wait::Over(at(100))));
        assert_eq!(waits.shortest(), Some(Wait::Over(at(1))));
    }

    #[test]
    fn what_still_waits_has_waited_at_least_so_long() {
        let record = record(&[&[(0, Some(10)), (0, Some(20)), (90, None), (5, None)]]);
        let waits = record.waits(&[0], at(0)..at(1000), at(100));
        // 10, 10 so far, 20, 95 so far.
        assert_eq!(waits.quantile(0.25), Some(Wait::Over(at(10))));
        assert_eq!(waits.quantile(0.75), Some(Wait::SoFar(at(20))));
        assert_eq!(waits.longest(), Some(Wait::SoFar(at(95))));
    }

    #[test]
    fn nobody_has_waited_where_nothing_was_sent() {
        let record = record(&[&[]]);
        let waits = record.waits(&[0], at(0)..at(1000), at(100));
        assert_eq!(waits.quantile(0.5), None);
        assert_eq!(record.overtaken(&[0]), None);
    }

    #[test]
    fn only_messages_of_the_span_count() {
        let record = record(&[&[(0, Some(10)), (50, Some(55)), (100, Some(300))]]);
        let waits = record.waits(&[0], at(50)..at(100), at(400));
        assert_eq!(waits.longest(), Some(Wait::Over(at(5))));
    }

    #[test]
    fn deliveries_to_others_between_sending_and_delivery_are_counted() {
        let noisy: Vec<(u64, Option<u64>)> = (0..10).map(|turn| (0, Some(10 + turn))).collect();
        // Sent after two of the flood were delivered: served after the fifth, and not at all.
        let quiet = [(12, Some(14))];
        let behind = [(12, None)];
        let record = record(&[&noisy, &quiet, &behind]);
        assert_eq!(record.overtaken(&[1]), Some(3));
        assert_eq!(record.overtaken(&[2]), Some(8 + 1));
    }

    #[test]
    fn a_side_is_finished_when_all_that_is_ever_sent_was_served() {
        let [_, weights, ..] = scenes(Duration::from_secs(4));
        let mut record = Record::new(3);
        let count = weights.sends(0);
        for tenant in 0..3 {
            for number in 0..count {
                assert_eq!(record.finished(&weights), None);
                record.sent(tenant, at(0));
                record.delivered(tenant, number as u32, at(10 * tenant as u64));
            }
        }
        assert_eq!(record.finished(&weights), Some(at(20)));
    }

    #[test]
    fn a_second_delivery_changes_nothing() {
        let mut record = record(&[&[(0, Some(10))]]);
        record.delivered(0, 0, at(500));
        assert_eq!(record.served(0), 1);
        assert_eq!(record.last_delivery(0), Some(at(10)));
    }

    #[test]
    fn a_rate_is_counted_over_its_span() {
        let messages: Vec<(u64, Option<u64>)> = (0..100).map(|n| (0, Some(10 * n))).collect();
        let record = record(&[&messages, &[(0, None)]]);
        assert_eq!(record.rate(at(0)..at(500)), 100.0);
        assert_eq!(record.rate_of(0, at(500)..at(1000)), 100.0);
        assert_eq!(record.rate_of(1, at(0)..at(1000)), 0.0);
        assert_eq!(record.rate(at(7)..at(7)), 0.0);
        assert_eq!(record.last_delivery(0), Some(at(990)));
        assert_eq!(record.last_delivery(1), None);
    }

    #[test]
    fn shares_are_counted_in_messages_or_in_time() {
        let [_, weights, slow, ..] = scenes(Duration::from_secs(SECONDS));
        let rows = [(0, Some(0)), (0, Some(0)), (0, None), (0, None)];
        let three = record(&[&rows, &rows[1..], &rows[2..]]);
        let shares = three.shares(&weights, at(1));
        let got: Vec<f64> = shares.iter().map(|share| share.got).collect();
        assert_eq!(got, [2.0 / 3.0, 1.0 / 3.0, 0.0]);

        let one = [(0, Some(0))];
        let mut four = record(&[&one, &one, &[], &[]]);
        four.done(0, 0, at(300));
        four.done(0, 0, at(900));
        // The other is still at work, after 100 ms.
        let shares = four.shares(&slow, at(100));
        assert!((shares[0].got - 0.75).abs() < 1e-9);
        assert!((shares[1].got - 0.25).abs() < 1e-9);
    }
}
