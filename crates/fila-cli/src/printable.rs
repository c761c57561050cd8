//! Foreign text on a terminal.
//!
//! Names, keys, payloads and errors come from other programs. A terminal acts on some of their characters: it moves the
//! cursor, clears the screen, changes its title or the order of letters. [`crate`]'s users print such characters escaped,
//! as `\\u{1b}`; everything that the command prints passes through here.

/// Returns text as one line that a terminal only shows.
pub fn printable(text: &str) -> String {
    escaped(text, |_| false)
}

/// As [`printable`], with its line ends and tabs.
pub fn printable_lines(text: &str) -> String {
    escaped(text, |character| matches!(character, '\n' | '\t'))
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        if is_obeyed(character) && !is_kept(character) {
            printable.extend(character.escape_default());
        } else {
            printable.push(character);
        }
    }
    printable
}

/// Returns JSON without such characters: in its strings they are escapes, which mean the same.
pub fn printable_json(json: String) -> String {
    if !json.chars().any(is_obeyed) {
        return json;
    }
    let mut printable = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        match u32::from(character) {
            // All of them have four digits at most.
            code if is_obeyed(character) => printable += &format!("\\u{code:04x}"),
            _ => printable.push(character),
        }
    }
    printable
}

/// Returns whether a terminal acts on a character instead of showing it: controls, and marks of direction and of lines.
fn is_obeyed(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_cannot_move_the_cursor() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(printable("größe 大"), "größe 大");
        assert_eq!(printable("\u{9b}2J\u{7f}"), "\\u{9b}2J\\u{7f}");
    }

    #[test]
    fn a_key_cannot_turn_the_letters_around() {
        assert_eq!(printable("\u{202e}exe.txt"), "\\u{202e}exe.txt");
        assert_eq!(printable("\u{2067}a\u{2069}"), "\\u{2067}a\\u{2069}");
    }

    #[test]
    fn lines_stay_lines_and_what_is_printable_stays_so() {
        let text = printable_lines("one\n\ttwo\r\x1b[A");
        assert_eq!(text, "one\n\ttwo\\r\\u{1b}[A");
        assert_eq!(printable_lines(&text), text);
    }

    #[test]
    fn json_means_the_same() {
        let value = "a\u{9b}2J\u{7f}\u{202e}\x1b\n größe 大 😀";
        let json = printable_json(serde_json::to_string(value).unwrap());
        assert!(!json.chars().any(is_obeyed), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), value);
    }
}
