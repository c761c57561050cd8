//! `fila hook`: tests the hooks of a script without a server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand, ValueEnum};
use fila_lua::{
    AnswerError, EnqueueInput, FailureAction, FailureInput, Hook, HookError, Limits, Sandbox,
    Script,
};
use fila_server::config::ByteSize;
use fila_server::{KeySeparator, check_paths};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;
use crate::general::General;
use crate::output::{bytes, count, duration, printable};
use crate::values;

/// How often a hook is called to measure its duration, and the most time for these calls.
const REPETITIONS: u32 = 200;
const MEASURE_FOR: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct HookArguments {
    #[command(subcommand)]
    command: HookCommand,
}

#[derive(Debug, Subcommand)]
enum HookCommand {
    /// Compile a script, call its hooks for a message, and print their answers and their cost
    #[command(after_help = "Examples:
  fila hook test hooks.lua --message msg.json
  fila hook test hooks.lua --message msg.json --config tier:acme=gold
  fila peek orders --json | head -1 | fila hook test hooks.lua --message - --hook on_failure

A message is a JSON object; every field is optional:
  { \"headers\": {\"tenant\": \"acme\"}, \"payload\": \"text, or JSON\", \"queue\": \"orders\" }
and for on_failure also \"id\", \"attempts\" and \"error\". \"payload_size\" can replace a payload.
A line of `fila peek --json` or `fila consume --json` is a message, too.")]
    Test(Box<Test>),
}

#[derive(Debug, Args)]
struct Test {
    /// The script; `-` for the standard input
    #[arg(value_name = "SCRIPT")]
    script: PathBuf,

    /// The message, in JSON; `-` for the standard input
    #[arg(long, value_name = "FILE")]
    message: Option<PathBuf>,

    /// The hook to call [default: every hook that the script defines]
    #[arg(long, value_enum, value_name = "HOOK")]
    hook: Option<HookFlag>,

    /// An entry that `fila.get` returns, as `tier:acme=gold`; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = entry)]
    config: Vec<(String, String)>,

    /// The character between the parts of a fairness key, as the queue's key_separator; empty for none
    #[arg(long, value_name = "CHARACTER", default_value = "/", value_parser = separator)]
    key_separator: Separator,

    /// How long a call may run, as the server's lua.default_timeout_ms
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = values::duration, allow_hyphen_values = true)]
    timeout: Duration,

    /// How much memory the script may take, as the server's lua.default_memory_limit_bytes
    #[arg(long, value_name = "SIZE", default_value = "1 MiB", value_parser = size)]
    memory_limit: ByteSize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum HookFlag {
    /// Decides how a message is scheduled
    OnEnqueue,
    /// Decides how the broker goes on with a failed message
    OnFailure,
}

fn entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not an entry; write it as KEY=VALUE")),
    }
}

/// A separator, or none.
#[derive(Clone, Copy, Debug)]
struct Separator(Option<KeySeparator>);

fn separator(text: &str) -> Result<Separator, String> {
    if text.is_empty() {
        return Ok(Separator(None));
    }
    let separator = KeySeparator::parse(text).map_err(|error| error.to_string())?;
    Ok(Separator(Some(separator)))
}

fn size(text: &str) -> Result<ByteSize, String> {
    text.parse().map_err(|error| format!("{error}"))
}

/// The fields that `fila peek --json` and `fila consume --json` print and hooks do not get.
const PRINTED: [&str; 10] = [
    "key",
    "weight",
    "throttle_keys",
    "state",
    "enqueued_at_ms",
    "deliver_after_ms",
    "lease_until_ms",
    "expires_at_ms",
    "deduplication_id",
    "payload_bytes",
];

/// A message as the command reads it. It refuses unknown fields, because a mistyped field would have no effect.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MessageJson {
    headers: BTreeMap<String, String>,
    payload: Option<Value>,
    payload_base64: Option<String>,
    payload_size: Option<usize>,
    queue: Option<String>,
    id: Option<String>,
    #[serde(alias = "attempt")]
    attempts: Option<u32>,
    error: Option<String>,
    /// The failures of a message, as `fila peek --json` prints them.
    history: Value,
}

/// A message as hooks get it.
#[derive(Debug)]
struct Message {
    headers: Vec<(String, String)>,
    payload_size: usize,
    queue: String,
    id: String,
    attempts: u32,
    error: String,
    /// That of its queue.
    separator: Option<KeySeparator>,
}

impl MessageJson {
    fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let mut json: Value = serde_json::from_str(text)?;
        if let Some(fields) = json.as_object_mut() {
            fields.retain(|name, _| !PRINTED.contains(&name.as_str()));
        }
        serde_json::from_value(json)
    }

    fn into_message(self) -> Result<Message, String> {
        let payload_size = match (self.payload, self.payload_base64, self.payload_size) {
            (None, None, size) => size.unwrap_or(0),
            (Some(Value::String(text)), None, None) => text.len(),
            (Some(value), None, None) => value.to_string().len(),
            (None, Some(text), None) => {
                let payload = STANDARD.decode(text);
                payload
                    .map_err(|error| format!("has an invalid payload_base64: {error}"))?
                    .len()
            }
            _ => {
                return Err(
                    "has more than one of payload, payload_base64 and payload_size".to_owned(),
                );
            }
        };
        Ok(Message {
            headers: self.headers.into_iter().collect(),
            payload_size,
            separator: Some(KeySeparator::default()),
            queue: self.queue.unwrap_or_else(|| "orders".to_owned()),
            id: self
                .id
                .unwrap_or_else(|| "00000000-0000-8000-8000-000000000001".to_owned()),
            attempts: self.attempts.unwrap_or(1).max(1),
            error: self.error.unwrap_or_else(|| {
                let last_error = self.history["last_error"].as_str();
                last_error.unwrap_or("nacked").to_owned()
            }),
        })
    }
}

/// The answer of a hook, for programs.
#[derive(Debug, Serialize)]
struct Tried {
    hook: &'static str,
    #[serde(flatten)]
    answer: Answer,
    /// The number that the broker would bring into range.
    #[serde(skip_serializing_if = "Option::is_none")]
    adjusted: Option<String>,
    mean_us: f64,
    instructions: u64,
    memory_bytes: usize,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Answer {
    Scheduling {
        fairness_key: String,
        weight: u32,
        throttle_keys: Vec<String>,
        /// Of groups, by their paths.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        weights: BTreeMap<String, u32>,
    },
    Action {
        action: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        delay_ms: Option<u64>,
    },
}

pub(crate) fn run(general: &General, arguments: HookArguments) -> Result<(), Failure> {
    let HookCommand::Test(test) = arguments.command;
    let is_stdin = |path: &Path| path.as_os_str() == "-";
    if is_stdin(&test.script) && test.message.as_deref().is_some_and(is_stdin) {
        let text = "the script and the message cannot both be the standard input";
        return Err(Failure::Usage(text.to_owned()));
    }
    let mut message = match &test.message {
        Some(path) => read_message(path)?,
        None => MessageJson::default()
            .into_message()
            .map_err(Failure::Usage)?,
    };
    message.separator = test.key_separator.0;
    let source = values::text_file(&test.script)?;
    let mut limits = Limits::default();
    limits.timeout = test.timeout;
    limits.memory_bytes = test.memory_limit.as_usize();
    let script = Script::compile(source, limits).map_err(|error| anyhow!(error))?;
    let hooks: Vec<Hook> = match test.hook {
        Some(HookFlag::OnEnqueue) => vec![Hook::OnEnqueue],
        Some(HookFlag::OnFailure) => vec![Hook::OnFailure],
        None => {
            let all = [Hook::OnEnqueue, Hook::OnFailure].into_iter();
            all.filter(|hook| script.defines(*hook)).collect()
        }
    };
    let config: BTreeMap<String, String> = test.config.iter().cloned().collect();
    let (mut tried, mut errors) = (Vec::new(), Vec::new());
    for hook in hooks {
        match try_hook(&script, hook, &message, &config) {
            Ok(answer) => tried.push(answer),
            // These errors name the hook themselves.
            Err(error @ (HookError::Answer { .. } | HookError::Missing(_))) => {
                errors.push(error.to_string());
            }
            Err(error) => errors.push(format!("{hook}: {error}")),
        }
    }
    if !tried.is_empty() {
        general.output().list(&tried, || text(&tried))?;
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(Failure::Other(anyhow!("{}", errors.join("; ")))),
    }
}

fn read_message(path: &Path) -> Result<Message, Failure> {
    let text = values::text_file(path)?;
    let read =
        MessageJson::parse(&text).map_err(|error| format!("is not a message in JSON: {error}"));
    let read = read.and_then(MessageJson::into_message);
    Ok(read.map_err(|wrong| anyhow!("`{}` {wrong}", path.display()))?)
}

/// Calls a hook repeatedly and measures its cost.
fn try_hook(
    script: &Script,
    hook: Hook,
    message: &Message,
    config: &BTreeMap<String, String>,
) -> Result<Tried, HookError> {
    let config = config.clone();
    let mut sandbox = Sandbox::with_seed(script, move |key: &str| config.get(key).cloned(), 0);
    let (answer, adjusted) = ask(&mut sandbox, hook, message)?;
    let memory_bytes = sandbox.memory();
    // The first call creates the sandbox, so it does not count.
    let began = Instant::now();
    let (mut calls, mut took) = (0, Duration::ZERO);
    while calls == 0 || (calls < REPETITIONS && began.elapsed() < MEASURE_FOR) {
        ask(&mut sandbox, hook, message)?;
        took += sandbox.cost().elapsed;
        calls += 1;
    }
    Ok(Tried {
        hook: hook.name(),
        answer,
        adjusted: adjusted.map(|it| it.to_string()),
        mean_us: (took.as_secs_f64() * 1e8 / f64::from(calls)).round() / 100.0,
        instructions: sandbox.cost().instructions,
        memory_bytes,
    })
}

/// Calls a hook, and returns its answer and the mistake that the broker would correct. A mistake that it could not
/// correct is an error.
fn ask(
    sandbox: &mut Sandbox,
    hook: Hook,
    message: &Message,
) -> Result<(Answer, Option<AnswerError>), HookError> {
    match hook {
        Hook::OnEnqueue => {
            let mut answer = sandbox.on_enqueue(&EnqueueInput {
                headers: &message.headers,
                payload_size: message.payload_size,
                queue: &message.queue,
            })?;
            check_paths(&mut answer, message.separator);
            if let Some(mistake) = answer.mistake() {
                return Err(mistake);
            }
            let adjusted = answer.adjustment().cloned();
            let weights = answer.weights.into_iter();
            let scheduling = Answer::Scheduling {
                fairness_key: String::from_utf8_lossy(&answer.fairness_key).into_owned(),
                weight: answer.weight,
                throttle_keys: answer.throttle_keys,
                weights: weights.map(|it| (it.path, it.weight)).collect(),
            };
            Ok((scheduling, adjusted))
        }
        Hook::OnFailure => {
            let answer = sandbox.on_failure(&FailureInput {
                headers: &message.headers,
                id: &message.id,
                attempts: message.attempts,
                queue: &message.queue,
                error: &message.error,
            })?;
            let action = match answer.action {
                FailureAction::Retry { delay } => Answer::Action {
                    action: "retry",
                    delay_ms: Some(values::millis(delay)),
                },
                FailureAction::DeadLetter => Answer::Action {
                    action: "dlq",
                    delay_ms: None,
                },
            };
            Ok((action, answer.adjusted))
        }
    }
}

fn text(tried: &[Tried]) -> String {
    let mut text = String::new();
    for it in tried {
        text += &format!("{}\n", it.hook);
        let mut line = |name: &str, value: &str| {
            text += &format!("  {name:<16}{}\n", printable(value));
        };
        match &it.answer {
            Answer::Scheduling {
                fairness_key,
                weight,
                throttle_keys,
                weights,
            } => {
                line("fairness key", fairness_key);
                line("weight", &count(u64::from(*weight)));
                let keys = throttle_keys.join(", ");
                line(
                    "throttle keys",
                    if keys.is_empty() { "none" } else { &keys },
                );
                if !weights.is_empty() {
                    let weights = weights.iter();
                    let of_group = |(path, weight): (&String, &u32)| {
                        format!("{path} {}", count(u64::from(*weight)))
                    };
                    let weights: Vec<String> = weights.map(of_group).collect();
                    line("group weights", &weights.join(", "));
                }
            }
            Answer::Action { action, delay_ms } => {
                line("action", action);
                if let Some(delay) = delay_ms {
                    line("delay", &duration(Duration::from_millis(*delay)));
                }
            }
        }
        if let Some(adjusted) = &it.adjusted {
            line("brought in range", adjusted);
        }
        line(
            "mean time",
            &duration(Duration::from_secs_f64(it.mean_us / 1e6)),
        );
        line("instructions", &count(it.instructions));
        line("memory", &bytes(it.memory_bytes as u64));
    }
    text.truncate(text.trim_end().len());
    text
}
