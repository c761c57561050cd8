//! `fila profile`, and the commands that use a profile.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::rig::{Said, Server, fila, run};

/// A user with a folder for configurations.
struct User {
    folder: TempDir,
}

impl User {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    fn with_file(text: &str) -> Self {
        let user = Self::new();
        fs::create_dir(user.folder.path().join("fila")).unwrap();
        fs::write(user.file(), text).unwrap();
        user
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("fila/config.toml")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = fila();
        command.env("XDG_CONFIG_HOME", self.folder.path());
        command.args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Said {
        run(&mut self.command(arguments), b"")
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.stdout
    }

    /// Returns how a command failed, with `[folder]` for the folder of the user.
    fn fails(&self, arguments: &[&str]) -> String {
        let folder = self.folder.path().to_str().unwrap();
        self.run(arguments).failure().replace(folder, "[folder]")
    }
}

#[test]
fn commands_reach_the_server_of_their_profile() {
    let server = Server::with_orders();
    let user = User::new();
    let address = format!("http://{}", server.address().trim_start_matches("http://"));
    user.ok(&["profile", "add", "here", "--address", &address]);
    user.ok(&["profile", "add", "away", "--address", "http://127.0.0.1:1"]);
    assert!(
        user.ok(&["queue", "list", "--profile", "here"])
            .contains("orders")
    );
    user.ok(&["profile", "use", "here"]);
    assert!(user.ok(&["queue", "list"]).contains("orders"));
    let mut by_variable = user.command(&["queue", "list"]);
    let said = run(by_variable.env("FILA_PROFILE", "away"), b"");
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    let by_flag = user.run(&["queue", "list", "--profile", "away", "--addr", &address]);
    assert_eq!(by_flag.code, Some(0), "{}", by_flag.stderr);
}

#[test]
fn only_the_owner_may_read_the_file() {
    let user = User::new();
    user.ok(&["profile", "add", "here", "--address", "127.0.0.1:1"]);
    let mode = fs::metadata(user.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let files = fs::read_dir(user.folder.path().join("fila")).unwrap();
    assert_eq!(files.count(), 1, "no temporary file is left");
}

#[test]
fn comments_and_other_profiles_stay() {
    let text = "# mine\n[profile.old] # since 2024\naddress = \"a:1\"\n";
    let user = User::with_file(text);
    user.ok(&["profile", "add", "new", "--address", "b:1"]);
    user.ok(&["profile", "use", "new"]);
    let changed = fs::read_to_string(user.file()).unwrap();
    assert!(changed.contains("# mine\n"), "{changed}");
    assert!(
        changed.contains("[profile.old] # since 2024\naddress = \"a:1\"\n"),
        "{changed}"
    );
    assert!(changed.contains("default = \"new\""), "{changed}");
    let replaced = user.ok(&["profile", "add", "old", "--address", "c:1"]);
    assert!(replaced.starts_with("replaced profile `old`"), "{replaced}");
}

#[test]
fn profiles_are_listed_by_name() {
    let user = User::new();
    let nothing = user.run(&["profile", "list"]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(0), ""));
    user.ok(&["profile", "add", "b", "--address", "https://b:1"]);
    user.ok(&["profile", "add", "a", "--address", "http://a:1"]);
    user.ok(&["profile", "use", "b"]);
    let expected = "{\"name\":\"a\",\"address\":\"http://a:1\",\"default\":false}\n\
                    {\"name\":\"b\",\"address\":\"https://b:1\",\"default\":true}\n";
    assert_eq!(user.ok(&["profile", "list", "--json"]), expected);
}

#[test]
fn the_file_of_the_book_is_understood() {
    let book = include_str!("../../../../docs/cli.md");
    let (_, rest) = book.split_once("```toml\n").unwrap();
    let (text, rest) = rest.split_once("```").unwrap();
    assert!(!rest.contains("```toml"), "the book has one file");
    let user = User::with_file(text);
    let listed = user.ok(&["profile", "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let ca = user.folder.path().join("fila/prod-ca.pem");
    assert_eq!(listed["ca_file"].as_str(), ca.to_str());
    assert_eq!(listed["default"], true);
}

#[test]
fn a_mistake_in_the_file_is_shown_with_its_line() {
    let user = User::with_file("[profile.prod]\naddress = 'b:1'\nca = 'x'\n");
    let expected = "2: error: [folder]/fila/config.toml:3: unknown field `ca` of profile `prod`; the fields are address, \
                    ca_file, cert_file, cert_key_file";
    assert_eq!(user.fails(&["queue", "list"]), expected);
    assert_eq!(
        user.fails(&["profile", "add", "x", "--address", "b:1"]),
        expected
    );
}

#[test]
fn a_profile_that_is_not_there() {
    let user = User::with_file("[profile.prod]\naddress = 'b:1'\n");
    let text = "error: there is no profile `dev` in `[folder]/fila/config.toml`; there are prod";
    assert_eq!(
        user.fails(&["queue", "list", "--profile", "dev"]),
        format!("2: {text}")
    );
    assert_eq!(user.fails(&["profile", "use", "dev"]), format!("4: {text}"));
}

#[test]
fn files_that_cannot_be_used_are_no_profile() {
    let user = User::new();
    let plain = [
        "profile",
        "add",
        "x",
        "--address",
        "b:1",
        "--ca-file",
        "ca.pem",
    ];
    assert_eq!(
        user.fails(&plain),
        "2: error: `ca_file` is set, but the address `b:1` is without TLS; write it with https://, or remove `ca_file`"
    );
    let missing = user.folder.path().join("ca.pem");
    let missing = missing.to_str().unwrap();
    let failure = user.fails(&[
        "profile",
        "add",
        "x",
        "--address",
        "https://b:1",
        "--ca-file",
        missing,
    ]);
    assert!(
        failure.starts_with("2: error: `[folder]/ca.pem` cannot be used: "),
        "{failure}"
    );
    assert!(!user.file().exists());
}

#[test]
fn a_server_without_tls_is_told_from_one_that_is_away() {
    let server = Server::start();
    let address = server.address().trim_start_matches("http://");
    let user = User::new();
    let said = user.run(&["queue", "list", "--addr", &format!("https://{address}")]);
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert!(
        said.stderr.contains("does not speak TLS"),
        "{}",
        said.stderr
    );
}

#[test]
fn the_server_takes_no_options_of_clients() {
    for flag in ["--profile", "--ca-file", "--cert-file", "--cert-key-file"] {
        let failure = run(fila().args(["server", flag, "x"]), b"").failure();
        let expected = format!("2: error: `fila server` takes no {flag}, which is for clients");
        assert_eq!(failure, expected);
    }
}
