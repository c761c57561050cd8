//! `fila key`: the fairness keys of a queue, and their groups.

mod tree;

use clap::{Args, Subcommand};
use fila_sdk::{Admin, KeyChange, KeyInfo};

use crate::failure::Failure;
use crate::general::General;
use crate::output::{self, Align, Format, Output, Table, count, duration};
use crate::queue::{mean_wait, state};
use tree::{KeyTree, TreeTop};

/// How many keys a list has, unless the user says otherwise.
const LIST_LIMIT: usize = 100;

/// How many keys and groups of one group a tree has for people, unless the user says otherwise. For programs it has all.
const TREE_LIMIT: usize = 20;

/// How many keys and how many groups a tree is made of at most. They come 1,000 in a request, and a tree needs all of them
/// to know the largest.
const TREE_MAX: usize = 100_000;

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
  fila key list orders --tree                  groups with their totals, and their members
  fila key list orders --tree --within acme    only those in acme
  fila key list orders --limit 10000 --json | jq -r 'select(.ready > 1000).key'")]
    List {
        #[command(flatten)]
        which: ListFlags,
    },
    /// Stop deliveries of one fairness key, or of a group of keys; deliveries of other keys continue
    #[command(after_help = "Examples:
  fila key pause orders acme          acme, and every key in it
  fila key pause orders acme/batch")]
    Pause {
        #[command(flatten)]
        which: Which,
    },
    /// Resume deliveries of a fairness key or a group
    #[command(after_help = "Example:
  fila key resume orders acme")]
    Resume {
        #[command(flatten)]
        which: Which,
    },
    /// Fix the weight of a fairness key or a group, whatever its producers set
    #[command(after_help = "Examples:
  fila key weight orders acme 3          three times the share of a key of weight 1
  fila key weight orders acme/alice 2    twice the share of another key in acme
  fila key weight orders acme 0          as its producers set it, again")]
    Weight {
        #[command(flatten)]
        which: Which,
        /// The weight relative to the keys and groups beside it; 0 leaves it to the producers again
        weight: u32,
    },
    /// Fix how many messages of a fairness key or a group may be leased at once
    #[command(after_help = "Examples:
  fila key concurrency orders acme 2    2 for all keys in acme together
  fila key concurrency orders acme 0    as the queue sets it, again")]
    Concurrency {
        #[command(flatten)]
        which: Which,
        /// The number of messages; 0 leaves it to the queue again
        messages: u32,
    },
    /// Fix how many messages a fairness key or a group may have in the queue
    #[command(after_help = "Examples:
  fila key depth-max orders acme 10000    10,000 for all keys in acme together
  fila key depth-max orders acme 0        as the queue sets it, again")]
    DepthMax {
        #[command(flatten)]
        which: Which,
        /// The number of messages; 0 leaves it to the queue again
        messages: u64,
    },
}

#[derive(Debug, Args)]
struct ListFlags {
    /// The queue
    queue: String,
    /// List groups, too, each with its members below it, the largest backlog first
    #[arg(long)]
    tree: bool,
    /// List only this key, or this group and what is in it
    #[arg(
        long,
        value_name = "PATH",
        default_value = "",
        hide_default_value = true
    )]
    within: String,
    /// List at most this many keys, with --tree this many of each group [default: 100, with --tree 20, with --tree and
    /// --json all]
    #[arg(long, value_name = "NUMBER")]
    limit: Option<usize>,
}

#[derive(Debug, Args)]
struct Which {
    /// The queue
    queue: String,
    /// The fairness key, or the path of a group
    key: String,
}

pub(crate) fn run(general: &General, arguments: KeyArguments) -> Result<(), Failure> {
    let command = arguments.command;
    let about = command.queue().to_owned();
    general.talk(Some(&about), async |session| {
        let admin = session.client.admin();
        let output = session.output;
        match command {
            KeyCommand::List { which } if which.tree => tree(&admin, output, &which).await,
            KeyCommand::List { which } => list(&admin, output, &which).await,
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
            KeyCommand::DepthMax { which, messages } => {
                let said = match messages {
                    0 => "has the limit on messages of its queue".to_owned(),
                    messages => format!("has at most {} messages", count(messages)),
                };
                let depth_max = KeyChange::depth_max(messages);
                change(&admin, output, &which, depth_max, &said).await
            }
        }
    })
}

impl KeyCommand {
    fn queue(&self) -> &str {
        match self {
            Self::List { which } => &which.queue,
            Self::Pause { which }
            | Self::Resume { which }
            | Self::Weight { which, .. }
            | Self::Concurrency { which, .. }
            | Self::DepthMax { which, .. } => &which.queue,
        }
    }
}

async fn list(admin: &Admin, output: Output, flags: &ListFlags) -> Result<(), Failure> {
    let limit = flags.limit.unwrap_or(LIST_LIMIT);
    // One more than the limit, to see whether there are more.
    let keys = admin.keys_within(&flags.queue, &flags.within, limit.saturating_add(1));
    let mut keys = keys.await?;
    let has_more = keys.len() > limit;
    keys.truncate(limit);
    if keys.is_empty() && !has_more && output.format == Format::Human {
        flags.say_none();
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

async fn tree(admin: &Admin, output: Output, flags: &ListFlags) -> Result<(), Failure> {
    let (queue, within) = (&flags.queue, &flags.within);
    let settings = admin.queue(queue).await?;
    let most = TREE_MAX + 1;
    let mut keys = admin.keys_within(queue, within, most).await?;
    // After the keys, so that a new key finds its group.
    let mut groups = admin.groups_within(queue, within, most).await?;
    let is_cut = keys.len() > TREE_MAX || groups.len() > TREE_MAX;
    keys.truncate(TREE_MAX);
    groups.truncate(TREE_MAX);
    let top = match within.is_empty() {
        true => TreeTop::Whole,
        false => TreeTop::Part,
    };
    let separator = settings.settings.key_separator.as_deref();
    let separator = separator.filter(|text| !text.is_empty());
    let tree = KeyTree::new(groups, keys, &settings.keys, separator, top);
    if tree.is_empty() && output.format == Format::Human {
        flags.say_none();
        return Ok(());
    }
    let limit = flags.limit.unwrap_or(match output.format {
        Format::Human => TREE_LIMIT,
        Format::Json => usize::MAX,
    });
    let (nodes, left_out) = tree.shown(limit);
    output.list(nodes, || tree.table(limit))?;
    if left_out > 0 {
        output::note(format!(
            "{} keys and groups are left out; show more with a larger --limit, or a part with --within",
            count(left_out as u64)
        ));
    }
    if is_cut {
        output::note(format!(
            "the tree is made of the first {} keys and groups; list a part with --within",
            count(TREE_MAX as u64)
        ));
    }
    Ok(())
}

impl ListFlags {
    fn say_none(&self) {
        let queue = &self.queue;
        match self.within.as_str() {
            "" => output::note(format!("no fairness key of queue `{queue}` has messages")),
            path => {
                let path = output::printable(path);
                output::note(format!(
                    "no fairness key in `{path}` of queue `{queue}` has messages"
                ));
            }
        }
    }
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
