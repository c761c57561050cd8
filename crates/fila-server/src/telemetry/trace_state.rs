//! The header `tracestate`: a list of `key=value`, one for each tracing system.

use opentelemetry::trace::TraceState;

/// The longest list that we pass on. W3C requires at least this much.
const LENGTH_MAX: usize = 512;

/// The most members of a list, by W3C.
const MEMBERS_MAX: usize = 32;

/// Parses a list. Returns the empty list if it is malformed, too long, or has too many members.
pub(super) fn parse(text: &str) -> TraceState {
    members(text)
        .and_then(|members| TraceState::from_key_value(members).ok())
        .unwrap_or_default()
}

fn members(text: &str) -> Option<Vec<(&str, &str)>> {
    if text.len() > LENGTH_MAX {
        return None;
    }
    let mut members: Vec<(&str, &str)> = Vec::new();
    for member in text
        .split(',')
        .map(|member| member.trim_matches([' ', '\t']))
    {
        if member.is_empty() {
            continue; // W3C allows it.
        }
        let (key, value) = member.split_once('=')?;
        let is_new = members.iter().all(|(other, _)| *other != key);
        if !is_new || !is_key(key) || !is_value(value) || members.len() == MEMBERS_MAX {
            return None;
        }
        members.push((key, value));
    }
    Some(members)
}

/// Returns whether a text is `name` or `tenant@system`.
fn is_key(key: &str) -> bool {
    let is_rest = |text: &str, max: usize| {
        let is_fit = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/".contains(&byte)
        };
        text.len() <= max && text.bytes().all(is_fit)
    };
    let starts_with_letter = |text: &str| text.starts_with(|c: char| c.is_ascii_lowercase());
    match key.split_once('@') {
        None => starts_with_letter(key) && is_rest(key, 256),
        Some((tenant, system)) => {
            let is_tenant =
                tenant.starts_with(|c: char| c.is_ascii_digit()) || starts_with_letter(tenant);
            is_tenant && is_rest(tenant, 241) && starts_with_letter(system) && is_rest(system, 14)
        }
    }
}

/// Returns whether a text is printable, without separators, and without a space at its end.
fn is_value(value: &str) -> bool {
    let is_fit = |byte: u8| matches!(byte, b' '..=b'~') && byte != b',' && byte != b'=';
    (1..=256).contains(&value.len()) && value.bytes().all(is_fit) && !value.ends_with(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_carried_on_in_their_order() {
        let long = format!("a={}", "x".repeat(256));
        let full: Vec<String> = (0..32).map(|n| format!("k{n}={n}")).collect();
        let full = full.join(",");
        let cases = [
            ("", ""),
            ("foo=1", "foo=1"),
            ("foo=1,bar=2", "foo=1,bar=2"),
            ("foo=1 \t , \t bar=2,,", "foo=1,bar=2"),
            ("foo@bar=1,0a@b=2", "foo@bar=1,0a@b=2"),
            ("a_-*/9= in the middle!", "a_-*/9= in the middle!"),
            (&long, &long),
            (&full, &full),
        ];
        for (text, carried) in cases {
            assert_eq!(parse(text).header(), carried, "{text}");
        }
    }

    #[test]
    fn a_malformed_list_is_dropped_as_a_whole() {
        let crowd: Vec<String> = (0..33).map(|n| format!("k{n}={n}")).collect();
        let texts = [
            "foo",
            "foo=",
            "=1",
            "foo=1,bar",
            "foo=1,foo=2",
            "foo =1",
            "FOO=1",
            "foo.bar=1",
            "1a=1",
            "foo@=1",
            "@foo=1",
            "foo@@bar=1",
            "foo@bar@baz=1",
            "foo@0bar=1",
            "foo=bar=baz",
            "foo=ü",
            "foo=a\tb",
            &format!("{}=1", "a".repeat(257)),
            &format!("{}@b=1", "a".repeat(242)),
            &format!("a@{}=1", "b".repeat(15)),
            &format!("a={}", "x".repeat(257)),
            &format!("a={},b={}", "x".repeat(254), "x".repeat(254)),
            &crowd.join(","),
        ];
        for text in texts {
            assert_eq!(parse(text).header(), "", "{text}");
        }
    }
}
