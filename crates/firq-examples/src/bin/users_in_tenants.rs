//! Users within tenants: a tenant gets one share, however many users it has, and its users share that.
//!
//! ```sh
//! cargo run -p firq-examples --bin users_in_tenants
//! ```
//!
//! You will learn how to
//!
//! - name a request by a path, `acme/alice`, so that it is fair between tenants first and between users second;
//! - take the tenant from a credential and the user from a header, so that no client can leave its tenant;
//! - set the weight of a whole tenant.
//!
//! The scenario: `acme` has forty users that send all the time. Its user `alice` sends from ten connections, the others from
//! one each. `globex` has one user, `dora`, with ten connections. Four requests run at the same time.
//!
//! The scenario runs over loopback with three gates. The key of the first is the user: `acme` then has forty shares of
//! forty-one. The key of the second is the path of the user within the tenant. In the third, `acme` has paid for three times
//! as much.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use firq_examples::{BoxError, Client, Server, Table, Verdict};
use firq_tower::{Firq, FirqLayer, TenantPath};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const IN_FLIGHT_LIMIT: usize = 4;
const WORK: Duration = Duration::from_millis(4);
const SCENE: Duration = Duration::from_millis(1_500);
const USERS: usize = 40;

#[derive(Clone, Copy, Debug)]
enum Gate {
    /// Each user is a tenant of its own.
    Flat,
    /// Users are within tenants.
    Groups,
    /// The same, with a weight of three for `acme`.
    Weighted,
}

fn layer(gate: Gate) -> FirqLayer<Request, TenantPath> {
    let firq = Firq::new().with_in_flight_limit(IN_FLIGHT_LIMIT);
    let firq = match gate {
        // Paths switch groups on by themselves. Strings such as "acme/alice" would need `with_groups(group_by_slash)`, and
        // pairs of a tenant and a route `with_groups(group_by_first)`.
        Gate::Flat => firq.without_groups(),
        Gate::Groups => firq,
        // The name of a group is the path of its members without their last part, and it is set like any tenant.
        Gate::Weighted => firq.with_tenant_weight(tenant_of_credential("key-of-acme"), 3),
    };
    firq.build(user_within_tenant)
}

/// Returns the tenant of a credential. Clients without a valid one share the default tenant, `anonymous`.
///
/// This is what keeps clients within their tenant. If the whole path came from a header, a client could send another
/// tenant's name, or a new one with every request.
fn tenant_of_credential(key: &str) -> TenantPath {
    let name = match key {
        "key-of-acme" => "acme",
        "key-of-globex" => "globex",
        _ => return TenantPath::default(),
    };
    TenantPath::single(name).unwrap_or_default()
}

/// Returns the path of the user that sends a request.
///
/// The client may choose the name of the user at will. `join` refuses a name that is empty, too long, or has a `/` in it;
/// the request then counts as the tenant's own. Whatever a client sends, it stays in its tenant.
fn user_within_tenant(request: &Request) -> TenantPath {
    let header = |name| {
        let value = request.headers().get(name);
        value.and_then(|value| value.to_str().ok()).unwrap_or("")
    };
    let (key, user) = header("X-Client").split_once(' ').unwrap_or_default();
    let tenant = tenant_of_credential(key);
    tenant.join(user).unwrap_or(tenant)
}

fn app(gate: Gate) -> Router {
    Router::new()
        .route("/", get(async || sleep(WORK).await))
        .layer(layer(gate))
}

/// How many requests were served, by tenant and user.
type Served = BTreeMap<String, usize>;

/// Counts the requests of some of the users.
type Count = fn(&Served) -> usize;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    println!(
        "{USERS} users of `acme` and one of `globex`, {IN_FLIGHT_LIMIT} requests at once, the same load on three gates.\n"
    );
    let gates = [Gate::Flat, Gate::Groups, Gate::Weighted];
    let mut runs = Vec::new();
    for gate in gates {
        runs.push(play(gate).await?);
    }
    let mut table = Table::new(["who", "each user", "in tenants", "acme × 3"]);
    let rows: [(&str, Count); 4] = [
        ("acme, all users", acme),
        ("globex dora", dora),
        ("acme alice", alice),
        ("acme, another user", another),
    ];
    for (who, count) in rows {
        let counts = runs.iter().map(|run| count(run).to_string());
        table.row(std::iter::once(who.to_owned()).chain(counts));
    }
    print!("{table}");
    println!("  (requests served in {} s)", SCENE.as_secs_f64());

    let ratio = |run: &Served| acme(run) as f64 / dora(run).max(1) as f64;
    let [flat, groups, weighted] = [0, 1, 2].map(|run| ratio(&runs[run]));
    let mut verdict = Verdict::new();
    verdict.lesson(
        flat > 10.0,
        format!("with a share for each user, `acme` takes {flat:.1} times what `globex` gets"),
    );
    verdict.lesson(
        (0.8..1.25).contains(&groups),
        format!(
            "with users in tenants, `acme` gets {groups:.2} times what `globex` gets (1 is due)"
        ),
    );
    verdict.lesson(
        (2.4..3.6).contains(&weighted),
        format!("with a weight of 3 for all of `acme`, it is {weighted:.2} times (3 are due)"),
    );
    let within = alice(&runs[1]) as f64 / another(&runs[1]).max(1) as f64;
    verdict.lesson(
        (0.5..2.0).contains(&within),
        format!("ten connections give `alice` {within:.2} times what another user of `acme` gets with one"),
    );
    verdict.conclude()
}

fn acme(run: &Served) -> usize {
    let users = run.iter().filter(|(who, _)| who.starts_with("key-of-acme"));
    users.map(|(_, count)| count).sum()
}

fn dora(run: &Served) -> usize {
    run.get("key-of-globex dora").copied().unwrap_or(0)
}

fn alice(run: &Served) -> usize {
    run.get("key-of-acme alice").copied().unwrap_or(0)
}

/// The mean of the users of `acme` beside `alice`.
fn another(run: &Served) -> usize {
    (acme(run) - alice(run)) / (USERS - 1)
}

/// Serves the application on loopback, and sends it the load of all users.
async fn play(gate: Gate) -> Result<Served, BoxError> {
    let server = Server::start(app(gate)).await?;
    let client = Client::new(server.address());
    let end = Instant::now() + SCENE;
    let mut connections = JoinSet::new();
    for _ in 0..10 {
        for who in ["key-of-acme alice", "key-of-globex dora"] {
            connections.spawn(connection(client.clone(), who.to_owned(), end));
        }
    }
    for user in 1..USERS {
        let who = format!("key-of-acme user-{user}");
        connections.spawn(connection(client.clone(), who, end));
    }
    let mut served = Served::new();
    while let Some(connection) = connections.join_next().await {
        let (who, count) = connection??;
        *served.entry(who).or_default() += count;
    }
    server.stop().await?;
    Ok(served)
}

/// Sends one request after the other, and returns how many were served before the end.
async fn connection(
    client: Client,
    who: String,
    end: Instant,
) -> Result<(String, usize), BoxError> {
    let mut served = 0;
    while Instant::now() < end {
        let reply = client.get("/", ("X-Client", &who)).await?;
        if !reply.status.is_success() {
            return Err(format!("{who} was answered {}: {}", reply.status, reply.text).into());
        }
        // Answers after the end would count the connections: each has one request left.
        served += usize::from(Instant::now() < end);
    }
    Ok((who, served))
}
