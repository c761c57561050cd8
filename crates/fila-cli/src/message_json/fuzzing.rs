//! The entry of the fuzzer and of the test that replays its corpus. It reads a file of messages, and panics if a line
//! breaks a promise.

use std::collections::BTreeMap;

use fila_sdk::Message;

use super::{LineJson, PayloadJson, ReceivedJson};
use crate::lines::read_line;

/// The longest error about a line, in bytes: some words, and a quotation of the line.
const WRONG_BYTES_MAX: usize = 4_096;

/// Reads `input` as `fila enqueue --json-lines` reads the standard input. Returns the message or the error of each
/// line.
///
/// # Panics
/// If an error is not one short line for a terminal, or if a message in the format of `fila consume --json` does not
/// read back as the same message.
pub fn messages(mut input: &[u8]) -> Vec<Result<Message, String>> {
    let lines = (1..).map_while(|number| read_line(&mut input, number));
    let messages = lines.map(|line| {
        let message = line.and_then(|line| message(&line));
        if let Err(wrong) = &message {
            assert!(!wrong.is_empty(), "a refusal without a word");
            assert!(wrong.len() <= WRONG_BYTES_MAX, "{} bytes", wrong.len());
            assert!(!wrong.contains(char::is_control), "{wrong:?}");
        }
        message
    });
    messages.collect()
}

fn message(line: &[u8]) -> Result<Message, String> {
    assert!(!line.contains(&b'\n'), "a line within a line");
    let read = LineJson::parse(line)?;
    let (key, weight) = (read.key.clone(), read.weight);
    let headers = read.headers.clone();
    let mut payload = Vec::new();
    let message = read.into_message(|found| {
        payload.clone_from(&found);
        Message::new(found)
    })?;
    check_print(key, weight, &headers, &payload);
    Ok(message)
}

/// Prints a message as `fila consume --json` does, and reads it again.
fn check_print(
    key: Option<String>,
    weight: Option<u32>,
    headers: &BTreeMap<String, String>,
    payload: &[u8],
) {
    let (key, weight) = (key.unwrap_or_default(), weight.unwrap_or(1));
    let printed = ReceivedJson {
        id: "an id",
        key: &key,
        weight,
        attempt: 2,
        enqueued_at_ms: 5,
        headers,
        history: None,
        payload: PayloadJson::from(payload),
    };
    let printed = serde_json::to_vec(&printed).expect("a message can be printed");
    let again = LineJson::parse(&printed).and_then(|line| line.into_message(Message::new));
    let expected = Message::new(payload.to_vec())
        .headers(headers.clone())
        .key(key)
        .weight(weight);
    let text = String::from_utf8_lossy(&printed);
    assert_eq!(again, Ok(expected), "read otherwise from {text}");
}
