//! The scenes: which tenant sends what and when, and how many workers there are. No clock, no server, no randomness.

use std::iter;
use std::time::Duration;

/// The length of the whole demo unless the user chooses another.
pub(crate) const SECONDS: u64 = 52;

/// One situation, played twice at the same time: without a kind of fairness, and with it.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) plot: Plot,
    pub(crate) title: &'static str,
    /// The explanation on the screen.
    pub(crate) sentence: String,
    /// The two ways in which it is played, the one without fairness first.
    pub(crate) sides: [Side; 2],
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) senders: Vec<Sender>,
    /// The number of workers on each side.
    pub(crate) workers: usize,
    pub(crate) unit: Unit,
    pub(crate) length: Duration,
}

/// The point of a scene, with the tenants to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plot {
    Flood {
        noisy: usize,
        quiet: [usize; 3],
    },
    Weights {
        heavy: usize,
        light: usize,
    },
    Slow {
        slow: usize,
        fast: usize,
    },
    Burst {
        burst: usize,
        steady: usize,
        at: Duration,
    },
    Split {
        split: usize,
        whole: usize,
    },
}

/// One of the two ways in which a scene is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// One fairness key for all messages.
    Fifo,
    /// A fairness key for each tenant.
    Fair,
    /// A tenant may have many fairness keys, and the queue takes each of them as one name.
    Flat,
    /// The same keys, and the queue takes them as paths: all keys of a tenant are in its group.
    Groups,
}

impl Side {
    /// A FIFO queue beside fairness between tenants.
    const FAIRNESS: [Self; 2] = [Self::Fifo, Self::Fair];

    /// Fairness between keys beside fairness between groups of keys.
    const GROUPS: [Self; 2] = [Self::Flat, Self::Groups];

    /// Returns its name in lines of text.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fifo => "FIFO",
            Self::Fair => "Fila",
            Self::Flat => "flat",
            Self::Groups => "groups",
        }
    }
}

/// The unit of shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Messages,
    /// The time of workers.
    Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub(crate) name: &'static str,
    pub(crate) weight: u32,
    /// How long a worker takes for one of its messages.
    pub(crate) work: Duration,
    /// The number of fairness keys that it spreads its messages over.
    pub(crate) keys: u32,
}

impl Tenant {
    /// Returns the fairness key of one of its messages: its name, or a key within its name if it has many.
    pub(crate) fn key(&self, number: u32) -> String {
        match self.keys {
            0 | 1 => self.name.to_owned(),
            keys => format!("{}/{:04}", self.name, number % keys),
        }
    }

    fn split_into(self, keys: u32) -> Self {
        Self { keys, ..self }
    }
}

/// A sender with its own connection, so that it does not queue behind other senders in the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) batches: Vec<Batch>,
}

/// Messages that a sender sends at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) at: Duration,
    /// The tenants, and the number of messages of each.
    pub(crate) parts: Vec<(usize, u32)>,
}

impl Batch {
    /// Returns the tenant of each message: the tenants take turns until they have no more messages.
    pub(crate) fn turns(&self) -> impl Iterator<Item = usize> + '_ {
        let rounds = self.parts.iter().map(|&(_, count)| count).max();
        (0..rounds.unwrap_or(0)).flat_map(|round| {
            let parts = self.parts.iter();
            parts.filter_map(move |&(tenant, count)| (round < count).then_some(tenant))
        })
    }
}

impl Scene {
    /// Returns how many messages a tenant sends.
    pub(crate) fn sends(&self, tenant: usize) -> u64 {
        let batches = self.senders.iter().flat_map(|sender| &sender.batches);
        let parts = batches.flat_map(|batch| &batch.parts);
        let own = parts.filter(|&&(whose, _)| whose == tenant);
        own.map(|&(_, count)| u64::from(count)).sum()
    }
}

/// Returns all scenes, which last `total` together.
pub(crate) fn scenes(total: Duration) -> [Scene; 5] {
    // The seconds of each scene in a demo of the default length.
    let part = |seconds: f64| total.mul_f64(seconds / SECONDS as f64);
    [
        flood(part(15.3)),
        weights(part(8.1)),
        slow(part(9.9)),
        burst(part(11.7)),
        split(part(7.0)),
    ]
}

/// A flood beside tenants that send little. Its size lets the workers finish it well before the end of the scene, so
/// that the messages behind it are served, too.
fn flood(length: Duration) -> Scene {
    let work = Duration::from_millis(16);
    let workers = 96;
    let messages = rounded(0.545 * capacity(workers, work) * length.as_secs_f64());
    let quiet = [1, 2, 3];
    let interval = Duration::from_millis(200);
    let quiet_senders = quiet.map(|tenant| {
        // Staggered, so that the tenants do not all send at the same moment.
        let first = interval.mul_f64(0.5 + tenant as f64 / 3.0);
        drip(tenant, first, interval, length.mul_f64(0.6))
    });
    let noisy = Sender {
        batches: vec![Batch {
            at: Duration::ZERO,
            parts: vec![(0, messages)],
        }],
    };
    Scene {
        plot: Plot::Flood { noisy: 0, quiet },
        title: "a flood",
        sentence: format!(
            "One tenant sends {} messages at once, three others send 5 a second each. In a FIFO queue, all \
             of them wait behind the flood; with fair shares, only the noisy tenant waits.",
            crate::units::count(messages.into())
        ),
        sides: Side::FAIRNESS,
        tenants: vec![
            tenant("noisy", 1, work),
            tenant("quiet-1", 1, work),
            tenant("quiet-2", 1, work),
            tenant("quiet-3", 1, work),
        ],
        senders: iter::once(noisy).chain(quiet_senders).collect(),
        workers,
        unit: Unit::Messages,
        length,
    }
}

/// Tenants of different weights that never run out of messages.
fn weights(length: Duration) -> Scene {
    let work = Duration::from_millis(20);
    let workers = 40;
    // The heaviest gets three fifths of the workers' capacity, and keeps a small reserve.
    let messages = rounded(0.66 * capacity(workers, work) * length.as_secs_f64());
    Scene {
        plot: Plot::Weights { heavy: 0, light: 1 },
        title: "weights",
        sentence: "Three tenants have more to do than there are workers. One of them has weight 3: it gets three \
                   times what each of the others gets."
            .to_owned(),
        sides: Side::FAIRNESS,
        tenants: vec![
            tenant("gold ×3", 3, work),
            tenant("basic-1", 1, work),
            tenant("basic-2", 1, work),
        ],
        senders: vec![together(&[(0, messages), (1, messages), (2, messages)])],
        workers,
        unit: Unit::Messages,
        length,
    }
}

/// A tenant with expensive messages, beside others. No tenant runs out of messages.
fn slow(length: Duration) -> Scene {
    let work = Duration::from_millis(15);
    let workers = 48;
    let messages = rounded(capacity(workers, work) / 4.0 * length.as_secs_f64());
    let parts: Vec<(usize, u32)> = (0..4).map(|tenant| (tenant, messages)).collect();
    Scene {
        plot: Plot::Slow { slow: 0, fast: 1 },
        title: "a slow tenant",
        sentence: "All four send alike, but the messages of one take 20 times as long. Shares are counted in workers' \
                   time here (charge: time), so it slows down only itself."
            .to_owned(),
        sides: Side::FAIRNESS,
        tenants: vec![
            tenant("slow", 1, 20 * work),
            tenant("fast-1", 1, work),
            tenant("fast-2", 1, work),
            tenant("fast-3", 1, work),
        ],
        senders: vec![together(&parts)],
        workers,
        unit: Unit::Time,
        length,
    }
}

/// A tenant that was idle and sends many messages at once, beside two that are always busy and one that sends little.
fn burst(length: Duration) -> Scene {
    let work = Duration::from_millis(20);
    let workers = 40;
    let capacity = capacity(workers, work) * length.as_secs_f64();
    let busy = rounded(0.31 * capacity);
    let messages = rounded(0.043 * capacity);
    let at = length.mul_f64(0.25);
    let interval = Duration::from_millis(100);
    Scene {
        plot: Plot::Burst {
            burst: 3,
            steady: 2,
            at,
        },
        title: "a burst",
        sentence: format!(
            "Two tenants are busy, one sends 10 a second. A fourth was idle and now sends {} at once: it gets its \
             share at once, and the tenant that sends little does not notice.",
            crate::units::count(messages.into())
        ),
        sides: Side::FAIRNESS,
        tenants: vec![
            tenant("busy-1", 1, work),
            tenant("busy-2", 1, work),
            tenant("steady", 1, work),
            tenant("burst", 1, work),
        ],
        senders: vec![
            together(&[(0, busy), (1, busy)]),
            drip(2, interval / 2, interval, length.mul_f64(0.6)),
            Sender {
                batches: vec![Batch {
                    at,
                    parts: vec![(3, messages)],
                }],
            },
        ],
        workers,
        unit: Unit::Messages,
        length,
    }
}

/// A tenant that spreads its messages over many keys, beside tenants with one key each. No tenant runs out of messages:
/// without groups the first could use all workers, and with groups each of the four a quarter.
fn split(length: Duration) -> Scene {
    let work = Duration::from_millis(16);
    let workers = 48;
    let keys = 1000;
    let capacity = capacity(workers, work) * length.as_secs_f64();
    let (own, others) = (rounded(capacity), rounded(0.27 * capacity));
    let whole = [1, 2, 3].map(|tenant| (tenant, others));
    Scene {
        plot: Plot::Split { split: 0, whole: 1 },
        title: "a split",
        sentence: format!(
            "Four tenants have more to do than there are workers. One of them, acme, uses {} keys: acme/0000, acme/0001 \
             and so on. Flat, each key has a share; in groups, acme has one share.",
            crate::units::count(keys.into())
        ),
        sides: Side::GROUPS,
        tenants: vec![
            tenant("acme", 1, work).split_into(keys),
            tenant("globex", 1, work),
            tenant("initech", 1, work),
            tenant("hooli", 1, work),
        ],
        senders: vec![together(&[(0, own)]), together(&whole)],
        workers,
        unit: Unit::Messages,
        length,
    }
}

fn tenant(name: &'static str, weight: u32, work: Duration) -> Tenant {
    Tenant {
        name,
        weight,
        work,
        keys: 1,
    }
}

/// Returns how many messages the workers can process in a second, without any overhead.
fn capacity(workers: usize, work: Duration) -> f64 {
    workers as f64 / work.as_secs_f64()
}

/// Rounds a number of messages to one that reads well.
fn rounded(messages: f64) -> u32 {
    let grain = if messages >= 10_000.0 {
        1000.0
    } else if messages >= 1000.0 {
        100.0
    } else {
        10.0
    };
    // This fits into u32 for any accepted length: a minute of 5,000 a second.
    ((messages / grain).round().max(1.0) * grain) as u32
}

/// Returns a sender of messages of each tenant, mixed, at the start.
fn together(parts: &[(usize, u32)]) -> Sender {
    Sender {
        batches: vec![Batch {
            at: Duration::ZERO,
            parts: parts.to_vec(),
        }],
    }
}

/// Returns a sender of single messages at a fixed interval.
fn drip(tenant: usize, first: Duration, interval: Duration, until: Duration) -> Sender {
    let moments = iter::successors(Some(first), |&at| Some(at + interval));
    let moments = moments.take_while(|&at| at == first || at < until);
    Sender {
        batches: moments
            .map(|at| Batch {
                at,
                parts: vec![(tenant, 1)],
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Duration = Duration::from_secs(SECONDS);

    #[test]
    fn scenes_last_as_long_as_was_asked_for() {
        for total in [Duration::from_secs(6), FULL] {
            let together: Duration = scenes(total).iter().map(|scene| scene.length).sum();
            assert!(together.abs_diff(total) < Duration::from_millis(1));
        }
    }

    #[test]
    fn the_flood_is_of_50_000_by_default() {
        let [flood, ..] = scenes(FULL);
        assert_eq!(flood.sends(0), 50_000);
        assert!(flood.sentence.contains("50,000"));
        assert_eq!(flood.sends(1), 46);
    }

    #[test]
    fn the_burst_is_of_1_000_by_default() {
        let [.., burst, _] = scenes(FULL);
        assert_eq!(burst.sends(3), 1000);
        assert!(burst.sentence.contains("1,000"));
    }

    #[test]
    fn nobody_runs_out_of_messages_where_shares_are_compared() {
        for total in [6, 20, SECONDS, 60].map(Duration::from_secs) {
            let [_, weights, slow, _, split] = scenes(total);
            let done = |scene: &Scene| {
                capacity(scene.workers, scene.tenants[1].work) * scene.length.as_secs_f64()
            };
            assert!(weights.sends(0) as f64 > 0.6 * done(&weights));
            assert!(slow.sends(1) as f64 >= 0.97 * 0.25 * done(&slow));
            // The tenant that splits itself could take everything, and each of the others its quarter.
            assert!(split.sends(0) as f64 >= 0.97 * done(&split));
            assert!(split.sends(1) as f64 > 0.25 * done(&split));
        }
    }

    #[test]
    fn a_tenant_that_splits_itself_spreads_its_messages_evenly_over_its_keys() {
        let [.., split] = scenes(FULL);
        let [acme, globex, ..] = &split.tenants[..] else {
            panic!("{:?}", split.tenants);
        };
        let keys: Vec<String> = (0..2000).map(|number| acme.key(number)).collect();
        let distinct: std::collections::BTreeSet<&String> = keys.iter().collect();
        assert_eq!(distinct.len(), 1000);
        assert_eq!(keys[..1000], keys[1000..]);
        assert_eq!(keys[7], "acme/0007");
        assert_eq!(globex.key(7), "globex");
    }

    #[test]
    fn a_batch_takes_turns_among_its_tenants() {
        let batch = Batch {
            at: Duration::ZERO,
            parts: vec![(0, 3), (2, 1), (1, 2)],
        };
        assert_eq!(batch.turns().collect::<Vec<_>>(), [0, 2, 1, 0, 1, 0]);
    }

    #[test]
    fn every_scene_is_within_what_the_screen_can_show() {
        for scene in scenes(FULL) {
            assert!(scene.tenants.len() <= 4);
            assert!(
                scene
                    .tenants
                    .iter()
                    .all(|tenant| tenant.name.chars().count() <= 8)
            );
        }
    }
}
