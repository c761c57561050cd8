//! Kinds of keys that are texts, one for each rule.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;

use fila_store::Durability;
use http::Uri;

use super::field::Text;
use super::values::{LogFilter, LogFormat, StorageEngine};

const ADDRESS_ALLOWED: &str = "an IP address with a port, such as `127.0.0.1:5555` or `[::1]:5555`";
const ENDPOINT_ALLOWED: &str = "nothing, or a URL such as `http://localhost:4317`";

pub(super) static ADDRESS: Text<SocketAddr> = Text {
    allowed: || ADDRESS_ALLOWED.to_owned(),
    parse: |text| text.parse().map_err(|_| expected(ADDRESS_ALLOWED, text)),
    print: SocketAddr::to_string,
    at: |c| &mut c.server.address,
};

pub(super) static PATH: Text<PathBuf> = Text {
    allowed: || "a path".to_owned(),
    parse: |text| match text {
        text if text.is_empty() || text.contains('\0') => Err(expected("a path", text)),
        text => Ok(PathBuf::from(text)),
    },
    print: |path| path.to_string_lossy().into_owned(),
    at: |c| &mut c.storage.path,
};

pub(super) static ENGINE: Text<StorageEngine> = Text {
    allowed: || one_of(StorageEngine::ALL),
    parse: |word| {
        named(StorageEngine::ALL, word).ok_or_else(|| {
            let engines = one_of(StorageEngine::ALL);
            match word {
                "rocksdb" => format!(
                    "this build has no engine `rocksdb`; choose {engines}, \
                     or build with the feature `rocksdb`"
                ),
                word => format!("`{word}` is no engine; choose {engines}"),
            }
        })
    },
    print: StorageEngine::to_string,
    at: |c| &mut c.storage.engine,
};

pub(super) static DURABILITY: Text<Durability> = Text {
    // The strongest first, as its own error says it.
    allowed: || one_of(&[Durability::Fsync, Durability::Os, Durability::Memory]),
    parse: |word| word.parse().map_err(|error| format!("{error}")),
    print: Durability::to_string,
    at: |c| &mut c.storage.durability,
};

pub(super) static LOG: Text<LogFilter> = Text {
    allowed: || "a level such as `info`, or levels such as `warn,fila_server=debug`".to_owned(),
    parse: |text| text.parse().map_err(|error| format!("{error}")),
    print: |filter| filter.as_str().to_owned(),
    at: |c| &mut c.telemetry.log,
};

pub(super) static LOG_FORMAT: Text<LogFormat> = Text {
    allowed: || one_of(LogFormat::ALL),
    parse: |word| {
        named(LogFormat::ALL, word).ok_or_else(|| {
            let formats = one_of(LogFormat::ALL);
            format!("`{word}` is no format of log lines; choose {formats}")
        })
    },
    print: LogFormat::to_string,
    at: |c| &mut c.telemetry.log_format,
};

pub(super) static OTLP_ENDPOINT: Text<Option<Uri>> = Text {
    allowed: || ENDPOINT_ALLOWED.to_owned(),
    parse: endpoint,
    print: |endpoint| endpoint.as_ref().map(Uri::to_string).unwrap_or_default(),
    at: |c| &mut c.telemetry.otlp_endpoint,
};

pub(super) static SERVICE_NAME: Text<String> = Text {
    allowed: || "a name of 1 to 255 bytes".to_owned(),
    parse: |name| match name.len() {
        1..=255 => Ok(name.to_owned()),
        length => Err(format!(
            "expected a name of 1 to 255 bytes, got one of {length}"
        )),
    },
    print: String::clone,
    at: |c| &mut c.telemetry.service_name,
};

fn endpoint(text: &str) -> Result<Option<Uri>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let uri: Uri = text.parse().map_err(|_| expected(ENDPOINT_ALLOWED, text))?;
    match uri.scheme_str() {
        Some("http") if uri.authority().is_some() => Ok(Some(uri)),
        Some("https") => Err(format!(
            "`{text}` asks for TLS, which the export does not speak yet; \
             send to a collector on this machine, as `http://localhost:4317`"
        )),
        _ => Err(expected(ENDPOINT_ALLOWED, text)),
    }
}

fn expected(what: &str, text: &str) -> String {
    format!("expected {what}, got `{text}`")
}

fn named<T: Display + Copy>(all: &[T], word: &str) -> Option<T> {
    all.iter().find(|value| value.to_string() == word).copied()
}

/// Returns "`a`, `b` or `c`".
pub(super) fn one_of<T: Display>(all: &[T]) -> String {
    let words: Vec<String> = all.iter().map(|word| format!("`{word}`")).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}
