//! `docs/security.md`, but for its file, which `tests/server.rs` reads.

use crate::sheet::{play, prints, sheet};

#[test]
fn a_server_makes_a_certificate_and_says_how_to_connect_as_the_book_says() {
    let connects = "--ca-file fila-data/dev-tls/ca.pem queue list";
    let list = "fila --addr https://$FILA_ADDR --ca-file fila-data/dev-tls/ca.pem queue list";
    let tried = sheet([prints(connects)
        .then(list, "there are no queues")
        .until_interrupted(0)]);
    play(
        "docs/security.md",
        include_str!("../../../../docs/security.md"),
        &[tried.without_server()],
    );
}
