//! Lines of a shell, as far as the document uses them.

/// The server's address in the document.
pub(crate) const ADDRESS: &str = "127.0.0.1:5555";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// `cargo run --release -- server …`, with what comes after the two hyphens.
    Server(Vec<String>),
    Grpcurl(Grpcurl),
    /// `curl -s …`
    Curl {
        path: String,
        filter: Option<String>,
    },
    /// `kill %1`
    Kill,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grpcurl {
    pub(crate) verb: Verb,
    /// Metadata entries, as `name: value`.
    pub(crate) headers: Vec<String>,
    pub(crate) data: Data,
    /// Whether metadata is printed, too.
    pub(crate) is_verbose: bool,
    pub(crate) is_in_background: bool,
    /// What lines have to begin with to be shown.
    pub(crate) filter: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    List(Option<String>),
    Describe(String),
    Call { service: String, method: String },
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Given(String),
    /// `-d @`: read from what is typed.
    Typed,
}

/// Returns the commands of a block. Lines that end in a backslash or within quotes go on.
pub(crate) fn parse_all(text: &str) -> Vec<Command> {
    let mut commands = Vec::new();
    let mut command = String::new();
    for line in text.lines() {
        command += line;
        let is_quoted = command.matches('\'').count() % 2 == 1;
        if is_quoted {
            command.push('\n');
        } else if command.ends_with('\\') {
            command.pop();
        } else {
            commands.push(parse(&std::mem::take(&mut command)));
        }
    }
    assert!(command.is_empty(), "it does not end: {command}");
    commands
}

fn parse(line: &str) -> Command {
    let words = words(line);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["cargo", "run", "--release", "--", arguments @ ..] => {
            Command::Server(arguments.iter().map(|word| (*word).to_owned()).collect())
        }
        ["grpcurl", rest @ ..] => Command::Grpcurl(grpcurl(rest, line)),
        ["curl", "-s", place, rest @ ..] => {
            let path = place.strip_prefix(ADDRESS);
            Command::Curl {
                path: path
                    .unwrap_or_else(|| panic!("not our server: {line}"))
                    .to_owned(),
                filter: filter(rest, line),
            }
        }
        ["kill", "%1"] => Command::Kill,
        _ => panic!("not understood: {line}"),
    }
}

fn grpcurl(mut words: &[&str], line: &str) -> Grpcurl {
    let mut found = Grpcurl {
        verb: Verb::List(None),
        headers: Vec::new(),
        data: Data::Given(String::new()),
        is_verbose: false,
        is_in_background: false,
        filter: None,
    };
    if let [before @ .., "&"] = words {
        found.is_in_background = true;
        words = before;
    }
    let mut is_plain = false;
    loop {
        words = match words {
            ["-plaintext", rest @ ..] => {
                is_plain = true;
                rest
            }
            ["-v", rest @ ..] => {
                found.is_verbose = true;
                rest
            }
            ["-H", header, rest @ ..] => {
                found.headers.push((*header).to_owned());
                rest
            }
            ["-d", "@", rest @ ..] => {
                found.data = Data::Typed;
                rest
            }
            ["-d", data, rest @ ..] => {
                found.data = Data::Given((*data).to_owned());
                rest
            }
            [ADDRESS, rest @ ..] => {
                words = rest;
                break;
            }
            _ => panic!("not understood: {line}"),
        };
    }
    assert!(is_plain, "the server speaks no TLS: {line}");
    let (verb, rest) = match words {
        ["list"] => (Verb::List(None), &words[1..]),
        ["list", service] => (Verb::List(Some((*service).to_owned())), &words[2..]),
        ["describe", symbol] => (Verb::Describe((*symbol).to_owned()), &words[2..]),
        [call, rest @ ..] => {
            let (service, method) = call
                .split_once('/')
                .unwrap_or_else(|| panic!("not understood: {line}"));
            let call = Verb::Call {
                service: service.to_owned(),
                method: method.to_owned(),
            };
            (call, rest)
        }
        [] => panic!("it says nothing to do: {line}"),
    };
    found.verb = verb;
    found.filter = match rest {
        ["2>&1", rest @ ..] => filter(rest, line),
        rest => filter(rest, line),
    };
    let is_filtered = found.filter.is_some();
    assert!(
        is_filtered || !found.is_verbose,
        "of what -v prints only some lines are known here: {line}"
    );
    found
}

/// Takes `| grep '^…'`, where what comes after the sign is taken as it is.
fn filter(words: &[&str], line: &str) -> Option<String> {
    match words {
        [] => None,
        ["|", "grep", pattern] => {
            let start = pattern.strip_prefix('^');
            let start = start.unwrap_or_else(|| panic!("a pattern begins with `^`: {line}"));
            assert!(
                start
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)),
                "only plain text after `^` is understood: {line}"
            );
            Some(start.to_owned())
        }
        _ => panic!("not understood: {line}"),
    }
}

/// Splits a line as a shell does. Of what is special to a shell, only single quotes, `|`, `&` and `2>&1` are known.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    for character in line.chars() {
        match character {
            '\'' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            c if is_quoted => word.get_or_insert_default().push(c),
            ' ' => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
        let special = "\"\\$;<(){}*?#!`~";
        let is_special = !is_quoted && special.contains(character);
        assert!(
            !is_special,
            "a shell would do something with {character:?}: {line}"
        );
    }
    assert!(!is_quoted, "a quote is open: {line}");
    words.extend(word);
    words
}

#[test]
fn a_line_is_split_as_a_shell_splits_it() {
    let line = "grpcurl -plaintext -d '{\"a\": \"b c\"}' 127.0.0.1:5555 s/m &";
    let expected = Grpcurl {
        verb: Verb::Call {
            service: "s".to_owned(),
            method: "m".to_owned(),
        },
        headers: Vec::new(),
        data: Data::Given("{\"a\": \"b c\"}".to_owned()),
        is_verbose: false,
        is_in_background: true,
        filter: None,
    };
    assert_eq!(parse(line), Command::Grpcurl(expected));
}

#[test]
fn what_is_not_understood_is_not_passed_over() {
    for line in [
        "ls",
        "grpcurl 127.0.0.1:5555 list",
        "grpcurl -plaintext -x 127.0.0.1:5555 list",
        "grpcurl -plaintext 127.0.0.1:5555 list | sort",
        "grpcurl -plaintext -d \"{}\" 127.0.0.1:5555 s/m",
        "grpcurl -plaintext -d '{} 127.0.0.1:5555 s/m",
        "curl -s 127.0.0.1:80/metrics",
        "curl -s 127.0.0.1:5555/metrics | grep fila",
    ] {
        let parsed = std::panic::catch_unwind(|| parse(line));
        assert!(parsed.is_err(), "{line} was taken for {parsed:?}");
    }
}
