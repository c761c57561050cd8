//! Page tokens: the end of a page, in hexadecimal digits. A token stays valid while entries come and go.

use std::fmt::Write;

use super::refusal::Refusal;

/// Returns the token of a page that ended with this entry.
pub(super) fn encode(last: &[u8]) -> String {
    let mut token = String::with_capacity(2 * last.len());
    for byte in last {
        let _ = write!(token, "{byte:02x}");
    }
    token
}

/// Returns the entry of a token. Returns `None` if it is no token.
pub(super) fn decode(token: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = token.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    let pairs = digits.chunks_exact(2);
    Some(pairs.map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

/// Returns the name of a token's entry; empty if there is no token.
pub(super) fn name(token: &str) -> Result<String, Refusal> {
    let name = decode(token).and_then(|name| String::from_utf8(name).ok());
    name.ok_or_else(invalid)
}

/// Returns the refusal of a text that is no token.
pub(super) fn invalid() -> Refusal {
    Refusal::invalid("page_token is none; give it as the last page did")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_text_that_is_no_token_is_refused() {
        for text in ["orders", "0", "00f", "+0", "0x", " 00", "ff", "öö"] {
            assert_eq!(name(text), Err(invalid()), "{text:?}");
        }
        assert_eq!(name(""), Ok(String::new()));
    }

    proptest! {
        #[test]
        fn a_token_names_its_entry(last: Vec<u8>, entry: String) {
            prop_assert_eq!(decode(&encode(&last)), Some(last));
            prop_assert_eq!(name(&encode(entry.as_bytes())), Ok(entry));
        }

        #[test]
        fn no_text_is_too_odd_to_be_refused(text: String) {
            let _ = name(&text);
        }
    }
}
