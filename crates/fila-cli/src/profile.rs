//! `fila profile`: names for servers and the files that they need. The SDK reads the file; this command changes it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use fila_sdk::{Profile, Profiles, Settings, SettingsError};
use serde::Serialize;
use tempfile::NamedTempFile;
use toml_edit::{DocumentMut, Item, Table as TomlTable, value};

use crate::failure::Failure;
use crate::general::General;
use crate::output::{self, Align, Format, Output, Table, printable};

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct ProfileArguments {
    #[command(subcommand)]
    command: ProfileCommand,
}

#[derive(Debug, Subcommand)]
enum ProfileCommand {
    /// Add a profile, or replace the one of this name
    #[command(after_help = "Examples:
  fila profile add local --address http://127.0.0.1:5555
  fila profile add prod --address https://broker.example:5555 --ca-file ca.pem
  fila queue list --profile prod")]
    Add {
        /// The name of the profile
        name: String,
        /// The address of the server; with TLS if it begins with https://
        #[arg(long, value_name = "ADDRESS")]
        address: String,
    },
    /// Use a profile in all commands that name no other
    #[command(after_help = "Examples:
  fila profile use prod")]
    Use {
        /// The name of the profile
        name: String,
    },
    /// List the profiles
    #[command(after_help = "Examples:
  fila profile list
  fila profile list --json | jq -r .address")]
    List,
}

/// The change of a profile, for programs.
#[derive(Debug, Serialize)]
struct ProfileDone<'a> {
    name: &'a str,
    done: &'static str,
    path: String,
}

/// A profile, for programs.
#[derive(Debug, Serialize)]
struct ShownProfile {
    name: String,
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ca_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cert_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cert_key_file: Option<PathBuf>,
    default: bool,
}

pub(crate) fn run(general: &General, arguments: &ProfileArguments) -> Result<(), Failure> {
    let path = Profiles::path(|name| std::env::var_os(name)).ok_or_else(|| {
        let text = "there is no folder for profiles; set HOME or XDG_CONFIG_HOME";
        Failure::Usage(text.to_owned())
    })?;
    let output = general.output();
    match &arguments.command {
        ProfileCommand::Add { name, address } => add(general, &path, name, address),
        ProfileCommand::Use { name } => choose(output, &path, name),
        ProfileCommand::List => list(output, Profiles::load(&path)?),
    }
}

fn add(general: &General, path: &Path, name: &str, address: &str) -> Result<(), Failure> {
    if name.is_empty() {
        let text = "a profile needs a name, such as `prod`";
        return Err(Failure::Usage(text.to_owned()));
    }
    let settings = checked(general, address)?;
    let is_new = !Profiles::load(path)?.all.contains_key(name);
    change(path, |document| {
        let profiles = document
            .entry("profile")
            .or_insert_with(|| Item::Table(implicit()));
        profiles[name] = Item::Table(fields(&settings)?);
        Ok(())
    })?;
    let done = if is_new { "added" } else { "replaced" };
    report(general.output(), path, name, done)
}

/// Returns the settings of a new profile, after a look at its files. The paths are absolute: in the file, relative ones
/// begin at its own folder.
fn checked(general: &General, address: &str) -> Result<Settings, Failure> {
    let mut flags = general.flags();
    flags.address = Some(address.to_owned());
    flags.profile = None;
    let files = [
        &mut flags.ca_file,
        &mut flags.cert_file,
        &mut flags.cert_key_file,
    ];
    for file in files.into_iter().flatten() {
        *file = std::path::absolute(&file).context("the working directory is not known")?;
    }
    let settings = Settings::resolve(&flags, |_| None)?;
    let _checked = settings.builder()?; // reads the files
    Ok(settings)
}

fn choose(output: Output, path: &Path, name: &str) -> Result<(), Failure> {
    let known = Profiles::load(path)?.all;
    if !known.contains_key(name) {
        let unknown = SettingsError::UnknownProfile {
            name: name.to_owned(),
            path: Some(path.to_owned()),
            known: known.into_keys().collect(),
        };
        return Err(Failure::NotFound(unknown.to_string()));
    }
    change(path, |document| {
        document["default"] = value(name);
        Ok(())
    })?;
    report(output, path, name, "in use")
}

fn report(output: Output, path: &Path, name: &str, done: &'static str) -> Result<(), Failure> {
    let path = path.display().to_string();
    let json = ProfileDone { name, done, path };
    output.result(&json, || {
        let (name, path) = (printable(name), printable(&json.path));
        match done {
            "in use" => format!("profile `{name}` is in use, by `{path}`"),
            done => format!("{done} profile `{name}` in `{path}`"),
        }
    })
}

fn list(output: Output, profiles: Profiles) -> Result<(), Failure> {
    let default = profiles.default;
    let shown = |(name, profile): (String, Profile)| ShownProfile {
        default: default.as_ref() == Some(&name),
        name,
        address: profile.address,
        ca_file: profile.ca_file,
        cert_file: profile.cert_file,
        cert_key_file: profile.cert_key_file,
    };
    let all: Vec<ShownProfile> = profiles.all.into_iter().map(shown).collect();
    if all.is_empty() && output.format == Format::Human {
        output::note(
            "there are no profiles; add one with `fila profile add NAME --address ADDRESS`",
        );
        return Ok(());
    }
    output.list(&all, || table(&all))
}

fn table(all: &[ShownProfile]) -> Table {
    let mut table = Table::new([
        ("PROFILE", Align::Name),
        ("DEFAULT", Align::Left),
        ("ADDRESS", Align::Text),
        ("CA FILE", Align::Text),
        ("CERT FILE", Align::Text),
    ]);
    let path = |path: &Option<PathBuf>| match path {
        Some(path) => path.display().to_string(),
        None => "-".to_owned(),
    };
    for profile in all {
        table.row([
            profile.name.clone(),
            if profile.default { "yes" } else { "-" }.to_owned(),
            profile.address.clone(),
            path(&profile.ca_file),
            path(&profile.cert_file),
        ]);
    }
    table
}

/// A table without a heading of its own: its profiles have theirs.
fn implicit() -> TomlTable {
    let mut table = TomlTable::new();
    table.set_implicit(true);
    table
}

fn fields(settings: &Settings) -> Result<TomlTable, Failure> {
    let mut table = TomlTable::new();
    table["address"] = value(&settings.address);
    for (name, file) in [
        ("ca_file", &settings.ca_file),
        ("cert_file", &settings.cert_file),
        ("cert_key_file", &settings.cert_key_file),
    ] {
        if let Some(file) = file {
            let text = file.to_str().ok_or_else(|| {
                Failure::Usage(format!("the path `{}` is not UTF-8", file.display()))
            })?;
            table[name] = value(text);
        }
    }
    Ok(table)
}

/// Changes the file, and leaves its comments and its other values as they are.
fn change(
    path: &Path,
    edit: impl FnOnce(&mut DocumentMut) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // A link stays one: the file behind it is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("cannot read `{}`", path.display()))?,
    };
    let mut document: DocumentMut = text.parse().map_err(|error| anyhow!("{error}"))?;
    edit(&mut document)?;
    let text = document.to_string();
    Profiles::parse(&path, &text)?;
    replace(&path, &text).with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(())
}

/// Replaces a file at once: a reader sees the old text or the new one. Only its owner may read it.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = NamedTempFile::new_in(folder)?; // with mode 0600
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
