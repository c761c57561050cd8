//! The parts of an answer that depend on the separator of its queue: the fairness key as a path, and the weights of the
//! groups that it is in.

use std::num::NonZeroU32;

use fila_core::KeySeparator;
use fila_lua::{AnswerPart, Scheduling};
use fila_store::GroupWeights;

/// Checks that the fairness key of an answer is a path, and that the answer gives weights to groups of this key only.
/// Returns these weights by their levels.
///
/// An answer whose key cannot be used has no weights: they go with the key.
pub fn check_paths(answer: &mut Scheduling, separator: Option<KeySeparator>) -> GroupWeights {
    if let Some(separator) = separator
        && let Err(error) = separator.check(&answer.fairness_key)
    {
        answer.reject_key(error.to_string());
    }
    if answer.weights.is_empty() {
        return GroupWeights::NONE;
    }
    if !answer.is_usable(AnswerPart::FairnessKey) {
        answer.weights.clear();
        return GroupWeights::NONE;
    }
    let key = answer.fairness_key.clone();
    let level = |path: &str| {
        let mut groups = separator?.groups(&key);
        groups.position(|group| group == path.as_bytes())
    };
    answer.keep_groups(|path| level(path).is_some());
    let mut weights = GroupWeights::NONE;
    for found in &answer.weights {
        if let (Some(level), Some(weight)) = (level(&found.path), NonZeroU32::new(found.weight)) {
            weights.set(level, weight);
        }
    }
    weights
}

#[cfg(test)]
mod tests {
    use fila_lua::{EnqueueInput, Limits, Script};

    use super::*;

    fn checked(answer: &str, separator: Option<KeySeparator>) -> (Scheduling, GroupWeights) {
        let source = format!("function on_enqueue(msg) return {answer} end");
        let script = Script::compile(source, Limits::default()).unwrap();
        let input = EnqueueInput {
            headers: &[],
            payload_size: 0,
            queue: "orders",
        };
        let mut answer = script.try_enqueue(&input, |_: &str| None).result.unwrap();
        let weights = check_paths(&mut answer, separator);
        (answer, weights)
    }

    fn levels(weights: GroupWeights) -> Vec<(usize, u32)> {
        let weights = weights.iter();
        weights
            .map(|(level, weight)| (level, weight.get()))
            .collect()
    }

    #[test]
    fn weights_go_to_the_levels_of_their_groups() {
        let slash = Some(KeySeparator::default());
        let answer = "{ fairness_key = 'acme/batch/nightly/7', weight = 9,
            weights = { ['acme/batch/nightly'] = 4, acme = 3, ['acme/batch'] = 70000 } }";
        let (answer, weights) = checked(answer, slash);
        assert_eq!(levels(weights), [(0, 3), (1, 65_536), (2, 4)]);
        assert_eq!((answer.weight, answer.unusable.len()), (9, 0));
        assert!(answer.adjustment().is_some());
        let colon = KeySeparator::new(':').ok();
        let (answer, weights) = checked(
            "{ fairness_key = 'a/b:c', weights = { ['a/b'] = 2 } }",
            colon,
        );
        assert_eq!((levels(weights), answer.unusable.len()), (vec![(0, 2)], 0));
    }

    #[test]
    fn a_path_that_is_no_group_of_the_key_has_no_weight() {
        let slash = Some(KeySeparator::default());
        for (answer, separator, kept) in [
            (
                "{ fairness_key = 'acme/x', weights = { acme = 3, zoo = 2 } }",
                slash,
                &[(0, 3)][..],
            ),
            (
                "{ fairness_key = 'acme/x', weights = { ['acme/x'] = 3 } }",
                slash,
                &[],
            ),
            (
                "{ fairness_key = 'acme/x', weights = { ['acme/'] = 3, ac = 2 } }",
                slash,
                &[],
            ),
            (
                "{ fairness_key = 'acme', weights = { acme = 3 } }",
                slash,
                &[],
            ),
            ("{ weights = { default = 3 } }", slash, &[]),
            (
                "{ fairness_key = 'acme/x', weights = { acme = 3 } }",
                None,
                &[],
            ),
        ] {
            let (checked, weights) = checked(answer, separator);
            assert_eq!(levels(weights), kept, "{answer}");
            assert!(!checked.is_usable(AnswerPart::GroupWeight), "{answer}");
            assert!(checked.is_usable(AnswerPart::FairnessKey), "{answer}");
        }
    }

    #[test]
    fn a_key_that_is_no_path_goes_with_its_weights() {
        let slash = Some(KeySeparator::default());
        let (answer, weights) = checked("{ fairness_key = 'a//b', weights = { a = 3 } }", slash);
        assert_eq!((weights, answer.weights.len()), (GroupWeights::NONE, 0));
        let parts: Vec<AnswerPart> = answer.unusable.iter().map(|it| it.part).collect();
        assert_eq!(parts, [AnswerPart::FairnessKey]);
        let said = answer.mistake().unwrap().to_string();
        let expected = "`on_enqueue` returned \"a//b\" as `fairness_key`; part 2 of the fairness key is empty: ";
        assert!(said.starts_with(expected), "{said}");
        let (answer, _) = checked("{ fairness_key = 'a//b' }", None);
        assert!(answer.is_usable(AnswerPart::FairnessKey), "it is one name");
    }
}
