//! W3C trace context: taken from a call, carried in the headers of its messages.

use tonic::metadata::MetadataMap;

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// The longest trace state that is carried; the standard asks for at least 512.
const STATE_MAX: usize = 512;

/// The trace context of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TraceContext {
    parent: Option<String>,
    state: Option<String>,
}

impl TraceContext {
    /// Reads it from a call's metadata. What does not look like one is left alone.
    pub(super) fn of(metadata: &MetadataMap) -> Self {
        let text = |name| metadata.get(name).and_then(|value| value.to_str().ok());
        let Some(parent) = text(PARENT).filter(|parent| is_parent(parent)) else {
            return Self::default();
        };
        let state = text(STATE).filter(|state| !state.is_empty() && state.len() <= STATE_MAX);
        Self {
            parent: Some(parent.to_owned()),
            state: state.map(ToOwned::to_owned),
        }
    }

    /// Adds it to a message's headers, unless these have one.
    pub(super) fn add_to(&self, headers: &mut Vec<(String, String)>) {
        let Some(parent) = &self.parent else {
            return;
        };
        if headers.iter().any(|(name, _)| name == PARENT) {
            return;
        }
        headers.push((PARENT.to_owned(), parent.clone()));
        if let Some(state) = &self.state {
            headers.retain(|(name, _)| name != STATE);
            headers.push((STATE.to_owned(), state.clone()));
        }
    }
}

/// `00-<32 digits>-<16 digits>-<2 digits>`, in hexadecimal; later versions may add to the end.
fn is_parent(text: &str) -> bool {
    let mut parts = text.split('-');
    let mut hex = |digits: usize| {
        parts.next().is_some_and(|part| {
            let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            part.len() == digits && part.bytes().all(digit)
        })
    };
    text.len() <= STATE_MAX && hex(2) && hex(32) && hex(16) && hex(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT_TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn context(parent: &str) -> TraceContext {
        let mut metadata = MetadataMap::new();
        metadata.insert(PARENT, parent.parse().unwrap());
        metadata.insert(STATE, "vendor=1".parse().unwrap());
        TraceContext::of(&metadata)
    }

    #[test]
    fn a_call_hands_its_trace_to_messages_that_have_none() {
        let mut headers = vec![("a".to_owned(), "b".to_owned())];
        context(PARENT_TEXT).add_to(&mut headers);
        assert_eq!(headers[1], (PARENT.to_owned(), PARENT_TEXT.to_owned()));
        assert_eq!(headers[2], (STATE.to_owned(), "vendor=1".to_owned()));

        let mut own = vec![(PARENT.to_owned(), "own".to_owned())];
        context(PARENT_TEXT).add_to(&mut own);
        assert_eq!(own, [(PARENT.to_owned(), "own".to_owned())]);
    }

    #[test]
    fn what_is_no_trace_is_not_carried() {
        for odd in [
            "",
            "00",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(context(odd), TraceContext::default(), "{odd:?}");
        }
    }
}
