//! `docs/operations.md`.

use crate::sheet::{LISTENS, play, prints, sheet};

const ORDERS: &[&str] = &[
    "fila queue create orders",
    "fila enqueue orders 'to be kept' --key acme",
];

/// What systemd does for a backup: it ends the server and waits for that, and starts it.
const SYSTEMCTL: &str = "systemctl() { case $1 in \
    start) fila server --data var/lib/fila 2> server.log > up & server=$!; read -r line < up; echo \"$line\" ;; \
    stop) kill \"$server\"; wait \"$server\" ;; \
    esac; }";

#[test]
fn operating_goes_as_the_book_says() {
    let whose_messages_wait = sheet([
        prints("orders 1 1 0 0"),
        prints("acme 1 1"),
        prints("waits because the queue has no consumer"),
    ]);
    let backup = sheet([
        prints(""),
        prints("").then("tar -tzf fila-backup.tar.gz", "fila/"),
        prints(LISTENS).then(
            "systemctl stop fila && rm -r var/lib/fila && tar -C var/lib -xzf fila-backup.tar.gz && \
             systemctl start fila && fila consume orders --ack",
            "to be kept",
        ),
    ]);
    let moving = sheet([prints("-")
        .first(&["fila queue create orders --addr other:5555"])
        .then("fila consume orders --ack --addr other:5555", "to be kept")]);
    let repair = sheet([
        prints("").ends_with(1),
        prints("can be started").then(
            "systemctl start fila && fila consume orders --ack",
            "to be kept",
        ),
    ]);
    play(
        "docs/operations.md",
        include_str!("../../../../docs/operations.md"),
        &[
            whose_messages_wait.before(ORDERS),
            backup.without_server().before(&[
                "mkdir -p var/lib && mkfifo up",
                SYSTEMCTL,
                "systemctl start fila",
                "fila queue create orders",
                "fila enqueue orders 'to be kept'",
            ]),
            moving.before(ORDERS),
            repair.without_server().before(&[
                "mkdir -p var/lib && mkfifo up",
                SYSTEMCTL,
                "systemctl start fila",
                "fila queue create orders",
                "fila enqueue orders 'to be kept'",
                "systemctl stop fila",
                "rm var/lib/fila/tables/messages/current",
            ]),
        ],
    );
}
