//! The server's processor time per message, by component, measured with `perf`: while it receives, while it delivers, and
//! while it does both.
//!
//! Each phase has its own recording. `perf` measures shares. The kernel's count of the process's time turns them into
//! microseconds per message, which can be compared before and after a change.

mod component;
mod perf;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use component::Component;
use perf::{Recording, StackSample};

use crate::client::{self, StreamLoad};
use crate::key_shape::KeyShape;
use crate::server::Server;

/// Components with less than this part of every phase are left out.
const LEAST: f64 = 0.001;

#[derive(Debug, clap::Args)]
pub(crate) struct ProfileArguments {
    /// Messages in each phase
    #[arg(long, default_value_t = 300_000)]
    messages: u64,
    /// Bytes of a payload
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Number of fairness keys
    #[arg(long, default_value_t = 10)]
    keys: u64,
    /// Messages that may be unconfirmed
    #[arg(long, default_value_t = 256)]
    outstanding: u64,
    /// Messages in a frame
    #[arg(long, default_value_t = 16)]
    frame: u64,
    /// How durable a confirmed message is: fsync, os or memory
    #[arg(long, default_value = "fsync")]
    durability: String,
    /// How many functions to show for each phase
    #[arg(long, default_value_t = 15)]
    functions: usize,
    /// The server is built with frame pointers, as `scripts/profile` does: time in the standard library counts for its
    /// caller
    #[arg(long)]
    callers: bool,
    /// Also write the shares as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the recordings, for `perf report` and flame graphs
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
}

/// The results of one phase.
#[derive(Debug)]
struct Phase {
    name: &'static str,
    /// Processor time of the server for one message, in microseconds.
    each: f64,
    samples: Vec<StackSample>,
}

impl Phase {
    /// Returns the part of each item, the largest first.
    fn shares<K: std::hash::Hash + Eq + Ord>(
        &self,
        of: impl Fn(&StackSample) -> K,
    ) -> Vec<(K, f64)> {
        let mut weights = HashMap::new();
        for sample in &self.samples {
            *weights.entry(of(sample)).or_insert(0) += sample.weight;
        }
        let all: u64 = weights.values().sum();
        let part = |weight: u64| weight as f64 / all.max(1) as f64;
        let shares = weights.into_iter().map(|(key, weight)| (key, part(weight)));
        let mut shares: Vec<(K, f64)> = shares.collect();
        shares.sort_by(|(a, x), (b, y)| y.total_cmp(x).then_with(|| a.cmp(b)));
        shares
    }
}

pub(crate) async fn run(arguments: ProfileArguments) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let recordings = arguments
        .keep
        .as_deref()
        .unwrap_or_else(|| directory.path());
    std::fs::create_dir_all(recordings)?;
    let phases = record(&arguments, &directory.path().join("data"), recordings).await?;
    println!(
        "{} messages of {} bytes, {} keys, {} unconfirmed, frames of {}, {}: processor time of the server",
        arguments.messages,
        arguments.size,
        arguments.keys,
        arguments.outstanding,
        arguments.frame,
        arguments.durability
    );
    let components = |phase: &Phase| -> Vec<(&'static str, f64)> {
        let shares = phase.shares(|sample| Component::of(sample, arguments.callers));
        let share = |component| {
            let found = shares.iter().find(|(other, _)| *other == component);
            (
                Component::name(component),
                found.map_or(0.0, |(_, part)| *part),
            )
        };
        Component::ALL.map(share).to_vec()
    };
    let components: Vec<_> = phases.iter().map(components).collect();
    table("component", &phases, &components);
    let threads: Vec<_> = phases.iter().map(|phase| phase.shares(thread)).collect();
    table("thread", &phases, &threads);
    for phase in &phases {
        functions(phase, &arguments);
    }
    if let Some(file) = &arguments.json {
        let text = json(&phases, &components, &threads);
        std::fs::write(file, text).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// Runs the phases, each with its own recording.
async fn record(
    arguments: &ProfileArguments,
    data: &Path,
    recordings: &Path,
) -> anyhow::Result<Vec<Phase>> {
    let settings = [format!("storage.durability={}", arguments.durability)];
    let server = Server::start(data, &settings)?;
    let load = StreamLoad {
        messages: arguments.messages,
        keys: KeyShape::flat(arguments.keys),
        size: arguments.size,
        outstanding: arguments.outstanding,
        frame: arguments.frame,
    };
    let channel = client::connect(&server.address).await?;
    let other = client::connect(&server.address).await?;
    for queue in ["backlog", "through"] {
        client::create(&channel, queue).await?;
    }
    let mut phases = Vec::new();
    for name in ["produce", "drain", "through"] {
        // Leftover work of the phase before would count here.
        quiet(&server).await?;
        let before = server.processor_time()?;
        let file = recordings.join(format!("{name}.perf"));
        let recording = Recording::start(server.id(), &file)?;
        match name {
            "produce" => {
                client::produce(&channel, "backlog", load, |_| {}).await?;
            }
            "drain" => {
                client::consume(&channel, "backlog", load, 256, |_| {}).await?;
            }
            _ => {
                let (sent, seen) = tokio::join!(
                    client::produce(&channel, "through", load, |_| {}),
                    client::consume(&other, "through", load, 256, |_| {}),
                );
                sent.context("producing")?;
                seen.context("consuming")?;
            }
        }
        let samples = recording.stop()?;
        let time = server.processor_time()? - before;
        phases.push(Phase {
            name,
            each: time.as_secs_f64() * 1e6 / load.messages as f64,
            samples,
        });
    }
    Ok(phases)
}

/// Waits until the server is idle, at most some seconds.
async fn quiet(server: &Server) -> anyhow::Result<()> {
    let mut before = server.processor_time()?;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = server.processor_time()?;
        if now - before <= Duration::from_millis(10) {
            break;
        }
        before = now;
    }
    Ok(())
}

/// Returns a thread's name without its number.
fn thread(sample: &StackSample) -> String {
    let name = sample
        .thread
        .trim_end_matches(|it: char| it.is_ascii_digit());
    name.trim_end_matches(['-', '#', ' ']).to_owned()
}

/// Prints a line for each component: its share, and its microseconds per message.
fn table<K: AsRef<str>>(what: &str, phases: &[Phase], shares: &[Vec<(K, f64)>]) {
    print!("\n{what:<50}");
    for phase in phases {
        print!(" {:>16}", phase.name);
    }
    println!();
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in shares.iter().flatten() {
        if !names.contains(&name.as_ref()) {
            names.push(name.as_ref());
        }
    }
    for name in names {
        let parts = shares.iter().map(|shares| part(shares, name));
        let parts: Vec<f64> = parts.collect();
        if parts.iter().all(|part| *part < LEAST) {
            continue;
        }
        print!("{name:<50}");
        for (phase, part) in phases.iter().zip(parts) {
            print!(" {:>6.1}% {:>5.2} µs", part * 100.0, part * phase.each);
        }
        println!();
    }
    print!("{:<50}", "all");
    for phase in phases {
        print!(" {:>6.1}% {:>5.2} µs", 100.0, phase.each);
    }
    println!();
}

fn part<K: AsRef<str>>(shares: &[(K, f64)], name: &str) -> f64 {
    let found = shares.iter().find(|(other, _)| other.as_ref() == name);
    found.map_or(0.0, |(_, part)| *part)
}

/// Prints the functions that take most of the time.
fn functions(phase: &Phase, arguments: &ProfileArguments) {
    if arguments.functions == 0 {
        return;
    }
    println!("\n{}: functions", phase.name);
    let function = |sample: &StackSample| {
        let frame = sample.frames.first();
        let name = frame.map_or("[unknown]", |frame| frame.function.as_str());
        (Component::of(sample, arguments.callers), name.to_owned())
    };
    for ((component, name), part) in phase.shares(function).into_iter().take(arguments.functions) {
        let component = component.name();
        let component = component.split(&[':', ' ']).next().unwrap_or(component);
        println!(
            "{:>6.1}% {:>5.2} µs  {component:<10} {name}",
            part * 100.0,
            part * phase.each
        );
    }
}

fn json(
    phases: &[Phase],
    components: &[Vec<(&'static str, f64)>],
    threads: &[Vec<(String, f64)>],
) -> String {
    let phases = phases.iter().zip(components).zip(threads);
    let phases = phases.map(|((phase, components), threads)| {
        let components: HashMap<&str, f64> = components.iter().copied().collect();
        let threads: HashMap<&str, f64> = threads
            .iter()
            .map(|(name, part)| (name.as_str(), *part))
            .collect();
        let figures = serde_json::json!({
            "microseconds_per_message": phase.each,
            "components": components,
            "threads": threads,
        });
        (phase.name.to_owned(), figures)
    });
    let phases: serde_json::Map<String, serde_json::Value> = phases.collect();
    format!("{:#}\n", serde_json::Value::Object(phases))
}
