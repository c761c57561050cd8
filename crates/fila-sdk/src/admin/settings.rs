//! The settings of a queue, generated from the rows of [`fila_proto::queue_settings`].

use std::time::Duration;

use fila_proto::v1;

use crate::message::millis;

/// A setting of a queue as a row of a table, for programs that show or set all of them, like the command line.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Setting {
    /// The name, as `retry_backoff_max`.
    pub name: &'static str,
    /// The field on the wire and in JSON, as `retry_backoff_max_ms`.
    pub field: &'static str,
    /// The values that it takes.
    pub kind: SettingKind,
    /// The default, as `5m`.
    pub default: &'static str,
    /// The meaning of zero, if zero is special.
    pub zero: Option<&'static str>,
    /// The effect of the setting, in one sentence without a full stop.
    pub help: &'static str,
    /// Returns its value, if it is set.
    pub get: fn(&QueueSettings) -> Option<SettingValue>,
    /// Sets it, or gives the value back if it is of another kind or too large.
    pub set: fn(&mut QueueSettings, SettingValue) -> Result<(), SettingValue>,
}

/// The values that a [`Setting`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingKind {
    /// A time in whole milliseconds.
    Time,
    /// A number, at most this one.
    Number {
        /// The largest number.
        max: u64,
    },
    /// One of these words.
    Word(&'static [SettingWord]),
    /// Any text.
    Text,
}

/// A word that a [`Setting`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingWord {
    /// The word, as `last_good`.
    pub word: &'static str,
    /// The meaning of the word.
    pub help: &'static str,
}

/// The value of a [`Setting`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(untagged))]
#[non_exhaustive]
pub enum SettingValue {
    /// A time.
    Time(#[cfg_attr(feature = "serde", serde(serialize_with = "crate::json::millis"))] Duration),
    /// A number.
    Number(u64),
    /// A word.
    Word(&'static str),
    /// A text.
    Text(String),
}

/// A type of settings: its conversion to and from the wire, and its form in the table.
trait SettingType: Sized {
    type Wire;
    const KIND: SettingKind;
    fn to_wire(&self) -> Self::Wire;
    fn from_wire(wire: Self::Wire) -> Self;
    fn to_value(&self) -> SettingValue;
    fn from_value(value: &SettingValue) -> Option<Self>;
}

impl SettingType for Duration {
    type Wire = u64;
    const KIND: SettingKind = SettingKind::Time;

    fn to_wire(&self) -> u64 {
        millis(*self)
    }

    fn from_wire(wire: u64) -> Self {
        Self::from_millis(wire)
    }

    fn to_value(&self) -> SettingValue {
        SettingValue::Time(*self)
    }

    fn from_value(value: &SettingValue) -> Option<Self> {
        match *value {
            SettingValue::Time(time) => Some(time),
            _ => None,
        }
    }
}

impl SettingType for String {
    type Wire = Self;
    const KIND: SettingKind = SettingKind::Text;

    fn to_wire(&self) -> Self {
        self.clone()
    }

    fn from_wire(wire: Self) -> Self {
        wire
    }

    fn to_value(&self) -> SettingValue {
        SettingValue::Text(self.clone())
    }

    fn from_value(value: &SettingValue) -> Option<Self> {
        match value {
            SettingValue::Text(text) => Some(text.clone()),
            _ => None,
        }
    }
}

macro_rules! numbers {
    ($($number:ident),+) => {$(
        impl SettingType for $number {
            type Wire = Self;
            const KIND: SettingKind = SettingKind::Number { max: Self::MAX as u64 };

            fn to_wire(&self) -> Self {
                *self
            }

            fn from_wire(wire: Self) -> Self {
                wire
            }

            fn to_value(&self) -> SettingValue {
                SettingValue::Number((*self).into())
            }

            fn from_value(value: &SettingValue) -> Option<Self> {
                match *value {
                    SettingValue::Number(number) => number.try_into().ok(),
                    _ => None,
                }
            }
        }
    )+};
}

numbers!(u32, u64);

/// Declares an enum of the wire: each value with its word in JSON and on the command line.
macro_rules! words {
    (
        $(#[$about:meta])+
        $name:ident { $(#[doc = $help:literal] $(#[$more:meta])? $value:ident = $word:literal,)+ }
    ) => {
        $(#[$about])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name { $(#[doc = $help] $(#[$more])? $value,)+ }

        impl $name {
            /// Returns the word for it, as it is in JSON.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$value => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl From<fila_proto::v1::$name> for $name {
            fn from(wire: fila_proto::v1::$name) -> Self {
                match wire { $(fila_proto::v1::$name::$value => Self::$value,)+ }
            }
        }
    };
}
pub(super) use words;

/// Lets an enum that [`words`] has declared be a setting.
macro_rules! word_settings {
    ($(
        $(#[$about:meta])+
        $name:ident { $(#[doc = $help:literal] $(#[$more:meta])? $value:ident = $word:literal,)+ }
    )+) => {$(
        words! {
            $(#[$about])+
            $name { $(#[doc = $help] $(#[$more])? $value = $word,)+ }
        }

        impl SettingType for $name {
            type Wire = i32;
            const KIND: SettingKind = SettingKind::Word(&[
                $(SettingWord { word: $word, help: $help.trim_ascii() },)+
            ]);

            fn to_wire(&self) -> i32 {
                match self { $(Self::$value => v1::$name::$value.into(),)+ }
            }

            fn from_wire(wire: i32) -> Self {
                v1::$name::try_from(wire).unwrap_or_default().into()
            }

            fn to_value(&self) -> SettingValue {
                SettingValue::Word(self.as_str())
            }

            fn from_value(value: &SettingValue) -> Option<Self> {
                match *value {
                    $(SettingValue::Word($word) => Some(Self::$value),)+
                    _ => None,
                }
            }
        }
    )+};
}

word_settings! {
    /// The broker's answer in place of `on_enqueue`, when the hook fails or its circuit breaker is open.
    HookFallback {
        /// Fairness key `default`, weight 1, no throttle keys
        Default = "default",
        /// The last answer for the same headers or fairness key; without one, the producer's fairness key
        #[default]
        LastGood = "last_good",
        /// The broker refuses the message
        Refuse = "refuse",
    }

    /// The order in which messages of one fairness key are delivered.
    Ordering {
        /// In the order of arrival; a message that is delivered again comes late
        #[default]
        None = "none",
        /// Strictly: one at a time, and a message that is delivered again keeps its place
        Key = "key",
    }

    /// The messages among which a deduplication id is unique.
    DeduplicationScope {
        /// Those of the same fairness key
        #[default]
        Key = "key",
        /// Those of the whole queue
        Queue = "queue",
    }

    /// The unit in which a delivery counts against its fairness key's share.
    Charge {
        /// Every message counts the same
        #[default]
        Message = "message",
        /// By the size of headers and payload
        Bytes = "bytes",
        /// By the time from delivery to result
        Time = "time",
    }
}

/// The type of a builder's argument.
macro_rules! argument {
    (String) => { impl Into<String> };
    ($type:ident) => { $type };
}

macro_rules! define {
    ($(
        $name:ident: $type:ident, $field:ident, $($core:ident).+, default $default:literal, $(zero $zero:literal,)?
        $help:literal;
    )+) => {
        /// The settings of a queue. A setting that is none keeps its value, or gets its default in a new queue.
        ///
        /// ```
        /// use std::time::Duration;
        /// use fila_sdk::{Ordering, QueueSettings};
        ///
        /// let settings = QueueSettings::new()
        ///     .visibility_timeout(Duration::from_secs(60))
        ///     .ordering(Ordering::Key);
        /// # let _ = settings;
        /// ```
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        #[must_use = "settings do nothing until a queue is created or updated with them"]
        pub struct QueueSettings {$(
            #[doc = concat!($help, ". Default: `", $default, "`." $(, " Zero means ", $zero, ".")?)]
            pub $name: Option<$type>,
        )+}

        impl QueueSettings {
            /// All settings, in display order.
            pub const TABLE: &'static [Setting] = &[$(Setting {
                name: stringify!($name),
                field: stringify!($field),
                kind: <$type>::KIND,
                default: $default,
                zero: [$(Some($zero),)? None][0],
                help: $help,
                get: |settings| settings.$name.as_ref().map(SettingType::to_value),
                set: |settings, value| {
                    settings.$name = Some(SettingType::from_value(&value).ok_or(value)?);
                    Ok(())
                },
            }),+];

            /// Returns settings that are all none.
            pub fn new() -> Self {
                Self::default()
            }

            $(
                #[doc = concat!("Sets `", stringify!($name), "`. ", $help, "." $(, " Zero means ", $zero, ".")?)]
                pub fn $name(mut self, $name: argument!($type)) -> Self {
                    self.$name = Some($name.into());
                    self
                }
            )+

            pub(crate) fn to_wire(&self) -> v1::QueueSettings {
                v1::QueueSettings {
                    $($field: self.$name.as_ref().map(SettingType::to_wire),)+
                }
            }
        }

        impl From<v1::QueueSettings> for QueueSettings {
            fn from(wire: v1::QueueSettings) -> Self {
                Self { $($name: wire.$field.map(SettingType::from_wire),)+ }
            }
        }
    };
}

fila_proto::queue_settings!(define);

/// Leaves out unknown settings and the script if there is none. A queue without a separator has an empty one.
#[cfg(feature = "serde")]
impl serde::Serialize for QueueSettings {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let values = Self::TABLE.iter().filter_map(|setting| {
            let value = (setting.get)(self)?;
            let is_empty = matches!(&value, SettingValue::Text(text) if text.is_empty());
            let is_shown = !is_empty || setting.name != "script";
            is_shown.then_some((setting.field, value))
        });
        serializer.collect_map(values)
    }
}
