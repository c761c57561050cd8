//! A block of commands, what is known of it, and the desk at which it is tried.

use crate::program::{Running, fila};
use crate::session::{Ended, Shell, Step, Until, squeezed};

/// The line that a server prints when it is ready.
pub(crate) const LISTENS: &str = "fila is listening on ";

/// Another server, as the documents call it.
const OTHER: &str = "other:5555";

/// A block, as it has to be found in the document.
pub(crate) struct Sheet {
    /// Typed before; all of it ends well.
    before: &'static [&'static str],
    files: &'static [(&'static str, &'static str)],
    server: Server,
    commands: Vec<Known>,
}

/// Where the server comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    /// It runs when the block begins.
    Runs,
    /// The block starts one, or needs none.
    None,
}

/// The expectations of a command.
pub(crate) struct Known {
    first: &'static [&'static str],
    prints: &'static str,
    code: i32,
    goes_on: bool,
    then: Option<(&'static str, &'static str)>,
}

/// Returns a block whose commands find a server.
pub(crate) fn sheet<const N: usize>(commands: [Known; N]) -> Sheet {
    Sheet {
        before: &[],
        files: &[],
        server: Server::Runs,
        commands: commands.into(),
    }
}

impl Sheet {
    pub(crate) fn before(self, before: &'static [&'static str]) -> Self {
        Self { before, ..self }
    }

    pub(crate) fn files(self, files: &'static [(&'static str, &'static str)]) -> Self {
        Self { files, ..self }
    }

    pub(crate) fn without_server(self) -> Self {
        Self {
            server: Server::None,
            ..self
        }
    }
}

/// Returns a command that ends well, and has this in what it prints. How many spaces there are is not compared.
pub(crate) fn prints(text: &'static str) -> Known {
    Known {
        first: &[],
        prints: text,
        code: 0,
        goes_on: false,
        then: None,
    }
}

impl Known {
    /// Commands to run right before it.
    pub(crate) fn first(self, first: &'static [&'static str]) -> Self {
        Self { first, ..self }
    }

    /// How it ends, if the document says that it does not end well.
    pub(crate) fn ends_with(self, code: i32) -> Self {
        Self { code, ..self }
    }

    /// It goes on until Ctrl-C, and ends so then.
    pub(crate) fn until_interrupted(self, code: i32) -> Self {
        Self {
            code,
            goes_on: true,
            ..self
        }
    }

    /// A command to run after it, or while it runs if it does not end, and a part of that command's output.
    pub(crate) fn then(self, command: &'static str, prints: &'static str) -> Self {
        Self {
            then: Some((command, prints)),
            ..self
        }
    }
}

/// A block of code in a document.
struct Block {
    /// Where it begins, counted from 1.
    line: usize,
    commands: Vec<String>,
}

/// Returns the blocks of commands, but for those that `scripts/check-docs` checks.
fn blocks(book: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut text: Option<String> = None;
    for (line, found) in (1..).zip(book.lines()) {
        match (text.take(), found) {
            (None, "```sh") => {
                text = Some(String::new());
                blocks.push(Block {
                    line,
                    commands: Vec::new(),
                });
            }
            (None, _) => {}
            (Some(all), "```") => {
                let block = blocks.last_mut().expect("a block has begun");
                block.commands = commands(&all);
            }
            (Some(mut all), found) => {
                all.push_str(found);
                all.push('\n');
                text = Some(all);
            }
        }
    }
    let is_for_cargo = |it: &String| it.starts_with("cargo ") || it.starts_with("scripts/");
    blocks.retain(|block| !block.commands.iter().all(is_for_cargo));
    blocks
}

/// Returns commands without remarks.
fn commands(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let lines = lines.map(|line| line.split(" #").next().unwrap_or(line).trim());
    let lines = lines.filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// Tries all blocks of a document, each at a desk of its own.
pub(crate) fn play(name: &'static str, book: &str, sheets: &[Sheet]) {
    let blocks = blocks(book);
    assert_eq!(
        blocks.len(),
        sheets.len(),
        "{name} has blocks of commands that are in no list, or lacks some"
    );
    for (block, sheet) in blocks.iter().zip(sheets) {
        let place = format!("{name}, line {}", block.line);
        assert_eq!(
            block.commands.len(),
            sheet.commands.len(),
            "{place}: {:#?}",
            block.commands
        );
        let mut desk = Desk::new(name, place, block.commands.iter().any(|it| has_other(it)));
        desk.prepare(sheet);
        for (command, known) in block.commands.iter().zip(&sheet.commands) {
            desk.play(command, known);
        }
    }
}

fn has_other(command: &str) -> bool {
    command.contains(OTHER)
}

/// A shell in an empty directory.
pub(crate) struct Desk {
    shell: Shell,
    /// The server that documents call `other`, if one does.
    other: Option<Running>,
    place: String,
}

impl Desk {
    pub(crate) fn new(name: &'static str, place: String, has_other: bool) -> Self {
        let other = has_other.then(|| {
            Running::start(
                fila()
                    .args(["server", "--address", "127.0.0.1:0", "--log", "error"])
                    .args(["--set", "storage.engine=memory"]),
            )
        });
        let mut desk = Self {
            shell: Shell::start(name),
            other,
            place,
        };
        // What fails in the middle of a pipe fails, and what a document takes from elsewhere lies in `bin`.
        desk.prints("set -o pipefail; mkdir bin; PATH=\"$PWD/bin:$PATH\"", 0, "");
        desk
    }

    /// Puts everything where the block finds it.
    fn prepare(&mut self, sheet: &Sheet) {
        for (file, text) in sheet.files {
            self.shell.play(&Step::File {
                name: (*file).to_owned(),
                text: (*text).to_owned(),
            });
        }
        if sheet.server == Server::Runs {
            self.start_server();
        }
        for command in sheet.before {
            self.prints(command, 0, "");
        }
    }

    pub(crate) fn start_server(&mut self) {
        let server = "fila server 2> server.log";
        self.shell.begin(&self.place, server, Until::Seen(LISTENS));
    }

    fn play(&mut self, command: &str, known: &Known) {
        for command in known.first {
            self.prints(command, 0, "");
        }
        match command.strip_suffix('&') {
            Some(command) => self.begins(command, known.prints),
            None if known.goes_on => self.begins(command, known.prints),
            None => self.prints(command, known.code, known.prints),
        }
        if let Some((command, prints)) = known.then {
            self.prints(command, 0, prints);
        }
        if known.goes_on {
            self.prints("kill -INT $!; wait $!", known.code, "");
        }
    }

    /// Types a command that goes on, and waits until it has printed this.
    pub(crate) fn begins(&mut self, command: &str, prints: &str) {
        let (place, command) = self.here(command);
        self.shell.begin(&place, &command, Until::Seen(prints));
    }

    /// Types a command, which must end so and print this among other things.
    pub(crate) fn prints(&mut self, command: &str, code: i32, prints: &str) {
        let ended = self.types(command);
        let found = ended.lines.join("\n");
        let (place, _) = self.here(command);
        assert_eq!(ended.code, code, "{place} has printed\n{found}");
        assert!(
            squeezed(&found).contains(&squeezed(prints)),
            "{place} has printed\n{found}\nwithout\n{prints}"
        );
    }

    pub(crate) fn types(&mut self, command: &str) -> Ended {
        let (place, command) = self.here(command);
        self.shell.run(&place, &command)
    }

    /// Returns a command as it is here, where names lead to servers of this test and paths stay in its directory.
    fn here(&self, command: &str) -> (String, String) {
        let here = command.replace("broker:5555", &self.shell.address());
        let here = here.replace("/var/lib", "var/lib");
        let here = match &self.other {
            Some(other) => here.replace(OTHER, &other.address),
            None => here,
        };
        (format!("{}: `{here}`", self.place), here)
    }
}

#[test]
fn remarks_and_blocks_of_cargo_are_left_out() {
    let book = "```sh\ncargo test # all\nscripts/loom\n```\n\n```sh\n# one\nfila top \\\n    --once  # two\n\nls\n```\n";
    let found = blocks(book);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].line, 6);
    assert_eq!(found[0].commands, ["fila top      --once", "ls"]);
}
