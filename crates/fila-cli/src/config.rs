//! `fila config`: the runtime configuration.

use clap::{Args, Subcommand};
use fila_sdk::{Admin, ConfigEntry, ErrorCode, Expected};
use serde::Serialize;
use tokio::time::timeout;

use crate::failure::Failure;
use crate::general::{General, SUGGESTION_TIMEOUT, closest};
use crate::output::{self, Align, Format, Output, Table, count};

/// How many columns of a value a table shows.
const PREVIEW: usize = 60;

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct ConfigArguments {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Set an entry; it is stored and in effect when the command ends
    #[command(after_help = "Examples:
  fila config set feature:new_flow enabled
  fila config set throttle:api:rate 10      10 messages per second of the throttle key `api`
  fila config set throttle:api:burst 20     20 at once
  fila config set leader me --version 0     only if it is not set yet")]
    Set {
        /// The key of the entry
        key: String,
        /// The value; write -- before a value that begins with a dash
        #[arg(allow_negative_numbers = true)]
        value: String,
        /// Set the entry only if it has this version; 0 if it must not exist yet
        #[arg(long, value_name = "NUMBER")]
        version: Option<u64>,
    },
    /// Print the value of an entry
    #[command(after_help = "Examples:
  fila config get feature:new_flow
  fila config get feature:new_flow --json | jq .version")]
    Get {
        /// The key of the entry
        key: String,
    },
    /// List entries
    #[command(after_help = "Examples:
  fila config list
  fila config list --prefix feature:
  fila config list --prefix throttle: --json | jq -r '.key + \" \" + .value'")]
    List {
        /// List only entries whose keys begin with this
        #[arg(long, default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// Delete an entry; it has no effect any more when the command ends
    #[command(after_help = "Examples:
  fila config delete feature:new_flow
  fila config delete feature:new_flow --version 7    only if nobody has changed it since")]
    Delete {
        /// The key of the entry
        key: String,
        /// Delete the entry only if it has this version
        #[arg(long, value_name = "NUMBER")]
        version: Option<u64>,
    },
}

/// The change of an entry, for programs.
#[derive(Debug, Serialize)]
struct EntryDone<'a> {
    key: &'a str,
    done: &'static str,
}

pub(crate) fn run(general: &General, arguments: ConfigArguments) -> Result<(), Failure> {
    general.talk(None, async |session| {
        let admin = session.client.admin();
        let output = session.output;
        match arguments.command {
            ConfigCommand::Set {
                key,
                value,
                version,
            } => {
                let expected = match version {
                    None => Expected::Any,
                    Some(0) => Expected::Absent,
                    Some(version) => Expected::Version(version),
                };
                let entry = admin.set_config(&key, value, expected).await?;
                output.result(&entry, || {
                    let key = output::printable(&entry.key);
                    format!("set `{key}`, at version {}", entry.version)
                })
            }
            ConfigCommand::Get { key } => match admin.config(&key).await? {
                Some(entry) => print(output, &entry),
                None => Err(missing(&admin, &key).await),
            },
            ConfigCommand::List { prefix } => list(&admin, output, &prefix).await,
            ConfigCommand::Delete { key, version } => {
                match admin.delete_config(&key, version).await {
                    Err(error) if error.code() == Some(ErrorCode::ConfigNotFound) => {
                        return Err(missing(&admin, &key).await);
                    }
                    deleted => deleted?,
                }
                let json = EntryDone {
                    key: &key,
                    done: "deleted",
                };
                output.result(&json, || format!("deleted `{}`", output::printable(&key)))
            }
        }
    })
}

/// Prints the bare value, for scripts, or the whole entry as JSON.
fn print(output: Output, entry: &ConfigEntry) -> Result<(), Failure> {
    match output.format {
        Format::Json => output::write(output::json_line(entry)?.as_bytes()),
        Format::Human => {
            let line = format!("{}\n", entry.value);
            output::write(&output::value(line.as_bytes()))
        }
    }
}

async fn list(admin: &Admin, output: Output, prefix: &str) -> Result<(), Failure> {
    let entries = admin.configs(prefix).await?;
    if entries.is_empty() && output.format == Format::Human {
        output::note("there are no entries; set one with `fila config set KEY VALUE`");
        return Ok(());
    }
    output.list(&entries, || table(&entries))
}

fn table(entries: &[ConfigEntry]) -> Table {
    let mut table = Table::new([
        ("KEY", Align::Name),
        ("VERSION", Align::Right),
        ("VALUE", Align::Text),
    ]);
    for entry in entries {
        let value = output::cut(&output::printable(&entry.value), PREVIEW);
        table.row([entry.key.clone(), count(entry.version), value]);
    }
    table
}

/// Returns the failure for a key that is not set, with a similar key if there is one.
async fn missing(admin: &Admin, key: &str) -> Failure {
    let entries = timeout(SUGGESTION_TIMEOUT, admin.configs("")).await;
    let entries = entries.into_iter().flatten().flatten();
    let alike = closest(key, entries.map(|entry| entry.key));
    let key = output::printable(key);
    Failure::NotFound(match alike {
        Some(alike) => {
            format!("`{key}` is not set; did you mean `{alike}`? See `fila config list`")
        }
        None => format!(
            "`{key}` is not set; see `fila config list`, or set it with `fila config set {key} VALUE`"
        ),
    })
}
