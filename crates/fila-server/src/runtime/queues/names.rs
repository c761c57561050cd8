//! The names that a queue may have.

use fila_store::QueueName;

/// The end of the names of queues that hold dead letters.
const DEAD_LETTERS: &str = ".dlq";

/// The longest name for a queue: there is room for the end of its dead letters' name.
const LONGEST: usize = QueueName::MAX - DEAD_LETTERS.len();

/// Returns the name of the queue whose dead letters are in the queue of this name, if it is such a queue.
pub(crate) fn source_of(name: &str) -> Option<&str> {
    name.strip_suffix(DEAD_LETTERS)
        .filter(|source| !source.is_empty())
}

/// Returns what the queue is called that holds the dead letters of this one. A queue of dead letters has none, and neither
/// has one whose name is too long for that: it comes from before there were dead letters.
pub(crate) fn dead_letters_of(name: &QueueName) -> Option<QueueName> {
    if source_of(name.as_str()).is_some() {
        return None;
    }
    QueueName::parse(&format!("{name}{DEAD_LETTERS}")).ok()
}

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It has no characters.
    #[error("the name of the queue is empty; give it 1 to {} bytes", LONGEST)]
    Empty,
    /// It has too many characters.
    #[error("the queue's name has {found} bytes; 1 to {} are allowed", LONGEST)]
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
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        let length = NameError::Length { found: text.len() };
        let name = QueueName::parse(text).ok();
        let name = name.filter(|_| text.len() <= LONGEST).ok_or(length)?;
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
        for name in ["a", "orders.eu-west_1", "9", &"q".repeat(251)] {
            assert_eq!(QueueNameRule::parse(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn a_queue_and_its_dead_letters_know_each_other_by_name() {
        let orders = QueueName::parse("orders").unwrap();
        let letters = dead_letters_of(&orders).unwrap();
        assert_eq!(letters.as_str(), "orders.dlq");
        assert_eq!(source_of(letters.as_str()), Some("orders"));
        assert_eq!(dead_letters_of(&letters), None);
        assert_eq!(source_of("orders"), None);
        let long = QueueName::parse(&"q".repeat(252)).unwrap();
        assert_eq!(dead_letters_of(&long), None);
    }

    #[test]
    fn anything_else_is_refused_with_what_is_wrong() {
        let cases = [
            ("", NameError::Empty),
            (&"q".repeat(252), NameError::Length { found: 252 }),
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
