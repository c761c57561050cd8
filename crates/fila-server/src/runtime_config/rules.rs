//! The rules of the runtime configuration.

use super::throttle;

/// How much of a rejected value an error shows, in characters.
const SHOWN: usize = 40;

/// Why the server rejects an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEntry {
    /// The key is empty.
    #[error("the key is empty; name what is to be set, as `feature:new_flow`")]
    NoKey,
    /// The key does not fit into a log line.
    #[error("the key {0:?} has control characters, or spaces at its ends; leave them out")]
    OddKey(String),
    /// A key of a throttle without the name of a setting.
    #[error(
        "`{0}` names no setting of a throttle; set `throttle:<key>:rate` or `throttle:<key>:burst`"
    )]
    NoField(String),
    /// A key of a throttle without a throttle key.
    #[error("`{0}` names no throttle key; write it as `throttle:<key>:rate`")]
    NoThrottleKey(String),
    /// A setting that throttles do not have.
    #[error("`{field}` is no setting of a throttle; {}", advice(.suggestion.as_deref()))]
    UnknownField {
        /// The text after the last colon.
        field: String,
        /// The whole key that the user may mean.
        suggestion: Option<String>,
    },
    /// A value that the setting does not take.
    #[error("`{key}` takes {allowed}; got `{found}`")]
    Value {
        /// The setting.
        key: String,
        /// The values that it takes.
        allowed: &'static str,
        /// The value, or its beginning.
        found: String,
    },
}

impl InvalidEntry {
    pub(super) fn value(key: &str, allowed: &'static str, found: &str) -> Self {
        let mut shown: String = found.chars().take(SHOWN).collect();
        if shown.len() < found.len() {
            shown.push('…');
        }
        Self::Value {
            key: key.to_owned(),
            allowed,
            found: shown.escape_debug().to_string(),
        }
    }
}

fn advice(suggestion: Option<&str>) -> String {
    match suggestion {
        Some(key) => format!("did you mean `{key}`?"),
        None => "choose `rate` or `burst`".to_owned(),
    }
}

/// Checks that this key may have this value. The caller checks their sizes.
pub(crate) fn check(key: &str, value: &str) -> Result<(), InvalidEntry> {
    if key.is_empty() {
        return Err(InvalidEntry::NoKey);
    }
    if key.chars().any(char::is_control) || key.trim() != key {
        return Err(InvalidEntry::OddKey(key.to_owned()));
    }
    throttle::check(key, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_can_stand_in_a_log_line() {
        for key in [
            "a",
            "feature:new_flow",
            "größe",
            "with space",
            "a:",
            "throttle",
        ] {
            assert_eq!(check(key, "any\nthing"), Ok(()), "{key}");
        }
        assert_eq!(check("", "x"), Err(InvalidEntry::NoKey));
        for key in [" a", "a ", "a\nb", "\u{1b}[2J", "a\u{7f}"] {
            let refused = check(key, "x").unwrap_err();
            assert_eq!(refused, InvalidEntry::OddKey(key.to_owned()));
            assert!(!refused.to_string().chars().any(char::is_control));
        }
    }

    #[test]
    fn a_long_value_is_shown_in_part_and_on_one_line() {
        let refused = check("throttle:a:rate", &"1\n".repeat(1000)).unwrap_err();
        let text = refused.to_string();
        assert!(text.len() < 250 && !text.contains('\n'), "{text}");
        assert!(text.ends_with("…`"), "{text}");
    }
}
