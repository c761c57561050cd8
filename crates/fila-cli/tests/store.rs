#![cfg(test)] // helpers may unwrap, as tests do
//! Damaged stores, as the shell sees them: what the server says, its exit code, and `fila store repair`.

#[path = "common/program.rs"]
#[allow(dead_code, reason = "each test program uses some of it")]
mod program;

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use program::{Running, fila};

/// A directory with a store of a hundred messages.
struct Desk {
    place: TempDir,
}

impl Desk {
    fn data(&self) -> PathBuf {
        self.place.path().join("data")
    }

    fn server(&self) -> Command {
        let mut command = fila();
        command
            .current_dir(self.place.path())
            .args(["server", "--address", "127.0.0.1:0", "--data"])
            .arg(self.data());
        command
    }

    fn client(&self, server: &Running, arguments: &[&str]) -> String {
        let address = format!("http://{}", server.address);
        let output = fila()
            .args(arguments)
            .args(["--addr", &address])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Creates a queue, and stores a hundred messages in it.
    fn filled() -> (Self, Running) {
        let desk = Self {
            place: TempDir::new().unwrap(),
        };
        let server = Running::start(desk.server().stderr(Stdio::null()));
        desk.client(&server, &["queue", "create", "orders"]);
        desk.client(&server, &["enqueue", "orders", "hello", "--count", "100"]);
        (desk, server)
    }

    /// Fills a store, and ends the server in an orderly way.
    fn stopped() -> Self {
        let (desk, mut server) = Self::filled();
        let pid = server.process.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .unwrap()
                .success()
        );
        assert!(server.process.wait().unwrap().success());
        desk
    }

    /// Starts a server that must refuse, and returns its last line.
    fn refusal(&self) -> String {
        let output = self.server().output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        last_line(&output)
    }

    fn repair(&self, arguments: &[&str]) -> Output {
        let mut command = fila();
        command.args(["store", "repair"]).arg(self.data());
        command.args(arguments).output().unwrap()
    }

    /// Accepts the loss, and returns what the command says.
    fn repaired(&self) -> String {
        let output = self.repair(&["--accept-loss"]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts the server, and returns how many messages are ready.
    fn ready(&self) -> u64 {
        let server = Running::start(self.server().stderr(Stdio::null()));
        let queue = self.client(&server, &["queue", "inspect", "orders", "--json"]);
        let ready = queue.split("\"ready\":").nth(1).unwrap();
        let digits = ready.find(|it: char| !it.is_ascii_digit()).unwrap();
        ready[..digits].parse().unwrap()
    }
}

fn metrics(server: &Running) -> String {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nhost: fila\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn last_line(output: &Output) -> String {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    said.lines().last().unwrap_or_default().to_owned()
}

/// Returns the files of a folder with this extension, the newest name last.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let is_of =
        |path: &PathBuf| path.extension().map_or("", |it| it.to_str().unwrap()) == extension;
    let mut files: Vec<_> = files.filter(is_of).collect();
    files.sort();
    files
}

#[test]
fn a_missing_file_is_named_with_the_loss_and_the_command_that_accepts_it() {
    let desk = Desk::stopped();
    let table = files(&desk.data().join("tables/messages/tables"), "")
        .pop()
        .unwrap();
    fs::remove_file(&table).unwrap();
    let said = desk.refusal();
    let data = desk.data();
    assert_eq!(
        said,
        format!(
            "error: the store was not opened: `{}` is missing; without it messages would be lost, and acknowledged ones \
             could come back; put the file back or restore a copy, or accept the loss with `fila store repair {} \
             --accept-loss`",
            table.display(),
            data.display()
        )
    );
    // Without the flag nothing happens.
    let looked = desk.repair(&[]);
    assert_eq!(looked.status.code(), Some(1), "{looked:?}");
    assert!(
        last_line(&looked).contains("is missing; without it"),
        "{looked:?}"
    );
    assert_eq!(desk.refusal(), said);
    let repaired = desk.repaired();
    assert!(
        repaired.contains(&table.display().to_string()),
        "{repaired}"
    );
    assert!(repaired.contains("can be started"), "{repaired}");
    assert_eq!(desk.ready(), 0);
}

#[test]
fn a_lost_name_of_a_manifest_is_found_again_and_nothing_is_lost() {
    let desk = Desk::stopped();
    fs::remove_file(desk.data().join("tables/messages/current")).unwrap();
    assert!(
        desk.refusal()
            .contains("tables/messages/current` is missing")
    );
    desk.repaired();
    assert_eq!(desk.ready(), 100);
}

#[test]
fn a_log_cut_short_after_a_kill_is_refused_and_repaired_up_to_the_cut() {
    let (desk, mut server) = Desk::filled();
    server.kill();
    let segment = files(&desk.data().join("log"), "log").remove(0);
    let whole = fs::read(&segment).unwrap();
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let file = OpenOptions::new().write(true).open(&segment).unwrap();
    file.set_len(used as u64 - 10).unwrap();
    drop(file);
    let said = desk.refusal();
    let name = segment.display().to_string();
    assert!(
        said.contains(&format!("`{name}` is shorter than it was")),
        "{said}"
    );
    let repaired = desk.repaired();
    assert!(repaired.contains("damaged-1"), "{repaired}");
    // The cut file is kept as it was.
    let aside = desk
        .data()
        .join("damaged-1/log")
        .join(segment.file_name().unwrap());
    assert_eq!(fs::read(aside).unwrap(), whole[..used - 10]);
    assert!(desk.ready() <= 100);
    let looked = desk.repair(&[]);
    assert!(looked.status.success(), "{looked:?}");
}

#[test]
fn everything_confirmed_is_there_after_a_kill_without_damage() {
    let (desk, mut server) = Desk::filled();
    server.kill();
    assert_eq!(desk.ready(), 100);
}

#[test]
fn a_damaged_end_of_the_log_is_reported_and_counted() {
    let (desk, mut server) = Desk::filled();
    server.kill();
    let segment = files(&desk.data().join("log"), "log").remove(0);
    let mut bytes = fs::read(&segment).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[used - 3] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let log = desk.place.path().join("log.txt");
    let server = Running::start(desk.server().stderr(fs::File::create(&log).unwrap()));
    let metrics = metrics(&server);
    drop(server);
    assert!(
        metrics.contains("fila_store_commits_dropped 1"),
        "{metrics}"
    );
    let said = fs::read_to_string(log).unwrap();
    assert!(
        said.contains("the log ends with commits that cannot be read"),
        "{said}"
    );
    assert!(said.contains(segment.to_str().unwrap()), "{said}");
}

#[test]
fn a_file_in_the_place_of_the_directory_is_named_with_a_remedy() {
    let place = TempDir::new().unwrap();
    let desk = Desk { place };
    fs::write(desk.data(), "a note").unwrap();
    let said = desk.refusal();
    let data = desk.data();
    assert_eq!(
        said,
        format!(
            "error: the store was not opened: `{}`: a file is in the place of a directory; name another directory",
            data.display()
        )
    );
}

#[test]
fn a_directory_without_a_store_is_not_repaired() {
    let place = TempDir::new().unwrap();
    let output = fila()
        .args(["store", "repair"])
        .arg(place.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(
        last_line(&output).contains("there is no store in"),
        "{output:?}"
    );
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_copy_is_a_store_and_a_used_directory_is_none() {
    let desk = Desk::stopped();
    let copy = desk.place.path().join("copy");
    let run = |to: &Path, engine: &str| {
        let mut command = fila();
        command.args(["store", "copy"]).arg(desk.data()).arg(to);
        command.args(["--engine", engine]).output().unwrap()
    };
    let copied = run(&copy, "lsm");
    assert!(copied.status.success(), "{copied:?}");
    let said = String::from_utf8(copied.stdout).unwrap();
    // The queue, and that of its dead letters.
    assert!(
        said.starts_with("copied and compared 2 queues, 100 messages"),
        "{said}"
    );
    let again = run(&copy, "lsm");
    assert_eq!(again.status.code(), Some(2), "{again:?}");
    assert!(last_line(&again).contains("is not empty"), "{again:?}");
    fs::remove_dir_all(desk.data()).unwrap();
    fs::rename(&copy, desk.data()).unwrap();
    assert_eq!(desk.ready(), 100);
}

#[test]
#[cfg(not(feature = "rocksdb"))]
fn a_build_without_rocksdb_answers_with_the_command_that_builds_one() {
    let place = TempDir::new().unwrap();
    let command = "`cargo build --release -p fila-cli --features rocksdb`";
    let server = ["server", "--engine", "rocksdb"];
    let copy = ["store", "copy", "from", "to", "--engine", "rocksdb"];
    for arguments in [&server[..], &copy[..]] {
        let output = fila()
            .current_dir(place.path())
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(command), "{said}");
    }
}
