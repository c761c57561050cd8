//! The settings of a queue as flags.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use fila_sdk::{Charge, HookFallback, Ordering, QueueSettings};

use crate::failure::Failure;
use crate::values;

/// A flag for every setting. Times are milliseconds, or have a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(super) struct SettingsFlags {
    /// For how long a message is leased, as `30s`; a bare number is milliseconds [server's default: 30s]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    visibility_timeout: Option<Duration>,

    /// In which order messages of one fairness key are delivered [server's default: none]
    #[arg(long, value_enum, value_name = "ORDER")]
    ordering: Option<OrderingFlag>,

    /// How many messages of one fairness key may be leased at once; 0 for any number
    #[arg(long, value_name = "NUMBER")]
    key_concurrency: Option<u32>,

    /// What a delivery uses of its fairness key's share [server's default: message]
    #[arg(long, value_enum, value_name = "UNIT")]
    charge: Option<ChargeFlag>,

    /// For how long a deduplication id is remembered, as `5m` [server's default: 5m]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    deduplication_window: Option<Duration>,

    /// The most messages in the queue; 0 for the server's limit
    #[arg(long, value_name = "NUMBER")]
    depth_max: Option<u64>,

    /// The most messages of one fairness key; 0 for the server's limit
    #[arg(long, value_name = "NUMBER")]
    key_depth_max: Option<u64>,

    /// How long messages live that do not say it themselves, as `1d`; 0 for ever
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    message_ttl: Option<Duration>,

    /// How many deliveries of a message may fail before it is a dead letter; 0 for any number [server's default: 10]
    #[arg(long, value_name = "NUMBER")]
    max_attempts: Option<u32>,

    /// How long a message waits after its first failure, and then twice as long after each [server's default: 1s]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    retry_backoff: Option<Duration>,

    /// The longest that a message waits after a failure [server's default: 5m]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    retry_cap: Option<Duration>,

    /// By how much such a wait is longer or shorter, in percent [server's default: 10]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(..=100))]
    retry_jitter: Option<u32>,

    /// A file with the queue's hooks in Lua, `on_enqueue`, `on_failure` or both; `-` for the standard input
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,

    /// What stands in for the answer of `on_enqueue` if it gives none [server's default: default]
    #[arg(long, value_enum, value_name = "ANSWER")]
    hook_fallback: Option<FallbackFlag>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OrderingFlag {
    /// As they came; what is delivered again comes late
    None,
    /// Strictly: one at a time, and what is delivered again keeps its place
    Key,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FallbackFlag {
    /// Fairness key `default`, weight 1, no throttle keys
    Default,
    /// What was last answered for the same headers; if that is not known, the default
    LastGood,
    /// None: the message is refused
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ChargeFlag {
    /// Every message as much as any other
    Message,
    /// By the size of headers and payload
    Bytes,
    /// By the time from delivery to result
    Time,
}

impl SettingsFlags {
    /// Whether nothing is set.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl SettingsFlags {
    /// Returns the settings, with the script that a file has.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn read(self) -> Result<QueueSettings, Failure> {
        let flags = self;
        let mut settings = QueueSettings::new();
        settings.visibility_timeout = flags.visibility_timeout;
        settings.ordering = flags.ordering.map(|ordering| match ordering {
            OrderingFlag::None => Ordering::None,
            OrderingFlag::Key => Ordering::Key,
        });
        settings.key_concurrency = flags.key_concurrency;
        settings.charge = flags.charge.map(|charge| match charge {
            ChargeFlag::Message => Charge::Message,
            ChargeFlag::Bytes => Charge::Bytes,
            ChargeFlag::Time => Charge::Time,
        });
        settings.deduplication_window = flags.deduplication_window;
        settings.depth_max = flags.depth_max;
        settings.key_depth_max = flags.key_depth_max;
        settings.message_ttl = flags.message_ttl;
        settings.retry_attempts_max = flags.max_attempts;
        settings.retry_backoff = flags.retry_backoff;
        settings.retry_backoff_max = flags.retry_cap;
        settings.retry_jitter_percent = flags.retry_jitter;
        settings.script = flags.script.as_deref().map(read_script).transpose()?;
        settings.hook_fallback = flags.hook_fallback.map(|fallback| match fallback {
            FallbackFlag::Default => HookFallback::Default,
            FallbackFlag::LastGood => HookFallback::LastGood,
            FallbackFlag::Refuse => HookFallback::Refuse,
        });
        Ok(settings)
    }
}

/// Reads a script. An empty one would take the hooks away, which is said in another way.
fn read_script(path: &Path) -> Result<String, Failure> {
    let source = values::text_file(path)?;
    if source.trim().is_empty() {
        let text = format!(
            "`{}` is empty; to take the hooks away use --no-script",
            path.display()
        );
        return Err(Failure::Usage(text));
    }
    Ok(source)
}
