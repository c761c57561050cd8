//! Kinds of keys: what a key takes, how its value is read from a source, and how it is written back.

use std::fmt::{self, Display, Write};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use fila_store::Durability;
use http::Uri;
use toml::de::DeValue;

use super::values::{ByteSize, ClientCertificates, LogFilter, LogFormat, StorageEngine};

/// A value as a source gave it.
#[derive(Debug)]
pub(super) enum Given<'a> {
    /// The text of a variable or a flag. It stands for any type.
    Text(&'a str),
    /// A string of a file.
    String(&'a str),
    /// An integer of a file: digits of this radix.
    Integer(&'a str, u32),
    /// A number of a file with a dot or an exponent.
    Float(&'a str),
    /// `true` or `false` of a file.
    Switch(bool),
    /// A value of a file that no key takes.
    Other(&'static str),
}

impl<'a> Given<'a> {
    pub(super) fn from_toml(value: &'a DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Self::String(text),
            DeValue::Integer(integer) => Self::Integer(integer.as_str(), integer.radix()),
            DeValue::Float(float) => Self::Float(float.as_str()),
            DeValue::Boolean(value) => Self::Switch(*value),
            DeValue::Datetime(_) => Self::Other("a date"),
            DeValue::Array(_) => Self::Other("an array"),
            DeValue::Table(_) => Self::Other("a table"),
        }
    }

    const fn text(&self) -> Option<&'a str> {
        match self {
            Self::Text(text) | Self::String(text) => Some(text),
            Self::Integer(..) | Self::Float(_) | Self::Switch(_) | Self::Other(_) => None,
        }
    }

    fn whole(&self) -> Option<u64> {
        match self {
            // A file may write `10_000`, so a variable and a flag may too.
            Self::Text(text) if is_grouped(text) => text.replace('_', "").parse().ok(),
            Self::Integer(digits, radix) => u64::from_str_radix(digits, *radix).ok(),
            Self::Text(_) | Self::String(_) | Self::Float(_) | Self::Switch(_) | Self::Other(_) => {
                None
            }
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Text(text) | Self::Float(text) | Self::Integer(text, 10) => text.parse().ok(),
            Self::String(_) | Self::Integer(..) | Self::Switch(_) | Self::Other(_) => None,
        }
    }

    fn switch(&self) -> Option<bool> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Switch(value) => Some(*value),
            Self::String(_) | Self::Integer(..) | Self::Float(_) | Self::Other(_) => None,
        }
    }
}

/// Returns whether a text is digits, with underscores only between them.
fn is_grouped(text: &str) -> bool {
    let mut groups = text.split('_');
    groups.all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()))
}

impl Display for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) | Self::Integer(text, 10) | Self::Float(text) => {
                write!(f, "`{text}`")
            }
            Self::String(text) => write!(f, "the string `{text}`"),
            Self::Integer(digits, radix) => write!(f, "`{digits}` to the base of {radix}"),
            Self::Switch(value) => write!(f, "`{value}`"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

/// Reads a given value; `None` if it is not of the kind, an error if the kind has a better message for it.
type Read<T> = Box<dyn Fn(&Given<'_>) -> Option<Result<T, String>>>;

/// The values that a key of type `T` takes.
pub(super) struct Kind<T> {
    /// Completes "expected …".
    pub(super) allowed: String,
    read: Read<T>,
    toml: Box<dyn Fn(&T) -> String>,
}

impl<T> Kind<T> {
    fn new(
        allowed: impl Into<String>,
        read: impl Fn(&Given<'_>) -> Option<T> + 'static,
        toml: impl Fn(&T) -> String + 'static,
    ) -> Self {
        Self {
            allowed: allowed.into(),
            read: Box::new(move |given| read(given).map(Ok)),
            toml: Box::new(toml),
        }
    }

    /// Returns the kind of a text.
    fn text<P: Display>(
        allowed: impl Into<String>,
        parse: impl Fn(&str) -> Result<T, String> + 'static,
        print: impl Fn(&T) -> P + 'static,
    ) -> Self {
        Self {
            allowed: allowed.into(),
            read: Box::new(move |given| given.text().map(&parse)),
            toml: Box::new(move |value| toml_string(&print(value).to_string())),
        }
    }

    pub(super) fn read(&self, given: &Given<'_>) -> Result<T, String> {
        let refusal = || Err(format!("expected {}, got {given}", self.allowed));
        (self.read)(given).unwrap_or_else(refusal)
    }

    pub(super) fn toml(&self, value: &T) -> String {
        (self.toml)(value)
    }
}

pub(super) fn switch() -> Kind<bool> {
    Kind::new("`true` or `false`", |given| given.switch(), bool::to_string)
}

pub(super) fn whole<T: FromStr + Display + 'static>(range: RangeInclusive<u64>) -> Kind<T> {
    Kind::new(
        format!("a whole number from {} to {}", range.start(), range.end()),
        move |given| within(given.whole()?, &range)?.to_string().parse().ok(),
        T::to_string,
    )
}

/// Like [`whole`], with 0 for none.
pub(super) fn whole_or_none(max: u64) -> Kind<Option<NonZeroUsize>> {
    let Kind {
        allowed,
        read,
        toml,
    } = whole::<usize>(0..=max);
    Kind {
        allowed,
        read: Box::new(move |given| Some(read(given)?.map(NonZeroUsize::new))),
        toml: Box::new(move |value| toml(&value.map_or(0, NonZeroUsize::get))),
    }
}

pub(super) fn millis(range: RangeInclusive<u64>) -> Kind<Duration> {
    Kind::new(
        format!("milliseconds from {} to {}", range.start(), range.end()),
        move |given| within(given.whole()?, &range).map(Duration::from_millis),
        |duration| duration.as_millis().to_string(),
    )
}

/// A size: a number of bytes, or a text with a unit.
pub(super) fn size(min: ByteSize, max: ByteSize) -> Kind<ByteSize> {
    Kind {
        allowed: format!("a size from `{min}` to `{max}`"),
        read: Box::new(move |given| {
            let size = match given.text() {
                Some(text) => match text.parse() {
                    Ok(size) => size,
                    Err(error) => return Some(Err(format!("{error}"))),
                },
                None => ByteSize::new(given.whole()?),
            };
            within(size, &(min..=max)).map(Ok)
        }),
        toml: Box::new(|size| match size.in_binary_unit() {
            Some((count, unit)) => format!("\"{count} {unit}\""),
            None => size.bytes().to_string(),
        }),
    }
}

pub(super) fn ratio() -> Kind<f64> {
    Kind::new(
        "a number from 0 to 1",
        |given| within(given.number()?, &(0.0..=1.0)),
        |ratio| format!("{ratio:?}"), // exact, and with the dot that TOML requires
    )
}

pub(super) fn address() -> Kind<SocketAddr> {
    const ALLOWED: &str = "an IP address with a port, such as `127.0.0.1:5555` or `[::1]:5555`";
    Kind::text(
        ALLOWED,
        |text| text.parse().map_err(|_| expected(ALLOWED, text)),
        SocketAddr::to_string,
    )
}

pub(super) fn path() -> Kind<PathBuf> {
    let parse = |text: &str| {
        let is_path = !text.is_empty() && !text.contains('\0');
        is_path
            .then(|| PathBuf::from(text))
            .ok_or_else(|| expected("a path", text))
    };
    Kind::text("a path", parse, |path| path.to_string_lossy().into_owned())
}

/// An address; an empty text for none.
pub(super) fn address_or_none() -> Kind<Option<SocketAddr>> {
    const ALLOWED: &str = "nothing, or an IP address with a port, such as `127.0.0.1:5556`";
    let parse = |text: &str| match text {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| expected(ALLOWED, text)),
    };
    let print = |address: &Option<SocketAddr>| address.map(|it| it.to_string()).unwrap_or_default();
    Kind::text(ALLOWED, parse, print)
}

/// A path; an empty text for none.
pub(super) fn path_or_none() -> Kind<Option<PathBuf>> {
    const ALLOWED: &str = "nothing, or a path";
    let parse = |text: &str| match text {
        "" => Ok(None),
        text if text.contains('\0') => Err(expected(ALLOWED, text)),
        text => Ok(Some(PathBuf::from(text))),
    };
    let print = |path: &Option<PathBuf>| {
        let path = path.as_ref();
        path.map(|path| path.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    Kind::text(ALLOWED, parse, print)
}

pub(super) fn client_certificates() -> Kind<ClientCertificates> {
    words(ClientCertificates::ALL, |word, choices| {
        format!("`{word}` says nothing about client certificates; choose {choices}")
    })
}

pub(super) fn engine() -> Kind<StorageEngine> {
    words(StorageEngine::ALL, |word, engines| match word {
        "rocksdb" => format!(
            "this build has no engine `rocksdb`; build one that has it with \
             `cargo build --release -p fila-cli --features rocksdb`, or choose {engines}"
        ),
        word => format!("`{word}` is no engine; choose {engines}"),
    })
}

pub(super) fn durability() -> Kind<Durability> {
    Kind::text(
        // The strongest first, as in the error of `Durability`.
        one_of(&[Durability::Fsync, Durability::Os, Durability::Memory]),
        |word| word.parse().map_err(|error| format!("{error}")),
        Durability::to_string,
    )
}

pub(super) fn log_filter() -> Kind<LogFilter> {
    Kind::text(
        "a level such as `info`, or levels such as `warn,fila_server=debug`",
        |text| text.parse().map_err(|error| format!("{error}")),
        |filter: &LogFilter| filter.as_str().to_owned(),
    )
}

pub(super) fn log_format() -> Kind<LogFormat> {
    words(LogFormat::ALL, |word, formats| {
        format!("`{word}` is no format of log lines; choose {formats}")
    })
}

/// The endpoint of a collector; an empty text for none.
pub(super) fn endpoint() -> Kind<Option<Uri>> {
    const ALLOWED: &str = "nothing, or a URL such as `http://localhost:4317`";
    let parse = |text: &str| {
        if text.is_empty() {
            return Ok(None);
        }
        let uri: Uri = text.parse().map_err(|_| expected(ALLOWED, text))?;
        match uri.scheme_str() {
            Some("http") if uri.authority().is_some() => Ok(Some(uri)),
            Some("https") => Err(format!(
                "`{text}` asks for TLS, which the export does not speak yet; \
                 send to a collector on this machine, as `http://localhost:4317`"
            )),
            _ => Err(expected(ALLOWED, text)),
        }
    };
    let print = |uri: &Option<Uri>| uri.as_ref().map(Uri::to_string).unwrap_or_default();
    Kind::text(ALLOWED, parse, print)
}

pub(super) fn name() -> Kind<String> {
    const ALLOWED: &str = "a name of 1 to 255 bytes";
    let parse = |name: &str| match name.len() {
        1..=255 => Ok(name.to_owned()),
        length => Err(format!("expected {ALLOWED}, got one of {length}")),
    };
    Kind::text(ALLOWED, parse, String::clone)
}

/// One of a few words. `refusal` makes the message for another word, given that word and the words to choose from.
fn words<T: Display + Copy + 'static>(
    all: &'static [T],
    refusal: fn(&str, &str) -> String,
) -> Kind<T> {
    let parse = move |word: &str| {
        let found = all.iter().find(|value| value.to_string() == word);
        found.copied().ok_or_else(|| refusal(word, &one_of(all)))
    };
    Kind::text(one_of(all), parse, T::to_string)
}

fn within<T: PartialOrd>(value: T, range: &RangeInclusive<T>) -> Option<T> {
    range.contains(&value).then_some(value)
}

fn expected(what: &str, text: &str) -> String {
    format!("expected {what}, got `{text}`")
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

/// Returns a text as a basic string of TOML.
fn toml_string(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            c if c.is_control() => {
                write!(quoted, "\\u{:04X}", u32::from(c)).expect("writing to a string cannot fail");
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
