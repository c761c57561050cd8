//! The cost of fairness end to end: the same work with one key, which is a FIFO, and with many, in the same run.

use std::path::Path;

use lab::{Table, median, thousands};
use serde_json::{Value, json};

use super::driver::{Driver, Load};
use super::fila::{Fila, Way};
use super::workloads::{self, in_time};

const KEYS: [u64; 4] = [1, 10, 1_000, 100_000];

/// How much more a message may cost than with one key.
const ALLOWED: [Option<f64>; 4] = [None, Some(0.05), Some(0.05), Some(0.15)];

/// The results of one round for one number of keys.
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
    rounds: Vec<[KeysSample; 4]>,
}

impl Fairness {
    /// Runs one round on a new server, the numbers of keys in turns.
    pub(crate) async fn round(&mut self, directory: &Path, messages: u64) -> anyhow::Result<()> {
        let server = Fila::start(directory, "fsync", Way::Streams)?;
        let mut samples = Vec::new();
        let round = self.rounds.len();
        // The first load gets an empty store, so each round begins with a different number of keys.
        for turn in 0..KEYS.len() {
            let place = (turn + round) % KEYS.len();
            let load = Load {
                messages,
                size: 1024,
                keys: KEYS[place],
            };
            let sample = in_time(play(&server, load)).await?;
            eprintln!(
                "  {:>7} keys: {} in, {} out, {} through; {:.2} µs",
                load.keys,
                thousands(sample.produce),
                thousands(sample.drain),
                thousands(sample.lifecycle),
                sample.processor
            );
            samples.push((place, sample));
        }
        samples.sort_by_key(|(place, _)| *place);
        let samples: Vec<KeysSample> = samples.into_iter().map(|(_, sample)| sample).collect();
        if let Ok(samples) = samples.try_into() {
            self.rounds.push(samples);
        }
        Ok(())
    }

    /// Returns the median of a figure, and that of its ratio to one key in the same round.
    fn of(&self, place: usize, figure: fn(&KeysSample) -> f64) -> (f64, f64) {
        let values = self.rounds.iter().map(|round| figure(&round[place]));
        let ratios = self.rounds.iter();
        let ratios = ratios.map(|round| figure(&round[place]) / figure(&round[0]));
        let or_none = |value: Option<f64>| value.unwrap_or(f64::NAN);
        (or_none(median(values)), or_none(median(ratios)))
    }

    pub(crate) fn print(&self) {
        if self.rounds.is_empty() {
            return;
        }
        println!(
            "\nDRR against FIFO (one key), 1 KiB, fsync, gRPC streams by hand; messages/s, processor time of the server for a \
             message in and out and another through, and each as a part of what it is with one key\n"
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
            "allowed",
        ]);
        for (place, keys) in KEYS.iter().enumerate() {
            let mut row = vec![thousands(*keys as f64)];
            for figure in FIGURES {
                let (value, ratio) = self.of(place, figure.1);
                row.push(match figure.0 {
                    "processor" => format!("{value:.1}"),
                    _ => thousands(value),
                });
                row.push(format!("{ratio:.3}"));
            }
            let allowed = ALLOWED[place].map(|part| format!("{:.0} %", part * 100.0));
            row.push(allowed.unwrap_or_default());
            table.row(row);
        }
        println!("{table}");
    }

    pub(crate) fn json(&self) -> Value {
        if self.rounds.is_empty() {
            return Value::Null;
        }
        let rows = KEYS.iter().enumerate().map(|(place, keys)| {
            let figures = FIGURES.map(|(name, figure)| {
                let (median, ratio) = self.of(place, figure);
                let samples = self.rounds.iter().map(|round| figure(&round[place]));
                let samples: Vec<f64> = samples.collect();
                let figure = json!({"median": median, "of_one_key": ratio, "samples": samples});
                (name.to_owned(), figure)
            });
            json!({"keys": keys, "figures": Value::Object(figures.into_iter().collect())})
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

async fn play(server: &Fila, load: Load) -> anyhow::Result<KeysSample> {
    let queue = |what: &str| format!("{what}-{}", load.keys);
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
