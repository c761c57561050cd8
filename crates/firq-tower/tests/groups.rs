//! Tenants in groups: fair between tenants, and then between the users or the routes of each.
#![cfg(test)] // helpers may unwrap, as tests do

mod common;

use std::convert::Infallible;
use std::time::Duration;

use common::*;
use firq_tower::{
    Cause, EnqueueRejectReason, ErrorAnswer, Firq, FirqLayer, GrpcAnswer, TenantPath,
    group_by_first, group_by_slash,
};
use http::header::{HeaderValue, RETRY_AFTER};
use http::{Request, Response};
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);

/// The user of a request is its id, within its tenant.
fn user_of(req: &Req) -> TenantPath {
    path(&format!("{}/{}", req.tenant, req.id))
}

fn path(text: &str) -> TenantPath {
    TenantPath::parse(text).unwrap()
}

fn by_path() -> Firq<TenantPath, firq_tower::NoExtractors, ErrorAnswer> {
    Firq::new().with_in_flight_limit(4).with_answer(ErrorAnswer)
}

/// Keeps a client of a user sending one request after the other until `end`.
fn keep_sending(service: &impl TestService, req: Req, end: Instant) {
    let service = service.clone();
    tokio::spawn(async move {
        while Instant::now() < end {
            if service.clone().oneshot(req).await.is_err() {
                tokio::time::sleep(MILLI).await;
            }
        }
    });
}

/// Lets a hundred users of tenant 1 compete with one user of tenant 2 for a second, and returns how many requests of the
/// first were served for each of the second.
async fn a_hundred_to_one<K: firq_tower::Tenant>(layer: FirqLayer<Req, K, ErrorAnswer>) -> f64 {
    let timed = Timed::default();
    let service = layer.layer(timed.clone());
    let end = Instant::now() + SECOND;
    for user in 0..100 {
        keep_sending(&service, Req::of(1).id(user), end);
        if user < 10 {
            keep_sending(&service, Req::of(2), end);
        }
    }
    tokio::time::sleep_until(end).await;
    timed.of(1) as f64 / timed.of(2) as f64
}

#[tokio::test(start_paused = true)]
async fn a_tenant_with_a_hundred_users_gets_what_a_tenant_with_one_gets() {
    let names = |req: &Req| (req.tenant.to_string(), req.id.to_string());
    let by_pair = Firq::new()
        .with_in_flight_limit(4)
        .with_answer(ErrorAnswer)
        .with_groups(group_by_first);
    let by_text = Firq::new()
        .with_in_flight_limit(4)
        .with_answer(ErrorAnswer)
        .with_groups(group_by_slash);
    let ratios = [
        a_hundred_to_one(by_path().build(user_of)).await,
        a_hundred_to_one(by_pair.build(names)).await,
        a_hundred_to_one(by_text.build(|req: &Req| format!("{}/{}", req.tenant, req.id))).await,
    ];
    for ratio in ratios {
        assert!((0.98..1.02).contains(&ratio), "{ratios:?}");
    }
    let flat = a_hundred_to_one(by_path().without_groups().build(user_of)).await;
    assert!(flat > 20.0, "without groups each user has a share: {flat}");
}

/// Returns how many requests each of the users was served in a second, where each keeps some clients busy.
async fn contest(
    layer: &FirqLayer<Req, TenantPath, ErrorAnswer>,
    users: &[(Req, usize)],
) -> Vec<usize> {
    let timed = Timed::default();
    let service = layer.layer(timed.clone());
    let end = Instant::now() + SECOND;
    for &(req, clients) in users {
        for _ in 0..clients {
            keep_sending(&service, req, end);
        }
    }
    tokio::time::sleep_until(end).await;
    let begun = timed.begun.lock().unwrap();
    let of = |&(user, _): &(Req, usize)| {
        let is_its = |req: &&Req| (req.tenant, req.id) == (user.tenant, user.id);
        begun.iter().filter(is_its).count()
    };
    users.iter().map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn the_users_of_a_tenant_are_served_equally_however_much_each_sends() {
    let users = [
        (Req::of(1).id(1), 60),
        (Req::of(1).id(2), 10),
        (Req::of(2).id(1), 20),
    ];
    let served = contest(&by_path().build(user_of), &users).await;
    let [loud, quiet, other] = served[..] else {
        panic!("{served:?}");
    };
    assert!(loud.abs_diff(quiet) <= loud / 25, "{served:?}");
    assert!((loud + quiet).abs_diff(other) <= other / 25, "{served:?}");
}

#[tokio::test(start_paused = true)]
async fn the_weight_of_a_group_is_that_of_all_its_members() {
    let users = [
        (Req::of(1).id(1), 20),
        (Req::of(1).id(2), 20),
        (Req::of(2).id(1), 20),
    ];
    let layer = by_path().with_tenant_weight(path("1"), 3).build(user_of);
    let served = contest(&layer, &users).await;
    let ratio = (served[0] + served[1]) as f64 / served[2] as f64;
    assert!((2.85..3.15).contains(&ratio), "{served:?}");
    layer.set_tenant_weight(path("1"), 1);
    layer.set_tenant_weight(path("1/1"), 4);
    let served = contest(&layer, &users).await;
    let ratio = (served[0] + served[1]) as f64 / served[2] as f64;
    assert!((0.95..1.05).contains(&ratio), "{served:?}");
    let within = served[0] as f64 / served[1] as f64;
    assert!((3.7..4.3).contains(&within), "{served:?}");
}

#[tokio::test(start_paused = true)]
async fn time_is_settled_on_every_level() {
    let slow = |user| (Req::of(1).id(user).taking(8 * MILLI), 10);
    let quick = (Req::of(1).id(9).taking(2 * MILLI), 10);
    let other = (Req::of(2).taking(2 * MILLI), 10);
    let layer = by_path().with_settle_by_elapsed(MILLI).build(user_of);
    let served = contest(&layer, &[slow(1), slow(2), quick, other]).await;
    let time = [served[0] * 8, served[1] * 8, served[2] * 2, served[3] * 2];
    let tenant: usize = time[..3].iter().sum();
    let ratio = tenant as f64 / time[3] as f64;
    assert!((0.9..1.1).contains(&ratio), "milliseconds: {time:?}");
    let within = time[0] as f64 / time[2] as f64;
    assert!((0.85..1.15).contains(&within), "milliseconds: {time:?}");
}

#[tokio::test(start_paused = true)]
async fn the_users_of_a_tenant_hold_together_the_permits_of_one_tenant() {
    let layer = by_path().with_max_in_flight_per_tenant(3).build(user_of);
    let timed = Timed::default();
    let service = layer.layer(timed.clone());
    let hour = 3_600 * SECOND;
    let hanging: Vec<_> = (0..50)
        .map(|user| send(&service, Req::of(1).id(user).taking(hour)))
        .collect();
    settle().await;
    assert_eq!(timed.of(1), 3, "50 users are one tenant");
    for request in 0..5 {
        let other = Req::of(2).id(request);
        assert!(service.clone().oneshot(other).await.is_ok());
    }
    hanging.iter().for_each(|request| request.abort());
    settle().await;
    assert_eq!(layer.stats().in_flight_active, 0);
    assert!(service.clone().oneshot(Req::of(1).id(7)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_group_has_room_for_as_many_as_it_may_and_says_when_to_come_back() {
    let layer = by_path()
        .with_max_per_tenant(10)
        .with_max_per_group(20)
        .build(user_of);
    let service = layer.layer(Timed::default());
    let queued: Vec<_> = (0..24)
        .map(|user| send(&service, Req::of(1).id(user).taking(SECOND)))
        .collect();
    settle().await;
    assert_eq!(layer.stats().queue.groups.top[0].queue_len, 20);
    let refused = refusal(service.clone().oneshot(Req::of(1).id(23)).await);
    let full = Cause::Rejected(EnqueueRejectReason::TenantFull);
    assert_eq!(refused.cause, full);
    let wait = refused.retry_after.unwrap();
    assert!((SECOND..=60 * SECOND).contains(&wait), "{wait:?}");
    assert!(service.clone().oneshot(Req::of(2)).await.is_ok());
    for request in queued {
        assert!(request.await.unwrap().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_that_was_never_refused_is_not_refused_because_another_fills_the_group() {
    let layer = by_path()
        .with_max_per_tenant(100)
        .with_max_per_group(40)
        .build(user_of);
    let service = layer.layer(Timed::default());
    let alice = Req::of(1).id(1).taking(SECOND);
    let flood: Vec<_> = (0..100).map(|_| send(&service, alice)).collect();
    settle().await;
    let full = Cause::Rejected(EnqueueRejectReason::TenantFull);
    let refused = layer.stats().refused(full);
    assert_eq!(refused, 56, "4 run and 40 are queued");
    let bob: Vec<_> = (0..10).map(|_| send(&service, Req::of(1).id(2))).collect();
    settle().await;
    let stats = layer.stats();
    assert_eq!(stats.refused(full), refused, "no request of bob's");
    assert_eq!(
        stats.refused(Cause::Evicted),
        10,
        "they took alice's places"
    );
    bob.iter().for_each(|request| request.abort());
    settle().await;
    // The group has room for ten more now, and alice's own queue for seventy.
    let again: Vec<_> = (0..8).map(|_| send(&service, alice)).collect();
    settle().await;
    let early = layer.stats().refused(full) - refused;
    assert!((1..8).contains(&early), "{early} of 8 are refused early");
    let requests = flood.iter().chain(&again);
    requests.for_each(|request| request.abort());
}

/// Answers every request at once.
fn echo()
-> impl Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send> + Clone
{
    service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new("served".to_owned())))
}

/// Reads the path of a client from a header that the client may choose. Names that are no paths share one tenant.
fn from_header(request: &Request<String>) -> TenantPath {
    let header = request.headers().get("x-tenant");
    let text = header.and_then(|value| value.to_str().ok());
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn request_of(tenant: &[u8]) -> Request<String> {
    let mut request = Request::new(String::new());
    let value = HeaderValue::from_bytes(tenant).unwrap();
    request.headers_mut().insert("x-tenant", value);
    request
}

#[tokio::test]
async fn hostile_paths_share_the_default_tenant() {
    let layer = Firq::new().build(from_header);
    let service = layer.layer(echo());
    let long = "x".repeat(513);
    let deep = "a/".repeat(5_000) + "a";
    let hostile: [&[u8]; 9] = [
        b"",
        b"/",
        b"acme/",
        b"/acme",
        b"a//b",
        b"a/b/c/d/e",
        b"\xff\xfe/\x80",
        long.as_bytes(),
        deep.as_bytes(),
    ];
    for name in hostile {
        let response = service.clone().oneshot(request_of(name)).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    let stats = layer.stats();
    let tenants = stats.queue.top_tenants.iter();
    let tenants: Vec<(&str, u64)> = tenants
        .map(|top| (top.tenant.as_str(), top.enqueued))
        .collect();
    assert_eq!(tenants, [("anonymous", hostile.len() as u64)]);
    assert_eq!(stats.queue.groups.count, 0);
}

#[tokio::test]
async fn hostile_texts_stay_within_their_tenant() {
    let of_text = |request: &Request<String>| {
        let header = request.headers().get("x-tenant");
        let text = header.and_then(|value| value.to_str().ok());
        text.unwrap_or_default().to_owned()
    };
    let layer = Firq::new().with_groups(group_by_slash).build(of_text);
    let service = layer.layer(echo());
    let mut names: Vec<String> = vec!["acme/".into(), "acme//".into(), "acme/ /x".into()];
    names.extend((2..60).map(|parts| vec!["acme"; parts].join("/")));
    for name in &names {
        let request = request_of(name.as_bytes());
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    let stats = layer.stats();
    let busiest = &stats.queue.groups.top[0];
    assert_eq!(busiest.tenant, "acme");
    assert_eq!(busiest.enqueued, names.len() as u64, "none left the group");
}

#[tokio::test]
async fn a_refusal_names_neither_the_tenant_nor_its_groups() {
    async fn refuse<S>(service: S) -> (http::HeaderMap, String)
    where
        S: Service<Request<String>, Response = Response<String>, Error = Infallible> + Clone,
    {
        let mut running = Box::pin(service.clone().oneshot(request_of(b"secret-acme/alice")));
        let mut queued = Box::pin(service.clone().oneshot(request_of(b"secret-acme/bob")));
        assert!(is_pending(&mut running) && is_pending(&mut queued));
        let refused = service.oneshot(request_of(b"secret-acme/carol"));
        let (parts, body) = refused.await.unwrap().into_parts();
        (parts.headers, body)
    }
    let firq = || {
        Firq::new()
            .with_in_flight_limit(1)
            .with_max_per_tenant(1)
            .with_backpressure(firq_tower::BackpressurePolicy::Reject)
    };
    let never = || {
        service_fn(async |_: Request<String>| {
            std::future::pending::<Result<Response<String>, Infallible>>().await
        })
    };
    let json = refuse(firq().build(from_header).layer(never())).await;
    let grpc = firq().with_answer(GrpcAnswer).build(from_header);
    let grpc = refuse(grpc.layer(never())).await;
    assert_eq!(
        json.1,
        r#"{"status":429,"code":"tenant_full","message":"tenant queue saturated","reason":"TenantFull"}"#
    );
    assert!(json.0.contains_key(RETRY_AFTER));
    assert_eq!(grpc.0["grpc-status"], "8");
    for (headers, body) in [json, grpc] {
        assert!(!format!("{headers:?}{body}").contains("secret"));
    }
}

/// Polls a future once, and returns whether it is not ready.
fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::Pin::new(future).poll(&mut context).is_pending()
}

#[tokio::test]
async fn metrics_count_groups() {
    let layer = Firq::new().build(from_header);
    let service = layer.layer(echo());
    for name in ["acme/alice", "acme/bob", "globex"] {
        let request = request_of(name.as_bytes());
        service.clone().oneshot(request).await.unwrap();
    }
    let text = layer.stats().to_prometheus();
    assert!(text.contains("firq_groups 1\n"), "{text}");
    assert!(text.contains("firq_top_group_enqueued{group=\"acme\"} 2\n"));
}
