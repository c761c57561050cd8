//! What may be set in the runtime configuration.

use super::throttle;

/// How much of a refused value is shown, in characters.
const SHOWN: usize = 40;

/// Why an entry was refused: what was found, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEntry {
    /// The key is empty.
    #[error("the key is empty; name what is to be set, as `feature:new_flow`")]
    NoKey,
    /// The key could not stand in a log line.
    #[error("the key {0:?} has control characters, or spaces at its ends; leave them out")]
    OddKey(String),
    /// A setting of a throttle without its last part.
    #[error(
        "`{0}` names no setting of a throttle; set `throttle:<key>:rate` or `throttle:<key>:burst`"
    )]
    NoField(String),
    /// A setting of no throttle.
    #[error("`{0}` names no throttle key; write it as `throttle:<key>:rate`")]
    NoThrottleKey(String),
    /// Something that throttles do not have.
    #[error("`{field}` is no setting of a throttle; {}", advice(.suggestion.as_deref()))]
    UnknownField {
        /// What was written after the last colon.
        field: String,
        /// The whole key that may be meant.
        suggestion: Option<String>,
    },
    /// A value that the setting does not take.
    #[error("`{key}` takes {allowed}; got `{found}`")]
    Value {
        /// Which setting.
        key: String,
        /// What it takes.
        allowed: &'static str,
        /// What was given, or how it begins.
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

/// Checks that this key may be set to this value. How long both are is not looked at.
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
