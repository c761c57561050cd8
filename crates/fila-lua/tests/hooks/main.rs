//! Scripts that mean well, and their answers, valid and invalid.

mod answers;
mod calls;
mod examples;
mod scripts;

use std::time::Duration;

use fila_lua::{
    EnqueueInput, FailureAnswer, FailureInput, HookError, Limits, Sandbox, Scheduling, Script,
};

const SCHEDULE: &str = r#"
function on_enqueue(msg)
  -- msg.headers       — table of string key-value pairs
  -- msg.payload_size  — byte count of the payload
  -- msg.queue         — queue name

  return {
    fairness_key = msg.headers["tenant"] or "default",
    weight = tonumber(msg.headers["priority"]) or 1,
    throttle_keys = { msg.headers["endpoint"] }
  }
end
"#;

const RETRY: &str = r#"
function on_failure(msg)
  if msg.attempts >= 3 then
    return { action = "dlq" }
  end
  return { action = "retry", delay_ms = 1000 * msg.attempts }
end
"#;

/// A message without headers and without a payload.
const EMPTY: EnqueueInput<'_> = EnqueueInput {
    headers: &[],
    payload_size: 0,
    queue: "orders",
};

fn compile(source: &str) -> Script {
    // A long limit: these tests are about answers, and the machine may be busy.
    let mut limits = Limits::default();
    limits.timeout = Duration::from_secs(10);
    Script::compile(source, limits).expect("a good script")
}

fn headers(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = pairs
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.to_owned()));
    owned.collect()
}

/// Calls `on_enqueue`; an answer with a part that cannot be used is an error.
fn enqueue(source: &str, pairs: &[(&str, &str)]) -> Result<Scheduling, HookError> {
    let answer = answer(source, pairs)?;
    match answer.mistake() {
        Some(mistake) => Err(mistake),
        None => Ok(answer),
    }
}

fn answer(source: &str, pairs: &[(&str, &str)]) -> Result<Scheduling, HookError> {
    let input = EnqueueInput {
        headers: &headers(pairs),
        payload_size: 1234,
        queue: "orders",
    };
    Sandbox::new(&compile(source), |_: &str| None).on_enqueue(&input)
}

fn failure(source: &str, attempts: u32) -> Result<FailureAnswer, HookError> {
    let input = FailureInput {
        headers: &headers(&[("tenant", "acme")]),
        id: "0190a5c2-0000-7000-8000-000000000001",
        attempts,
        queue: "orders",
        error: "connection refused",
    };
    Sandbox::new(&compile(source), |_: &str| None).on_failure(&input)
}

fn returning(answer: &str) -> String {
    format!("function on_enqueue(msg) return {answer} end")
}

fn text(scheduling: &Scheduling) -> &str {
    std::str::from_utf8(&scheduling.fairness_key).expect("text")
}
