//! `fila redrive`: moves dead letters back to the queue that they come from.

use std::pin::pin;

use clap::Args;
use fila_sdk::RedriveProgress;
use serde::Serialize;

use crate::failure::Failure;
use crate::general::General;
use crate::output::{Progress, count};
use crate::{signals, values};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fila redrive orders.dlq --limit 10
  fila redrive orders.dlq --all --key acme --header region=eu
  fila redrive orders.dlq --all --within acme    acme and its users
  fila redrive orders.dlq --all --rate 50    fifty in a second

The broker enqueues the messages like new ones: it calls the queue's hook, and counts attempts from one again.
It leaves messages that a consumer holds. Messages that are already moved stay moved when you stop the command.")]
#[command(group(clap::ArgGroup::new("amount").required(true)))]
pub(crate) struct RedriveArguments {
    /// The queue of dead letters
    queue: String,

    /// Move at most this many messages
    #[arg(
        long,
        visible_alias = "count",
        value_name = "NUMBER",
        group = "amount",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    limit: Option<u64>,

    /// Move all messages that are in the queue at the start
    #[arg(long, group = "amount")]
    all: bool,

    /// Move only messages of this fairness key
    #[arg(long)]
    key: Option<String>,

    /// Move only messages of keys in this group, on every level, and of the key of this name
    #[arg(long, value_name = "GROUP", conflicts_with = "key")]
    within: Option<String>,

    /// Move only messages with this header; may be repeated: a message must have all of them
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::header)]
    header: Vec<(String, String)>,

    /// Move at most this many messages in a second
    #[arg(long, value_name = "NUMBER", value_parser = values::rate)]
    rate: Option<f64>,
}

/// The result, for programs.
#[derive(Debug, Serialize)]
struct RedrivenJson<'a> {
    queue: &'a str,
    redriven: u64,
    skipped_leased: u64,
    seen: u64,
    total: u64,
}

pub(crate) fn run(general: &General, arguments: &RedriveArguments) -> Result<(), Failure> {
    general.talk(Some(&arguments.queue), async |session| {
        let mut redrive = session.client.admin().redrive(&arguments.queue);
        if let Some(limit) = arguments.limit {
            redrive = redrive.count(limit);
        }
        if let Some(key) = &arguments.key {
            redrive = redrive.key(key);
        }
        if let Some(group) = &arguments.within {
            redrive = redrive.within(group);
        }
        for (name, value) in &arguments.header {
            redrive = redrive.header(name, value);
        }
        if let Some(rate) = arguments.rate {
            redrive = redrive.rate(rate);
        }
        let mut stop = pin!(signals::shutdown());
        let mut redrive = redrive.start().await?;
        let mut bar = None;
        let mut moved = 0;
        let ended = loop {
            let step = tokio::select! {
                step = redrive.next() => step,
                () = &mut stop => break Err(Failure::Interrupted),
            };
            match step {
                Err(error) => break Err(error.into()),
                Ok(None) => break Ok(()),
                Ok(Some(progress)) => {
                    let most = arguments.limit.unwrap_or(u64::MAX).min(progress.total);
                    let bar = bar.get_or_insert_with(|| Progress::new("redriving", Some(most)));
                    bar.advance(progress.redriven - moved);
                    moved = progress.redriven;
                }
            }
        };
        let progress = redrive.progress();
        drop((redrive, bar));
        // The progress is worth a line even after a failure.
        session
            .output
            .result(&arguments.json(progress), || arguments.summary(progress))?;
        ended
    })
}

impl RedriveArguments {
    fn json(&self, progress: RedriveProgress) -> RedrivenJson<'_> {
        RedrivenJson {
            queue: &self.queue,
            redriven: progress.redriven,
            skipped_leased: progress.skipped_leased,
            seen: progress.seen,
            total: progress.total,
        }
    }

    fn summary(&self, progress: RedriveProgress) -> String {
        let to = self.queue.strip_suffix(".dlq").unwrap_or(&self.queue);
        let mut text = match progress.redriven {
            1 => format!("redrove 1 message to `{to}`"),
            more => format!("redrove {} messages to `{to}`", count(more)),
        };
        if progress.skipped_leased > 0 {
            let leased = count(progress.skipped_leased);
            text += &format!("; left {leased} that a consumer holds");
        }
        text
    }
}
