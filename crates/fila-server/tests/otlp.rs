#![cfg(test)] // helpers may unwrap, as tests do
//! Spans reach a collector. One test, since a process has one logger.

#[path = "collector/mod.rs"]
mod collector;

use std::time::Duration;

use fila_server::config::Loader;
use fila_server::telemetry::{Telemetry, TelemetryError, TraceContext};
use opentelemetry_proto::tonic::trace::v1::Span;

use collector::Collector;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-11111111111111111111111111111111-b7ad6b7169203331-00";

#[tokio::test]
async fn spans_are_exported_as_part_of_the_trace_that_they_were_given() {
    let Collector {
        address,
        mut received,
        task: server,
    } = Collector::start().await;

    let config = Loader::new()
        .set(format!("telemetry.otlp_endpoint=http://{address}"))
        .set("telemetry.service_name=fila-test")
        .set("telemetry.trace_ratio=0") // of our own: those with a sampled parent are followed
        .set("telemetry.log=off")
        .load()
        .unwrap();
    let telemetry = Telemetry::start(&config.telemetry).unwrap();
    assert!(matches!(
        Telemetry::start(&config.telemetry),
        Err(TelemetryError::AlreadyStarted)
    ));

    let carried = {
        let span = tracing::info_span!(target: "fila_server", "enqueue", queue = "orders");
        TraceContext::parse(PARENT, "vendor=1")
            .unwrap()
            .set_parent_of(&span);
        let _entered = span.enter();
        tracing::info_span!(target: "h2", "a library's").in_scope(|| {});
        TraceContext::current().unwrap()
    };
    assert!(
        carried.traceparent().starts_with(&PARENT[..36]),
        "the same trace"
    );
    assert_ne!(carried.traceparent(), PARENT, "and another span");
    assert_eq!(carried.tracestate().as_deref(), Some("vendor=1"));
    let headers: Vec<(&str, String)> = carried.headers().collect();
    {
        let span = tracing::info_span!(target: "fila_server", "deliver");
        let headers = headers.iter().map(|(name, value)| (*name, value.as_str()));
        TraceContext::from_headers(headers)
            .unwrap()
            .set_parent_of(&span);
        let _entered = span.enter();
    }
    {
        let span = tracing::info_span!(target: "fila_server", "unsampled");
        TraceContext::parse(UNSAMPLED, "")
            .unwrap()
            .set_parent_of(&span);
        assert!(!TraceContext::of(&span).unwrap().is_sampled());
    }
    tracing::info_span!(target: "fila_server", "of our own").in_scope(|| {});

    telemetry.shutdown(Duration::from_secs(30)).await.unwrap();
    server.abort();
    let mut spans: Vec<Span> = Vec::new();
    while let Ok(request) = received.try_recv() {
        for of_resource in request.resource_spans {
            let attributes = of_resource.resource.unwrap().attributes;
            let names: Vec<String> = attributes
                .iter()
                .filter(|attribute| attribute.key == "service.name")
                .map(|attribute| format!("{:?}", attribute.value))
                .collect();
            assert!(
                names.len() == 1 && names[0].contains("fila-test"),
                "{names:?}"
            );
            spans.extend(
                of_resource
                    .scope_spans
                    .into_iter()
                    .flat_map(|scope| scope.spans),
            );
        }
    }
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["enqueue", "deliver"]);
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    assert!(
        spans
            .iter()
            .all(|span| hex(&span.trace_id) == PARENT[3..35])
    );
    assert_eq!(hex(&spans[0].parent_span_id), PARENT[36..52]);
    assert_eq!(hex(&spans[1].parent_span_id), hex(&spans[0].span_id));
    let attributes: Vec<&str> = spans[0].attributes.iter().map(|a| a.key.as_str()).collect();
    assert!(attributes.contains(&"queue"), "{attributes:?}");
}
