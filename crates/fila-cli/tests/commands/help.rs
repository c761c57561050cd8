//! What commands say about themselves.

use insta::assert_snapshot;

use crate::rig::{fila, run};

#[test]
fn every_command_has_help() {
    for command in [
        "",
        "queue",
        "queue create",
        "queue list",
        "queue inspect",
        "queue update",
        "queue pause",
        "queue resume",
        "queue purge",
        "queue delete",
        "key",
        "key list",
        "key pause",
        "key resume",
        "key weight",
        "key concurrency",
        "key depth-max",
        "config",
        "config set",
        "config get",
        "config list",
        "config delete",
        "hook",
        "hook test",
        "store",
        "store repair",
        "store copy",
        "enqueue",
        "consume",
        "peek",
        "explain",
        "whatif",
        "redrive",
        "top",
        "demo",
        "bench",
        "profile",
        "profile add",
        "profile use",
        "profile list",
        "completions",
    ] {
        let said = run(fila().args(command.split_whitespace()).arg("--help"), b"");
        assert_eq!(
            (said.stderr.as_str(), said.code),
            ("", Some(0)),
            "{command}"
        );
        let name = format!("help {command}");
        assert_snapshot!(name.trim_end().replace(' ', "_"), said.stdout);
    }
}

#[test]
fn without_a_command_there_is_help() {
    let help = run(fila().arg("-h"), b"");
    let said = run(fila().env("FILA_ADDR", "127.0.0.1:1"), b"");
    assert_eq!(said.stderr, help.stdout);
    assert_eq!((said.stdout.as_str(), said.code), ("", Some(2)));
}

#[test]
fn shells_get_scripts_that_know_the_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let said = run(fila().args(["completions", shell]), b"");
        assert_eq!((said.stderr.as_str(), said.code), ("", Some(0)), "{shell}");
        for word in ["enqueue", "visibility-timeout", "--addr"] {
            let word = word.trim_start_matches('-');
            assert!(said.stdout.contains(word), "{shell}: {word}");
        }
    }
}
