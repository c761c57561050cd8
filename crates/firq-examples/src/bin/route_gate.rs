//! A gate with a queue for each route: a tenant's expensive requests must not slow down its own cheap ones.
//!
//! ```sh
//! cargo run -p firq-examples --bin route_gate
//! ```
//!
//! You will learn how to
//!
//! - put a [`Firq`] layer in front of an Axum application;
//! - make the key a pair of tenant and route, so that each tenant has a queue for each route;
//! - declare the cost of a request (`with_cost_extractor`), so that a report is charged more than a ping.
//!
//! The scenario: `acme` requests one `/report` after the other, from many connections, and sends a `/ping` from time to
//! time. `birch` sends few of both. A report takes 40 ms, a ping 2 ms, and four requests may run at the same time.
//!
//! Look at `acme`'s own pings. The scenario runs over loopback with two gates: the key of one is the tenant, the key of the
//! other is the tenant and the route. Neither lets `acme` delay `birch`.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::routing::get;
use firq_examples::{BoxError, Client, Latencies, Server, Table, Verdict, millis};
use firq_tower::{Firq, FirqLayer};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const IN_FLIGHT_LIMIT: usize = 4;
const REPORT: Duration = Duration::from_millis(40);
const PING: Duration = Duration::from_millis(2);
const SCENE: Duration = Duration::from_millis(1_200);

/// The key: its values compete with each other. Any `Hash + Eq + Clone` type will do.
type Key = (String, String);

#[derive(Clone, Copy, Debug)]
enum Gate {
    PerTenant,
    PerRoute,
}

/// Returns the layer. The application needs nothing else.
fn layer(gate: Gate) -> FirqLayer<Request, Key> {
    Firq::new()
        .with_in_flight_limit(IN_FLIGHT_LIMIT)
        .with_max_per_tenant(100)
        // In units of your choice; here an estimate in milliseconds. If you cannot estimate the cost of a request, leave
        // this out and use `with_settle_by_elapsed`: the gate then charges its duration.
        .with_cost_extractor(|request: &Request| match route(request) {
            "/report/{id}" => 40,
            _ => 2,
        })
        .build(move |request: &Request| {
            let route = match gate {
                Gate::PerTenant => "any",
                Gate::PerRoute => route(request),
            };
            (tenant(request).to_owned(), route.to_owned())
        })
}

/// Returns the route that a request has matched, as the router declares it.
///
/// The path would be wrong: there are as many paths as reports, and a tenant with that many keys would have that many
/// shares. A key must be something that clients cannot invent.
fn route(request: &Request) -> &str {
    let matched = request.extensions().get::<MatchedPath>();
    matched.map_or("unknown", MatchedPath::as_str)
}

/// Returns the tenant of a request. A real service would look it up from a credential, as `axum_plans` does, for the same
/// reason.
fn tenant(request: &Request) -> &str {
    let header = request.headers().get("X-Tenant");
    header.and_then(|name| name.to_str().ok()).unwrap_or("-")
}

fn app(gate: Gate) -> Router {
    Router::new()
        .route("/report/{id}", get(async || sleep(REPORT).await))
        .route("/ping", get(async || sleep(PING).await))
        // A layer of a router runs after routing, so it sees the matched route. Refusals are responses already (429 and
        // 503, with a JSON body and `Retry-After`), so there is nothing to map.
        .layer(layer(gate))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    println!(
        "2 tenants, 2 routes, {IN_FLIGHT_LIMIT} requests at once, the same load on two gates.\n"
    );
    let per_tenant = play(Gate::PerTenant).await?;
    let per_route = play(Gate::PerRoute).await?;

    let mut table = Table::new([
        "who",
        "requests",
        "p50, per tenant",
        "p50, per route",
        "p99, per tenant",
        "p99, per route",
    ]);
    for (who, fast) in &per_route {
        let slow = &per_tenant[who];
        table.row([
            (*who).to_owned(),
            fast.len().to_string(),
            millis(slow.p50()),
            millis(fast.p50()),
            millis(slow.p99()),
            millis(fast.p99()),
        ]);
    }
    print!("{table}");
    println!("  (per tenant: the key is the tenant; per route: it is the tenant and the route)");

    let mut verdict = Verdict::new();
    let own = |run: &Run| run["acme /ping"].p50();
    verdict.lesson(
        own(&per_route) < own(&per_tenant) / 2,
        format!(
            "`acme`'s pings take {} with a queue for each route, and {} behind `acme`'s own reports",
            millis(own(&per_route)),
            millis(own(&per_tenant))
        ),
    );
    let others = |run: &Run| run["birch /ping"].p50();
    verdict.lesson(
        others(&per_tenant) < own(&per_tenant) / 2,
        format!(
            "`birch`'s pings do not wait for `acme` with either gate: {} and {}",
            millis(others(&per_tenant)),
            millis(others(&per_route))
        ),
    );
    println!(
        "\n  A key for each route is also a share for each route: a tenant that uses two has two. If that is not wanted,\n  \
         add `with_groups(group_by_first)`: the routes of a tenant then share what the tenant gets."
    );
    verdict.conclude()
}

/// How long requests took, by tenant and route.
type Run = BTreeMap<&'static str, Latencies>;

/// Serves the application on loopback, and sends it the load of the tenants.
async fn play(gate: Gate) -> Result<Run, BoxError> {
    let server = Server::start(app(gate)).await?;
    let client = Client::new(server.address());
    let end = Instant::now() + SCENE;

    // Each connection sends a request, waits for the answer, pauses, and sends the next.
    let pause = Duration::from_millis(10);
    let mut connections = JoinSet::new();
    for number in 0..24 {
        let path = format!("/report/{number}");
        connections.spawn(connection(
            client.clone(),
            "acme /report",
            path,
            Duration::ZERO,
            end,
        ));
    }
    for (who, path) in [
        ("acme /ping", "/ping"),
        ("birch /ping", "/ping"),
        ("birch /report", "/report/1"),
    ] {
        connections.spawn(connection(client.clone(), who, path.to_owned(), pause, end));
    }

    let mut run = Run::new();
    while let Some(connection) = connections.join_next().await {
        let (who, latencies) = connection??;
        let all = run.entry(who).or_default();
        latencies
            .into_iter()
            .for_each(|latency| all.record(latency));
    }
    server.stop().await?;
    Ok(run)
}

async fn connection(
    client: Client,
    who: &'static str,
    path: String,
    pause: Duration,
    end: Instant,
) -> Result<(&'static str, Vec<Duration>), BoxError> {
    let tenant = who.split(' ').next().unwrap_or_default();
    let mut latencies = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        let reply = client.get(&path, ("X-Tenant", tenant)).await?;
        if !reply.status.is_success() {
            return Err(format!("{who} was answered {}: {}", reply.status, reply.text).into());
        }
        latencies.push(begun.elapsed());
        sleep(pause).await;
    }
    Ok((who, latencies))
}
