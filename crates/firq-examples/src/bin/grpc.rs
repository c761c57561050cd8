//! A gRPC server behind the gate.
//!
//! ```sh
//! cargo run -p firq-examples --bin grpc
//! ```
//!
//! You will learn how to
//!
//! - put a [`Firq`] layer in front of a tonic server;
//! - read the tenant from the metadata of a call;
//! - answer refusals as gRPC does ([`GrpcAnswer`]): `RESOURCE_EXHAUSTED`, and when to try again.
//!
//! The scenario: `quiet` makes a call from time to time, first alone, then while `noisy` makes 48 at a time.
//!
//! Look at the refusals: `noisy` gets many; `quiet` gets none, and hardly waits.

use std::net::SocketAddr;
use std::time::Duration;

use firq_examples::{BoxError, Latencies, Table, Verdict, millis};
use firq_tower::{Firq, FirqLayer, GrpcAnswer};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};

use greeter::greeter_client::GreeterClient;
use greeter::greeter_server::{Greeter, GreeterServer};
use greeter::{HelloReply, HelloRequest};

/// The code that `build.rs` generates from `proto/greeter.proto`.
#[expect(unreachable_pub, reason = "generated")]
mod greeter {
    tonic::include_proto!("firq.examples.greeter");
}

const IN_FLIGHT_LIMIT: usize = 4;
const WORK: Duration = Duration::from_millis(10);

/// The service. It knows nothing of tenants or queues.
struct Polite;

#[tonic::async_trait]
impl Greeter for Polite {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        sleep(WORK).await;
        let message = format!("hello, {}", request.into_inner().name);
        Ok(Response::new(HelloReply { message }))
    }
}

/// A call as the layers of a tonic server see it: an HTTP request, whose headers are the metadata.
type HttpRequest = http::Request<tonic::body::Body>;

fn gate() -> FirqLayer<HttpRequest, String, GrpcAnswer> {
    Firq::new()
        .with_in_flight_limit(IN_FLIGHT_LIMIT)
        .with_max_per_tenant(8)
        // Without this, refusals would be JSON with an HTTP status, which gRPC clients cannot read.
        .with_answer(GrpcAnswer)
        .build(|request: &HttpRequest| {
            // A public service should look the tenant up from a credential instead, as `axum_plans` does: a client that names
            // its own tenant can invent as many as it likes.
            let tenant = request.headers().get("x-tenant");
            let tenant = tenant.and_then(|tenant| tenant.to_str().ok());
            tenant.unwrap_or("anonymous").to_owned()
        })
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    println!(
        "A tonic server that runs {IN_FLIGHT_LIMIT} calls at once, and a client in the same process.\n"
    );
    let gate = gate();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(
        Server::builder()
            .layer(gate.clone())
            .add_service(GreeterServer::new(Polite))
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async {
                let _ = stopped.await; // also when this function fails before it says so
            }),
    );

    let alone = calls(
        address,
        "quiet",
        Pace::NowAndThen,
        Duration::from_millis(500),
    )
    .await?;
    let scene = Duration::from_millis(1_500);
    let noisy = tokio::spawn(calls(address, "noisy", Pace::AllAtOnce(48), scene));
    let quiet = calls(address, "quiet", Pace::NowAndThen, scene).await?;
    let noisy = noisy.await??;

    // The gate serves the queued calls and answers new ones with `UNAVAILABLE`. Then the server stops.
    gate.close_drain();
    gate.drained().await;
    let _ = stop.send(()); // a server that has failed does not listen; the next line says why
    serving.await??;

    let mut table = Table::new(["tenant", "calls", "OK", "RESOURCE_EXHAUSTED", "p50", "p99"]);
    for (name, tally) in [
        ("quiet, alone", &alone),
        ("quiet, beside noisy", &quiet),
        ("noisy", &noisy),
    ] {
        table.row([
            name.to_owned(),
            (tally.answered.len() + tally.exhausted).to_string(),
            tally.answered.len().to_string(),
            tally.exhausted.to_string(),
            millis(tally.answered.p50()),
            millis(tally.answered.p99()),
        ]);
    }
    print!("{table}");

    conclude(&alone, &quiet, &noisy)
}

/// Checks what the run showed.
fn conclude(alone: &Tally, quiet: &Tally, noisy: &Tally) -> Result<(), BoxError> {
    let mut verdict = Verdict::new();
    let (before, after) = (alone.answered.p50(), quiet.answered.p50());
    verdict.lesson(
        quiet.exhausted == 0 && after < 3 * before + Duration::from_millis(20),
        format!(
            "`quiet` was never refused, and took {} instead of {}, beside {} calls of `noisy` that were answered",
            millis(after),
            millis(before),
            noisy.answered.len()
        ),
    );
    verdict.lesson(
        noisy.exhausted > 0,
        format!(
            "`noisy` was refused {} times, with `RESOURCE_EXHAUSTED` and up to {} to wait (`grpc-retry-pushback-ms`)",
            noisy.exhausted,
            millis(noisy.pushback_max)
        ),
    );
    verdict.conclude()
}

#[derive(Clone, Copy)]
enum Pace {
    NowAndThen,
    AllAtOnce(usize),
}

/// The results of a tenant.
#[derive(Debug, Default)]
struct Tally {
    answered: Latencies,
    exhausted: usize,
    pushback_max: Duration,
}

/// Makes calls for a while.
async fn calls(
    address: SocketAddr,
    tenant: &'static str,
    pace: Pace,
    time: Duration,
) -> Result<Tally, BoxError> {
    let channel = Channel::from_shared(format!("http://{address}"))?;
    let client = GreeterClient::new(channel.connect().await?);
    let end = Instant::now() + time;
    let (callers, pause) = match pace {
        Pace::NowAndThen => (1, Duration::from_millis(20)),
        Pace::AllAtOnce(callers) => (callers, Duration::ZERO),
    };
    let mut calling = JoinSet::new();
    for _ in 0..callers {
        calling.spawn(caller(client.clone(), tenant, pause, end));
    }
    let mut tally = Tally::default();
    while let Some(caller) = calling.join_next().await {
        let one = caller??;
        tally.answered.merge(one.answered);
        tally.exhausted += one.exhausted;
        tally.pushback_max = tally.pushback_max.max(one.pushback_max);
    }
    Ok(tally)
}

/// Makes one call after the other.
async fn caller(
    mut client: GreeterClient<Channel>,
    tenant: &'static str,
    pause: Duration,
    end: Instant,
) -> Result<Tally, Status> {
    let mut tally = Tally::default();
    while Instant::now() < end {
        let mut request = Request::new(HelloRequest {
            name: tenant.to_owned(),
        });
        let metadata = request.metadata_mut();
        metadata.insert(
            "x-tenant",
            tenant.parse().map_err(|_| Status::internal("not ASCII"))?,
        );
        let begun = Instant::now();
        match client.say_hello(request).await {
            Ok(_) => {
                tally.answered.record(begun.elapsed());
                sleep(pause).await;
            }
            Err(status) if status.code() == Code::ResourceExhausted => {
                tally.exhausted += 1;
                let pushback = pushback(&status).unwrap_or_default();
                tally.pushback_max = tally.pushback_max.max(pushback);
                // At least a moment: the first refusals, before the gate has measured a rate, say 0. And at most the rest of the run.
                let wait = pushback.max(Duration::from_millis(20));
                sleep(wait.min(end.saturating_duration_since(Instant::now()))).await;
            }
            Err(status) => return Err(status),
        }
    }
    Ok(tally)
}

/// Returns how long the server asks the client to wait before it tries again.
fn pushback(status: &Status) -> Option<Duration> {
    let millis = status.metadata().get("grpc-retry-pushback-ms")?;
    Some(Duration::from_millis(millis.to_str().ok()?.parse().ok()?))
}
