//! Wrapping of text.

/// Units that stay on the line of their number.
const UNITS: [&str; 6] = ["%", "µs", "ms", "s", "min", "h"];

/// Breaks a text between its words into lines of at most `width` characters. A longer word gets its own line.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut length = 0;
    for word in words(text) {
        let own = word.chars().count();
        match lines.last_mut() {
            Some(line) if length + 1 + own <= width => {
                line.push(' ');
                line.push_str(&word);
                length += 1 + own;
            }
            _ => {
                lines.push(word);
                length = own;
            }
        }
    }
    lines
}

/// Returns the parts that must not be broken: words, and numbers with their units.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let bare = word.trim_end_matches([')', ',', '.', ':']);
        match words.last_mut() {
            Some(number)
                if UNITS.contains(&bare) && number.ends_with(|c: char| c.is_ascii_digit()) =>
            {
                number.push(' ');
                number.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
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

    #[test]
    fn a_number_stays_with_its_unit() {
        assert_eq!(
            wrap("it was 3.3 s (60.0 %), or so", 11),
            ["it was", "3.3 s", "(60.0 %),", "or so"]
        );
    }
}
