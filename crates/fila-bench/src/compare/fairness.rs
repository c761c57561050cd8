//! The cost of fairness end to end: the same work in a raw FIFO and with one fairness key and many, in the same run.
//!
//! The FIFO is a server of its own, built with the feature `fifo`: it has no keys, and no engine chooses. Without that
//! program the baseline is one key.

use std::path::Path;

use lab::{Table, median, thousands};
use serde_json::{Value, json};

use super::driver::{Driver, Load};
use super::fila::{Fila, Way};
use super::workloads::{self, in_time};
use crate::key_shape::KeyShape;

/// The keys of each row, after that of the raw FIFO, which has none.
const KEYS: [KeyShape; 7] = [
    KeyShape::flat(1),
    KeyShape::flat(10),
    KeyShape::THOUSAND,
    KeyShape::TEN_GROUPS,
    KeyShape::GROUPS_OF_ONE,
    KeyShape::FOUR_LEVELS,
    KeyShape::flat(100_000),
];

/// The row of the raw FIFO.
const FIFO: usize = 0;

/// The results of one round for one row.
#[derive(Clone, Copy, Debug)]
struct KeysSample {
    produce: f64,
    drain: f64,
    lifecycle: f64,
    /// Processor time of the server for the whole life of a message, in microseconds.
    processor: f64,
}

/// The results of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Fairness {
    /// The rows of each round, by their numbers.
    rounds: Vec<Vec<(usize, KeysSample)>>,
}

impl Fairness {
    /// Runs one round on a new server, and on a new FIFO if there is one, the rows in turns.
    pub(crate) async fn round(
        &mut self,
        directory: &Path,
        messages: u64,
        fifo: Option<&Path>,
    ) -> anyhow::Result<()> {
        let server = Fila::start(&directory.join("fair"), "fsync", Way::Streams)?;
        let fifo = fifo.map(|it| Fila::start_fifo(it, &directory.join("fifo"), Way::Streams));
        let fifo = fifo.transpose()?;
        let mut cases: Vec<(usize, &Fila)> = Vec::new();
        cases.extend(fifo.as_ref().map(|fifo| (FIFO, fifo)));
        cases.extend((FIFO + 1..=KEYS.len()).map(|row| (row, &server)));
        // The first load of a server gets an empty store, so each round begins with a different row.
        let first = self.rounds.len() % cases.len();
        cases.rotate_left(first);
        let mut samples = Vec::new();
        for (row, server) in cases {
            let load = Load {
                messages,
                size: 1024,
                keys: keys_of(row).unwrap_or(KeyShape::flat(1)),
            };
            let sample = in_time(play(server, row, load)).await?;
            eprintln!(
                "  {:>23}: {} in, {} out, {} through; {:.2} µs",
                name_of(row),
                thousands(sample.produce),
                thousands(sample.drain),
                thousands(sample.lifecycle),
                sample.processor
            );
            samples.push((row, sample));
        }
        samples.sort_by_key(|(row, _)| *row);
        self.rounds.push(samples);
        Ok(())
    }

    /// Returns the rows that were measured, the baseline first.
    fn rows(&self) -> impl Iterator<Item = (usize, usize)> {
        let first = self.rounds.first().into_iter().flatten();
        first.map(|(row, _)| *row).enumerate()
    }

    /// Returns the median of a figure, and that of its ratio to the baseline in the same round.
    fn of(&self, place: usize, figure: fn(&KeysSample) -> f64) -> (f64, f64) {
        let values = self.rounds.iter().map(|round| figure(&round[place].1));
        let ratios = self.rounds.iter();
        let ratios = ratios.map(|round| figure(&round[place].1) / figure(&round[0].1));
        let or_none = |value: Option<f64>| value.unwrap_or(f64::NAN);
        (or_none(median(values)), or_none(median(ratios)))
    }

    pub(crate) fn print(&self) {
        if self.rounds.is_empty() {
            return;
        }
        println!(
            "\nDRR against FIFO, 1 KiB, fsync, gRPC streams by hand; messages/s, processor time of the server for a message in \
             and out and another through, and each as a part of what it is in the first row\n"
        );
        let mut table = Table::new([
            "keys",
            "produce",
            "",
            "drain",
            "",
            "lifecycle",
            "",
            "µs",
            "",
        ]);
        for (place, row) in self.rows() {
            let mut row = vec![name_of(row)];
            for figure in FIGURES {
                let (value, ratio) = self.of(place, figure.1);
                row.push(match figure.0 {
                    "processor" => format!("{value:.1}"),
                    _ => thousands(value),
                });
                row.push(format!("{ratio:.3}"));
            }
            table.row(row);
        }
        println!("{table}");
    }

    pub(crate) fn json(&self) -> Value {
        if self.rounds.is_empty() {
            return Value::Null;
        }
        let rows = self.rows().map(|(place, row)| {
            let figures = FIGURES.map(|(name, figure)| {
                let (median, ratio) = self.of(place, figure);
                let samples = self.rounds.iter().map(|round| figure(&round[place].1));
                let samples: Vec<f64> = samples.collect();
                let figure = json!({"median": median, "of_baseline": ratio, "samples": samples});
                (name.to_owned(), figure)
            });
            let keys = keys_of(row).map_or(0, |keys| keys.count);
            let figures = Value::Object(figures.into_iter().collect());
            json!({"row": name_of(row), "keys": keys, "figures": figures})
        });
        rows.collect()
    }
}

type Figure = (&'static str, fn(&KeysSample) -> f64);

const FIGURES: [Figure; 4] = [
    ("produce", |sample| sample.produce),
    ("drain", |sample| sample.drain),
    ("lifecycle", |sample| sample.lifecycle),
    ("processor", |sample| sample.processor),
];

/// Returns the keys of a row; the raw FIFO has none.
fn keys_of(row: usize) -> Option<KeyShape> {
    KEYS.get(row.checked_sub(FIFO + 1)?).copied()
}

fn name_of(row: usize) -> String {
    match keys_of(row) {
        None => "FIFO".to_owned(),
        Some(keys) if keys == KeyShape::flat(keys.count) => thousands(keys.count as f64),
        Some(keys) => keys.name.to_owned(),
    }
}

async fn play(server: &Fila, row: usize, load: Load) -> anyhow::Result<KeysSample> {
    let queue = |what: &str| format!("{what}-{row}");
    let (backlog, through) = (queue("backlog"), queue("through"));
    server.create(&backlog).await?;
    server.create(&through).await?;
    let before = server.process().processor_time()?;
    let produce = workloads::produce(server, &backlog, load).await?;
    let drain = workloads::drain(server, &backlog, load, 1).await?;
    let lifecycle = workloads::lifecycle(server, &through, load, 1).await?;
    let processor = server.process().processor_time()? - before;
    Ok(KeysSample {
        produce,
        drain,
        lifecycle,
        processor: processor.as_secs_f64() * 1e6 / load.messages as f64,
    })
}
