//! `fila key`: the fairness keys of a queue.

use clap::{Args, Subcommand};
use fila_sdk::{Admin, KeyChange, KeyInfo};

use crate::failure::Failure;
use crate::general::General;
use crate::output::{self, Align, Format, Output, Table, count, duration};
use crate::queue::{mean_wait, state};

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct KeyArguments {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// List the fairness keys of a queue that have messages
    #[command(after_help = "Examples:
  fila key list orders
  fila key list orders --limit 10000 --json | jq -r 'select(.ready > 1000).key'")]
    List {
        /// The queue
        queue: String,
        /// List at most this many keys
        #[arg(long, value_name = "NUMBER", default_value_t = 100)]
        limit: usize,
    },
    /// Stop deliveries of one fairness key; deliveries of other keys continue
    #[command(after_help = "Example:
  fila key pause orders acme")]
    Pause {
        #[command(flatten)]
        which: Which,
    },
    /// Resume deliveries of a fairness key
    #[command(after_help = "Example:
  fila key resume orders acme")]
    Resume {
        #[command(flatten)]
        which: Which,
    },
    /// Fix the weight of a fairness key, whatever its producers set
    #[command(after_help = "Examples:
  fila key weight orders acme 3    three times the share of a key of weight 1
  fila key weight orders acme 0    as its producers set it, again")]
    Weight {
        #[command(flatten)]
        which: Which,
        /// The weight relative to other keys; 0 leaves it to the producers again
        weight: u32,
    },
    /// Fix how many messages of a fairness key may be leased at once
    #[command(after_help = "Examples:
  fila key concurrency orders acme 2
  fila key concurrency orders acme 0    as the queue sets it, again")]
    Concurrency {
        #[command(flatten)]
        which: Which,
        /// The number of messages; 0 leaves it to the queue again
        messages: u32,
    },
}

#[derive(Debug, Args)]
struct Which {
    /// The queue
    queue: String,
    /// The fairness key
    key: String,
}

pub(crate) fn run(general: &General, arguments: KeyArguments) -> Result<(), Failure> {
    let command = arguments.command;
    let about = command.queue().to_owned();
    general.talk(Some(&about), async |session| {
        let admin = session.client.admin();
        let output = session.output;
        match command {
            KeyCommand::List { queue, limit } => list(&admin, output, &queue, limit).await,
            KeyCommand::Pause { which } => {
                change(&admin, output, &which, KeyChange::pause(), "is paused").await
            }
            KeyCommand::Resume { which } => {
                change(&admin, output, &which, KeyChange::resume(), "is resumed").await
            }
            KeyCommand::Weight { which, weight } => {
                let said = match weight {
                    0 => "has the weight that its producers set".to_owned(),
                    weight => format!("has weight {weight}"),
                };
                change(&admin, output, &which, KeyChange::weight(weight), &said).await
            }
            KeyCommand::Concurrency { which, messages } => {
                let said = match messages {
                    0 => "has the concurrency limit of its queue".to_owned(),
                    messages => format!("has at most {messages} messages leased at once"),
                };
                let concurrency = KeyChange::concurrency(messages);
                change(&admin, output, &which, concurrency, &said).await
            }
        }
    })
}

impl KeyCommand {
    fn queue(&self) -> &str {
        match self {
            Self::List { queue, .. } => queue,
            Self::Pause { which }
            | Self::Resume { which }
            | Self::Weight { which, .. }
            | Self::Concurrency { which, .. } => &which.queue,
        }
    }
}

async fn list(admin: &Admin, output: Output, queue: &str, limit: usize) -> Result<(), Failure> {
    // One more than the limit, to see whether there are more.
    let mut keys = admin.keys(queue, limit.saturating_add(1)).await?;
    let has_more = keys.len() > limit;
    keys.truncate(limit);
    if keys.is_empty() && output.format == Format::Human {
        output::note(format!("no fairness key of queue `{queue}` has messages"));
        return Ok(());
    }
    output.list(&keys, || table(&keys))?;
    if has_more {
        output::note(format!(
            "there are more keys; --limit {limit} has left them out"
        ));
    }
    Ok(())
}

fn table(keys: &[KeyInfo]) -> Table {
    let mut table = Table::new([
        ("KEY", Align::Name),
        ("WEIGHT", Align::Right),
        ("READY", Align::Right),
        ("THROTTLED", Align::Right),
        ("DELAYED", Align::Right),
        ("LEASED", Align::Right),
        ("DELIVERED", Align::Right),
        ("MEAN WAIT", Align::Right),
        ("WAITING", Align::Right),
        ("STATE", Align::Left),
    ])
    .spare(&["DELIVERED", "MEAN WAIT", "DELAYED"]);
    for key in keys {
        table.row([
            key.key.clone(),
            count(key.weight.into()),
            count(key.ready),
            count(key.throttled),
            count(key.delayed),
            count(key.leased),
            count(key.delivered_total),
            mean_wait(key.waited_total, key.first_delivered_total),
            key.head_waiting.map_or_else(|| "-".to_owned(), duration),
            state(key.paused).to_owned(),
        ]);
    }
    table
}

async fn change(
    admin: &Admin,
    output: Output,
    which: &Which,
    change: KeyChange,
    said: &str,
) -> Result<(), Failure> {
    let settings = admin.update_key(&which.queue, &which.key, change).await?;
    output.result(&settings, || {
        let key = output::printable(&which.key);
        format!("key `{key}` of queue `{}` {said}", which.queue)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn keys_with_long_names_can_be_told_apart_at_every_width() {
        let keys: Vec<KeyInfo> = (1..=2)
            .map(|number| {
                let mut key = KeyInfo::default();
                key.key = format!("customer-{number:06}-of-a-reseller-{number:06}");
                (key.weight, key.ready, key.throttled) = (3, 1_234_567, 12);
                (key.delivered_total, key.first_delivered_total) = (7_654_321, 7_654_321);
                key.waited_total = Duration::from_secs(86_400 * 365);
                key.head_waiting = Some(Duration::from_secs(9_000));
                key
            })
            .collect();
        for window in [80, 120, 200] {
            let text = table(&keys).plain(window);
            insta::assert_snapshot!(format!("key_list_{window}"), text);
        }
    }
}
