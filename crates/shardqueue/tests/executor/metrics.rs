//! The metrics that a scrape finds.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use shardqueue::{Config, ShardExecutor};

use super::support::{SECOND, idle, occupy, one_shard, plain};

fn scrape(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    text
}

fn has_line(text: &str, line: &str) {
    assert!(
        text.lines().any(|other| other == line),
        "no {line:?} in\n{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_names_are_those_of_the_specification() {
    let executor = ShardExecutor::new(Config::default()).unwrap();
    let mut registry = Registry::default();
    executor.register_metrics(&mut registry);
    let text = scrape(&registry);
    for shard in 0..4 {
        has_line(
            &text,
            &format!("mycelian_shardqueue_submissions_total{{shard=\"{shard}\"}} 0"),
        );
        has_line(
            &text,
            &format!("mycelian_shardqueue_queue_full_total{{shard=\"{shard}\"}} 0"),
        );
        has_line(
            &text,
            &format!("mycelian_shardqueue_queue_depth{{shard=\"{shard}\"}} 0"),
        );
        has_line(
            &text,
            &format!("mycelian_shardqueue_run_duration_seconds_count{{shard=\"{shard}\"}} 0"),
        );
    }
    has_line(&text, "# TYPE mycelian_shardqueue_submissions counter");
    has_line(
        &text,
        "# TYPE mycelian_shardqueue_run_duration_seconds histogram",
    );
    has_line(&text, "# TYPE mycelian_shardqueue_queue_depth gauge");
}

#[tokio::test(start_paused = true)]
async fn numbers_are_true_at_all_times() {
    let executor = one_shard(Config {
        queue_size: 2,
        ..plain()
    });
    let mut registry = Registry::default();
    executor.register_metrics(&mut registry);
    let (gate, held) = occupy(&executor, "key").await;
    for _ in 0..2 {
        executor.submit("key", idle).await.unwrap();
    }
    assert!(executor.submit("key", idle).await.is_err());
    assert!(executor.try_submit("key", idle).is_err());
    let text = scrape(&registry);
    has_line(
        &text,
        "mycelian_shardqueue_submissions_total{shard=\"0\"} 3",
    );
    has_line(&text, "mycelian_shardqueue_queue_full_total{shard=\"0\"} 2");
    has_line(&text, "mycelian_shardqueue_queue_depth{shard=\"0\"} 2");
    has_line(
        &text,
        "mycelian_shardqueue_run_duration_seconds_count{shard=\"0\"} 0",
    );
    tokio::time::sleep(2 * SECOND).await;
    gate.open(1);
    assert!(held.await.is_done());
    executor.flush().await;
    let text = scrape(&registry);
    has_line(&text, "mycelian_shardqueue_queue_depth{shard=\"0\"} 0");
    has_line(
        &text,
        "mycelian_shardqueue_run_duration_seconds_sum{shard=\"0\"} 2.1",
    );
    has_line(
        &text,
        "mycelian_shardqueue_run_duration_seconds_count{shard=\"0\"} 3",
    );
    has_line(
        &text,
        "mycelian_shardqueue_run_duration_seconds_bucket{le=\"1.0\",shard=\"0\"} 2",
    );
    has_line(
        &text,
        "mycelian_shardqueue_run_duration_seconds_bucket{le=\"2.5\",shard=\"0\"} 3",
    );
    has_line(
        &text,
        "mycelian_shardqueue_run_duration_seconds_bucket{le=\"+Inf\",shard=\"0\"} 3",
    );
}

#[tokio::test(start_paused = true)]
async fn two_executors_live_in_one_process() {
    let mut registry = Registry::default();
    let first = one_shard(plain());
    let second = one_shard(Config {
        metrics_namespace: "acme".to_owned(),
        ..plain()
    });
    first.register_metrics(&mut registry);
    second.register_metrics(&mut registry);
    let labelled = registry.sub_registry_with_label(("executor".into(), "third".into()));
    let third = one_shard(plain());
    third.register_metrics(labelled);
    assert!(second.submit("key", idle).await.unwrap().await.is_done());
    let text = scrape(&registry);
    has_line(
        &text,
        "mycelian_shardqueue_submissions_total{shard=\"0\"} 0",
    );
    has_line(&text, "acme_shardqueue_submissions_total{shard=\"0\"} 1");
    has_line(
        &text,
        "mycelian_shardqueue_submissions_total{executor=\"third\",shard=\"0\"} 0",
    );
}
