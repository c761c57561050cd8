//! Text in less room than it needs.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Returns a name in at most `width` columns. Its middle is left out: names of one kind begin alike and differ at the
/// end, as `customer-000001` and `customer-000002`.
pub(crate) fn shorten(name: &str, width: usize) -> String {
    if name.width() <= width {
        return name.to_owned();
    }
    let room = width.saturating_sub(1);
    let begin = prefix(name, room / 2);
    let rest = room - begin.width();
    // Letters from the end, as many as fit.
    let mut end = name.len();
    let mut taken = 0;
    for (at, letter) in name.char_indices().rev() {
        taken += letter.width().unwrap_or(0);
        if taken > rest || at < begin.len() {
            break;
        }
        end = at;
    }
    match width {
        0 => String::new(),
        _ => format!("{begin}…{}", &name[end..]),
    }
}

/// Returns the beginning of a text in at most `width` columns.
pub(crate) fn cut(text: &str, width: usize) -> String {
    match width {
        _ if text.width() <= width => text.to_owned(),
        0 => String::new(),
        _ => format!("{}…", prefix(text, width - 1)),
    }
}

fn prefix(text: &str, width: usize) -> &str {
    let mut taken = 0;
    let end = text.char_indices().find(|(_, letter)| {
        taken += letter.width().unwrap_or(0);
        taken > width
    });
    &text[..end.map_or(text.len(), |(at, _)| at)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_beginning_and_its_end() {
        assert_eq!(shorten("customer-000001", 15), "customer-000001");
        assert_eq!(shorten("customer-000001", 10), "cust…00001");
        assert_eq!(shorten("customer-000002", 10), "cust…00002");
        assert_eq!(shorten("customer", 1), "…");
        assert_eq!(shorten("customer", 0), "");
    }

    #[test]
    fn a_wide_letter_takes_two_columns() {
        let name = "大きな顧客の名前-000001";
        for width in 0..30 {
            let short = shorten(name, width);
            assert!(short.width() <= width, "{short} in {width}");
            assert!(cut(name, width).width() <= width);
        }
        assert_eq!(shorten(name, 12), "大き…-000001");
        assert_eq!(cut(name, 8), "大きな…");
    }
}
