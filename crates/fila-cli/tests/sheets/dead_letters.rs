//! `docs/dead-letters.md`.

use crate::sheet::{play, prints, sheet};

/// Twelve dead letters of the queue `orders`, all of one tenant.
pub(crate) const TWELVE: &[&str] = &[
    "fila queue create orders --retry-attempts-max 1 --retry-backoff 0",
    "fila enqueue orders 'to nobody' --count 12 --key acme --header region=eu",
    FAIL,
];

/// A consumer that fails, and says why.
const FAIL: &str = "fila consume orders --exec 'echo no such address >&2; exit 1' --concurrency 4 --idle 200ms || true";

#[test]
fn dead_letters_are_looked_at_and_redriven_as_the_book_says() {
    let like_any_other = sheet([
        prints("depth 12"),
        prints("acme ready attempts_exhausted 1"),
        prints("to nobody").then("fila queue inspect orders.dlq", "depth 0"),
        prints("purged 2 messages of queue `orders.dlq`")
            .first(&["fila enqueue orders x --count 2 --key acme", FAIL]),
    ]);
    let back_to_work = sheet([
        prints("redrove 10 messages to `orders`"),
        prints("redrove 2 messages to `orders`").then("fila queue list", "orders 12 0 0"),
    ]);
    play(
        "docs/dead-letters.md",
        include_str!("../../../../docs/dead-letters.md"),
        &[like_any_other.before(TWELVE), back_to_work.before(TWELVE)],
    );
}
