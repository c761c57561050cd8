//! One sample, for pipes and programs.

use serde_json::{Value, json};

use super::columns::{
    Column, KEY_COLUMNS, QUEUE_COLUMNS, key_cells, keys_title, queue_cells, server,
};
use super::sample::{Sample, key_rows, queue_rows};
use super::state::State;
use crate::values::millis;

/// Returns the lines of a sample.
pub(crate) fn text(address: &str, before: &Sample, now: &Sample) -> Vec<String> {
    let state = State::default();
    let queues = state.queues.arranged(queue_rows(Some(before), now));
    let mut lines = vec![server(address, now), String::new()];
    lines.extend(table(
        &QUEUE_COLUMNS,
        &queues.iter().map(queue_cells).collect::<Vec<_>>(),
    ));
    if now.keys.is_some() {
        let keys = state.keys.arranged(key_rows(Some(before), now));
        lines.extend([String::new(), keys_title(now)]);
        lines.extend(table(
            &KEY_COLUMNS,
            &keys.iter().map(key_cells).collect::<Vec<_>>(),
        ));
    }
    lines
}

/// Returns the lines of a table: names to the left, numbers to the right.
fn table<const N: usize>(columns: &[Column; N], rows: &[[String; N]]) -> Vec<String> {
    let length = |cell: &str| cell.chars().count();
    let widths: [usize; N] = std::array::from_fn(|at| {
        let cells = rows.iter().map(|row| length(&row[at])).max();
        let (title, least) = columns[at];
        cells.unwrap_or(0).max(length(title)).max(least)
    });
    let line = |cells: [&str; N]| {
        let cells = cells.into_iter().zip(widths).enumerate();
        let cells = cells.map(|(at, (cell, width))| match at {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<String>>().join(" ")
    };
    let head = line(columns.map(|(title, _)| title));
    let rows = rows
        .iter()
        .map(|row| line(row.each_ref().map(String::as_str)));
    std::iter::once(head).chain(rows).collect()
}

/// Returns a sample as JSON: times in milliseconds, and null for unknown values.
pub(crate) fn json(address: &str, before: &Sample, now: &Sample) -> Value {
    let state = State::default();
    let queues = state.queues.arranged(queue_rows(Some(before), now));
    let queues = queues.iter().map(|row| {
        json!({
            "name": row.name,
            "paused": row.paused,
            "depth": row.depth,
            "ready": row.ready,
            "delayed": row.delayed,
            "leased": row.leased,
            "enqueued_per_second": row.enqueued,
            "delivered_per_second": row.delivered,
            "acked_per_second": row.acked,
            "wait_ms": row.wait.map(millis),
            "active_keys": row.keys,
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
        json!({ "queue": keys.queue, "keys": rows.collect::<Vec<Value>>() })
    });
    let server = &now.server;
    json!({
        "server": {
            "address": address,
            "version": server.version,
            "durability": server.durability,
            "writable": server.writable,
            "connections": server.connections,
            "consumers": server.consumers,
            "memory_used_bytes": server.memory_used,
            "memory_budget_bytes": server.memory_budget,
            "uptime_ms": millis(server.uptime),
        },
        "queues": queues.collect::<Vec<Value>>(),
        "keys_of": keys,
    })
}

#[cfg(test)]
mod tests {
    use super::super::samples::two;
    use super::*;

    #[test]
    fn a_look_is_a_line_and_two_tables() {
        let [before, now] = two();
        insta::assert_snapshot!(text("http://127.0.0.1:5555", &before, &now).join("\n"));
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
