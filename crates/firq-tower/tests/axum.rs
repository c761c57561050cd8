//! The layer in an Axum application, as its users have it.
#![cfg(test)] // helpers may unwrap, as tests do

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::get;
use firq_tower::{
    BackpressurePolicy, EnqueueRejectReason, Firq, FirqHttpRejection, FirqLayer, TenantKey,
};
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

/// Returns the one block of a kind in the book.
fn block(kind: &str) -> &'static str {
    let begin = format!("\n```{kind}\n");
    let book = include_str!("../../../docs/firq.md");
    let mut blocks = book.split(begin.as_str()).skip(1);
    let block = blocks.next().unwrap();
    assert!(blocks.next().is_none(), "there is more than one: {kind}");
    let (text, _) = block.split_once("\n```").unwrap();
    text
}

/// The layer of the specification, as it is written there.
#[expect(
    clippy::let_and_return,
    clippy::or_fun_call,
    reason = "as it is written there"
)]
fn specified() -> FirqLayer<Request> {
    let layer = Firq::new()
        .with_shards(4)
        .with_max_global(1000)
        .with_max_per_tenant(100)
        .with_quantum(10)
        .with_in_flight_limit(128)
        .with_deadline_extractor::<Request, _>(|req| {
            req.headers()
                .get("X-Deadline-Ms")
                .and_then(|h| h.to_str().ok())
                .and_then(|s| s.parse::<u64>().ok())
                .map(|ms| std::time::Instant::now() + std::time::Duration::from_millis(ms))
        })
        .with_rejection_mapper(|reason| match reason {
            EnqueueRejectReason::TenantFull => FirqHttpRejection {
                status: 429,
                code: "tenant_full",
                message: "tenant queue saturated",
                reason,
            },
            EnqueueRejectReason::GlobalFull => FirqHttpRejection {
                status: 503,
                code: "global_full",
                message: "service queue saturated",
                reason,
            },
            EnqueueRejectReason::Timeout => FirqHttpRejection {
                status: 503,
                code: "timeout",
                message: "request timed out waiting for scheduler",
                reason,
            },
        })
        .build(|req: &Request| {
            req.headers()
                .get("X-Tenant-ID")
                .and_then(|h| h.to_str().ok())
                .and_then(|s| s.parse::<u64>().ok())
                .map(TenantKey::from)
                .unwrap_or(TenantKey::from(0))
        });
    layer
}

fn request(path: &str, headers: &[(&str, &str)]) -> Request {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = path.parse().unwrap();
    for (name, value) in headers {
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request
}

async fn text(response: Response) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn the_layer_of_the_specification_serves_requests() {
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(specified());
    for headers in [
        &[][..],
        &[("X-Tenant-ID", "7"), ("X-Deadline-Ms", "1000")],
        &[
            ("X-Tenant-ID", "not a number"),
            ("X-Deadline-Ms", "18446744073709551615"),
        ],
    ] {
        let response = app.clone().oneshot(request("/", headers)).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(text(response).await, "hello");
    }
}

#[tokio::test]
async fn a_deadline_that_has_passed_is_answered_with_504() {
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(specified());
    let late = request("/", &[("X-Deadline-Ms", "0")]);
    let response = app.oneshot(late).await.unwrap();
    assert_eq!(response.status(), 504);
    let body: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(body["code"], "expired");
}

/// Returns an app that takes ten milliseconds for an answer.
fn slow() -> Router {
    let slow = async || tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    Router::new().route("/", get(slow))
}

async fn three_at_once(app: Router) -> Vec<Response> {
    all_at_once(app, (0..3).map(|_| request("/", &[]))).await
}

async fn all_at_once(app: Router, requests: impl Iterator<Item = Request>) -> Vec<Response> {
    let requests: Vec<_> = requests
        .map(|request| tokio::spawn(app.clone().oneshot(request)))
        .collect();
    let mut responses = Vec::new();
    for sent in requests {
        responses.push(sent.await.unwrap().unwrap());
    }
    responses
}

#[tokio::test(start_paused = true)]
async fn refusals_are_responses_with_a_document_and_a_time_to_come_back() {
    let layer = Firq::new()
        .with_in_flight_limit(1)
        .with_max_per_tenant(1)
        .build(|_: &Request| TenantKey::from(1));
    let mut statuses = Vec::new();
    for response in three_at_once(slow().layer(layer)).await {
        statuses.push(response.status().as_u16());
        if response.status() == 429 {
            assert_eq!(response.headers()["content-type"], "application/json");
            assert_eq!(response.headers()["retry-after"], "1");
            let expected = r#"{"status":429,"code":"tenant_full","message":"tenant queue saturated","reason":"TenantFull"}"#;
            assert_eq!(text(response).await, expected);
            assert_eq!(block("json"), expected, "the book shows what comes");
        }
    }
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test(start_paused = true)]
async fn a_mapper_of_ones_own_decides_what_clients_are_told() {
    let layer = Firq::new()
        .with_in_flight_limit(1)
        .with_max_per_tenant(1)
        .with_rejection_mapper(|reason| FirqHttpRejection {
            status: 418,
            code: "busy",
            message: "come back later",
            reason,
        })
        .build(|_: &Request| TenantKey::from(1));
    let mut refused = Vec::new();
    for response in three_at_once(slow().layer(layer)).await {
        if response.status() != 200 {
            assert_eq!(response.status(), 418);
            refused.push(text(response).await);
        }
    }
    let expected =
        r#"{"status":418,"code":"busy","message":"come back later","reason":"TenantFull"}"#;
    assert_eq!(refused, [expected]);
}

/// Sends requests of these tenants at once to a layer that runs one at a time, and returns the reasons that its mapper
/// was asked about.
async fn causes_mapped(firq: Firq, tenants: &[&str], is_closed: bool) -> Vec<String> {
    let layer = firq
        .with_in_flight_limit(1)
        .with_deadline_extractor::<Request, _>(|request| {
            let is_late = request.headers()["x-tenant"] == "late";
            is_late.then(|| tokio::time::Instant::now().into_std())
        })
        .with_refusal_mapper(|cause| FirqHttpRejection {
            status: 418,
            ..FirqHttpRejection::of(cause)
        })
        .build(|request: &Request| {
            let tenant = request.headers()["x-tenant"].as_bytes();
            TenantKey::from(u64::from(tenant[0]))
        });
    if is_closed {
        layer.close_drain();
    }
    let requests = tenants
        .iter()
        .map(|tenant| request("/", &[("x-tenant", tenant)]));
    let mut causes = Vec::new();
    for response in all_at_once(slow().layer(layer), requests).await {
        if response.status() == 418 {
            let body: Value = serde_json::from_str(&text(response).await).unwrap();
            causes.push(body["reason"].as_str().unwrap().to_owned());
        }
    }
    causes
}

#[tokio::test(start_paused = true)]
async fn a_refusal_mapper_is_asked_about_all_six_reasons() {
    let full = |policy| Firq::new().with_max_global(1).with_backpressure(policy);
    let wait = std::time::Duration::from_millis(5);
    let cases: [(&str, Firq, &[&str]); 5] = [
        (
            "TenantFull",
            Firq::new().with_max_per_tenant(1),
            &["a", "a", "a"],
        ),
        (
            "GlobalFull",
            full(BackpressurePolicy::Reject),
            &["a", "b", "c"],
        ),
        (
            "Timeout",
            full(BackpressurePolicy::Timeout { wait }),
            &["a", "b", "c"],
        ),
        (
            "Evicted",
            Firq::new().with_max_global(2),
            &["a", "a", "a", "b"],
        ),
        ("Expired", Firq::new(), &["a", "late"]),
    ];
    for (reason, firq, tenants) in cases {
        assert_eq!(causes_mapped(firq, tenants, false).await, [reason]);
    }
    assert_eq!(causes_mapped(Firq::new(), &["a"], true).await, ["Closed"]);
}

#[tokio::test]
async fn a_route_can_show_the_metrics() {
    let layer = specified();
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(layer.clone())
        .route_service("/metrics", layer.metrics_service());
    let _ = app
        .clone()
        .oneshot(request("/", &[("X-Tenant-ID", "7")]))
        .await;
    let response = app.oneshot(request("/metrics", &[])).await.unwrap();
    let kind = response.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    assert!(kind.starts_with("text/plain; version=0.0.4"));
    let text = text(response).await;
    for line in [
        "firq_in_flight_active 0",
        "firq_in_flight_limit 128",
        "firq_in_flight_saturation_ratio 0",
        "firq_requests_refused_total{reason=\"tenant_full\"} 0",
        "firq_tasks_total{outcome=\"dequeued\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

#[tokio::test]
async fn the_alerts_of_the_book_name_series_that_there_are() {
    let page = specified().stats().to_prometheus();
    let alerts = block("yaml");
    let words = alerts.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let named: Vec<&str> = words.filter(|word| word.starts_with("firq_")).collect();
    assert_eq!(named.len(), 2, "{alerts}");
    for name in named {
        let is_there = page
            .lines()
            .any(|line| line.split(['{', ' ']).next() == Some(name));
        assert!(is_there, "{name} in\n{page}");
    }
    let (_, reasons) = alerts.split_once("{reason=~\"").unwrap();
    let (reasons, _) = reasons.split_once('"').unwrap();
    for reason in reasons.split('|') {
        let line = format!("firq_requests_refused_total{{reason=\"{reason}\"}} 0");
        assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
    }
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn handlers_can_answer_alike() {
    use axum::response::IntoResponse;
    let response = FirqHttpRejection::new(EnqueueRejectReason::GlobalFull).into_response();
    assert_eq!(response.status(), 503);
    let body: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(body["reason"], "GlobalFull");
}
