//! The columns of both tables as text: the same on the screen and in plain lines.

use std::time::Duration;

use unicode_width::UnicodeWidthStr;

use super::sample::{KeyRow, QueueRow, Sample};
use super::state::Listing;
use crate::output::{LeftOut, printable};
use crate::units;

/// A column: its title and its width. The first column, a name, takes the remaining width.
pub(crate) type Column = (&'static str, usize);

/// The columns of a table, and the titles of the columns that a narrow window leaves out, the first one first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns<const N: usize> {
    pub(crate) all: [Column; N],
    spare: &'static [&'static str],
}

pub(crate) const QUEUE_COLUMNS: Columns<13> = Columns {
    all: [
        ("queue", 10),
        ("depth", 6),
        ("ready", 6),
        ("throt", 6),
        ("delay", 6),
        ("lease", 6),
        ("dead", 6),
        ("in/s", 6),
        ("out/s", 6),
        ("ack/s", 6),
        ("wait", 7),
        ("keys", 6),
        ("cons", 4),
    ],
    spare: &["ack/s", "keys", "delay", "lease"],
};

pub(crate) const KEY_COLUMNS: Columns<12> = Columns {
    all: [
        ("key", 10),
        ("weight", 6),
        ("ready", 6),
        ("throt", 6),
        ("delay", 6),
        ("lease", 5),
        ("out/s", 6),
        ("ack/s", 6),
        ("share", 6),
        ("ideal", 6),
        ("wait", 7),
        ("head", 7),
    ],
    spare: &["ack/s", "delay", "lease"],
};

/// A name of up to this width is shown in full, if leaving out columns makes the room.
const NAME_MIN: usize = 24;

/// The columns that a window shows, by their numbers, and the width of the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopLayout {
    pub(crate) shown: Vec<usize>,
    pub(crate) name: usize,
    left_out: LeftOut,
}

impl<const N: usize> Columns<N> {
    /// Chooses the columns of a table for a window.
    pub(crate) fn layout(&self, rows: &[[String; N]], window: usize) -> TopLayout {
        let longest = rows.iter().map(|row| row[0].width()).max().unwrap_or(0);
        let wanted = longest.clamp(self.all[0].1, NAME_MIN);
        let mut shown: Vec<usize> = (0..N).collect();
        let room = |shown: &[usize]| {
            let others = shown[1..].iter().map(|&at| 1 + self.all[at].1);
            window.saturating_sub(others.sum())
        };
        for title in self.spare {
            if room(&shown) >= wanted {
                break;
            }
            shown.retain(|&at| self.all[at].0 != *title);
        }
        let name = room(&shown);
        TopLayout {
            left_out: LeftOut::of(&rows.iter().map(|row| &*row[0]), name),
            name,
            shown,
        }
    }
}

impl TopLayout {
    /// Returns the cells that are shown.
    pub(crate) fn cells<'a>(&self, cells: impl Fn(usize) -> &'a str) -> Vec<String> {
        let cells = self.shown.iter().map(|&at| match at {
            0 => self.left_out.shorten(cells(0), self.name),
            _ => cells(at).to_owned(),
        });
        cells.collect()
    }
}

pub(crate) fn queue_cells(row: &QueueRow) -> [String; 13] {
    [
        named(&row.name, row.paused),
        short(row.depth),
        short(row.ready),
        short(row.throttled),
        short(row.delayed),
        short(row.leased),
        row.dead.map_or_else(|| "–".to_owned(), short),
        rate(row.enqueued),
        rate(row.delivered),
        rate(row.acked),
        time(row.wait),
        short(row.keys),
        short(row.consumers),
    ]
}

pub(crate) fn key_cells(row: &KeyRow) -> [String; 12] {
    [
        named(&row.key, row.paused),
        short(row.weight.into()),
        short(row.ready),
        short(row.throttled),
        short(row.delayed),
        short(row.leased),
        rate(row.delivered),
        rate(row.acked),
        part(row.share),
        part(row.ideal),
        time(row.wait),
        time(row.head),
    ]
}

/// Returns the state of the server as a line.
pub(crate) fn server(address: &str, sample: &Sample) -> String {
    let server = &sample.server;
    let mut text = format!(
        "fila {} at {address} · {} · memory {} of {} · {} · {} · up {}",
        server.version,
        server.durability,
        units::bytes(server.memory_used),
        units::bytes(server.memory_budget),
        number(server.connections, "connection"),
        number(server.consumers, "consumer"),
        units::time(server.uptime),
    );
    if !server.writable {
        text.push_str(" · THE STORE ACCEPTS NO WRITES");
    }
    printable(&text)
}

/// Returns the title of the table of keys or groups: their queue, and the number of those that are not shown.
pub(crate) fn keys_title(sample: &Sample, listing: Listing) -> String {
    let what = listing.name();
    let Some(keys) = &sample.keys else {
        return what.to_owned();
    };
    let stats = sample.queue(&keys.queue).map(|queue| &queue.stats);
    let (shown, all) = match listing {
        Listing::Keys => (keys.keys.len(), stats.map(|stats| stats.active_keys)),
        Listing::Groups => (keys.groups.len(), stats.map(|stats| stats.active_groups)),
    };
    let shown = shown as u64;
    let queue = printable(&keys.queue);
    match all {
        Some(all) if all > shown => {
            let (shown, all) = (units::count(shown), units::count(all));
            format!("{what} of {queue}: the first {shown} of {all}")
        }
        Some(_) | None => format!("{what} of {queue}: {}", units::count(shown)),
    }
}

fn number(number: u64, of: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {of}{plural}", units::count(number))
}

fn named(name: &str, paused: bool) -> String {
    // A name is foreign text, and must not control the terminal.
    let name = printable(name);
    match paused {
        true => format!("‖ {name}"),
        false => name,
    }
}

fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "–".to_owned(),
        Some(rate) if rate < 9.95 => units::rate(rate),
        Some(rate) => short(rate.round() as u64),
    }
}

fn time(time: Option<Duration>) -> String {
    time.map_or_else(|| "–".to_owned(), units::time)
}

fn part(part: Option<f64>) -> String {
    part.map_or_else(|| "–".to_owned(), |part| format!("{:.1}%", 100.0 * part))
}

/// Returns a count in at most six characters, with three significant digits if it is shortened.
fn short(number: u64) -> String {
    let value = number as f64;
    let (scaled, unit) = match number {
        0..100_000 => return units::count(number),
        100_000..999_500 => (value / 1e3, "k"),
        999_500..999_500_000 => (value / 1e6, "M"),
        _ => (value / 1e9, "G"),
    };
    if scaled < 9.995 {
        format!("{scaled:.2}{unit}")
    } else if scaled < 99.95 {
        format!("{scaled:.1}{unit}")
    } else {
        format!("{scaled:.0}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::Keys;
    use super::super::samples::{key, queue, sample};
    use super::*;

    #[test]
    fn large_counts_are_short() {
        let texts = [
            99_999,
            100_000,
            999_499,
            999_500,
            1_204_000,
            12_340_000,
            7_000_000_000,
        ]
        .map(short);
        assert_eq!(
            texts,
            ["99,999", "100k", "999k", "1.00M", "1.20M", "12.3M", "7.00G"]
        );
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        let cells = key_cells(&KeyRow::default());
        assert_eq!(cells[6..], ["–"; 6]);
    }

    #[test]
    fn a_name_cannot_steer_a_terminal() {
        assert_eq!(named("a\u{1b}[2Jb", false), "a\\u{1b}[2Jb");
    }

    #[test]
    fn the_title_says_how_many_keys_are_not_shown() {
        let mut sample = sample(0, vec![queue("mails", |stats| stats.active_keys = 120_000)]);
        sample.keys = Some(Keys {
            queue: "mails".to_owned(),
            keys: vec![key("a", 1, 1, 0), key("b", 1, 1, 0)],
            groups: Vec::new(),
        });
        let title = |sample: &Sample| keys_title(sample, Listing::Keys);
        assert_eq!(title(&sample), "keys of mails: the first 2 of 120,000");
        sample.queues[0].stats.active_keys = 2;
        assert_eq!(title(&sample), "keys of mails: 2");
        sample.queues[0].stats.active_groups = 3;
        let title = keys_title(&sample, Listing::Groups);
        assert_eq!(title, "groups of mails: the first 0 of 3");
    }

    #[test]
    fn a_store_that_takes_no_writes_is_shouted() {
        let mut sample = sample(0, Vec::new());
        assert!(!server("here", &sample).contains("NO WRITES"));
        sample.server.writable = false;
        assert!(server("here", &sample).contains("NO WRITES"));
    }

    #[test]
    fn one_consumer_is_not_many() {
        let mut sample = sample(0, Vec::new());
        sample.server.consumers = 1;
        assert!(server("here", &sample).contains("7 connections · 1 consumer · up"));
    }

    #[test]
    fn names_have_room_before_lesser_columns() {
        let row = |name: &str| {
            let mut row = KeyRow::default();
            row.key = name.to_owned();
            key_cells(&row)
        };
        let titles = |window, name: &str| {
            let layout = KEY_COLUMNS.layout(&[row(name)], window);
            (layout.shown.len(), layout.name)
        };
        assert_eq!(titles(118, "acme"), (12, 118 - 78));
        assert_eq!(titles(78, "customer-000001"), (9, 20));
        assert_eq!(titles(98, "customer-000001"), (12, 20));
        // Wider than any window has room for: it is shortened.
        assert_eq!(titles(78, &"x".repeat(256)), (9, 20));
    }
}
