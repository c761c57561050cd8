//! Says which commit the program is made of, for `fila --version`.
//!
//! The script asks three sources in this order. First the variable `FILA_COMMIT`, for builds without a repository, as
//! in a container. Then the file that `cargo package` has written beside the manifest. Then git, in builds for release
//! only: a build for development mostly has changes that no commit has, and would be built anew after every commit. A
//! build without git and without a repository has the version alone.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// How much of a commit's name is shown.
const SHOWN: usize = 12;

/// The compiled paths, relative to this crate. The program does not report changes elsewhere.
const COMPILED: [&str; 3] = ["../../crates", "../../Cargo.toml", "../../Cargo.lock"];

/// The state of the source.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    /// It is this commit.
    Commit(String),
    /// It is this commit, and has changes.
    Changed(String),
    /// Not determined, in a build for development.
    Development,
    /// No source has an answer.
    Unknown,
}

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FILA_COMMIT");
    let version = env::var("CARGO_PKG_VERSION").map_err(|error| error.to_string())?;
    println!(
        "cargo::rustc-env=FILA_VERSION={}",
        shown(&version, &source()?)
    );
    Ok(())
}

fn source() -> Result<Source, String> {
    let given = env::var("FILA_COMMIT").unwrap_or_default();
    if !given.is_empty() {
        let commit = abbreviated(&given).map(Source::Commit);
        return commit.ok_or_else(|| {
            format!("FILA_COMMIT: `{given}` is no commit; give {SHOWN} to 64 hexadecimal digits")
        });
    }
    if let Ok(info) = fs::read_to_string(".cargo_vcs_info.json") {
        return Ok(packaged(&info));
    }
    if env::var("PROFILE").is_ok_and(|profile| profile != "release") {
        return Ok(Source::Development);
    }
    Ok(checked_out().unwrap_or(Source::Unknown))
}

/// Returns what a package says of its source.
fn packaged(info: &str) -> Source {
    let commit = info.split_once("\"sha1\"");
    let commit = commit.and_then(|(_, after)| after.split('"').nth(1));
    match commit.and_then(abbreviated) {
        Some(commit) if info.contains("\"dirty\": true") => Source::Changed(commit),
        Some(commit) => Source::Commit(commit),
        None => Source::Unknown,
    }
}

/// Returns what git says, and has Cargo ask again when that may have changed.
fn checked_out() -> Option<Source> {
    // A foreign repository may contain this directory, and its commits are not ours.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    watch_head()?;
    COMPILED.into_iter().for_each(watch);
    let commit = abbreviated(&git(&["rev-parse", "HEAD"])?)?;
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(COMPILED);
    Some(match git(&status)?.as_str() {
        "" => Source::Commit(commit),
        _ => Source::Changed(commit),
    })
}

/// Has this asked again when another commit is checked out, or one is made.
fn watch_head() -> Option<()> {
    let path = |name: &str| git(&["rev-parse", "--git-path", name]);
    watch(&path("HEAD")?);
    // Without a branch the commit is in HEAD itself.
    if let Some(branch) = git(&["symbolic-ref", "--quiet", "HEAD"]) {
        let branch = path(&branch)?;
        if Path::new(&branch).exists() {
            watch(&branch);
        } else {
            // It is packed with others, and gets a file of its own with its next commit.
            watch(&path("packed-refs")?);
            watch(&path("refs/heads")?);
        }
    }
    Some(())
}

/// Runs git here, and returns what it prints if it succeeds.
fn git(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // Within a hook of git these name its repository, seen from another directory.
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(variable);
    }
    let output = command.args(arguments).output().ok()?;
    let printed = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| printed.trim().to_owned())
}

/// Has cargo run the script again when a file, or a file in a directory, changes. Skips missing paths, because cargo
/// would count them as changed every time.
fn watch(path: &str) {
    if Path::new(path).exists() {
        println!("cargo::rerun-if-changed={path}");
    }
}

/// Returns the first digits of a commit's name, if it is one.
fn abbreviated(commit: &str) -> Option<String> {
    let is_name =
        (SHOWN..=64).contains(&commit.len()) && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_name.then(|| commit[..SHOWN].to_ascii_lowercase())
}

fn shown(version: &str, source: &Source) -> String {
    match source {
        Source::Commit(commit) => format!("{version} ({commit})"),
        Source::Changed(commit) => format!("{version} ({commit}, changed)"),
        Source::Development => format!("{version} (development)"),
        Source::Unknown => version.to_owned(),
    }
}

/// Run by `tests/server.rs`, which has this file as a module: Cargo tests no build scripts.
#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn a_version_says_where_it_is_from_as_far_as_that_is_known() {
        let commit = || "0123456789ab".to_owned();
        for (source, text) in [
            (Source::Commit(commit()), "1.2.3 (0123456789ab)"),
            (Source::Changed(commit()), "1.2.3 (0123456789ab, changed)"),
            (Source::Development, "1.2.3 (development)"),
            (Source::Unknown, "1.2.3"),
        ] {
            assert_eq!(shown("1.2.3", &source), text);
        }
    }

    #[test]
    fn a_package_knows_its_commit() {
        let info =
            |git: &str| format!("{{\n  \"git\": {{\n    {git}\n  }},\n  \"path_in_vcs\": \"\"\n}}");
        let commit = "0123456789ab".to_owned();
        let clean = info(&format!("\"sha1\": \"{COMMIT}\""));
        assert_eq!(packaged(&clean), Source::Commit(commit.clone()));
        let dirty = info(&format!("\"sha1\": \"{COMMIT}\",\n    \"dirty\": true"));
        assert_eq!(packaged(&dirty), Source::Changed(commit));
        assert_eq!(packaged("{}"), Source::Unknown);
        assert_eq!(packaged(&info("\"sha1\": 7")), Source::Unknown);
    }

    #[test]
    fn a_commit_is_hexadecimal_and_long_enough_to_be_one_of_its_kind() {
        assert_eq!(abbreviated(COMMIT).as_deref(), Some("0123456789ab"));
        assert_eq!(abbreviated("0123456789AB").as_deref(), Some("0123456789ab"));
        for text in ["", "0123456", "main", "0123456789ab; ls", &COMMIT.repeat(2)] {
            assert_eq!(abbreviated(text), None, "{text}");
        }
    }
}
