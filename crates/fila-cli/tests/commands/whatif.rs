//! `fila whatif`.

use insta::assert_snapshot;
use serde_json::Value;

use crate::rig::{Server, eventually};

/// Starts a server whose queue has a group of two keys and a key beside it, and no consumer.
fn companies() -> Server {
    let server = Server::with_orders();
    for key in ["acme/alice", "acme/batch", "globex"] {
        server.ok(&["enqueue", "orders", "x", "--count", "1500", "--key", key]);
    }
    server
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn now_is_beside_then_and_nothing_is_changed() {
    let server = companies();
    let before = server.ok(&["queue", "inspect", "orders", "--json"]);
    let mut said = String::new();
    for arguments in [
        &["whatif", "orders"][..],
        &["whatif", "orders", "--weight", "acme=3", "--levels", "2"],
        &[
            "whatif",
            "orders",
            "--pause",
            "acme/batch",
            "--cap",
            "globex=8",
        ],
        &["whatif", "orders", "--weight", "initech=2", "--limit", "1"],
    ] {
        let printed = server.ok(arguments);
        said += &format!("$ fila {}\n{printed}\n", arguments.join(" "));
    }
    assert_snapshot!("whatif", said);
    let after = server.ok(&["queue", "inspect", "orders", "--json"]);
    assert_eq!(json(&after)["version"], json(&before)["version"]);
}

#[test]
fn json_has_every_figure_of_a_prediction() {
    let server = companies();
    let printed = server.ok(&["whatif", "orders", "--weight", "acme=3", "--json"]);
    assert_eq!(printed.lines().count(), 1);
    let mut told = json(&printed);
    for row in told["rows"].as_array_mut().unwrap() {
        // The mean of the last half minute to minute.
        let arrivals = row["arrivals"].as_f64().unwrap();
        let sent = row["ready"].as_f64().unwrap();
        assert!((sent / 60.0..=sent / 30.0).contains(&arrivals), "{row}");
        row["arrivals"] = "…".into();
    }
    let pretty = serde_json::to_string_pretty(&told).unwrap();
    assert_snapshot!("whatif_json", pretty);
}

#[test]
fn a_queue_without_messages_is_said_to_have_none() {
    let server = Server::with_orders();
    let printed = server.ok(&["whatif", "orders"]);
    assert!(
        printed.starts_with("no key of the queue has messages"),
        "{printed}"
    );
}

#[test]
fn questions_that_make_no_sense_are_refused_with_a_remedy() {
    let server = companies();
    let mut said = String::new();
    for arguments in [
        &["whatif", "order"][..],
        &["whatif", "orders", "--weight", "acme//x=3"],
        &["whatif", "orders", "--weight", "acme=4000000000"],
        &["whatif", "orders", "--over", "2d"],
        &["whatif", "orders", "--pause", "acme", "--resume", "acme"],
        &["whatif", "orders", "--apply", "--yes"],
        &["whatif", "orders", "--pause", "acme", "--apply"],
    ] {
        let failed = server.fails(arguments);
        said += &format!("$ fila {}\n{failed}\n", arguments.join(" "));
    }
    assert_snapshot!("whatif_refused", said);
}

#[test]
fn times_are_told_while_a_consumer_works() {
    let server = companies();
    let mut consumer = server
        .command(&["consume", "orders", "--exec", "sleep 0.01"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let change = ["--weight", "globex=9", "--over", "5s"];
    let question = [&["whatif", "orders", "--json"][..], &change].concat();
    let mut told = Value::Null;
    eventually(|| {
        told = json(&server.ok(&question));
        // The consumer takes several messages at once, and goes on one by one: no backlog is gone after 5 s then.
        told["pace"].as_f64().is_some_and(|pace| pace < 250.0)
    });
    consumer.kill().unwrap();
    consumer.wait().unwrap();
    assert!(told["pace"].as_f64().unwrap() > 0.0, "{told}");
    let globex = &told["rows"][0];
    assert_eq!(
        (&globex["path"], &globex["changed"]),
        (&"globex".into(), &true.into())
    );
    let share = |side: &str| globex[side]["share"].as_f64().unwrap();
    assert!(share("then") > share("now"), "{globex}");
    assert!(globex["now"]["rate"].is_f64(), "{globex}");
}

#[test]
fn a_prediction_is_applied_with_the_version_that_it_looked_at() {
    let server = companies();
    let change = [
        "--weight",
        "acme=3",
        "--cap",
        "acme/batch=2",
        "--apply",
        "--yes",
    ];
    let asked = [&["whatif", "orders"][..], &change].concat();
    let printed = server.ok(&asked);
    assert!(
        printed.ends_with("\nqueue `orders` has the new settings\n"),
        "{printed}"
    );
    let queue = json(&server.ok(&["queue", "inspect", "orders", "--json"]));
    let keys = queue["keys"].as_array().unwrap();
    let found: Vec<_> = keys
        .iter()
        .map(|key| {
            (
                key["key"].as_str().unwrap(),
                &key["weight"],
                &key["concurrency"],
            )
        })
        .collect();
    let (three, two) = (Value::from(3), Value::from(2));
    assert_eq!(
        found,
        [
            ("acme", &three, &Value::Null),
            ("acme/batch", &Value::Null, &two)
        ]
    );
    let undo = ["--weight", "acme=default", "--apply", "--yes", "--json"];
    let printed = server.ok(&[&["whatif", "orders"][..], &undo].concat());
    let lines: Vec<Value> = printed.lines().map(json).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["version"], queue["version"]);
    assert_eq!(lines[1]["applied"], true);
    assert!(lines[1]["version"].as_u64() > lines[0]["version"].as_u64());
}
