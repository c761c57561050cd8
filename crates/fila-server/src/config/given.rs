//! A value as one of the sources gave it, before it is known to fit.

use std::fmt;

use toml::de::DeValue;

/// A value as it was given.
#[derive(Debug)]
pub(super) enum Given<'a> {
    /// By a variable or a flag: a text that stands for whatever the key wants.
    Text(&'a str),
    /// By a file, which says what is a string.
    String(&'a str),
    /// By a file, in digits of this radix.
    Integer(&'a str, u32),
    /// By a file, with a dot or an exponent.
    Float(&'a str),
    /// By a file.
    Switch(bool),
    /// By a file, and nothing that any key wants.
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

    /// Returns the value as a text, if it is one.
    pub(super) const fn text(&self) -> Option<&'a str> {
        match self {
            Self::Text(text) | Self::String(text) => Some(text),
            Self::Integer(..) | Self::Float(_) | Self::Switch(_) | Self::Other(_) => None,
        }
    }

    /// Returns the value as a whole number that is not negative, if it is one that fits 64 bits.
    pub(super) fn whole(&self) -> Option<u64> {
        match self {
            // A file may write `10_000` and a variable should not be worse off.
            Self::Text(text) if is_grouped(text) => text.replace('_', "").parse().ok(),
            Self::Integer(digits, radix) => u64::from_str_radix(digits, *radix).ok(),
            Self::Text(_) | Self::String(_) | Self::Float(_) | Self::Switch(_) | Self::Other(_) => {
                None
            }
        }
    }

    /// Returns the value as a number, if it is one.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Text(text) | Self::Float(text) | Self::Integer(text, 10) => text.parse().ok(),
            Self::String(_) | Self::Integer(..) | Self::Switch(_) | Self::Other(_) => None,
        }
    }

    /// Returns the value as a switch, if it is one.
    pub(super) fn switch(&self) -> Option<bool> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Switch(value) => Some(*value),
            Self::String(_) | Self::Integer(..) | Self::Float(_) | Self::Other(_) => None,
        }
    }
}

/// Whether a text is digits, with underscores only between them.
fn is_grouped(text: &str) -> bool {
    let mut groups = text.split('_');
    groups.all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()))
}

impl fmt::Display for Given<'_> {
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
