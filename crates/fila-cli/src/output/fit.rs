//! Text in less room than it needs.

use std::collections::HashSet;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The part of a name that is left out where room is scarce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeftOut {
    /// Names of one kind begin alike and often differ at the end, as `customer-000001` and `customer-000002`.
    #[default]
    Middle,
    End,
    Beginning,
}

impl LeftOut {
    /// Chooses the part without which most of these names can still be told apart.
    pub(crate) fn of<'a>(names: &(impl Iterator<Item = &'a str> + Clone), width: usize) -> Self {
        let apart = |left_out: Self| {
            let short = names.clone().map(|name| left_out.shorten(name, width));
            short.collect::<HashSet<String>>().len()
        };
        let mut best = Self::Middle;
        for other in [Self::End, Self::Beginning] {
            if apart(other) > apart(best) {
                best = other;
            }
        }
        best
    }

    /// Returns a name in at most `width` columns.
    pub(crate) fn shorten(self, name: &str, width: usize) -> String {
        if name.width() <= width {
            return name.to_owned();
        }
        let Some(room) = width.checked_sub(1) else {
            return String::new();
        };
        let begin = match self {
            Self::Middle => prefix(name, room / 2),
            Self::End => prefix(name, room),
            Self::Beginning => "",
        };
        let end = match self {
            Self::Middle | Self::Beginning => suffix(name, room - begin.width()),
            Self::End => "",
        };
        format!("{begin}…{end}")
    }
}

/// Returns the beginning of a text in at most `width` columns.
pub(crate) fn cut(text: &str, width: usize) -> String {
    LeftOut::End.shorten(text, width)
}

fn suffix(text: &str, width: usize) -> &str {
    let mut taken = 0;
    let letters = text.char_indices().rev().take_while(|(_, letter)| {
        taken += letter.width().unwrap_or(0);
        taken <= width
    });
    &text[letters.last().map_or(text.len(), |(at, _)| at)..]
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
        let shorten = |name, width| LeftOut::Middle.shorten(name, width);
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
            for left_out in [LeftOut::Middle, LeftOut::End, LeftOut::Beginning] {
                let short = left_out.shorten(name, width);
                assert!(short.width() <= width, "{short} in {width}");
            }
        }
        assert_eq!(LeftOut::Middle.shorten(name, 12), "大き…-000001");
        assert_eq!(cut(name, 8), "大きな…");
    }

    #[test]
    fn names_lose_the_part_that_tells_nothing() {
        let of = |names: [&str; 2]| LeftOut::of(&names.into_iter(), 12);
        assert_eq!(of(["customer-000001", "customer-000002"]), LeftOut::Middle);
        assert_eq!(
            of(["tenant-1-of-a-reseller", "tenant-2-of-a-reseller"]),
            LeftOut::End
        );
        assert_eq!(
            of(["tenants/of/x/eu-1-westend", "tenants/of/x/eu-2-westend"]),
            LeftOut::Beginning
        );
        assert_eq!(of(["short", "other"]), LeftOut::Middle);
    }
}
