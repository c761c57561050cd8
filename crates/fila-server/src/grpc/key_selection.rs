//! The choice of fairness keys in a request: one key, the keys within a group, or all.

use fila_core::KeySeparator;
use fila_proto::v1::ErrorCode;

use super::message::fairness_key;
use super::refusal::Refusal;
use crate::runtime::KeySelection;

/// Parses the choice in a request for a queue with this separator.
pub(super) fn parse(
    key: Option<String>,
    within: Option<String>,
    separator: Option<KeySeparator>,
) -> Result<KeySelection, Refusal> {
    match (key, within) {
        (None, None) => Ok(KeySelection::All),
        (Some(key), None) => Ok(KeySelection::Key(fairness_key(key)?)),
        (None, Some(group)) => {
            let group = fairness_key(group)?;
            let Some(separator) = separator else {
                let text = "the queue has no key_separator, so its keys are in no groups; name a fairness_key in place \
                            of within";
                return Err(Refusal::invalid(text));
            };
            let checked = separator.check(group.as_bytes());
            checked
                .map_err(|error| Refusal::new(ErrorCode::InvalidFairnessKey, error.to_string()))?;
            Ok(KeySelection::Within { group, separator })
        }
        (Some(_), Some(_)) => {
            let text = "fairness_key and within exclude each other; within has the key of the group's name, too";
            Err(Refusal::invalid(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_a_key_or_a_group_or_neither() {
        let slash = Some(KeySeparator::default());
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(parse(None, None, None).ok(), Some(KeySelection::All));
        let key = parse(text("a//b"), None, slash).ok();
        let named = fairness_key("a//b".to_owned()).ok();
        assert_eq!(key, named.map(KeySelection::Key), "an old key can be named");
        let group = parse(None, text("a/b"), slash);
        assert!(matches!(group, Ok(KeySelection::Within { .. })));
        for (key, within, separator) in [
            (text("a"), text("a"), slash),
            (None, text("a"), None),
            (None, text("a//b"), slash),
            (None, text("/"), slash),
            (None, text("a/b/c/d/e"), slash),
            (None, text(&"x".repeat(5_000)), slash),
        ] {
            assert!(parse(key, within.clone(), separator).is_err(), "{within:?}");
        }
    }
}
