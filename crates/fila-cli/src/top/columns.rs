//! The columns of both tables as text: the same on the screen and in plain lines.

use std::time::Duration;

use super::sample::{KeyRow, QueueRow, Sample};
use crate::output::printable;
use crate::units;

/// A column: its title and its least width. The first column, a name, takes the remaining width.
pub(crate) type Column = (&'static str, usize);

pub(crate) const QUEUE_COLUMNS: [Column; 11] = [
    ("queue", 10),
    ("depth", 6),
    ("ready", 6),
    ("delay", 6),
    ("lease", 6),
    ("in/s", 6),
    ("out/s", 6),
    ("ack/s", 6),
    ("wait", 7),
    ("keys", 6),
    ("cons", 4),
];

pub(crate) const KEY_COLUMNS: [Column; 11] = [
    ("key", 10),
    ("weight", 6),
    ("ready", 6),
    ("delay", 6),
    ("lease", 5),
    ("out/s", 6),
    ("ack/s", 6),
    ("share", 6),
    ("ideal", 6),
    ("wait", 7),
    ("head", 7),
];

pub(crate) fn queue_cells(row: &QueueRow) -> [String; 11] {
    [
        named(&row.name, row.paused),
        short(row.depth),
        short(row.ready),
        short(row.delayed),
        short(row.leased),
        rate(row.enqueued),
        rate(row.delivered),
        rate(row.acked),
        time(row.wait),
        short(row.keys),
        short(row.consumers),
    ]
}

pub(crate) fn key_cells(row: &KeyRow) -> [String; 11] {
    [
        named(&row.key, row.paused),
        short(row.weight.into()),
        short(row.ready),
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
        "fila {} at {address} · {} · memory {} of {} · {} connections · {} consumers · up {}",
        server.version,
        server.durability,
        units::bytes(server.memory_used),
        units::bytes(server.memory_budget),
        units::count(server.connections),
        units::count(server.consumers),
        units::time(server.uptime),
    );
    if !server.writable {
        text.push_str(" · THE STORE ACCEPTS NO WRITES");
    }
    printable(&text)
}

/// Returns the title of the table of keys: their queue, and the number of keys that are not shown.
pub(crate) fn keys_title(sample: &Sample) -> String {
    let Some(keys) = &sample.keys else {
        return "keys".to_owned();
    };
    let shown = keys.keys.len() as u64;
    let all = sample
        .queue(&keys.queue)
        .map_or(shown, |queue| queue.stats.active_keys);
    let queue = printable(&keys.queue);
    if all > shown {
        let (shown, all) = (units::count(shown), units::count(all));
        format!("keys of {queue}: the first {shown} of {all}")
    } else {
        format!("keys of {queue}: {}", units::count(shown))
    }
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
        assert_eq!(cells[5..], ["–"; 6]);
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
        });
        assert_eq!(keys_title(&sample), "keys of mails: the first 2 of 120,000");
        sample.queues[0].stats.active_keys = 2;
        assert_eq!(keys_title(&sample), "keys of mails: 2");
    }

    #[test]
    fn a_store_that_takes_no_writes_is_shouted() {
        let mut sample = sample(0, Vec::new());
        assert!(!server("here", &sample).contains("NO WRITES"));
        sample.server.writable = false;
        assert!(server("here", &sample).contains("NO WRITES"));
    }
}
