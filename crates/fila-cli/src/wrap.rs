//! Sentences in lines.

/// Breaks a text between its words into lines of at most so many characters. A longer word has a line of its own.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let own = word.chars().count();
        match lines.last_mut() {
            Some(line) if length + 1 + own <= width => {
                line.push(' ');
                line.push_str(word);
                length += 1 + own;
            }
            _ => {
                lines.push(word.to_owned());
                length = own;
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_long_as_they_may_be() {
        assert_eq!(wrap("one two  three four", 8), ["one two", "three", "four"]);
        assert_eq!(wrap("0123456789 ≥1 µs", 5), ["0123456789", "≥1 µs"]);
        assert!(wrap("", 5).is_empty());
    }
}
