#![cfg(test)] // helpers may unwrap, as tests do
//! `fila server`, as the shell sees it.

#[path = "common/program.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod program;

// What `--version` prints is made by the build script, whose tests are in its file.
#[path = "../build.rs"]
#[allow(dead_code, reason = "only its tests are run here")]
mod build_script;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use program::Running;

const BOOK: &str = include_str!("../../../docs/configuration.md");

/// Returns the command in an empty environment, in a directory.
fn fila(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fila"));
    command.env_clear().current_dir(directory);
    command
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Prints the configuration, which must be right, and returns it.
fn printed(command: &mut Command) -> String {
    let output = command.args(["server", "--print-config"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    stdout(&output).to_owned()
}

/// Asks for the configuration, which must be wrong, and returns what is said of it.
fn refused(command: &mut Command) -> Vec<String> {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    stderr(&output).lines().map(str::to_owned).collect()
}

#[test]
fn the_version_is_printed_with_its_commit_as_far_as_that_is_known() {
    let dir = TempDir::new().unwrap();
    let output = fila(dir.path()).arg("--version").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let version = concat!("fila ", env!("CARGO_PKG_VERSION"));
    let rest = stdout(&output).strip_prefix(version).unwrap();
    let source = rest.strip_suffix('\n').unwrap();
    let commit = source
        .strip_prefix(" (")
        .and_then(|it| it.strip_suffix(')'));
    let is_commit = |text: &str| {
        let digits = text.strip_suffix(", changed").unwrap_or(text);
        digits.len() == 12 && digits.bytes().all(|it| it.is_ascii_hexdigit())
    };
    match commit {
        Some("development") => {}
        Some(commit) => assert!(is_commit(commit), "{source}"),
        None => assert_eq!(source, ""),
    }
}

#[test]
fn a_printed_configuration_fed_back_prints_the_same() {
    let dir = TempDir::new().unwrap();
    let first = printed(
        fila(dir.path())
            .env("FILA_STORAGE__DURABILITY", "os")
            .env("FILA_TELEMETRY__TRACE_RATIO", "0.25"),
    );
    assert!(first.contains("\ndurability = \"os\"\n"), "{first}");
    fs::write(dir.path().join("fila.toml"), &first).unwrap();
    assert_eq!(printed(&mut fila(dir.path())), first);
}

#[test]
fn every_flag_sets_its_key_and_is_stronger_than_the_environment() {
    let dir = TempDir::new().unwrap();
    let output = fila(dir.path())
        .env("FILA_SERVER__ADDRESS", "127.0.0.1:1")
        .args(["server", "--print-config", "--insecure"])
        .args([
            "--address",
            "0.0.0.0:7000",
            "--data",
            "/data",
            "--durability",
            "memory",
        ])
        .args([
            "--memory-budget",
            "1 GiB",
            "--threads",
            "4",
            "--log",
            "warn",
        ])
        .args([
            "--set",
            "limits.queues=5",
            "--set",
            "server.worker_threads=2",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for line in [
        "insecure = true",
        "address = \"0.0.0.0:7000\"",
        "path = \"/data\"",
        "durability = \"memory\"",
        "memory_budget = \"1 GiB\"",
        "threads = 4",
        "log = \"warn\"",
        "queues = 5",
        "worker_threads = 2",
    ] {
        assert!(stdout(&output).lines().any(|other| other == line), "{line}");
    }
}

#[test]
fn the_file_is_found_by_flag_by_variable_and_by_name() {
    let dir = TempDir::new().unwrap();
    for (file, path) in [("fila.toml", "a"), ("b.toml", "b"), ("c.toml", "c")] {
        fs::write(
            dir.path().join(file),
            format!("[storage]\npath = \"{path}\"\n"),
        )
        .unwrap();
    }
    let path = |command: &mut Command| {
        let text = printed(command);
        let line = text.lines().find(|line| line.starts_with("path = "));
        line.unwrap().to_owned()
    };
    let mut command = fila(dir.path());
    assert_eq!(path(&mut command), "path = \"a\"");
    let mut command = fila(dir.path());
    assert_eq!(path(command.env("FILA_CONFIG", "b.toml")), "path = \"b\"");
    let output = command.args(["--config", "c.toml"]).output().unwrap();
    assert!(
        stdout(&output).contains("\npath = \"c\"\n"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn everything_wrong_is_said_at_once_one_line_each_with_exit_code_2() {
    let dir = TempDir::new().unwrap();
    let text = "[storage]\n# how safely\ndurability = \"fsyn\"\n";
    fs::write(dir.path().join("fila.toml"), text).unwrap();
    let lines = refused(
        fila(dir.path())
            .env("FILA_SERVER__ADRESS", "127.0.0.1:5555")
            .args(["server", "--threads", "0", "--set", "limits.queues=many"]),
    );
    assert_eq!(
        lines,
        [
            "error: fila.toml:3:14: storage.durability: `fsyn` is no level of durability; choose `fsync`, `os` or \
             `memory`",
            "error: FILA_SERVER__ADRESS: `adress` is no key of [server]; did you mean `address`?",
            "error: --threads: expected a whole number from 1 to 64, got `0`",
            "error: --set limits.queues: expected a whole number from 1 to 1000000, got `many`",
        ]
    );
    assert!(
        BOOK.contains(&lines.join("\n")),
        "the book shows what is printed"
    );
    assert!(BOOK.contains(text), "and the file that it is printed for");
}

/// Returns the first block of a kind in a document.
fn block<'a>(book: &'a str, kind: &str) -> &'a str {
    let (_, rest) = book.split_once(&format!("\n```{kind}\n")).unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    text
}

#[test]
fn the_file_of_the_book_sets_what_it_says() {
    let dir = TempDir::new().unwrap();
    // The other one has mistakes.
    assert_eq!(BOOK.matches("\n```toml\n").count(), 2);
    let file = block(BOOK, "toml");
    assert!(file.contains("durability"), "{file}");
    assert_sets(dir.path(), file);
}

#[test]
fn the_file_of_the_page_on_security_sets_what_it_says_and_needs_no_insecure() {
    let page = include_str!("../../../docs/security.md");
    assert_eq!(page.matches("\n```toml\n").count(), 1);
    let dir = TempDir::new().unwrap();
    assert_sets(dir.path(), block(page, "toml"));
}

/// Checks that a server with this file has the values that are in it.
fn assert_sets(directory: &Path, file: &str) {
    fs::write(directory.join("fila.toml"), file).unwrap();
    let shown = printed(&mut fila(directory));
    for line in file.lines() {
        let line = line.split(" #").next().unwrap_or(line).trim_end();
        assert!(
            shown.lines().any(|other| other == line),
            "{line} in\n{shown}"
        );
    }
}

#[test]
fn the_drop_in_for_systemd_sets_what_unit_and_server_know() {
    let book = include_str!("../../../deploy/README.md");
    assert_eq!(book.matches("\n```ini\n").count(), 1);
    let drop_in = block(book, "ini");
    let unit = include_str!("../../../deploy/fila.service");
    let (_, service) = unit.split_once("\n[Service]\n").unwrap();
    let (service, _) = service.split_once("\n[").unwrap();
    let settings = drop_in.strip_prefix("[Service]\n").unwrap();
    let dir = TempDir::new().unwrap();
    let mut command = fila(dir.path());
    for line in settings.lines() {
        let (key, value) = line.split_once('=').unwrap();
        let is_of_the_unit = service
            .lines()
            .any(|other| other.split('=').next() == Some(key));
        assert!(is_of_the_unit, "the unit has no `{key}`");
        if key == "Environment" {
            let (name, value) = value.split_once('=').unwrap();
            command.env(name, value);
        }
    }
    let shown = printed(&mut command);
    for line in ["address = \"10.0.0.5:5555\"", "insecure = true"] {
        assert!(
            shown.lines().any(|other| other == line),
            "{line} in\n{shown}"
        );
    }
}

#[test]
fn an_address_that_others_can_reach_is_refused_unless_called_insecure() {
    let dir = TempDir::new().unwrap();
    let lines = refused(fila(dir.path()).args(["server", "--address", "0.0.0.0:5555"]));
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].starts_with("error: --address: other machines can reach"),
        "{lines:?}"
    );
    assert!(lines[0].contains("--insecure"), "{lines:?}");
    assert!(BOOK.contains(&lines[0]), "the book shows what is printed");
}

#[test]
fn an_unknown_flag_and_a_missing_command_are_usage_errors() {
    let dir = TempDir::new().unwrap();
    let lines = refused(fila(dir.path()).args(["server", "--adress", "127.0.0.1:1"]));
    assert!(lines[0].contains("--adress"), "{lines:?}");
    assert!(
        lines.iter().any(|line| line.contains("'--address'")),
        "{lines:?}"
    );
    assert_eq!(fila(dir.path()).output().unwrap().status.code(), Some(2));
}

#[test]
fn help_names_every_flag() {
    let dir = TempDir::new().unwrap();
    let output = fila(dir.path())
        .args(["server", "--help"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    for flag in [
        "--config",
        "--address",
        "--data",
        "--durability",
        "--memory-budget",
        "--threads",
        "--log",
        "--insecure",
        "--dev-tls",
        "--set",
        "--print-config",
    ] {
        assert!(stdout(&output).contains(flag), "{flag}");
    }
}

/// Starts a server and returns the first line of its log.
fn first_log_line(format: &str) -> String {
    let dir = TempDir::new().unwrap();
    let mut server = fila(dir.path())
        .args([
            "server",
            "--address",
            "127.0.0.1:0",
            "--set",
            "storage.engine=memory",
        ])
        .args(["--set", &format!("telemetry.log_format={format}")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stderr.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let _ = server.kill(); // It may have ended by itself.
    server.wait().unwrap();
    line
}

#[test]
fn a_server_without_a_terminal_logs_its_configuration_as_text_without_colours() {
    let line = first_log_line("text");
    assert!(
        line.contains(" INFO fila::server: configuration read version="),
        "{line}"
    );
    assert!(
        line.contains(" address=127.0.0.1:0 ") && !line.contains('\u{1b}'),
        "{line}"
    );
}

#[test]
fn a_server_logs_its_configuration_as_json() {
    let line = first_log_line("json");
    assert!(
        line.starts_with("{\"timestamp\":\"") && line.ends_with("}\n"),
        "{line}"
    );
    assert!(
        line.contains("\"message\":\"configuration read\""),
        "{line}"
    );
    assert!(line.contains("\"engine\":\"memory\""), "{line}");
}

#[test]
fn every_change_of_the_runtime_configuration_is_logged_without_its_value() {
    let dir = TempDir::new().unwrap();
    let mut server = Running::start(
        fila(dir.path())
            .args(["server", "--address", "127.0.0.1:0"])
            .args(["--set", "storage.engine=memory"])
            .args(["--set", "telemetry.log_format=json"])
            .stderr(Stdio::piped()),
    );
    for arguments in [
        &["set", "api_key", "hunter2"][..],
        &["set", "api_key", "swordfish"],
        &["set", "api_key", "swordfish"],
        &["set", "throttle:api:rate", "hunter2"],
        &["delete", "api_key"],
    ] {
        let mut command = fila(dir.path());
        command.arg("config").args(arguments);
        command.args(["--addr", &server.address]).output().unwrap();
    }
    let process = server.process.id().to_string();
    let told = Command::new("kill").args(["-s", "TERM", &process]).status();
    assert!(told.unwrap().success()); // its last lines are written before it ends
    let mut log = String::new();
    let mut errors = server.process.stderr.take().unwrap();
    errors.read_to_string(&mut log).unwrap();
    assert!(
        !log.contains("hunter2") && !log.contains("swordfish"),
        "{log}"
    );
    let lines = log.lines().filter(|line| line.contains("\"api_key\""));
    let mut lines: Vec<serde_json::Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let shown = lines.iter_mut().map(|line| {
        let fields = line.as_object_mut().unwrap();
        for everywhere in ["timestamp", "level", "target"] {
            fields.remove(everywhere);
        }
        let client = fields.remove("client").unwrap();
        assert!(client.as_str().unwrap().starts_with("127.0.0.1:"));
        serde_json::Value::from(fields.clone()).to_string()
    });
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            r#"{"key":"api_key","message":"runtime configuration set","value_bytes":7,"version":1}"#,
            r#"{"key":"api_key","message":"runtime configuration set","old_value_bytes":7,"value_bytes":9,"version":2}"#,
            r#"{"key":"api_key","message":"runtime configuration deleted","old_value_bytes":9}"#,
        ]
    );
}
