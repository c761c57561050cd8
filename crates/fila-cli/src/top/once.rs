//! One sample, for pipes and programs.

use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use super::columns::{
    Columns, KEY_COLUMNS, QUEUE_COLUMNS, key_cells, keys_title, queue_cells, server,
};
use super::sample::{KeyRow, Sample, ServerLine, group_rows, key_rows, queue_rows};
use super::state::{Listing, State};
use crate::queue::DeadLetters;
use crate::values::millis;

/// Returns the lines of a sample, in a window of this width if there is one.
pub(crate) fn text(
    address: &str,
    before: &Sample,
    now: &Sample,
    dead_letters: DeadLetters,
    window: Option<usize>,
) -> Vec<String> {
    let state = State::default();
    let rows = queue_rows(Some(before), now, dead_letters);
    let queues: Vec<_> = state
        .queues
        .arranged(rows)
        .iter()
        .map(queue_cells)
        .collect();
    let mut lines = vec![server(address, now), String::new()];
    lines.extend(table(&QUEUE_COLUMNS, &queues, window));
    let mut add = |listing, rows: Vec<KeyRow>| {
        let rows = state.keys.arranged(rows);
        let rows: Vec<_> = rows.iter().map(key_cells).collect();
        lines.extend([String::new(), keys_title(now, listing)]);
        lines.extend(table(&KEY_COLUMNS, &rows, window));
    };
    if let Some(keys) = &now.keys {
        if !keys.groups.is_empty() {
            add(Listing::Groups, group_rows(Some(before), now));
        }
        add(Listing::Keys, key_rows(Some(before), now));
    }
    lines
}

/// Returns the lines of a table: names to the left, numbers to the right.
fn table<const N: usize>(
    columns: &Columns<N>,
    rows: &[[String; N]],
    window: Option<usize>,
) -> Vec<String> {
    let mut layout = columns.layout(rows, window.unwrap_or(usize::MAX));
    let names = rows.iter().map(|row| row[0].width());
    let longest = names.fold(columns.all[0].1, usize::max);
    layout.name = layout.name.min(longest);
    let line = |cells: Vec<String>| {
        let cells = layout.shown.iter().zip(cells).map(|(&at, cell)| {
            let width = if at == 0 {
                layout.name
            } else {
                columns.all[at].1
            };
            let padding = " ".repeat(width.saturating_sub(cell.width()));
            match at {
                0 => cell + &padding,
                _ => padding + &cell,
            }
        });
        cells.collect::<Vec<String>>().join(" ")
    };
    let head = line(layout.cells(|at| columns.all[at].0));
    let rows = rows.iter().map(|row| line(layout.cells(|at| &row[at])));
    std::iter::once(head).chain(rows).collect()
}

/// Returns a sample as JSON: times in milliseconds, and null for unknown values.
pub(crate) fn json(address: &str, before: &Sample, now: &Sample) -> Value {
    let state = State::default();
    let queues = state
        .queues
        .arranged(queue_rows(Some(before), now, DeadLetters::Rows));
    let queues = queues.iter().map(|row| {
        json!({
            "name": row.name,
            "paused": row.paused,
            "depth": row.depth,
            "ready": row.ready,
            "throttled": row.throttled,
            "delayed": row.delayed,
            "leased": row.leased,
            "dead_letters": row.dead,
            "enqueued_per_second": row.enqueued,
            "delivered_per_second": row.delivered,
            "acked_per_second": row.acked,
            "wait_ms": row.wait.map(millis),
            "active_keys": row.keys,
            "active_groups": row.groups,
            "consumers": row.consumers,
        })
    });
    let keys = now.keys.as_ref().map(|keys| {
        let rows = state.keys.arranged(key_rows(Some(before), now));
        let rows = rows.iter().map(|row| {
            json!({
                "key": row.key,
                "weight": row.weight,
                "paused": row.paused,
                "ready": row.ready,
                "throttled": row.throttled,
                "delayed": row.delayed,
                "leased": row.leased,
                "delivered_per_second": row.delivered,
                "acked_per_second": row.acked,
                "share": row.share,
                "share_ideal": row.ideal,
                "wait_ms": row.wait.map(millis),
                "head_waiting_ms": row.head.map(millis),
            })
        });
        json!({
            "queue": keys.queue,
            "keys": rows.collect::<Vec<Value>>(),
            "groups": groups_json(before, now),
        })
    });
    json!({
        "server": server_json(address, &now.server),
        "queues": queues.collect::<Vec<Value>>(),
        "keys_of": keys,
    })
}

fn groups_json(before: &Sample, now: &Sample) -> Vec<Value> {
    let state = State::default();
    let rows = state.keys.arranged(group_rows(Some(before), now));
    let rows = rows.iter().map(|row| {
        json!({
            "path": row.key,
            "weight": row.weight,
            "paused": row.paused,
            "ready": row.ready,
            "throttled": row.throttled,
            "delayed": row.delayed,
            "leased": row.leased,
            "delivered_per_second": row.delivered,
            "share": row.share,
            "share_ideal": row.ideal,
        })
    });
    rows.collect()
}

fn server_json(address: &str, server: &ServerLine) -> Value {
    json!({
        "address": address,
        "version": server.version,
        "durability": server.durability,
        "writable": server.writable,
        "connections": server.connections,
        "consumers": server.consumers,
        "memory_used_bytes": server.memory_used,
        "memory_budget_bytes": server.memory_budget,
        "uptime_ms": millis(server.uptime),
    })
}

#[cfg(test)]
mod tests {
    use super::super::samples::{two, with_groups};
    use super::*;

    #[test]
    fn a_look_is_a_line_and_two_tables() {
        let [before, now] = two();
        let text = text(
            "http://127.0.0.1:5555",
            &before,
            &now,
            DeadLetters::Folded,
            None,
        );
        insta::assert_snapshot!(text.join("\n"));
    }

    #[test]
    fn a_look_at_groups_has_a_table_of_them() {
        let [before, now] = with_groups();
        let text = text(
            "http://127.0.0.1:5555",
            &before,
            &now,
            DeadLetters::Folded,
            None,
        );
        insta::assert_snapshot!(text.join("\n"));
        let json = json("http://127.0.0.1:5555", &before, &now);
        assert_eq!(json["queues"][2]["active_groups"], 1);
        let acme = &json["keys_of"]["groups"][0];
        assert_eq!(
            (&acme["path"], &acme["ready"]),
            (&"acme".into(), &190.into())
        );
        assert_eq!(acme["delivered_per_second"], 2010.0);
        assert_eq!(
            (&acme["share"], &acme["share_ideal"]),
            (&0.5025.into(), &0.75.into())
        );
    }

    #[test]
    fn a_look_as_json_has_milliseconds() {
        let [before, now] = two();
        let json = json("http://127.0.0.1:5555", &before, &now);
        assert_eq!(json["queues"][2]["enqueued_per_second"], 1250.0);
        assert_eq!(json["queues"][2]["wait_ms"], 620);
        assert_eq!(json["keys_of"]["queue"], "orders");
        assert_eq!(json["keys_of"]["keys"][0]["key"], "noisy");
        assert_eq!(json["keys_of"]["keys"][0]["head_waiting_ms"], 12_400);
        assert_eq!(json["keys_of"]["keys"][2]["share_ideal"], Value::Null);
        assert_eq!(json["server"]["memory_used_bytes"], 13 << 20);
    }
}
