//! The entry point of the fuzzer and of the test that replays its corpus: bytes in, a panic if an invariant breaks.
//!
//! Not part of the interface. It is here because only this module can load the text of a file without the file.

use std::ffi::OsString;

use super::{Config, ConfigError, Loader};

/// The byte that separates the sources in an input. Neither a variable nor a flag can contain it.
const SEPARATOR: u8 = 0;

/// Reads `input` as all sources at once, and returns the configuration.
///
/// The first source is the file. A later source that begins with `--set` is a flag; the others are variables,
/// `NAME=value`. The file that `FILA_CONFIG` names is not read.
///
/// # Panics
/// If a configuration, printed and loaded again, fails to load, differs, or prints differently.
///
/// # Errors
/// If the sources contain mistakes. The error was printed once, because printing must not panic either.
pub fn configuration(input: &[u8]) -> Result<Config, ConfigError> {
    let mut sources = input.split(|byte| *byte == SEPARATOR);
    // The loader rejects a file that is not UTF-8 before it parses it.
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
        Err(error) => assert!(!error.to_string().is_empty(), "an error without a message"),
    }
    loaded
}

fn check_print(config: &Config) {
    let text = config.to_toml();
    match Loader::new().load_text(&text) {
        Ok(again) => {
            assert_eq!(&again, config, "loaded differently from\n{text}");
            assert_eq!(again.to_toml(), text, "printed differently");
        }
        Err(error) => panic!("the printed configuration does not load: {error}\n{text}"),
    }
}

/// Splits a variable into name and value; the value is empty without `=`.
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
