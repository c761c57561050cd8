//! `docs/cli.md`.

use crate::session::{self, Step};
use crate::sheet::{Desk, LISTENS, play, prints, sheet};

const NAME: &str = "docs/cli.md";
const BOOK: &str = include_str!("../../../../docs/cli.md");

/// The end of the last line of an explanation, once the server knows the pace of the queue.
const PACE: &str = "at the pace of the queue";

const HOOKS: &str = "function on_enqueue(msg)
  local tenant = msg.headers['tenant']
  return { fairness_key = tenant, weight = fila.get('tier:' .. tenant) == 'gold' and 5 or 1 }
end

function on_failure(msg)
  if msg.attempts > 3 then return { action = 'dlq' } end
  return { action = 'retry', delay_ms = 1500 }
end
";

/// Finds the version of a queue, on machines without the real `jq`.
const JQ: &str = "#!/bin/sh
sed 's/.*\"version\":\\([0-9]*\\).*/\\1/'
";

const HANDLE: &str = "#!/bin/sh
echo \"$(cat) for $FILA_KEY\"
";

const MESSAGE: &[&str] = &[
    "fila queue create orders",
    "fila enqueue orders hello --key acme --header tenant=acme",
];

#[test]
fn every_command_of_the_reference_works() {
    let at_a_glance = sheet([
        prints(LISTENS),
        prints("created queue `orders`"),
        prints("-"),
        prints("orders 1 0 0"),
        prints("hello"),
    ]);
    let queue_create = sheet([
        prints("created queue `orders`")
            .then("fila queue inspect orders", "visibility timeout 30 s"),
        prints("created queue `mails`").then("fila queue inspect mails", "ordering key"),
        prints("created queue `hooks`").then("fila queue inspect hooks", "retry backoff 10 s"),
    ]);
    let queue_update = sheet([
        prints("").then("test \"$version\" -gt 0 && echo a version", "a version"),
        prints("queue `orders` is at version ")
            .then("fila queue inspect orders", "visibility timeout 5 min"),
    ]);
    let config = sheet([
        prints("set `throttle:api:rate`, at version 1"),
        prints("set `throttle:api:burst`, at version 2"),
        prints("set `feature:new_flow`, at version 3"),
        prints("enabled"),
        prints("feature:new_flow 3 enabled"),
    ]);
    let hook_test = sheet([
        prints("fairness key acme\nweight 1"),
        prints("fairness key acme\nweight 5"),
        prints("action retry"),
    ]);
    let enqueue = sheet([
        prints("-").then("fila queue list", "orders 1 0 0"),
        prints("-").then("fila queue list", "orders 1 1 0"),
        prints("enqueued 2 messages to queue `orders`"),
        prints("enqueued 1,000 messages to queue `orders`")
            .then("fila peek orders --key tenant-1000", "tenant-1000"),
        prints("-")
            .first(&[
                "fila queue create other",
                "fila enqueue other 'to be moved' --key zeta",
            ])
            .then("fila peek orders --key zeta", "to be moved"),
    ]);
    let consume = sheet([
        prints("hello").then("fila queue list", "orders 1 0 0"),
        prints("").then("cat orders.txt", "hello"),
        prints("\"payload\":\"later\"")
            .first(&["fila enqueue orders 'later' --key acme"])
            .until_interrupted(0),
        prints("x for acme")
            .first(&["fila enqueue orders x --count 20 --key acme"])
            .then("fila queue list", "orders 0 0 0"),
    ]);
    let redrive = sheet([
        prints("redrove 10 messages to `orders`"),
        prints("redrove 2 messages to `orders`"),
    ]);
    let whatif = sheet([
        prints("* acme (group) weight 1 → 3"),
        prints("* globex weight 1, cap none → 8"),
        prints("acme/batch weight 1"),
        prints("queue `orders` has the new settings")
            .then("fila whatif orders", "acme (group) weight 3"),
    ]);
    let profile = sheet([
        prints("added profile `local` in `"),
        prints("added profile `staging` in `"),
        prints("profile `local` is in use, by `"),
        prints("PROFILE DEFAULT ADDRESS")
            .then("fila profile list", "local yes http://127.0.0.1:5555"),
        prints(""),
    ]);
    let completions = sheet([
        prints(""),
        prints("").then(
            "bash -n ~/.local/share/bash-completion/completions/fila && echo understood",
            "understood",
        ),
    ]);
    play(
        NAME,
        BOOK,
        &[
            at_a_glance.without_server(),
            queue_create,
            queue_update.files(&[("jq", JQ)]).before(&[
                "fila queue create orders",
                "command -v jq || install -m 755 jq bin/jq",
            ]),
            config,
            hook_test
                .files(&[
                    ("hooks.lua", HOOKS),
                    ("msg.json", "{\"headers\": {\"tenant\": \"acme\"}}\n"),
                ])
                .before(MESSAGE),
            enqueue
                .files(&[
                    ("order.json", "{\"item\": \"shoes\"}\n"),
                    ("bin/generate-orders", "#!/bin/sh\nprintf 'one\\ntwo\\n'\n"),
                ])
                .before(&["fila queue create orders", "chmod +x bin/generate-orders"]),
            consume.files(&[("handle.sh", HANDLE)]).before(&[
                "fila queue create orders",
                "fila enqueue orders hello --key acme",
                "chmod +x handle.sh",
            ]),
            redrive.before(crate::dead_letters::TWELVE),
            whatif.before(&[
                "fila queue create orders",
                "fila enqueue orders x --count 20 --key acme/alice",
                "fila enqueue orders x --count 20 --key acme/batch",
                "fila enqueue orders x --count 20 --key globex",
            ]),
            profile,
            completions.without_server(),
        ],
    );
}

/// Returns a line of an explanation without figures and their units.
fn shape(line: &str) -> String {
    let line = line.replace([',', ';'], "");
    let words = line.split_whitespace().filter(|word| {
        let is_figure = word.starts_with(|it: char| it.is_ascii_digit());
        let is_unit = matches!(*word, "µs" | "ms" | "s" | "min");
        !is_figure && !is_unit
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the explanations that the reference shows, each with its command: of a key, and of a key in a group.
fn explanations() -> [(String, Vec<String>); 2] {
    let steps = session::steps(BOOK).into_iter().map(|step| match step {
        Step::Command { command, shown, .. } => (command, shown),
        Step::File { name, .. } => panic!("{NAME} has no session that needs `{name}`"),
    });
    let steps: Vec<_> = steps.collect();
    let found = steps.len();
    let two = steps.try_into();
    two.unwrap_or_else(|_| panic!("{NAME} has {found} explanations"))
}

/// Starts a server with 200 messages of each key, and a consumer that is busy and has what it can take.
fn busy_desk(keys: &[&str], explained: &str) -> Desk {
    let mut desk = Desk::new(NAME, format!("{NAME}, {explained}"), false);
    desk.start_server();
    desk.prints("fila queue create orders", 0, "");
    for key in keys {
        let send = format!("fila enqueue orders x --count 200 --weight 2 --key {key}");
        desk.prints(&send, 0, "enqueued 200 messages");
    }
    // It is busy until the file is gone.
    desk.prints("touch busy", 0, "");
    desk.begins(
        "fila consume orders --exec 'echo begun; while [ -e busy ]; do sleep 0.02; done'",
        "begun",
    );
    let until = format!("until fila explain orders {explained} | grep '{PACE}'; do :; done");
    desk.prints(&until, 0, PACE);
    desk
}

#[test]
fn an_explanation_has_the_lines_that_the_reference_shows() {
    let [(command, shown), _] = explanations();
    let keys = ["acme", "tenant-1", "tenant-2", "tenant-3", "tenant-4"];
    let mut desk = busy_desk(&keys, "acme");
    let ended = desk.types(&command);
    let found = ended.lines;
    assert_eq!((ended.code, found.len()), (0, shown.len()), "{found:#?}");
    for (shown, found) in shown.iter().zip(&found) {
        // Whether it is next, what it owes and when it comes differs from moment to moment.
        let is_alike = match shown.split_whitespace().next() {
            Some("key") => found.starts_with("key `acme` of queue `orders` "),
            Some("debt") => found.starts_with("debt "),
            Some("next") => found.starts_with("next ") && found.contains(PACE),
            _ => shape(shown) == shape(found),
        };
        assert!(is_alike, "{NAME} shows\n{shown}\nand there came\n{found}");
    }
}

#[test]
fn an_explanation_in_levels_has_the_rows_that_the_reference_shows() {
    let [_, (command, shown)] = explanations();
    let keys = ["acme/alice", "acme/bob", "globex"];
    let mut desk = busy_desk(&keys, "acme/alice");
    desk.prints("fila key weight orders acme 3", 0, "");
    desk.prints("fila key pause orders acme", 0, "");
    let ended = desk.types(&command);
    let shapes = |lines: &[String]| lines.iter().map(|line| shape(line)).collect::<Vec<_>>();
    assert_eq!(ended.code, 0);
    assert_eq!(shapes(&ended.lines), shapes(&shown), "{:#?}", ended.lines);
}
