//! The table of the levels of a key in groups.

use fila_sdk::LevelExplanation;

use super::thousandths;
use crate::output::{Align, Table, count};
use crate::units::percent;

/// Returns a row for each level, from the top down: its part of what the level above got, and what its siblings get first.
pub(super) fn table(levels: &[LevelExplanation]) -> Table {
    let mut table = Table::new([
        ("LEVEL", Align::Name),
        ("WEIGHT", Align::Right),
        ("GOT", Align::Right),
        ("BY WEIGHT", Align::Right),
        ("OF", Align::Name),
        ("DEBT", Align::Right),
        ("BOUND", Align::Right),
        ("LEASED", Align::Right),
        ("STATE", Align::Left),
    ])
    .spare(&["OF", "LEASED", "DEBT"]);
    let mut above = "all";
    for level in levels {
        table.row([
            level.path.clone(),
            count(level.weight.into()),
            part(level.share),
            part(level.ideal_share),
            above.to_owned(),
            thousandths(level.debt),
            level.bound.map_or_else(nothing, count),
            leased(level),
            state(level).to_owned(),
        ]);
        above = &level.path;
    }
    table
}

fn part(share: Option<f64>) -> String {
    share.map_or_else(nothing, percent)
}

fn nothing() -> String {
    "-".to_owned()
}

fn leased(level: &LevelExplanation) -> String {
    let leased = count(level.leased);
    match level.cap {
        Some(cap) => format!("{leased} of {}", count(cap.into())),
        None => leased,
    }
}

fn state(level: &LevelExplanation) -> &'static str {
    let is_at_cap = level.cap.is_some_and(|cap| level.leased >= cap.into());
    match (level.is_paused, is_at_cap) {
        (true, _) => "paused",
        (false, true) => "at its cap",
        (false, false) => "active",
    }
}
