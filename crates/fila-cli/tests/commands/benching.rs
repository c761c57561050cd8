//! `fila bench`.

use std::process::{Command, Stdio};

use insta::assert_snapshot;

use crate::rig::{Server, eventually, without_times};

const SMALL: [&str; 6] = ["bench", "--messages", "200", "--tasks", "8", "--size=10"];

#[test]
fn three_phases_are_measured_and_nothing_is_left() {
    let server = Server::start();
    assert_snapshot!("bench", without_times(&server.ok(&SMALL)));
    let mut command = SMALL.to_vec();
    command.extend(["--keys=3", "--consumers=2", "--json"]);
    let json = server.ok(&command);
    let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
    for phase in ["produce", "drain", "through"] {
        for (name, figure) in json[phase].as_object_mut().unwrap() {
            assert!(figure.as_f64().unwrap() > 0.0, "{phase} {name}");
            *figure = "[figure]".into();
        }
    }
    assert_snapshot!("bench_json", serde_json::to_string_pretty(&json).unwrap());
    assert_eq!(server.ok(&["queue", "list", "--json"]), "");
}

#[test]
fn an_interrupted_bench_leaves_nothing_behind() {
    let server = Server::start();
    let mut bench = server
        .command(&["bench", "--messages", "100000000"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let queues = || server.ok(&["queue", "list", "--json"]);
    eventually(|| queues().contains("fila-bench-"));
    let process = bench.id().to_string();
    let sent = Command::new("kill").args(["-s", "INT", &process]).status();
    assert!(sent.unwrap().success());
    assert_eq!(bench.wait().unwrap().code(), Some(130));
    assert_eq!(queues(), "");
}
