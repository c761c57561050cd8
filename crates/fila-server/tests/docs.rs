#![cfg(test)] // helpers may unwrap, as tests do
//! `docs/configuration.md` says of every key what the table of keys says, and `docs/stability.md` how each surface
//! changes.

use std::collections::BTreeSet;

use fila_server::config::{Key, Section};

const BOOK: &str = include_str!("../../../docs/configuration.md");

/// Returns what the book says of a section, up to the next heading.
fn chapter(section: Section) -> &'static str {
    let heading = format!("\n### `[{}]`\n", section.name());
    let (_, after) = BOOK.split_once(&heading).unwrap();
    after.split("\n##").next().unwrap()
}

#[test]
fn the_book_has_a_row_for_every_key_with_what_it_takes_its_default_and_its_sentence() {
    for key in Key::all() {
        // The book is about the build without features, and says of the others in words what they add.
        let allowed = key.allowed();
        let allowed = allowed.replace("`lsm`, `memory` or `rocksdb`", "`lsm` or `memory`");
        let row = format!(
            "\n| `{}` | {} | `{}` | {} ",
            key.name(),
            allowed,
            key.default_toml(),
            key.doc()
        );
        assert!(
            chapter(key.section()).contains(&row),
            "no row as this: {row}"
        );
    }
}

#[test]
fn the_book_has_no_row_for_anything_else() {
    for section in Section::ALL {
        assert!(chapter(section).trim_start().starts_with(section.doc()));
        let rows = chapter(section)
            .lines()
            .filter_map(|line| line.strip_prefix("| `"));
        let named: Vec<&str> = rows.map(|row| row.split('`').next().unwrap()).collect();
        let keys: BTreeSet<&str> = section.keys().map(Key::name).collect();
        assert_eq!(named.iter().copied().collect::<BTreeSet<&str>>(), keys);
        assert_eq!(
            named.len(),
            keys.len(),
            "a key twice in [{}]",
            section.name()
        );
    }
}

#[test]
fn the_page_on_stability_has_five_rules_and_says_what_they_mean_for_each_surface() {
    let page = include_str!("../../../docs/stability.md");
    let rules = (1..).take_while(|rule| page.contains(&format!("\n{rule}. **")));
    assert_eq!(rules.count(), 5);
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let rows: Vec<Vec<&str>> = rows
        .map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    assert!(rows.iter().all(|row| row.len() == 6), "{rows:?}");
    assert!(rows.iter().flatten().all(|cell| !cell.is_empty()));
    let surfaces: Vec<&str> = rows.iter().skip(1).map(|row| row[0]).collect();
    let expected = [
        "Rust crates",
        "Protocol",
        "Commands and JSON",
        "Metrics",
        "Configuration",
        "Storage format",
    ];
    assert_eq!(surfaces, expected);
}

#[test]
fn no_metric_of_a_release_is_gone() {
    // Other tests compare the page with what the programs show.
    let page = include_str!("../../../docs/metrics.md");
    let names = page.split('`').filter_map(|word| word.split('{').next());
    let names: BTreeSet<&str> = names.collect();
    let released = include_str!("../../../docs/internal/released-metrics.txt");
    assert!(released.lines().count() > 70);
    for name in released.lines() {
        assert!(names.contains(name), "{name} is gone, or has another name");
    }
}
