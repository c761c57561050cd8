//! `fila peek`: messages without leases.

use std::collections::BTreeMap;
use std::time::SystemTime;

use clap::Args;
use fila_cli::message_json::{HistoryJson, PayloadJson, millis};
use fila_sdk::{PeekPage, Peeked, PeekedState};
use serde::Serialize;

use crate::failure::Failure;
use crate::general::General;
use crate::output::{self, Align, Format, Table, bytes, count, duration};

/// How many bytes of a payload the table shows.
const PREVIEW_BYTES: u64 = 60;

/// How many messages one request asks for.
const PAGE: u64 = 100;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  fila peek orders
  fila peek orders --key acme --limit 100
  fila peek orders --within acme    acme and its users
  fila peek orders --json | jq 'select(.attempts > 3)'

A peek leases nothing and counts no attempt. It shows messages that consumers hold, too, sorted by fairness
key, and within a key in the order of their arrival. With --json, payloads are complete.")]
pub(crate) struct PeekArguments {
    /// The queue
    queue: String,

    /// Show only messages of this fairness key
    #[arg(long)]
    key: Option<String>,

    /// Show only messages of keys in this group, on every level, and of the key of this name
    #[arg(long, value_name = "GROUP", conflicts_with = "key")]
    within: Option<String>,

    /// Show at most this many messages
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    limit: u64,
}

/// A message for programs.
#[derive(Debug, Serialize)]
struct PeekedJson<'a> {
    id: &'a str,
    key: &'a str,
    weight: u32,
    state: &'static str,
    attempts: u32,
    enqueued_at_ms: u64,
    deliver_after_ms: Option<u64>,
    lease_until_ms: Option<u64>,
    expires_at_ms: Option<u64>,
    deduplication_id: Option<&'a str>,
    throttle_keys: &'a [String],
    history: Option<HistoryJson<'a>>,
    headers: &'a BTreeMap<String, String>,
    payload_bytes: u64,
    #[serde(flatten)]
    payload: PayloadJson<'a>,
}

pub(crate) fn run(general: &General, arguments: &PeekArguments) -> Result<(), Failure> {
    general.talk(Some(&arguments.queue), async |session| {
        let mut peek = session.client.queue(&arguments.queue).peek();
        if let Some(key) = &arguments.key {
            peek = peek.key(key);
        }
        if let Some(group) = &arguments.within {
            peek = peek.within(group);
        }
        let output = session.output;
        if output.format == Format::Human {
            peek = peek.payload_max(PREVIEW_BYTES);
        }
        let is_dead = arguments.queue.ends_with(".dlq");
        let mut table = if is_dead { dead_table() } else { table() };
        let mut damaged = 0;
        let mut left = arguments.limit;
        let mut has_any = false;
        while left > 0 {
            let asked = u32::try_from(left.min(PAGE)).unwrap_or(u32::MAX);
            let page = peek.clone().limit(asked).page().await?;
            left -= (page.messages.len() as u64).min(left);
            damaged += page.damaged;
            has_any |= !page.messages.is_empty();
            match output.format {
                Format::Json => output.list(page.messages.iter().map(PeekedJson::from), || "")?,
                Format::Human if is_dead => add_dead(&mut table, &page),
                Format::Human => add(&mut table, &page),
            }
            match page.next {
                Some(place) => peek = peek.after(place),
                None => break,
            }
        }
        match output.format {
            Format::Human if has_any => output.list([(); 0], || table)?,
            Format::Human => output::note("the queue has no messages"),
            Format::Json => {}
        }
        if damaged > 0 {
            let damaged = count(damaged.into());
            output::note(format!(
                "{damaged} messages cannot be read; the server's log names them"
            ));
        }
        Ok(())
    })
}

fn table() -> Table {
    Table::new([
        ("ID", Align::Name),
        ("KEY", Align::Name),
        ("STATE", Align::Left),
        ("ATTEMPTS", Align::Right),
        ("AGE", Align::Right),
        ("SIZE", Align::Right),
        ("PAYLOAD", Align::Text),
    ])
    .spare(&["SIZE", "ID"])
}

fn add(table: &mut Table, page: &PeekPage) {
    // By the server's clock, which may differ from ours.
    let until = |moment: SystemTime| {
        let left = moment.duration_since(page.now).unwrap_or_default();
        duration(left)
    };
    for message in &page.messages {
        let state = match message.state {
            PeekedState::Delayed { until: moment } => format!("delayed, {} left", until(moment)),
            PeekedState::Leased { until: moment } => format!("leased, {} left", until(moment)),
            other => state(other).to_owned(),
        };
        let age = page.now.duration_since(message.enqueued_at);
        table.row([
            message.id.as_str().to_owned(),
            message.key.clone(),
            state,
            count(message.attempts.into()),
            duration(age.unwrap_or_default()),
            bytes(message.payload_bytes),
            preview(message),
        ]);
    }
}

/// Returns the table of dead letters, with the reason of each.
fn dead_table() -> Table {
    Table::new([
        ("ID", Align::Name),
        ("KEY", Align::Name),
        ("STATE", Align::Left),
        ("REASON", Align::Left),
        ("ATTEMPTS", Align::Right),
        ("DEAD FOR", Align::Right),
        ("LAST ERROR", Align::Text),
        ("PAYLOAD", Align::Text),
    ])
    .spare(&["ID", "STATE", "ATTEMPTS"])
}

fn add_dead(table: &mut Table, page: &PeekPage) {
    let nothing = || "-".to_owned();
    for message in &page.messages {
        let history = message.history.as_ref();
        let death = history.and_then(|history| history.death.as_ref());
        let since = |died_at| page.now.duration_since(died_at).unwrap_or_default();
        table.row([
            message.id.as_str().to_owned(),
            message.key.clone(),
            state(message.state).to_owned(),
            death.map_or_else(nothing, |death| death.reason.to_string()),
            death.map_or_else(nothing, |death| count(death.attempts.into())),
            death.map_or_else(nothing, |death| duration(since(death.died_at))),
            history.map_or_else(nothing, |history| {
                output::cut(
                    &output::printable(&history.last_error),
                    PREVIEW_BYTES as usize,
                )
            }),
            preview(message),
        ]);
    }
}

fn preview(message: &Peeked) -> String {
    let mut text = String::from_utf8_lossy(&message.payload).into_owned();
    let is_cut = message.payload_bytes > message.payload.len() as u64;
    if is_cut {
        // A character that the cut has split is left out.
        text.truncate(text.trim_end_matches('\u{fffd}').len());
        text.push('…');
    }
    text
}

fn state(state: PeekedState) -> &'static str {
    match state {
        PeekedState::Ready => "ready",
        PeekedState::Delayed { .. } => "delayed",
        PeekedState::Leased { .. } => "leased",
        _ => "unknown",
    }
}

impl<'a> From<&'a Peeked> for PeekedJson<'a> {
    fn from(message: &'a Peeked) -> Self {
        let (deliver_after, lease_until) = match message.state {
            PeekedState::Delayed { until } => (Some(until), None),
            PeekedState::Leased { until } => (None, Some(until)),
            _ => (None, None),
        };
        Self {
            id: message.id.as_str(),
            key: &message.key,
            weight: message.weight,
            state: state(message.state),
            attempts: message.attempts,
            enqueued_at_ms: millis(message.enqueued_at),
            deliver_after_ms: deliver_after.map(millis),
            lease_until_ms: lease_until.map(millis),
            expires_at_ms: message.expires_at.map(millis),
            deduplication_id: message.deduplication_id.as_deref(),
            throttle_keys: &message.throttle_keys,
            history: message.history.as_ref().map(HistoryJson::from),
            headers: &message.headers,
            payload_bytes: message.payload_bytes,
            payload: PayloadJson::from(&message.payload[..]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_with_long_keys_can_be_told_apart_at_every_width() {
        for window in [80, 120, 200] {
            let (mut alive, mut dead) = (table(), dead_table());
            for number in 1..=2 {
                let id = format!("00000000-0000-8008-8000-01000000000{number}");
                let key = format!("customer-{number:06}-of-a-reseller-{number:06}");
                let cell = |text: &str| text.to_owned();
                let payload = "{\"order\": 4711, \"to\": \"Ελλάδα 大阪\", \"lines\": [1, 2, 3]}";
                alive.row([
                    id.clone(),
                    key.clone(),
                    cell("delayed, 2 h 30 min left"),
                    cell("10"),
                    cell("12 min 30 s"),
                    cell("1.5 KiB"),
                    cell(payload),
                ]);
                dead.row([
                    id,
                    key,
                    cell("ready"),
                    cell("attempts_exhausted"),
                    cell("10"),
                    cell("12 min 30 s"),
                    cell("the address does not exist, says the post office"),
                    cell(payload),
                ]);
            }
            let text = format!("{}\n\n{}", alive.plain(window), dead.plain(window));
            insta::assert_snapshot!(format!("peek_{window}"), text);
        }
    }
}
