//! Kinds of keys: how a value is checked, stored in its field and written back.
//!
//! A kind knows its field by a function from the configuration to it, so that the table of keys cannot pair a kind with
//! a field of another type.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::time::Duration;

use super::byte_size::ByteSize;
use super::given::Given;
use super::print::toml_string;
use super::sections::Config;

/// Where in the configuration a value is.
pub(super) type At<T> = fn(&mut Config) -> &mut T;

/// A field of the configuration, as the sources see it.
pub(super) trait Field: Sync {
    /// Returns what may be given, as in "expected …".
    fn allowed(&self) -> String;

    /// Sets the field, or says what is wrong.
    fn set(&self, config: &mut Config, given: &Given<'_>) -> Result<(), String>;

    /// Returns the field as TOML. Takes the configuration as [`At`] does, and changes nothing.
    fn toml(&self, config: &mut Config) -> String;

    /// Returns the message that refuses a value.
    fn refusal(&self, given: &Given<'_>) -> String {
        format!("expected {}, got {given}", self.allowed())
    }
}

/// `true` or `false`.
pub(super) struct Switch {
    pub(super) at: At<bool>,
}

impl Field for Switch {
    fn allowed(&self) -> String {
        "`true` or `false`".to_owned()
    }

    fn set(&self, config: &mut Config, given: &Given<'_>) -> Result<(), String> {
        *(self.at)(config) = given.switch().ok_or_else(|| self.refusal(given))?;
        Ok(())
    }

    fn toml(&self, config: &mut Config) -> String {
        (self.at)(config).to_string()
    }
}

/// A whole number within bounds.
pub(super) struct Whole<T> {
    pub(super) min: u64,
    pub(super) max: u64,
    pub(super) at: At<T>,
}

impl<T: Number> Field for Whole<T> {
    fn allowed(&self) -> String {
        format!("a whole number from {} to {}", self.min, self.max)
    }

    fn set(&self, config: &mut Config, given: &Given<'_>) -> Result<(), String> {
        let within = given.whole().filter(|n| (self.min..=self.max).contains(n));
        let number = within.and_then(T::from_u64);
        *(self.at)(config) = number.ok_or_else(|| self.refusal(given))?;
        Ok(())
    }

    fn toml(&self, config: &mut Config) -> String {
        (self.at)(config).to_u64().to_string()
    }
}

/// A duration in whole milliseconds, within bounds.
pub(super) struct Millis {
    pub(super) min: u64,
    pub(super) max: u64,
    pub(super) at: At<Duration>,
}

impl Field for Millis {
    fn allowed(&self) -> String {
        format!("milliseconds from {} to {}", self.min, self.max)
    }

    fn set(&self, config: &mut Config, given: &Given<'_>) -> Result<(), String> {
        let within = given.whole().filter(|n| (self.min..=self.max).contains(n));
        let millis = within.ok_or_else(|| self.refusal(given))?;
        *(self.at)(config) = Duration::from_millis(millis);
        Ok(())
    }

    fn toml(&self, config: &mut Config) -> String {
        (self.at)(config).as_millis().to_string()
    }
}

/// A size within bounds: bytes as a number, or a text with a unit.
pub(super) struct Size {
    pub(super) min: ByteSize,
    pub(super) max: ByteSize,
    pub(super) at: At<ByteSize>,
}

impl Field for Size {
    fn allowed(&self) -> String {
        format!("a size from `{}` to `{}`", self.min, self.max)
    }

    fn set(&self, config: &mut Config, given: &Given<'_>) -> Result<(), String> {
        let size = match given.text() {
            Some(text) => Some(text.parse().map_err(|error| format!("{error}"))?),
            None => given.whole().map(ByteSize::new),
        };
        let within = size.filter(|size: &ByteSize| (self.min..=self.max).contains(size));
        *(self.at)(config) = within.ok_or_else(|| self.refusal(given))?;
        Ok(())
    }

    fn toml(&self, config: &mut Config) -> String {
        let size = *(self.at)(config);
        match size.in_binary_unit() {
            Some((count, unit)) => format!("\"{count} {unit}\""),
            None => size.bytes().to_string(),
        }
    }
}

/// A part of a whole: a number from 0 to 1.
pub(super) struct Ratio {
    pub(super) at: At<f64>,
}

impl Field for Ratio {
    fn allowed(&self) -> String {
        "a number from 0 to 1".to_owned()
    }

    fn set(&self, config: &mut Config, given: &Given<'_>) -> Result<(), String> {
        let within = given.number().filter(|n| (0.0..=1.0).contains(n));
        *(self.at)(config) = within.ok_or_else(|| self.refusal(given))?;
        Ok(())
    }

    fn toml(&self, config: &mut Config) -> String {
        format!("{:?}", (self.at)(config)) // with a dot, as TOML wants it, and exact
    }
}

/// A text with rules of its own.
pub(super) struct Text<T> {
    pub(super) allowed: fn() -> String,
    pub(super) parse: fn(&str) -> Result<T, String>,
    pub(super) print: fn(&T) -> String,
    pub(super) at: At<T>,
}

impl<T> Field for Text<T> {
    fn allowed(&self) -> String {
        (self.allowed)()
    }

    fn set(&self, config: &mut Config, given: &Given<'_>) -> Result<(), String> {
        let text = given.text().ok_or_else(|| self.refusal(given))?;
        *(self.at)(config) = (self.parse)(text)?;
        Ok(())
    }

    fn toml(&self, config: &mut Config) -> String {
        toml_string(&(self.print)((self.at)(config)))
    }
}

/// A type that whole numbers are kept in.
pub(super) trait Number: Copy {
    fn from_u64(value: u64) -> Option<Self>;
    fn to_u64(self) -> u64;
}

impl Number for usize {
    fn from_u64(value: u64) -> Option<Self> {
        Self::try_from(value).ok()
    }

    fn to_u64(self) -> u64 {
        u64::try_from(self).unwrap_or(u64::MAX)
    }
}

impl Number for NonZeroU32 {
    fn from_u64(value: u64) -> Option<Self> {
        u32::try_from(value).ok().and_then(Self::new)
    }

    fn to_u64(self) -> u64 {
        self.get().into()
    }
}

impl Number for NonZeroU64 {
    fn from_u64(value: u64) -> Option<Self> {
        Self::new(value)
    }

    fn to_u64(self) -> u64 {
        self.get()
    }
}

impl Number for NonZeroUsize {
    fn from_u64(value: u64) -> Option<Self> {
        usize::from_u64(value).and_then(Self::new)
    }

    fn to_u64(self) -> u64 {
        self.get().to_u64()
    }
}

/// Zero stands for none.
impl Number for Option<NonZeroUsize> {
    fn from_u64(value: u64) -> Option<Self> {
        usize::from_u64(value).map(NonZeroUsize::new)
    }

    fn to_u64(self) -> u64 {
        self.map_or(0, Number::to_u64)
    }
}
