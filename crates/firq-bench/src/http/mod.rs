//! An Axum server on loopback under load: without a layer, behind Tower's `ConcurrencyLimit`, behind the published layer of
//! the same name, and behind the layer of this repository.
//!
//! Clients and servers share the machine, so the same clients load each server in turn.

mod client;
mod downstream;
mod server;

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::report::{Cell, Report};
use crate::{Effort, Results};
use client::{Connection, Reply};
use lab::{Bar, BarChart, BarGroup, Latencies, Range, Scale};
use server::{Layer, Server, Setup};

const HOT: u64 = 0;

pub(crate) fn run(effort: Effort) -> Results {
    let clients = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be had");
    let bench = Bench { clients, effort };
    let (neighbour, chart) = bench.neighbour();
    Results {
        reports: vec![
            bench.throughput(),
            neighbour,
            bench.overload(),
            bench.retries(),
        ],
        chart: Some(chart),
    }
}

/// The clients' side.
#[derive(Debug)]
struct Bench {
    clients: Runtime,
    effort: Effort,
}

/// The results of one tenant's connections.
#[derive(Debug, Default)]
struct Got {
    tenant: u64,
    replies: Vec<Reply>,
}

impl Got {
    fn served(&self) -> usize {
        let served = self.replies.iter().filter(|reply| reply.status == 200);
        served.count()
    }

    /// Returns a percentile of the duration of successful requests.
    fn latency(&self, part: f64) -> Duration {
        let served = self.replies.iter().filter(|reply| reply.status == 200);
        let took: Latencies = served.map(|reply| reply.took).collect();
        took.percentile(part)
    }
}

/// The results of a quiet tenant in one round, and the throughput of the noisy one.
#[derive(Debug)]
struct Neighbours {
    alone: Duration,
    p50: Duration,
    p99: Duration,
    noisy: f64,
}

/// Sends one request after the other until `end`, with a pause between. Replies before `warm` do not count.
async fn keep_asking(
    mut connection: Connection,
    tenant: u64,
    pause: Duration,
    (warm, end): (Instant, Instant),
) -> Got {
    let mut replies = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        let reply = connection.get().await.expect("the server answers");
        if begun >= warm {
            replies.push(reply);
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    Got { tenant, replies }
}

impl Bench {
    fn time(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(match self.effort {
            Effort::Full => seconds,
            Effort::Quick => 0.2,
        })
    }

    fn rounds(&self) -> usize {
        match self.effort {
            Effort::Full => 5,
            Effort::Quick => 1,
        }
    }

    /// Loads a server for a while. Each tenant has a number of connections and a pause after each request. Returns the results
    /// of each tenant.
    fn load(
        &self,
        server: &Server,
        tenants: &[(u64, usize, Duration)],
        time: Duration,
    ) -> Vec<Got> {
        self.clients.block_on(async {
            tokio::time::sleep(time / 10).await; // the previous load ends meanwhile
            let mut ready = Vec::new();
            for &(tenant, count, pause) in tenants {
                for _ in 0..count {
                    ready.push((open(server, tenant).await, tenant, pause));
                }
            }
            let warm = Instant::now() + time / 5;
            let times = (warm, warm + time);
            let mut connections = JoinSet::new();
            for (connection, tenant, pause) in ready {
                connections.spawn(keep_asking(connection, tenant, pause, times));
            }
            let mut got: Vec<Got> = Vec::new();
            while let Some(one) = connections.join_next().await {
                let one = one.expect("no panics");
                match got.iter_mut().find(|got| got.tenant == one.tenant) {
                    Some(got) => got.replies.extend(one.replies),
                    None => got.push(one),
                }
            }
            got.sort_unstable_by_key(|got| got.tenant);
            got
        })
    }

    fn throughput(&self) -> Report {
        let setup = Setup {
            in_flight: 128,
            max_per_tenant: 1_000,
            max_global: 10_000,
            work: Duration::ZERO,
        };
        let time = self.time(2.0);
        let tenants: Vec<_> = (0..16).map(|tenant| (tenant, 4, Duration::ZERO)).collect();
        let servers = Layer::ALL.map(|layer| start(layer, setup));
        let mut best = [(0.0_f64, Duration::ZERO, Duration::ZERO); 4];
        for _ in 0..self.rounds() {
            for (server, best) in servers.iter().zip(&mut best) {
                let got = self.load(server, &tenants, time);
                let all = Got {
                    tenant: 0,
                    replies: got.into_iter().flat_map(|got| got.replies).collect(),
                };
                let rate = all.served() as f64 / time.as_secs_f64();
                if rate > best.0 {
                    *best = (rate, all.latency(0.5), all.latency(0.99));
                }
            }
        }
        let limit = best[1].0;
        let rows = Layer::ALL
            .into_iter()
            .zip(best)
            .map(|(layer, (rate, p50, p99))| {
                vec![
                    Cell::text(layer.name()),
                    Cell::Number(rate, 0),
                    millis(p50),
                    millis(p99),
                    Cell::Number(rate / best[0].0, 2),
                    Cell::Number(rate / limit, 2),
                ]
            });
        Report {
            title: "HTTP: a server that is fast enough".to_owned(),
            note: "64 connections of 16 tenants, one request after the other, 128 in flight allowed, a handler that \
                   says hello. Best of alternating rounds; waits in ms. Wanted: at least 0.85× ConcurrencyLimit.",
            columns: vec![
                "server",
                "requests/s",
                "p50",
                "p99",
                "÷ bare",
                "÷ ConcurrencyLimit",
            ],
            rows: rows.collect(),
        }
    }

    fn neighbour(&self) -> (Report, BarChart) {
        let setup = Setup {
            in_flight: 8,
            max_per_tenant: 1_000,
            max_global: 10_000,
            work: Duration::from_millis(1),
        };
        let time = self.time(3.0);
        let pause = Duration::from_millis(2);
        let quiet: Vec<_> = (1..=5).map(|tenant| (tenant, 1, pause)).collect();
        let noisy = (HOT, 256, Duration::ZERO);
        let servers = Layer::ALL.map(|layer| start(layer, setup));
        let mut rounds: [Vec<Neighbours>; 4] = Default::default();
        for _ in 0..self.rounds() {
            for (server, rounds) in servers.iter().zip(&mut rounds) {
                let alone = self.load(server, &quiet[..1], time / 2);
                let beside = self.load(server, &[noisy, quiet[0]], time);
                rounds.push(Neighbours {
                    alone: alone[0].latency(0.99),
                    p50: beside[1].latency(0.5),
                    p99: beside[1].latency(0.99),
                    noisy: beside[0].served() as f64 / time.as_secs_f64(),
                });
            }
        }
        let mut groups = Vec::new();
        for (layer, server) in Layer::ALL.into_iter().zip(&servers) {
            if layer != Layer::Bare {
                let tenants: Vec<_> = [noisy].into_iter().chain(quiet.clone()).collect();
                let got = self.load(server, &tenants, time);
                groups.push(BarGroup {
                    title: layer.name().to_owned(),
                    scale: Scale::Logarithmic,
                    bars: got.iter().map(bar).collect(),
                });
            }
        }
        let title =
            "p99 of each tenant, on a logarithmic scale: one has 256 connections, five have one";
        let chart = BarChart {
            title: title.to_owned(),
            range: Range::Chart,
            groups,
        };
        (neighbour_report(&rounds), chart)
    }

    fn overload(&self) -> Report {
        let setup = Setup {
            in_flight: 8,
            max_per_tenant: 100,
            max_global: 1_000,
            work: Duration::from_millis(10),
        };
        let time = self.time(10.0);
        // Refused requests are answered at once, so the 400 connections of the noisy tenant, each with a pause of
        // 40 ms, ask almost 10,000 times a second.
        let quiet: Vec<_> = (1..=20)
            .map(|tenant| (tenant, 1, Duration::from_millis(88)))
            .collect();
        let flood = [(HOT, 400, Duration::from_millis(40))];
        let mut rows = Vec::new();
        for layer in [Layer::ConcurrencyLimit, Layer::Rival, Layer::Ours] {
            let server = start(layer, setup);
            let busy = self.load(&server, &[(1, 32, Duration::ZERO)], time / 4);
            let capacity = merge(&busy, 1..=1).served() as f64 / (time / 4).as_secs_f64();
            let alone = merge(&self.load(&server, &quiet, time / 2), 1..=20);
            let tenants: Vec<_> = flood.iter().chain(&quiet).copied().collect();
            let got = self.load(&server, &tenants, time);
            let (noisy, quiet) = (merge(&got, HOT..=HOT), merge(&got, 1..=20));
            let share = |got: &Got| got.served() as f64 / got.replies.len().max(1) as f64;
            let served = (noisy.served() + quiet.served()) as f64 / time.as_secs_f64();
            rows.push(vec![
                Cell::text(layer.name()),
                Cell::Number(
                    noisy.replies.len() as f64 / time.as_secs_f64() / capacity,
                    1,
                ),
                Cell::Number(100.0 * share(&quiet), 2),
                millis(alone.latency(0.99)),
                millis(quiet.latency(0.99)),
                Cell::Number(
                    quiet.latency(0.99).as_secs_f64() / alone.latency(0.99).as_secs_f64(),
                    2,
                ),
                Cell::Number(served / capacity, 3),
            ]);
        }
        Report {
            title: "HTTP: overload".to_owned(),
            note: "One tenant asks about ten times as often as the server can answer (if it is refused; if it is not, \
                   its 400 connections wait), 20 quiet ones ten times a second each; the handler waits for 10 ms, 8 in \
                   flight. Waits in ms, capacity measured in the same run. Wanted: quiet success 99.9 %, quiet p99 at \
                   most 2× alone, goodput 0.95.",
            columns: vec![
                "server",
                "noisy sent ÷ capacity",
                "quiet success %",
                "quiet p99 alone",
                "quiet p99",
                "p99 ÷ alone",
                "goodput ÷ capacity",
            ],
            rows,
        }
    }

    fn retries(&self) -> Report {
        let setup = Setup {
            in_flight: 8,
            max_per_tenant: 32,
            max_global: 1_000,
            work: Duration::from_millis(5),
        };
        let (seconds, clients) = match self.effort {
            Effort::Full => (30.0, 160),
            Effort::Quick => (0.2, 60),
        };
        let server = start(Layer::Ours, setup);
        let (outcomes, begun) = self.clients.block_on(async {
            let mut ready = Vec::new();
            for _ in 0..clients {
                ready.push(open(&server, 1).await);
            }
            let begun = Instant::now();
            let warm = begun + Duration::from_secs_f64(seconds / 4.0);
            let end = begun + Duration::from_secs_f64(seconds);
            let mut polite = JoinSet::new();
            for connection in ready {
                polite.spawn(come_back(connection, warm, end));
            }
            (polite.join_all().await, begun)
        });
        let retried: usize = outcomes.iter().map(|(retried, _)| retried).sum();
        let succeeded: usize = outcomes.iter().map(|(_, succeeded)| succeeded).sum();
        Report {
            title: "HTTP: clients that come back when they are told".to_owned(),
            note: "160 connections of one tenant, 5 ms of work, 8 in flight and 32 queued: four times as many as there is \
                   room for. Each asks again as soon as it is answered, and waits for Retry-After when it is refused. \
                   Wanted: 90 % of first retries succeed.",
            columns: vec![
                "server",
                "refused and retried",
                "first retries served %",
                "served/s",
            ],
            rows: vec![vec![
                Cell::text(Layer::Ours.name()),
                Cell::count(retried),
                match retried {
                    0 => Cell::None,
                    _ => Cell::Number(100.0 * succeeded as f64 / retried as f64, 1),
                },
                Cell::Number(server.served() as f64 / begun.elapsed().as_secs_f64(), 0),
            ]],
        }
    }
}

fn neighbour_report(rounds: &[Vec<Neighbours>; 4]) -> Report {
    let rows = Layer::ALL.into_iter().zip(rounds).map(|(layer, rounds)| {
        let median = |read: fn(&Neighbours) -> Duration| {
            let values: Latencies = rounds.iter().map(read).collect();
            values.p50()
        };
        let (alone, p99) = (median(|round| round.alone), median(|round| round.p99));
        let noisiest = rounds.iter().map(|round| round.noisy).fold(0.0, f64::max);
        vec![
            Cell::text(layer.name()),
            millis(alone),
            millis(median(|round| round.p50)),
            millis(p99),
            Cell::Number(p99.as_secs_f64() / alone.as_secs_f64(), 2),
            Cell::Number(noisiest, 0),
        ]
    });
    Report {
        title: "HTTP: a noisy neighbour".to_owned(),
        note: "256 connections of one tenant that ask without a pause, and one of another that asks every 3 ms; the \
               handler waits for 1 ms, 8 in flight (Axum alone has no limit, and so no queue). Waits in ms, the \
               median of alternating rounds. Wanted: quiet p99 at most 2× alone.",
        columns: vec![
            "server",
            "quiet p99 alone",
            "quiet p50",
            "quiet p99",
            "p99 ÷ alone",
            "noisy served/s",
        ],
        rows: rows.collect(),
    }
}

/// Sends requests until `end`, and obeys `Retry-After`. Returns how many requests were retried after `warm`, and how many
/// of these succeeded at the first retry.
async fn come_back(mut connection: Connection, warm: Instant, end: Instant) -> (usize, usize) {
    let (mut retried, mut succeeded) = (0, 0);
    let mut was_refused = false;
    while Instant::now() < end {
        let reply = connection.get().await.expect("the server answers");
        if std::mem::take(&mut was_refused) {
            if Instant::now() >= warm {
                retried += 1;
                succeeded += usize::from(reply.status == 200);
            }
        } else {
            was_refused = reply.status != 200;
        }
        if let Some(seconds) = reply.retry_after {
            let until = (Instant::now() + Duration::from_secs(seconds)).min(end);
            tokio::time::sleep_until(until.into()).await;
        }
    }
    (retried, succeeded)
}

/// Opens connections one after the other: an overloaded listener drops some, and they try again only after a second.
async fn open(server: &Server, tenant: u64) -> Connection {
    let connection = Connection::open(server.address, tenant).await;
    connection.expect("the server is there")
}

fn start(layer: Layer, setup: Setup) -> Server {
    Server::start(layer, setup).expect("a port of loopback can be had")
}

/// Returns the combined results of some tenants.
fn merge(got: &[Got], tenants: std::ops::RangeInclusive<u64>) -> Got {
    let some = got.iter().filter(|got| tenants.contains(&got.tenant));
    Got {
        tenant: *tenants.start(),
        replies: some.flat_map(|got| got.replies.iter().copied()).collect(),
    }
}

fn bar(got: &Got) -> Bar {
    let is_noisy = got.tenant == HOT;
    let p99 = got.latency(0.99);
    Bar {
        label: if is_noisy {
            "noisy, 256 connections".to_owned()
        } else {
            format!("quiet {}", got.tenant)
        },
        value: p99.as_secs_f64(),
        shown: lab::millis(p99),
        is_highlighted: !is_noisy,
    }
}

fn millis(time: Duration) -> Cell {
    Cell::Number(time.as_secs_f64() * 1e3, 2)
}
