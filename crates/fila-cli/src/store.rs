//! `fila store`: looks after the directory of a server that does not run.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::{Args, Subcommand};
use fila_server::config::{Loader, StorageEngine};
use fila_store::{CopyError, DiskEngine, DiskOptions, OpenError, Repaired};
use serde::Serialize;

use crate::failure::Failure;
use crate::general::General;
use crate::output::{Output, printable};

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct StoreArguments {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, Subcommand)]
enum StoreCommand {
    /// Check every file of a store, and go on without the damaged ones
    #[command(after_help = "Examples:
  fila store repair /var/lib/fila                  check, and print the first damage
  fila store repair /var/lib/fila --accept-loss    go on without what is damaged

Stop the server first, and copy the directory. The command deletes nothing: it moves
damaged files to the folder damaged-1 of the store, or the next number that is free.")]
    Repair(RepairArguments),
    /// Copy a store to an empty directory, in the files of the same or another engine
    #[command(after_help = "Examples:
  fila store copy /var/lib/fila /var/lib/fila-rocks --engine rocksdb
  fila server --data /var/lib/fila-rocks --engine rocksdb

Stop the server first. The command copies queues with their hooks and settings, messages, dead letters,
deduplication ids and the runtime configuration, and compares every row. The first store stays as it is.")]
    Copy(CopyArguments),
}

#[derive(Debug, Args)]
struct CopyArguments {
    /// The directory of the store
    #[arg(value_name = "FROM")]
    from: PathBuf,

    /// The directory of the copy, which is empty or does not exist
    #[arg(value_name = "TO")]
    to: PathBuf,

    /// The engine of the copy: lsm, or rocksdb in a build with it
    #[arg(long, value_name = "ENGINE", value_parser = engine)]
    engine: DiskEngine,
}

/// Returns the engine of this name. The loader of the server has the words for one that this build lacks.
fn engine(name: &str) -> Result<DiskEngine, String> {
    let setting = format!("storage.engine={name}");
    let config = Loader::new()
        .set(setting)
        .load()
        .map_err(|error| error.to_string())?;
    match config.storage.engine {
        StorageEngine::Lsm => Ok(DiskEngine::Lsm),
        #[cfg(feature = "rocksdb")]
        StorageEngine::Rocksdb => Ok(DiskEngine::Rocksdb),
        StorageEngine::Memory => {
            Err("`memory` has no files; choose an engine on the disk".to_owned())
        }
    }
}

#[derive(Debug, Args)]
struct RepairArguments {
    /// The directory of the store (storage.path)
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,

    /// Lose the data of missing and damaged files
    #[arg(long)]
    accept_loss: bool,
}

pub(crate) fn run(general: &General, arguments: &StoreArguments) -> Result<(), Failure> {
    match &arguments.command {
        StoreCommand::Repair(repair) => repair.run(general.output()),
        StoreCommand::Copy(copy) => copy.run(general.output()),
    }
}

impl RepairArguments {
    fn run(&self, output: Output) -> Result<(), Failure> {
        expect_store(&self.directory)?;
        let options = DiskOptions::new(&self.directory);
        if self.accept_loss {
            let repaired = options.repair().map_err(failure)?;
            return report(output, &self.directory, &repaired);
        }
        options.check().map_err(failure)?;
        let shown = ShownRepair::default();
        let directory = printable(&self.directory.display().to_string());
        output.result(&shown, || format!("no damage found in `{directory}`"))
    }
}

impl CopyArguments {
    fn run(&self, output: Output) -> Result<(), Failure> {
        let copied = DiskOptions::new(&self.from).copy_to(&self.to, self.engine);
        let copied = copied.map_err(|error| match error {
            CopyError::NoStore(_) => Failure::NotFound(error.to_string()),
            CopyError::NotEmpty(_) => Failure::Usage(error.to_string()),
            CopyError::Unsupported(_) => Failure::Usage(format!(
                "{error}; build one that has it with `cargo build --release -p fila-cli --features rocksdb`"
            )),
            error => Failure::Other(anyhow!(error)),
        })?;
        let shown = ShownCopy {
            queues: copied.queues,
            messages: copied.messages,
            config_entries: copied.config_entries,
            deduplication_ids: copied.deduplication_ids,
        };
        let to = printable(&self.to.display().to_string());
        output.result(&shown, || {
            format!(
                "copied and compared {} queues, {} messages, {} entries of the configuration and {} deduplication ids to `{to}`",
                shown.queues, shown.messages, shown.config_entries, shown.deduplication_ids
            )
        })
    }
}

#[derive(Debug, Serialize)]
struct ShownCopy {
    queues: u64,
    messages: u64,
    config_entries: u64,
    deduplication_ids: u64,
}

/// Refuses a directory without a store, where the store would create one.
fn expect_store(directory: &Path) -> Result<(), Failure> {
    let exists = |name| directory.join(name).exists();
    if exists("tables") || exists("log") || exists("CURRENT") {
        return Ok(());
    }
    let directory = printable(&directory.display().to_string());
    Err(Failure::NotFound(format!(
        "there is no store in `{directory}`; name the directory of storage.path"
    )))
}

fn failure(error: OpenError) -> Failure {
    Failure::Other(anyhow!(error))
}

#[derive(Debug, Default, Serialize)]
struct ShownRepair {
    damage: Vec<ShownDamage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved_to: Option<String>,
}

#[derive(Debug, Serialize)]
struct ShownDamage {
    path: String,
    how: &'static str,
    loss: &'static str,
}

fn report(output: Output, directory: &Path, repaired: &Repaired) -> Result<(), Failure> {
    let moved_to = repaired
        .aside
        .exists()
        .then(|| repaired.aside.display().to_string());
    let shown = ShownRepair {
        damage: repaired
            .damage
            .iter()
            .map(|damage| ShownDamage {
                path: damage.path.display().to_string(),
                how: damage.how,
                loss: damage.part.loss(),
            })
            .collect(),
        moved_to,
    };
    let directory = printable(&directory.display().to_string());
    output.result(&shown, || {
        if shown.damage.is_empty() {
            return format!("no damage found in `{directory}`");
        }
        let mut lines: Vec<String> = repaired
            .damage
            .iter()
            .map(|damage| printable(&damage.description()))
            .collect();
        if let Some(moved_to) = &shown.moved_to {
            lines.push(format!(
                "the files as they were are in `{}`",
                printable(moved_to)
            ));
        }
        lines.push(format!("the store in `{directory}` can be started"));
        lines.join("\n")
    })
}
