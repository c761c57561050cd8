//! What a queue may be called.

use fila_store::QueueName;

/// The end of the names of queues that hold dead letters.
const DEAD_LETTERS: &str = ".dlq";

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// It has no characters, or too many.
    #[error(
        "the queue's name has {found} bytes; 1 to {} are allowed",
        QueueName::MAX
    )]
    Length {
        /// How many it has.
        found: usize,
    },
    /// It has a character that names may not have.
    #[error("the queue's name contains {found:?}; use `A-Z a-z 0-9 . _ -` only")]
    Character {
        /// The first of them.
        found: char,
    },
    /// It is kept for dead letters.
    #[error("names that end in `{DEAD_LETTERS}` are reserved for dead letters; choose another")]
    Reserved,
}

/// The rule for names that clients may give to queues.
#[derive(Clone, Copy, Debug)]
pub struct QueueNameRule;

impl QueueNameRule {
    /// Takes a name for a new queue.
    ///
    /// # Errors
    /// If it breaks the rule.
    pub fn parse(text: &str) -> Result<QueueName, NameError> {
        let length = NameError::Length { found: text.len() };
        let name = QueueName::parse(text).map_err(|_| length)?;
        let allowed = |c: &char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(c);
        if let Some(found) = text.chars().find(|c| !allowed(c)) {
            return Err(NameError::Character { found });
        }
        if text.ends_with(DEAD_LETTERS) {
            return Err(NameError::Reserved);
        }
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_digits_and_three_marks_make_a_name() {
        for name in ["a", "orders.eu-west_1", "9", &"q".repeat(255)] {
            assert_eq!(QueueNameRule::parse(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_is_wrong() {
        let cases = [
            ("", NameError::Length { found: 0 }),
            (&"q".repeat(256), NameError::Length { found: 256 }),
            ("a b", NameError::Character { found: ' ' }),
            ("größe", NameError::Character { found: 'ö' }),
            ("a/../b", NameError::Character { found: '/' }),
            ("orders.dlq", NameError::Reserved),
        ];
        for (name, error) in cases {
            assert_eq!(QueueNameRule::parse(name), Err(error), "{name:?}");
        }
    }
}
