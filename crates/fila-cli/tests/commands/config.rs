//! `fila config`.

use insta::assert_snapshot;

use crate::rig::Server;

#[test]
fn entries_are_set_read_listed_and_deleted() {
    let server = Server::start();
    let mut session = String::new();
    for arguments in [
        &["config", "set", "throttle:api:rate", "10"][..],
        &["config", "set", "throttle:api:burst", "20"],
        &["config", "set", "feature:new_flow", "enabled"],
        &["config", "get", "feature:new_flow"],
        &["config", "get", "feature:new_flow", "--json"],
        &["config", "list", "--prefix", "feature:"],
        &["config", "list"],
        &["config", "list", "--prefix", "throttle:", "--json"],
        &["config", "set", "feature:new_flow", "disabled", "--json"],
        &["config", "delete", "feature:new_flow"],
        &["config", "delete", "throttle:api:rate", "--json"],
        &["config", "list"],
    ] {
        session += &format!("$ fila {}\n{}", arguments.join(" "), server.ok(arguments));
    }
    assert_snapshot!("config_session", session);
    let listed = server.ok(&["config", "list", "--prefix", "nothing", "--json"]);
    assert_eq!(listed, "");
    let said = server.run(&["config", "list", "--prefix", "nothing"]);
    assert_eq!((said.stdout.as_str(), said.code), ("", Some(0)));
    assert_snapshot!("config_list_empty", said.stderr);
}

#[test]
fn a_value_is_printed_as_it_is_and_shown_in_part_in_a_table() {
    let server = Server::start();
    let value = "größe\n\u{1b}[2J".to_owned() + &"x".repeat(100);
    server.ok(&["config", "set", "odd", &value]);
    assert_eq!(server.ok(&["config", "get", "odd"]), format!("{value}\n"));
    let listed = server.ok(&["config", "list"]);
    assert!(listed.contains("größe\\n\\u{1b}[2Jxxx"), "{listed}");
    assert!(listed.ends_with("x…\n"), "{listed}");
    for (arguments, value) in [
        (&["config", "set", "number", "-5"][..], "-5"),
        (&["config", "set", "--", "dash", "-x"], "-x"),
        (&["config", "set", "empty", ""], ""),
    ] {
        server.ok(arguments);
        let key = arguments[arguments.len() - 2];
        assert_eq!(server.ok(&["config", "get", key]), format!("{value}\n"));
    }
}

#[test]
fn what_is_not_set_ends_with_4_and_says_what_may_be_meant() {
    let server = Server::start();
    server.ok(&["config", "set", "feature:new_flow", "enabled"]);
    let failures = [
        server.fails(&["config", "get", "feature:new_flw"]),
        server.fails(&["config", "get", "limit"]),
        server.fails(&["config", "delete", "limit"]),
        server.fails(&["config", "delete", "limit", "--version", "1"]),
    ];
    assert_snapshot!("config_missing", failures.join("\n"));
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let server = Server::start();
    let long = "k".repeat(300);
    let failures = [
        server.fails(&["config", "set", "throttle:api:rate", "ten"]),
        server.fails(&["config", "set", "throttle:api:rate", "-1"]),
        server.fails(&["config", "set", "throttle:api:burst", "0"]),
        server.fails(&["config", "set", "throttle:x:rat", "10"]),
        server.fails(&["config", "set", "throttle:api", "10"]),
        server.fails(&["config", "set", "", "x"]),
        server.fails(&["config", "set", " x", "x"]),
        server.fails(&["config", "set", &long, "x"]),
    ];
    assert_snapshot!("config_refused", failures.join("\n"));
    assert_eq!(server.ok(&["config", "list", "--json"]), "");
}

#[test]
fn of_two_who_change_the_same_version_one_is_refused() {
    let server = Server::start();
    server.ok(&["config", "set", "leader", "a", "--version", "0"]);
    let failures = [
        server.fails(&["config", "set", "leader", "b", "--version", "0"]),
        server.fails(&["config", "set", "leader", "b", "--version", "7"]),
        server.fails(&["config", "delete", "leader", "--version", "7"]),
        server.fails(&["config", "set", "another", "b", "--version", "7"]),
    ];
    assert_snapshot!("config_changed", failures.join("\n"));
    assert_eq!(server.ok(&["config", "get", "leader"]), "a\n");
}
