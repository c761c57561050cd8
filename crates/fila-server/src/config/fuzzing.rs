//! What the fuzzer calls, and the test that replays its corpus: bytes in, and a panic if the configuration breaks a
//! promise.
//!
//! Not part of the interface. It is here because nobody else has the text of a file without the file.

use std::ffi::OsString;

use super::{Config, ConfigError, Loader};

/// What separates the sources in an input: a byte that neither a variable nor a flag can have.
const SEPARATOR: u8 = 0;

/// Reads `input` as all sources at once, and returns what they make.
///
/// The first source is the file. Of the others, `--set` and what follows it is a flag, and the rest are variables,
/// `NAME=value`. The file that `FILA_CONFIG` names is not read.
///
/// # Panics
/// If what was loaded and printed does not load, loads to something else, or is then printed otherwise.
///
/// # Errors
/// If anything in the sources is wrong. It has been printed, which must not panic either.
pub fn configuration(input: &[u8]) -> Result<Config, ConfigError> {
    let mut sources = input.split(|byte| *byte == SEPARATOR);
    // A file of other bytes is refused before it is looked at.
    let file = sources.next().map(String::from_utf8_lossy);
    let loader = sources.fold(Loader::new(), |loader, source| {
        match source.strip_prefix(b"--set ") {
            Some(assignment) => loader.set(String::from_utf8_lossy(assignment)),
            None => loader.variables([variable(source)]),
        }
    });
    let loaded = loader.load_text(&file.unwrap_or_default());
    match &loaded {
        Ok(config) => check_print(config),
        Err(error) => assert!(!error.to_string().is_empty(), "a refusal without a word"),
    }
    loaded
}

fn check_print(config: &Config) {
    let text = config.to_toml();
    match Loader::new().load_text(&text) {
        Ok(again) => {
            assert_eq!(&again, config, "loaded otherwise from\n{text}");
            assert_eq!(again.to_toml(), text, "printed otherwise");
        }
        Err(error) => panic!("what was printed is refused: {error}\n{text}"),
    }
}

/// Takes the name of a variable from its value. What has no `=` has no value.
fn variable(source: &[u8]) -> (OsString, OsString) {
    let end = source.iter().position(|byte| *byte == b'=');
    let (name, value) = source.split_at(end.unwrap_or(source.len()));
    (
        os_string(name),
        os_string(value.get(1..).unwrap_or_default()),
    )
}

#[cfg(unix)]
fn os_string(bytes: &[u8]) -> OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec())
}

#[cfg(not(unix))]
fn os_string(bytes: &[u8]) -> OsString {
    String::from_utf8_lossy(bytes).into_owned().into()
}
