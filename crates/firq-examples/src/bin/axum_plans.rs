//! An API with plans: a customer that pays more gets more, and every customer gets something.
//!
//! ```sh
//! cargo run -p firq-examples --bin axum_plans
//! ```
//!
//! You will learn how to
//!
//! - identify the tenant of a request *before* the gate, from a credential, so that clients cannot invent tenants;
//! - give tenants shares by their plan (`with_weights`);
//! - read a refusal and come back when it says (`Retry-After`);
//! - show the gate's numbers at `/metrics`;
//! - shut down so that every accepted request is answered (`close_drain`, `drained`).
//!
//! The scenario: four accounts want more than they can have. Two are on the free plan, with weight 1, one is on `pro`, with
//! weight 3, and one on `enterprise`, with weight 9. The free ones have the most connections.
//!
//! Look at `served/s`: it follows the weights, not the connections. Refused clients that obey `Retry-After` find room.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use firq_examples::{BoxError, Client, Latencies, Reply, Server, Table, Verdict, millis};
use firq_tower::{Cause, Firq, FirqLayer, FirqStats};
use http::StatusCode;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// How many requests run at the same time: the capacity of the database behind the API.
const IN_FLIGHT_LIMIT: usize = 8;
/// How long a request runs.
const WORK: Duration = Duration::from_millis(6);
/// The duration of the load, and how long it takes until all connections are open.
const SCENE: Duration = Duration::from_millis(3_500);
const WARM_UP: Duration = Duration::from_millis(800);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Plan {
    Free,
    Pro,
    Enterprise,
}

impl Plan {
    /// Returns the weight of the plan. If both want more than they get, an account of weight 3 is served three times as
    /// much as one of weight 1. If only one account sends requests, it gets everything, whatever its weight.
    const fn weight(self) -> u32 {
        match self {
            Self::Free => 1,
            Self::Pro => 3,
            Self::Enterprise => 9,
        }
    }
}

/// The tenant. Only [`authenticate`] creates it, so there are no more tenants than customers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Account {
    name: &'static str,
    plan: Plan,
}

/// The name of the account in `/metrics`.
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The accounts, with their API keys and their numbers of connections.
const ACCOUNTS: [(&str, Account, usize); 4] = [
    ("key-1", account("hobby", Plan::Free), 32),
    ("key-2", account("student", Plan::Free), 32),
    ("key-3", account("studio", Plan::Pro), 16),
    ("key-4", account("bank", Plan::Enterprise), 16),
];

const fn account(name: &'static str, plan: Plan) -> Account {
    Account { name, plan }
}

/// Identifies the account of a request, or refuses the request.
///
/// This runs before the gate: a request without an account gets no queue and takes no room in one. (A real service stores
/// hashes of its keys, and compares them in constant time.)
async fn authenticate(mut request: Request, next: Next) -> Response {
    let key = request.headers().get("X-Api-Key");
    let account = ACCOUNTS
        .iter()
        .find(|(known, ..)| key.is_some_and(|key| key == known));
    match account {
        Some(&(_, account, _)) => {
            request.extensions_mut().insert(account);
            next.run(request).await
        }
        None => (StatusCode::UNAUTHORIZED, "unknown API key\n").into_response(),
    }
}

fn gate() -> FirqLayer<Request, Account> {
    Firq::new()
        .with_in_flight_limit(IN_FLIGHT_LIMIT)
        // The service rate times the longest useful wait: a longer queue only delays the refusals.
        .with_max_per_tenant(16)
        // The layer asks once for each account. `FirqLayer::set_tenant_weight` changes a weight at run time, for example
        // when a customer upgrades.
        .with_weights(|account: &Account| account.plan.weight())
        .build(|request: &Request| {
            let account = request.extensions().get::<Account>();
            *account.expect("the layer outside of this one has authenticated the request")
        })
}

fn app(gate: &FirqLayer<Request, Account>) -> Router {
    Router::new()
        .route("/quote", get(quote))
        // Layers run from the last to the first: authentication, then the gate, then the handler.
        .layer(gate.clone())
        .layer(middleware::from_fn(authenticate))
        // Added after the layers, so it needs neither a turn nor a key. In production, serve it on another port.
        .route_service("/metrics", gate.metrics_service())
}

async fn quote(Extension(account): Extension<Account>) -> String {
    sleep(WORK).await;
    format!("a quote for {account}\n")
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    println!(
        "4 accounts, {IN_FLIGHT_LIMIT} requests at once, and for a while more load than that.\n"
    );
    let gate = gate();
    let server = Server::start(app(&gate)).await?;
    let client = Client::new(server.address());

    let stranger = client.get("/quote", ("X-Api-Key", "guess")).await?;
    let end = Instant::now() + SCENE;
    let mut connections = JoinSet::new();
    for (key, account, count) in ACCOUNTS {
        for number in 0..count {
            let client = client.clone();
            // Connections open one after the other, as in production.
            let begin = Instant::now() + WARM_UP / count as u32 * number as u32;
            connections.spawn(async move {
                sleep_until(begin).await;
                (account.name, connection(client, key, end).await)
            });
        }
    }

    sleep_until(end).await;
    let metrics = client.get("/metrics", ("Accept", "text/plain")).await?;
    let at_close = gate.stats();

    // Shut down while requests are queued and more arrive. From here on the gate answers new requests with 503, `closed`,
    // so that a load balancer sends them elsewhere. It still serves the queued ones.
    gate.close_drain();
    gate.drained().await;
    // No request is queued or running any more, so the server stops quickly.
    let answers = connections.join_all().await;
    server.stop().await?;

    let mut tallies = BTreeMap::<&str, Tally>::new();
    for (name, tally) in answers {
        tallies.entry(name).or_default().add(tally?);
    }
    print_tallies(&tallies);
    println!("\nFrom /metrics, before shutting down:\n");
    let shown = ["firq_in_flight", "firq_queue_len", "firq_requests_refused"];
    for line in metrics.text.lines() {
        if shown.iter().any(|name| line.starts_with(name)) {
            println!("  {line}");
        }
    }

    conclude(&tallies, &stranger, &at_close, &gate.stats())
}

/// Checks what the run showed.
fn conclude(
    tallies: &BTreeMap<&str, Tally>,
    stranger: &Reply,
    at_close: &FirqStats<Account>,
    at_end: &FirqStats<Account>,
) -> Result<(), BoxError> {
    let mut verdict = Verdict::new();
    let rate = |name| tallies[name].served_per_second();
    let (free, pro, enterprise) = (
        f64::midpoint(rate("hobby"), rate("student")),
        rate("studio"),
        rate("bank"),
    );
    verdict.lesson(
        pro > 1.5 * free && enterprise > 1.5 * pro,
        format!(
            "an account on `pro` gets {:.1} times, one on `enterprise` {:.1} times what one on `free` gets (3 and 9 \
             are due)",
            pro / free,
            enterprise / free
        ),
    );
    let sum = |field: fn(&Tally) -> usize| tallies.values().map(field).sum::<usize>();
    let (refused, returned, found_room) = (
        sum(|tally| tally.refused),
        sum(|tally| tally.returned),
        sum(|tally| tally.found_room),
    );
    verdict.lesson(
        refused > 0 && found_room * 2 >= returned,
        format!(
            "{refused} requests were refused with a `Retry-After`; of the {returned} that came back within this run, \
             {found_room} found room"
        ),
    );
    let (waiting, closed) = (
        at_close.queue.queue_len_estimate + at_close.in_flight_active,
        sum(|tally| tally.closed),
    );
    let served: usize = sum(|tally| tally.served.len());
    verdict.lesson(
        at_end.queue.dequeued == served as u64 && closed > 0,
        format!(
            "at shutdown {waiting} requests were queued or running, and all were answered; {closed} that came later \
             were told `{}`",
            Cause::Closed.as_str()
        ),
    );
    verdict.lesson(
        stranger.status == StatusCode::UNAUTHORIZED,
        "a key that no account has is answered 401 and never reaches the queue",
    );
    verdict.conclude()
}

/// The results of an account's connections.
#[derive(Debug, Default)]
struct Tally {
    served: Latencies,
    /// The requests served while every account wanted more than it got. Shares have a meaning only then.
    contended: usize,
    refused: usize,
    /// Requests that the client sent again after `Retry-After`.
    returned: usize,
    /// The number of those that found room.
    found_room: usize,
    closed: usize,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.served.merge(other.served);
        self.contended += other.contended;
        self.refused += other.refused;
        self.returned += other.returned;
        self.found_room += other.found_room;
        self.closed += other.closed;
    }

    fn served_per_second(&self) -> f64 {
        self.contended as f64 / (SCENE - WARM_UP).as_secs_f64()
    }
}

/// A well-behaved client: it sends one request after the other, and obeys `Retry-After`.
async fn connection(client: Client, key: &'static str, end: Instant) -> Result<Tally, BoxError> {
    let mut tally = Tally::default();
    let mut is_return = false;
    loop {
        let begun = Instant::now();
        let reply = client.get("/quote", ("X-Api-Key", key)).await?;
        tally.returned += usize::from(is_return);
        match (reply.status, reply.retry_after()) {
            (StatusCode::OK, _) => {
                tally.found_room += usize::from(is_return);
                tally.served.record(begun.elapsed());
                let contended = end + WARM_UP - SCENE..end;
                tally.contended += usize::from(contended.contains(&Instant::now()));
                is_return = false;
            }
            // 429 if the tenant has too many requests queued, 503 if all tenants together have.
            (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, Some(wait)) => {
                tally.refused += 1;
                if Instant::now() + wait >= end {
                    return Ok(tally); // the example ends before then
                }
                sleep(wait).await;
                is_return = true;
            }
            // The server is shutting down, so a retry would not help.
            (StatusCode::SERVICE_UNAVAILABLE, None) => {
                tally.closed += 1;
                return Ok(tally);
            }
            (status, _) => return Err(format!("{status}: {}", reply.text).into()),
        }
    }
}

fn print_tallies(tallies: &BTreeMap<&str, Tally>) {
    let mut table = Table::new([
        "account",
        "plan",
        "weight",
        "connections",
        "served/s",
        "p50",
        "p99",
        "refused",
        "came back",
        "found room",
    ]);
    for (_, account, connections) in ACCOUNTS {
        let tally = &tallies[account.name];
        table.row([
            account.name.to_owned(),
            format!("{:?}", account.plan).to_lowercase(),
            account.plan.weight().to_string(),
            connections.to_string(),
            format!("{:.0}", tally.served_per_second()),
            millis(tally.served.p50()),
            millis(tally.served.p99()),
            tally.refused.to_string(),
            tally.returned.to_string(),
            tally.found_room.to_string(),
        ]);
    }
    print!("{table}");
}
