//! `docs/demo.md`, and the `README.md` of the crate, which begins with the demonstration.

use crate::sheet::{Known, LISTENS, play, prints, sheet};

/// The demonstration, once tenants are served: `tests/demo.rs` sees the rest of it.
fn demonstration() -> Known {
    prints("quiet-1 ").until_interrupted(130)
}

#[test]
fn what_is_to_be_seen_is_seen_as_the_book_says() {
    let top = sheet([prints("orders 1 1 0 0"), prints("acme 1 1 0 0")]);
    play(
        "docs/demo.md",
        include_str!("../../../../docs/demo.md"),
        &[
            sheet([demonstration()]).without_server(),
            top.before(&[
                "fila queue create orders",
                "fila enqueue orders hello --key acme",
            ]),
        ],
    );
}

#[test]
fn the_first_commands_work() {
    let all = sheet([
        demonstration(),
        prints(LISTENS),
        prints("created queue `orders`"),
        prints("-"),
        prints("orders 1 0 0"),
        prints("acme 1 1 0 0"),
        prints("a pair of shoes"),
        prints(concat!("fila ", env!("CARGO_PKG_VERSION"))),
    ]);
    play(
        "crates/fila-cli/README.md",
        include_str!("../../README.md"),
        &[all.without_server()],
    );
}
