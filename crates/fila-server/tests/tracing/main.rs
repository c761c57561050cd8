//! The way of a message through the server, as a collector sees it. One test, since a process has one logger.
#![cfg(test)] // helpers may unwrap, as tests do

#[path = "../collector/mod.rs"]
mod collector;
#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod common;

use std::collections::BTreeMap;

use fila_proto::v1::EnqueueRequest;
use fila_server::telemetry::Telemetry;
use opentelemetry_proto::tonic::trace::v1::Span;
use tonic::Request;

use collector::Collector;
use common::{PATIENCE, Rig, in_memory, message, soon};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[tokio::test]
async fn a_message_is_seen_going_in_and_out_and_nothing_of_what_it_carries() {
    let Collector {
        address,
        mut received,
        task: collector,
    } = Collector::start().await;
    let mut config = in_memory();
    config.telemetry.otlp_endpoint = Some(format!("http://{address}").parse().unwrap());
    config.telemetry.log = "off".parse().unwrap();
    let telemetry = Telemetry::start(&config.telemetry).unwrap();

    let mut rig = Rig::with(config).await;
    rig.create("orders").await;
    let mut request = Request::new(EnqueueRequest {
        queue: "orders".to_owned(),
        message: Some(message("secret-tenant", "secret-payload")),
    });
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let metadata = request.metadata_mut();
    metadata.insert("traceparent", parent.parse().unwrap());
    let stored = soon(rig.messages.enqueue(request)).await.unwrap();
    let id = stored.into_inner().message_id;
    let mut deliveries = rig.consume("orders", 1).await;
    let delivery = deliveries.next().await;
    rig.ack("orders", &delivery).await.unwrap();
    drop(deliveries);
    let _ = soon(rig.server.shutdown()).await;
    soon(telemetry.shutdown(PATIENCE)).await.unwrap();
    collector.abort();

    let mut spans: BTreeMap<String, Span> = BTreeMap::new();
    while let Ok(export) = received.try_recv() {
        assert!(!format!("{export:?}").contains("secret"));
        let resources = export.resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        let found = scopes.flat_map(|scope| scope.spans);
        spans.extend(found.map(|span| (span.name.clone(), span)));
    }
    for name in ["enqueue", "deliver"] {
        let span = &spans[name];
        let trace: String = span.trace_id.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(trace, TRACE, "{name}");
        let attribute = |key: &str| {
            let found = span.attributes.iter().find(|kv| kv.key == key);
            format!("{:?}", found.unwrap().value)
        };
        assert!(attribute("queue").contains("orders"));
        assert!(attribute("message_id").contains(&id));
    }
}
