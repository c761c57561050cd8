//! The trace context: the trace and the span that a call or a message belongs to.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::trace_state;

/// The header that names the trace and the span.
pub const TRACEPARENT: &str = "traceparent";

/// The header with the data of tracing systems.
pub const TRACESTATE: &str = "tracestate";

/// The length of a `traceparent` of version 00, and of the part of a later version that we understand.
const LENGTH: usize = 55;

/// The longest `traceparent` of a later version that we accept.
const LENGTH_MAX: usize = 512;

/// A position in a trace, as the headers of a call or a message carry it.
///
/// ```
/// use fila_server::telemetry::TraceContext;
///
/// let headers = [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")];
/// let context = TraceContext::from_headers(headers).unwrap();
/// assert!(context.is_sampled());
/// assert_eq!(TraceContext::from_headers([("traceparent", "certainly not")]), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext(SpanContext);

impl TraceContext {
    /// Reads a context from the values of its two headers; the second is empty if there is none.
    ///
    /// Returns `None` for a malformed `traceparent`. A malformed `tracestate` counts as absent.
    #[must_use]
    pub fn parse(traceparent: &str, tracestate: &str) -> Option<Self> {
        let (trace, span, flags) = parse_traceparent(traceparent)?;
        let state = trace_state::parse(tracestate);
        Some(Self(SpanContext::new(trace, span, flags, true, state)))
    }

    /// Finds a context among headers, whose names may be in any case.
    ///
    /// Returns `None` if there is no `traceparent`, more than one, or a malformed one.
    #[must_use]
    pub fn from_headers<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let mut traceparent = None;
        let mut tracestate: Option<String> = None;
        for (name, value) in headers {
            if name.eq_ignore_ascii_case(TRACEPARENT) {
                if traceparent.replace(value).is_some() {
                    return None;
                }
            } else if name.eq_ignore_ascii_case(TRACESTATE) {
                match &mut tracestate {
                    None => tracestate = Some(value.to_owned()),
                    Some(list) => list.extend([",", value]),
                }
            }
        }
        Self::parse(traceparent?, tracestate.as_deref().unwrap_or_default())
    }

    /// Returns the context of the current span; `None` if there is no span or spans are not exported.
    #[must_use]
    pub fn current() -> Option<Self> {
        Self::of(&Span::current())
    }

    /// Returns the context of a span; `None` if spans are not exported. Fixes the span's parent.
    #[must_use]
    pub fn of(span: &Span) -> Option<Self> {
        let context = span.context().span().span_context().clone();
        context.is_valid().then_some(Self(context))
    }

    /// Makes a span part of this trace. Has no effect if spans are not exported, or if the span is part of a trace.
    pub fn set_parent_of(&self, span: &Span) {
        let parent = Context::new().with_remote_span_context(self.0.clone());
        // It fails only for a span that is not exported.
        drop(span.set_parent(parent));
    }

    /// Returns whether the caller records the trace.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.0.is_sampled()
    }

    /// Returns the value of `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> String {
        let (trace, span) = (self.0.trace_id(), self.0.span_id());
        // Version 00 has no other flag.
        format!("00-{trace}-{span}-{:02x}", u8::from(self.is_sampled()))
    }

    /// Returns the value of `tracestate`; `None` if it is empty.
    #[must_use]
    pub fn tracestate(&self) -> Option<String> {
        let list = self.0.trace_state().header();
        (!list.is_empty()).then_some(list)
    }

    /// Returns the headers of the context, to replace those of the caller.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let state = self.tracestate().map(|list| (TRACESTATE, list));
        std::iter::once((TRACEPARENT, self.traceparent())).chain(state)
    }
}

/// Reads `version-trace-parent-flags`, each in lower-case hexadecimal digits.
fn parse_traceparent(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let (known, rest) = text.split_at_checked(LENGTH)?;
    let mut fields = known.split('-');
    let version = hex::<1>(fields.next()?)?;
    let trace = TraceId::from_bytes(hex(fields.next()?)?);
    let span = SpanId::from_bytes(hex(fields.next()?)?);
    let [flags] = hex(fields.next()?)?;
    let is_version = match version {
        [0x00] => rest.is_empty(),
        [0xff] => false,
        // A later version may have more fields.
        _ => rest.is_empty() || rest.starts_with('-') && text.len() <= LENGTH_MAX,
    };
    let is_valid = is_version
        && fields.next().is_none()
        && trace != TraceId::INVALID
        && span != SpanId::INVALID;
    is_valid.then(|| (trace, span, TraceFlags::new(flags) & TraceFlags::SAMPLED))
}

/// Reads exactly `N` bytes in lower-case hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRACE: &str = "12345678901234567890123456789012";
    const SPAN: &str = "1234567890123456";

    fn parse(traceparent: &str) -> Option<String> {
        Some(TraceContext::parse(traceparent, "")?.traceparent())
    }

    #[test]
    fn well_formed_contexts_are_carried_on() {
        let cases = [
            (format!("00-{TRACE}-{SPAN}-01"), "01"),
            (format!("00-{TRACE}-{SPAN}-00"), "00"),
            (format!("00-{TRACE}-{SPAN}-ff"), "01"),
            (format!("00-{TRACE}-{SPAN}-fe"), "00"),
            (format!("cc-{TRACE}-{SPAN}-01"), "01"),
            (format!("cc-{TRACE}-{SPAN}-01-"), "01"),
            (
                format!("cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like"),
                "01",
            ),
        ];
        for (text, flags) in cases {
            assert_eq!(
                parse(&text),
                Some(format!("00-{TRACE}-{SPAN}-{flags}")),
                "{text}"
            );
        }
    }

    #[test]
    fn malformed_contexts_are_ignored() {
        let zeros = "0".repeat(32);
        let texts = [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-001"),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-what-the-future-will-be-like"),
            format!("00-{TRACE}-{SPAN}-01.what"),
            format!("cc-{TRACE}-{SPAN}-01.what-the-future-will-be-like"),
            format!("cc-{TRACE}-{SPAN}-01-{}", "x".repeat(512)),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("000-{TRACE}-{SPAN}-01"),
            format!(".0-{TRACE}-{SPAN}-01"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-.{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}1-{}-01", &SPAN[1..]),
            format!("00-{TRACE}-.{}-01", &SPAN[1..]),
            format!("00-{}-{SPAN}-01", "ABCDEFABCDEFABCDEFABCDEFABCDEFAB"),
            format!("00-{TRACE}-ABCDEFABCDEFABCD-01"),
            format!("CC-{TRACE}-{SPAN}-01"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01 "),
            format!("00_{TRACE}_{SPAN}_01"),
            "ü".repeat(28),
        ];
        for text in texts {
            assert_eq!(parse(&text), None, "{text}");
        }
    }

    #[test]
    fn headers_are_found_by_name_in_any_case_and_once() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let found = TraceContext::from_headers([
            ("tenant", "acme"),
            ("TraceParent", &parent),
            ("tracestate", "foo=1"),
            ("TRACESTATE", "bar=2"),
        ]);
        let headers: Vec<_> = found.unwrap().headers().collect();
        assert_eq!(
            headers,
            [
                (TRACEPARENT, parent.clone()),
                (TRACESTATE, "foo=1,bar=2".to_owned())
            ]
        );

        let parent = parent.as_str();
        assert_eq!(TraceContext::from_headers([("tracestate", "foo=1")]), None);
        assert_eq!(
            TraceContext::from_headers([(TRACEPARENT, parent), (TRACEPARENT, parent)]),
            None
        );
    }

    #[test]
    fn a_malformed_state_leaves_the_parent_alone() {
        let context = TraceContext::parse(&format!("00-{TRACE}-{SPAN}-01"), "foo").unwrap();
        assert_eq!(context.tracestate(), None);
        assert_eq!(context.headers().count(), 1);
    }

    #[test]
    fn without_an_export_there_is_no_current_context_and_setting_a_parent_is_harmless() {
        let span = tracing::info_span!("step");
        TraceContext::parse(&format!("00-{TRACE}-{SPAN}-01"), "")
            .unwrap()
            .set_parent_of(&span);
        assert_eq!(TraceContext::of(&span), None);
        assert_eq!(TraceContext::current(), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(parent in ".{0,80}", state in ".{0,600}") {
            let _ = TraceContext::parse(&parent, &state);
        }

        #[test]
        fn what_looks_like_a_context_is_carried_on_as_it_came_or_ignored(
            parent in "(00|01|ff|0[0-9a-gA-F])-[0-9a-f]{31,33}-[0-9a-f]{15,17}-0[01](-.{0,4})?",
            state in "([a-z@]{1,5}=[ -~é]{0,9},?){0,5}",
        ) {
            if let Some(context) = TraceContext::parse(&parent, &state) {
                prop_assert_eq!(&context.traceparent()[2..], &parent[2..LENGTH]);
                let carried = context.tracestate().unwrap_or_default();
                let again = TraceContext::parse(&context.traceparent(), &carried);
                prop_assert_eq!(again, Some(context));
            }
        }
    }
}
