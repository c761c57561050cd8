//! Compares the document with the actual output. Words in angle brackets stand for values that differ from run to run.

use std::collections::BTreeMap;

use serde_json::Value;

/// The values of the words in angle brackets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bindings(BTreeMap<String, String>);

impl Bindings {
    /// Puts values for the words of a command.
    pub(crate) fn fill(&self, text: &str) -> String {
        let mut filled = String::new();
        for part in parts(text) {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Word(word) => match self.0.get(word) {
                    Some(value) => filled.push_str(value),
                    None => panic!("<{word}> has not come back from any command before"),
                },
            }
        }
        filled
    }

    /// Compares messages.
    pub(crate) fn matches(&mut self, shown: &Value, found: &Value) -> bool {
        match (shown, found) {
            (Value::String(shown), Value::String(found)) => self.matches_line(shown, found),
            (Value::Array(shown), Value::Array(found)) => {
                let mut pairs = shown.iter().zip(found);
                shown.len() == found.len() && pairs.all(|(a, b)| self.matches(a, b))
            }
            (Value::Object(shown), Value::Object(found)) => {
                let mut entries = shown.iter();
                shown.len() == found.len()
                    && entries.all(|(name, a)| found.get(name).is_some_and(|b| self.matches(a, b)))
            }
            (shown, found) => shown == found,
        }
    }

    /// Compares texts line by line.
    pub(crate) fn matches_lines(&mut self, shown: &str, found: &str) -> bool {
        let (shown, found) = (shown.lines(), found.lines());
        let (shown, found): (Vec<&str>, Vec<&str>) = (shown.collect(), found.collect());
        let mut pairs = shown.iter().zip(&found);
        shown.len() == found.len() && pairs.all(|(a, b)| self.matches_line(a, b))
    }

    /// A word takes what comes before the text that follows it, and not nothing.
    fn matches_line(&mut self, shown: &str, mut found: &str) -> bool {
        let mut parts = parts(shown).peekable();
        while let Some(part) = parts.next() {
            match part {
                Part::Text(text) => match found.strip_prefix(text) {
                    Some(rest) => found = rest,
                    None => return false,
                },
                Part::Word(word) => {
                    let end = match parts.peek() {
                        Some(Part::Text(text)) => found.find(text),
                        Some(Part::Word(_)) => panic!("nothing between two words in {shown:?}"),
                        None => Some(found.len()),
                    };
                    let Some(end) = end.filter(|end| *end > 0) else {
                        return false;
                    };
                    let (value, rest) = found.split_at(end);
                    let known = self.0.entry(word.to_owned());
                    if known.or_insert_with(|| value.to_owned()) != value {
                        return false;
                    }
                    found = rest;
                }
            }
        }
        found.is_empty()
    }
}

enum Part<'a> {
    Text(&'a str),
    Word(&'a str),
}

/// Splits a text into words in angle brackets and what is between them. `map<string, string>` has none.
fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let is_word = |word: &str| {
        let mut characters = word.chars();
        !word.is_empty() && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        if let Some((word, after)) = rest.strip_prefix('<').and_then(|r| r.split_once('>'))
            && is_word(word)
        {
            rest = after;
            return Some(Part::Word(word));
        }
        let from = usize::from(!rest.is_empty());
        let end = rest.get(from..)?.find('<').map(|at| at + from);
        let (text, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        (!text.is_empty()).then_some(Part::Text(text))
    })
}

#[test]
fn a_word_stands_for_one_value() {
    let mut known = Bindings::default();
    assert!(known.matches_lines("a <x> b\n<y>", "a 1 b\n2"));
    assert_eq!(known.fill("<y>-<x>, <> <z w>"), "2-1, <> <z w>");
    assert!(known.matches_lines("<x>", "1") && !known.matches_lines("<x>", "2"));
    assert!(!known.matches_lines("<z>", "") && !known.matches_lines("a", "a\nb"));
}
