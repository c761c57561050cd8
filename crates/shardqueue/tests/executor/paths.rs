//! Keys that are paths: refused ones, shares, room and weights of groups.

use std::sync::Arc;

use shardqueue::{
    Config, ConfigError, FullLevel, JobOptions, KeyError, Priority, Refusal, ShardExecutor,
};

use super::support::{Journal, idle, occupy, one_shard, plain};

/// Returns a configuration with paths.
fn nested() -> Config {
    Config {
        key_separator: Some('/'),
        ..plain()
    }
}

const EMPTY: KeyError = KeyError::EmptyPart {
    part: 2,
    separator: '/',
};

#[tokio::test(start_paused = true)]
async fn keys_are_free_text_unless_they_are_paths() {
    let executor = one_shard(plain());
    for key in ["", "/", "a//b", "https://example.org/a/b/c/d/e"] {
        assert!(executor.submit(key, idle).await.unwrap().await.is_done());
    }
    assert_eq!(executor.stats().groups, 0);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_no_path_is_refused_and_its_job_comes_back() {
    let executor = one_shard(nested());
    let journal = Journal::new();
    let error = executor
        .submit("a//b", journal.noting(1))
        .await
        .unwrap_err();
    assert_eq!(error.refusal(), Refusal::Key(EMPTY));
    assert_eq!(
        error.to_string(),
        "part 2 of the key is empty: `/` separates parts, and each has a name; name it, or set another key_separator or \
         none"
    );
    let handle = executor.submit("a/b", error.into_job()).await.unwrap();
    assert!(handle.await.is_done());
    assert_eq!(journal.take(), [1]);

    let error = executor.try_submit("a/b/c/d/e", idle).unwrap_err();
    let deep = KeyError::TooDeep {
        parts: 5,
        max: 4,
        separator: '/',
    };
    assert_eq!(error.refusal(), Refusal::Key(deep));
    let across = executor.submit_across(["a", "a/"], idle, JobOptions::new());
    assert_eq!(across.await.unwrap_err().refusal(), Refusal::Key(EMPTY));
    assert_eq!(executor.set_weight("a/", 2), Err(EMPTY));
    assert_eq!(
        (executor.stats().accepted, executor.stats().refused_full),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_batch_answers_each_key_in_its_place() {
    let executor = ShardExecutor::new(nested()).unwrap();
    let keys = ["a/b", "a/", "c", "d//e", "a/b/c/d"];
    let answers = executor.submit_batch(keys.map(|key| (key, idle))).await;
    let is_accepted: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(is_accepted, [true, false, true, false, true]);
    assert_eq!(executor.stats().accepted, 3);
}

#[tokio::test]
async fn a_separator_must_be_a_printable_character_and_no_letter() {
    for separator in ['a', '0', ' ', 'é'] {
        let config = Config {
            key_separator: Some(separator),
            ..Config::default()
        };
        let error = ShardExecutor::new(config).unwrap_err();
        assert_eq!(error, ConfigError::Separator(separator));
    }
    let config = Config::from_vars([("SQ_KEY_SEPARATOR", ":")]).unwrap();
    assert_eq!(config.key_separator, Some(':'));
    for text in ["a", "//", " "] {
        let error = Config::from_vars([("SQ_KEY_SEPARATOR", text)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "SQ_KEY_SEPARATOR: expected one character such as `/`, and no letter, digit or space, got `{text}`"
            )
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_with_many_keys_gets_the_turns_of_one() {
    let executor = one_shard(Config {
        queue_size: 10_000,
        ..nested()
    });
    let (gate, _held) = occupy(&executor, "first").await;
    let journal = Journal::new();
    for key in 0..1000 {
        let job = journal.noting("acme");
        executor.try_submit(format!("acme/{key}"), job).unwrap();
    }
    for _ in 0..100 {
        executor
            .try_submit("globex", journal.noting("globex"))
            .unwrap();
    }
    gate.open(1);
    executor.flush().await;
    let order = journal.take();
    let globex = order[..200].iter().filter(|key| **key == "globex").count();
    assert!((99..=100).contains(&globex), "{globex} of 200");
    assert_eq!(executor.stats().groups, 1);
}

#[tokio::test(start_paused = true)]
async fn weights_are_those_of_tenants_and_of_their_keys() {
    let executor = one_shard(Config {
        queue_size: 10_000,
        ..nested()
    });
    executor.set_weight("acme", 3).unwrap();
    executor.set_weight("acme/alice", 2).unwrap();
    let (gate, _held) = occupy(&executor, "first").await;
    let journal = Journal::new();
    for _ in 0..300 {
        for key in ["acme/alice", "acme/bob", "globex/x"] {
            executor.try_submit(key, journal.noting(key)).unwrap();
        }
    }
    gate.open(1);
    executor.flush().await;
    let order = journal.take();
    let count = |key: &str| order[..400].iter().filter(|other| **other == key).count();
    let counts = ["acme/alice", "acme/bob", "globex/x"].map(count);
    for (count, expected) in counts.into_iter().zip([200, 100, 100]) {
        assert!(count.abs_diff(expected) <= 2, "{counts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn order_is_per_whole_key() {
    let executor = ShardExecutor::new(nested()).unwrap();
    let journal = Journal::new();
    for number in 0..20 {
        for key in ["acme", "acme/alice", "acme/bob"] {
            let job = journal.noting((key, number));
            executor.submit(key, job).await.unwrap();
        }
    }
    executor.barrier("acme").await; // the key, not its group
    executor.flush().await;
    let order = journal.take();
    for key in ["acme", "acme/alice", "acme/bob"] {
        let own = order.iter().filter(|(other, _)| *other == key);
        let numbers: Vec<i32> = own.map(|(_, number)| *number).collect();
        assert_eq!(numbers, (0..20).collect::<Vec<_>>(), "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_tenant_is_refused_by_its_name_and_leaves_room_to_others() {
    let executor = one_shard(nested());
    let (_gate, _held) = occupy(&executor, "first").await;
    for key in 0..96 {
        executor.try_submit(format!("acme/{key}"), idle).unwrap();
    }
    let error = executor.submit("acme/late", idle).await.unwrap_err();
    let Refusal::QueueFull(full) = error.refusal() else {
        panic!("{error:?}");
    };
    assert_eq!(full.level, FullLevel::Group { parts: 1 });
    assert!(full.is_of_key());
    assert_eq!(
        error.to_string(),
        "shard queue full: the group of this key's first 1 of its parts holds 96 jobs and may hold 96 now, shard 0 holds \
         96 of 128 jobs; retry later, submit less, or set SQ_KEY_QUEUE_SIZE"
    );
    executor.try_submit("globex/first", idle).unwrap();
}

#[tokio::test(start_paused = true)]
async fn urgent_jobs_of_a_tenant_with_many_keys_do_not_delay_those_of_another() {
    let executor = one_shard(Config {
        queue_size: 10_000,
        ..nested()
    });
    let (gate, _held) = occupy(&executor, "first").await;
    let journal = Journal::new();
    let urgent = || JobOptions::new().priority(Priority::Urgent);
    for key in 0..1000 {
        let key = format!("acme/{key}");
        executor
            .try_submit_with(key, journal.noting("acme"), urgent())
            .unwrap();
    }
    executor
        .try_submit_with("globex", journal.noting("globex"), urgent())
        .unwrap();
    gate.open(1);
    executor.flush().await;
    let order = journal.take();
    assert!(order[..2].contains(&"globex"), "{:?}", &order[..10]);
}

#[tokio::test(start_paused = true)]
async fn a_job_across_the_keys_of_a_tenant_needs_room_for_all_of_them() {
    let executor = Arc::new(one_shard(Config {
        queue_size: 8,
        ..nested()
    }));
    let (gate, _held) = occupy(&executor, "first").await;
    let keys = |count: usize| {
        (0..count)
            .map(|key| format!("acme/{key}"))
            .collect::<Vec<_>>()
    };
    // One key of the shard may have six jobs, and so may one tenant.
    let error = executor
        .try_submit_across(keys(7), idle, JobOptions::new())
        .unwrap_err();
    assert!(matches!(error.refusal(), Refusal::QueueFull(_)));
    let handle = executor
        .try_submit_across(keys(6), idle, JobOptions::new())
        .unwrap();
    gate.open(1);
    assert!(handle.await.is_done());
}
