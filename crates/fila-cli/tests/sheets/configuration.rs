//! `docs/configuration.md`, but for its files, which `tests/server.rs` reads.

use crate::sheet::{LISTENS, play, prints, sheet};

#[test]
fn a_server_is_configured_as_the_book_says() {
    let top = "fila top --interval 100ms";
    let by_variable = sheet([prints(LISTENS)
        .then(top, "· os · memory")
        .until_interrupted(0)]);
    let by_flag = sheet([prints(LISTENS)
        .then(top, "· os · memory")
        .until_interrupted(0)]);
    let mistakes = sheet([prints("did you mean `address`?").ends_with(2)]);
    play(
        "docs/configuration.md",
        include_str!("../../../../docs/configuration.md"),
        &[
            by_variable.without_server(),
            by_flag.without_server().before(&["mkdir -p var/lib"]),
            mistakes.without_server(),
        ],
    );
}
