//! Health, readiness, metrics, reflection.

use tokio_stream::StreamExt;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::common::{Rig, connect, eventually, get, soon};

#[tokio::test]
async fn health_is_served_until_the_server_stops() {
    let rig = Rig::start().await;
    let mut health = HealthClient::new(connect(&rig.server).await);
    let request = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    for service in ["", "fila.v1.FilaService", "fila.v1.FilaAdmin"] {
        let answer = soon(health.check(request(service))).await.unwrap();
        assert_eq!(answer.into_inner().status(), ServingStatus::Serving);
    }
    let watched = soon(health.watch(request("fila.v1.FilaService"))).await;
    let mut watched = watched.unwrap().into_inner();
    let first = soon(watched.message()).await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    let shutdown = tokio::spawn(rig.server.shutdown());
    let second = soon(watched.message()).await.unwrap().unwrap();
    assert_eq!(second.status(), ServingStatus::NotServing);
    let _ = soon(shutdown).await.unwrap();
}

#[tokio::test]
async fn reflection_lists_and_describes_the_services() {
    let rig = Rig::start().await;
    let mut reflection = ServerReflectionClient::new(connect(&rig.server).await);
    let ask = |request| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(request),
    };
    let requests = tokio_stream::iter([
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol(
            "fila.v1.FilaService".to_owned(),
        )),
    ]);
    let answers = soon(reflection.server_reflection_info(requests))
        .await
        .unwrap();
    let answers: Vec<_> = soon(answers.into_inner().collect()).await;
    let mut answers = answers
        .into_iter()
        .map(|answer| answer.unwrap().message_response.unwrap());
    let Some(MessageResponse::ListServicesResponse(list)) = answers.next() else {
        panic!("the list comes first");
    };
    let names: Vec<_> = list.service.iter().map(|s| s.name.as_str()).collect();
    for name in [
        "fila.v1.FilaService",
        "fila.v1.FilaAdmin",
        "grpc.health.v1.Health",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    let described = answers.next();
    assert!(matches!(
        described,
        Some(MessageResponse::FileDescriptorResponse(_))
    ));
}

#[tokio::test]
async fn a_server_that_is_up_is_alive_and_ready() {
    let rig = Rig::start().await;
    assert_eq!(get(&rig.server, "/healthz").await.0, 200);
    let (status, text) = get(&rig.server, "/readyz").await;
    assert_eq!(status, 200);
    assert!(text.ends_with("ready\n"), "{text}");
}

#[tokio::test]
async fn metrics_count_by_queue_and_never_name_a_key() {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    rig.enqueue("orders", "a-tenant", "x").await;
    rig.enqueue("orders", "a-tenant", "x").await;
    let mut deliveries = rig.consume("orders", 1).await;
    let delivery = deliveries.next().await;
    rig.ack("orders", &delivery).await.unwrap();
    deliveries.next().await;
    let server = &rig.server;
    let expected = [
        "fila_ready 1",
        "fila_queues 1",
        "fila_consumers 1",
        "fila_messages_enqueued_total{queue=\"orders\"} 2",
        "fila_messages_delivered_total{queue=\"orders\"} 2",
        "fila_messages_acked_total{queue=\"orders\"} 1",
        "fila_queue_leased_messages{queue=\"orders\"} 1",
        "fila_queue_ready_messages{queue=\"orders\"} 0",
        "fila_queue_size_bytes{queue=\"orders\"} 1",
        "fila_store_writable 1",
        "fila_store_journals 0",
        "fila_commit_duration_seconds_count",
        "fila_commit_operations_bucket",
        "fila_memory_used_bytes",
        "# UNIT fila_memory_budget_bytes bytes",
    ];
    eventually(|| async move {
        let (status, page) = get(server, "/metrics").await;
        assert_eq!(status, 200);
        assert!(!page.contains("a-tenant"));
        assert!(page.ends_with("# EOF\n"));
        expected.iter().all(|line| page.contains(line))
    })
    .await;
}

/// Returns names with types, sorted.
fn sorted<'a>(metrics: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<(&'a str, &'a str)> {
    let mut metrics: Vec<_> = metrics.collect();
    metrics.sort_unstable();
    metrics
}

/// Returns what the server shows, as names with types.
async fn shown_by_the_server() -> Vec<(String, String)> {
    let mut rig = Rig::start().await;
    rig.create("orders").await;
    let page = get(&rig.server, "/metrics").await.1;
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let types = types.map(|line| {
        let (name, kind) = line.split_once(' ').unwrap();
        let end = if kind == "counter" { "_total" } else { "" };
        (format!("{name}{end}"), kind.to_owned())
    });
    types.collect()
}

#[tokio::test]
async fn alerts_and_dashboard_name_metrics_that_there_are() {
    let metrics = shown_by_the_server().await;
    let series: Vec<String> = metrics
        .into_iter()
        .flat_map(|(name, kind)| match kind.as_str() {
            "histogram" => ["_bucket", "_count", "_sum"]
                .map(|end| format!("{name}{end}"))
                .to_vec(),
            _ => vec![name],
        })
        .collect();
    let book = include_str!("../../../../docs/metrics.md");
    assert_eq!(book.matches("\n```yaml\n").count(), 1);
    let (_, alerts) = book.split_once("\n```yaml\n").unwrap();
    let (alerts, _) = alerts.split_once("```").unwrap();
    for (file, text, least) in [
        (
            "deploy/alerts.yml",
            include_str!("../../../../deploy/alerts.yml"),
            11,
        ),
        (
            "deploy/grafana.json",
            include_str!("../../../../deploy/grafana.json"),
            11,
        ),
        ("docs/metrics.md", alerts, 2),
    ] {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let named: Vec<&str> = words.filter(|word| word.starts_with("fila_")).collect();
        assert!(named.len() >= least, "{file} is not what it was");
        for name in named {
            let is_there = series.iter().any(|it| it == name);
            assert!(is_there, "{file} names `{name}`, which there is not");
        }
    }
}

#[tokio::test]
async fn the_book_has_a_row_for_every_metric_with_its_type() {
    let book = include_str!("../../../../docs/metrics.md");
    let (_, chapter) = book.split_once("\n## fila-server\n").unwrap();
    let chapter = chapter.split("\n## ").next().unwrap();
    let rows = chapter.lines().filter(|line| line.starts_with("| `"));
    let shown = sorted(rows.map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        assert_eq!(cells.len(), 5, "{row}");
        (cells[0].trim_matches(['|', ' ', '`']), cells[1])
    }));

    let found = shown_by_the_server().await;
    let found = sorted(found.iter().map(|(name, kind)| (&**name, &**kind)));
    assert_eq!(shown, found);
}
