//! Setting up, by hand and by the environment.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use shardqueue::{Config, ShardExecutor};

use super::support::{SECOND, idle};

#[test]
fn the_defaults_are_those_of_the_specification() {
    let config = Config::from_vars(Vec::<(String, String)>::new()).unwrap();
    assert_eq!(
        (config.shards, config.queue_size, config.max_attempts),
        (4, 128, 8)
    );
    assert_eq!(config.enqueue_timeout, Duration::from_millis(100));
    assert_eq!(config.base_backoff, Duration::from_millis(100));
    assert_eq!(config.max_interval, Duration::from_secs(20));
    assert_eq!(config.metrics_namespace, "mycelian");
    assert_eq!(config.key_separator, None, "keys are free text");
}

#[test]
fn every_variable_is_read() {
    let config = Config::from_vars([
        ("SQ_SHARDS", "8"),
        ("SQ_CONCURRENCY", "3"),
        ("SQ_QUEUE_SIZE", "256"),
        ("SQ_KEY_QUEUE_SIZE", "64"),
        ("SQ_KEY_SEPARATOR", "/"),
        ("SQ_ENQUEUE_TIMEOUT", "200ms"),
        ("SQ_MAX_ATTEMPTS", "5"),
        ("SQ_BASE_BACKOFF", "50ms"),
        ("SQ_MAX_INTERVAL", "1m30s"),
        ("SQ_UNKNOWN", "whatever"),
        ("PATH", "/bin"),
    ])
    .unwrap();
    assert_eq!(
        (config.shards, config.queue_size, config.max_attempts),
        (8, 256, 5)
    );
    assert_eq!((config.concurrency, config.key_queue_size), (3, 64));
    assert_eq!(config.key_separator, Some('/'));
    assert_eq!(config.enqueue_timeout, Duration::from_millis(200));
    assert_eq!(config.base_backoff, Duration::from_millis(50));
    assert_eq!(config.max_interval, 90 * SECOND);
    assert_eq!(Config::from_vars([("SQ_SHARDS", "")]).unwrap().shards, 4);
}

#[test]
fn a_bad_value_is_an_error_that_names_the_variable_and_the_text() {
    let number = "expected a whole number such as `8`, got";
    let duration = "expected a duration such as `100ms`, `1.5s` or `1m30s`, got";
    let cases = [
        ("SQ_SHARDS", "-1", number),
        ("SQ_CONCURRENCY", "some", number),
        ("SQ_QUEUE_SIZE", "1e3", number),
        ("SQ_KEY_QUEUE_SIZE", "all", number),
        ("SQ_MAX_ATTEMPTS", "4294967296", number),
        ("SQ_ENQUEUE_TIMEOUT", "100", duration),
        ("SQ_BASE_BACKOFF", "fast", duration),
        ("SQ_MAX_INTERVAL", "-1s", duration),
    ];
    for (variable, text, expected) in cases {
        let error = Config::from_vars([(variable, text)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{variable}: {expected} `{text}`")
        );
    }
    let not_unicode = OsString::from_vec(vec![b'8', 0xff]);
    let error = Config::from_vars([(OsString::from("SQ_SHARDS"), not_unicode)]).unwrap_err();
    assert!(error.to_string().starts_with("SQ_SHARDS: "));
}

#[tokio::test(start_paused = true)]
async fn zeros_count_as_defaults() {
    let config = Config {
        shards: 0,
        concurrency: 0,
        queue_size: 0,
        enqueue_timeout: Duration::ZERO,
        max_attempts: 0,
        base_backoff: Duration::ZERO,
        max_interval: Duration::ZERO,
        metrics_namespace: String::new(),
        ..Config::default()
    };
    let executor = ShardExecutor::new(config).unwrap();
    assert_eq!(executor.shard_stats().len(), 4);
    assert!(executor.submit("key", idle).await.unwrap().await.is_done());
    let failing = executor
        .submit("key", super::support::failing("down"))
        .await
        .unwrap();
    assert_eq!(super::support::failure(&failing.await).attempts(), 8);
}

#[tokio::test]
async fn an_executor_is_a_task_for_each_shard_from_the_beginning_and_no_more_later() {
    let alive = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = alive();
    let executor = ShardExecutor::new(Config {
        shards: 7,
        ..Config::default()
    })
    .unwrap();
    assert_eq!(alive() - before, 7);
    for number in 0..100 {
        let key = format!("key {number}");
        executor.submit(key, idle).await.unwrap();
    }
    assert_eq!(alive() - before, 7);
    executor.stop().await;
    assert_eq!(executor.stats().ran, 100);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_is_refused() {
    let refused = |config| ShardExecutor::new(config).unwrap_err().to_string();
    let config = || Config::default();
    assert_eq!(
        refused(Config {
            shards: 5000,
            ..config()
        }),
        "shards is 5000, must be at most 4096"
    );
    assert_eq!(
        refused(Config {
            concurrency: 70_000,
            ..config()
        }),
        "concurrency is 70000, must be at most 65536"
    );
    let queue_size = usize::MAX;
    assert!(
        refused(Config {
            queue_size,
            ..config()
        })
        .starts_with("queue_size is 18446744073709551615")
    );
    assert!(
        refused(Config {
            backoff_size: queue_size,
            ..config()
        })
        .starts_with("backoff_size is ")
    );
    for metrics_namespace in ["my app", "9lives", "é"] {
        let error = refused(Config {
            metrics_namespace: metrics_namespace.to_owned(),
            ..config()
        });
        assert!(error.starts_with(&format!("metrics_namespace is `{metrics_namespace}`")));
    }
}

#[test]
fn a_configuration_prints_and_is_cloned() {
    let config = Config::default().with_error_handler(|_| {});
    assert!(
        format!("{:?}", config.clone())
            .starts_with("Config { shards: 4, concurrency: 8, queue_size: 128,")
    );
}
