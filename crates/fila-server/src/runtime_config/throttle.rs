//! The throttles of the runtime configuration.
//!
//! `throttle:<key>:rate` is the number of tokens per second, `throttle:<key>:burst` the most tokens at a time. The setting
//! follows the last colon. The throttle key is between the first colon and the last, and may contain colons itself:
//! `throttle:api:eu:rate` belongs to the key `api:eu`.
//!
//! - A rate without a burst: the burst is the tokens of one second, and at least 1. With less, a fast throttle would lose
//!   tokens when the broker is a moment late.
//! - A burst without a rate: no throttle. Operators can make the two settings in any order, and a bucket without a rate
//!   would hold its messages forever.
//! - A rate of 0: nothing passes, for any burst. Operators stop a throttle key that way.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::InvalidEntry;

/// The start of the keys of throttles.
pub(super) const PREFIX: &str = "throttle:";

/// The least likeness of a suggestion, between 0 and 1.
const LIKENESS_MIN: f64 = 0.7;

/// Tokens per second: finite, and not negative.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(f64);

impl Rate {
    const ALLOWED: &str = "a finite number of at least 0, in messages per second, as `10` or `0.5`";

    /// Returns the rate; `None` if the number is negative or not finite.
    pub fn new(per_second: f64) -> Option<Self> {
        let is_rate = per_second.is_finite() && per_second >= 0.0;
        // Negative zero becomes zero.
        is_rate.then_some(Self(per_second.abs()))
    }

    /// Returns the tokens per second.
    pub fn per_second(self) -> f64 {
        self.0
    }
}

/// The most tokens at a time: finite, and at least the one that a message takes.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Burst(f64);

impl Burst {
    const ALLOWED: &str = "a finite number of at least 1, in messages, as `20`";

    /// Returns the burst; `None` if the number is below 1 or not finite.
    pub fn new(tokens: f64) -> Option<Self> {
        (tokens.is_finite() && tokens >= 1.0).then_some(Self(tokens))
    }

    /// Returns the tokens.
    pub fn tokens(self) -> f64 {
        self.0
    }

    /// Returns the burst of a throttle with a rate alone: the tokens of one second.
    fn of_rate(rate: Rate) -> Self {
        Self(rate.0.max(1.0))
    }
}

/// How fast the broker may deliver messages of one throttle key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThrottleSetting {
    /// Tokens per second.
    pub rate: Rate,
    /// The most tokens at a time.
    pub burst: Burst,
}

impl ThrottleSetting {
    /// Returns whether nothing passes: the rate is 0.
    pub fn is_closed(self) -> bool {
        self.rate.0 == 0.0
    }
}

/// All throttles at one moment, by their keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Throttles(BTreeMap<Arc<str>, ThrottleSetting>);

impl Throttles {
    /// Reads the throttles from entries whose keys begin with [`PREFIX`]. Ignores invalid settings.
    pub(super) fn read<'a>(
        keys: impl Iterator<Item = &'a str>,
        value_of: impl Fn(&str) -> Option<&'a str>,
    ) -> Self {
        let throttles = keys.filter_map(throttle_of);
        let read = throttles.filter_map(|throttle| {
            let setting = setting_of(throttle, &value_of)?;
            Some((throttle.into(), setting))
        });
        Self(read.collect())
    }

    /// Returns the throttles after a change of this entry.
    pub(super) fn after_change_of<'a>(
        &self,
        key: &str,
        value_of: impl Fn(&str) -> Option<&'a str>,
    ) -> Self {
        let mut next = self.clone();
        if let Some(throttle) = throttle_of(key) {
            match setting_of(throttle, value_of) {
                Some(setting) => next.0.insert(throttle.into(), setting),
                None => next.0.remove(throttle),
            };
        }
        next
    }

    /// Returns the setting of a throttle key; `None` if it is not throttled.
    pub fn get(&self, key: &str) -> Option<ThrottleSetting> {
        self.0.get(key).copied()
    }

    /// Returns all throttles, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, ThrottleSetting)> {
        self.0.iter().map(|(key, setting)| (key, *setting))
    }

    /// Returns the number of throttles.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no throttles.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns the throttle key of an entry.
fn throttle_of(key: &str) -> Option<&str> {
    let (throttle, _) = key.strip_prefix(PREFIX)?.rsplit_once(':')?;
    (!throttle.is_empty()).then_some(throttle)
}

/// Returns the setting of a throttle from the values of its entries.
fn setting_of<'a>(
    throttle: &str,
    value_of: impl Fn(&str) -> Option<&'a str>,
) -> Option<ThrottleSetting> {
    let number = |field| {
        value_of(&format!("{PREFIX}{throttle}:{field}"))?
            .parse()
            .ok()
    };
    let rate = number("rate").and_then(Rate::new)?;
    let burst = number("burst").and_then(Burst::new);
    let burst = burst.unwrap_or_else(|| Burst::of_rate(rate));
    Some(ThrottleSetting { rate, burst })
}

/// Checks an entry if it is a setting of a throttle.
pub(super) fn check(key: &str, value: &str) -> Result<(), InvalidEntry> {
    let Some(rest) = key.strip_prefix(PREFIX) else {
        return Ok(());
    };
    let Some((throttle, field)) = rest.rsplit_once(':').filter(|(_, field)| !field.is_empty())
    else {
        return Err(InvalidEntry::NoField(key.to_owned()));
    };
    if throttle.is_empty() {
        return Err(InvalidEntry::NoThrottleKey(key.to_owned()));
    }
    let number = value.parse().ok();
    let (is_allowed, allowed) = match field {
        "rate" => (number.and_then(Rate::new).is_some(), Rate::ALLOWED),
        "burst" => (number.and_then(Burst::new).is_some(), Burst::ALLOWED),
        _ => {
            return Err(InvalidEntry::UnknownField {
                field: field.to_owned(),
                suggestion: meant(field).map(|meant| format!("{PREFIX}{throttle}:{meant}")),
            });
        }
    };
    if is_allowed {
        Ok(())
    } else {
        Err(InvalidEntry::value(key, allowed, value))
    }
}

/// Returns the setting that a misspelt one is most like.
fn meant(field: &str) -> Option<&'static str> {
    let field = field.to_lowercase();
    let alike = ["rate", "burst"].map(|name| (strsim::jaro_winkler(&field, name), name));
    let alike = alike
        .into_iter()
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN);
    let best = alike.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn throttles(entries: &[(&str, &str)]) -> Throttles {
        let values: BTreeMap<&str, &str> = entries.iter().copied().collect();
        Throttles::read(values.keys().copied(), |key| values.get(key).copied())
    }

    fn pair(setting: Option<ThrottleSetting>) -> Option<(f64, f64)> {
        setting.map(|setting| (setting.rate.per_second(), setting.burst.tokens()))
    }

    #[test]
    fn a_throttle_has_a_rate_and_a_burst() {
        let entries = [
            ("throttle:api:burst", "20"),
            ("throttle:api:rate", "10"),
            ("feature:new_flow", "enabled"),
        ];
        let throttles = throttles(&entries);
        assert_eq!(pair(throttles.get("api")), Some((10.0, 20.0)));
        assert_eq!(throttles.get("other"), None);
        assert_eq!(throttles.iter().count(), 1);
    }

    #[test]
    fn a_rate_alone_has_the_burst_of_a_second_and_a_burst_alone_throttles_nothing() {
        let entries = [
            ("throttle:fast:rate", "250"),
            ("throttle:slow:rate", "0.1"),
            ("throttle:none:burst", "5"),
        ];
        let throttles = throttles(&entries);
        assert_eq!(pair(throttles.get("fast")), Some((250.0, 250.0)));
        assert_eq!(pair(throttles.get("slow")), Some((0.1, 1.0)));
        assert_eq!(throttles.get("none"), None);
    }

    #[test]
    fn a_rate_of_zero_closes() {
        let throttles = throttles(&[("throttle:a:rate", "-0"), ("throttle:b:rate", "0.01")]);
        let closed = throttles.get("a").unwrap();
        assert!(closed.is_closed() && closed.rate.per_second().is_sign_positive());
        assert!(!throttles.get("b").unwrap().is_closed());
    }

    #[test]
    fn a_throttle_key_may_have_colons() {
        let throttles = throttles(&[
            ("throttle:api:eu:rate", "1"),
            ("throttle:rate:rate", "2"),
            ("throttle:::rate", "3"),
        ]);
        assert_eq!(pair(throttles.get("api:eu")), Some((1.0, 1.0)));
        assert_eq!(pair(throttles.get("rate")), Some((2.0, 2.0)));
        assert_eq!(pair(throttles.get(":")), Some((3.0, 3.0)));
    }

    #[test]
    fn numbers_are_taken_as_people_write_them() {
        for value in ["0", "10", "0.5", ".5", "1e3", "+7", "1e-300", "1.7e308"] {
            assert_eq!(check("throttle:a:rate", value), Ok(()), "{value}");
        }
        for value in ["1", "1.0", "1.5", "1e300"] {
            assert_eq!(check("throttle:a:burst", value), Ok(()), "{value}");
        }
    }

    #[test]
    fn what_is_no_rate_and_no_burst_is_refused_with_what_is_allowed() {
        for value in [
            "", " ", "ten", "-1", "-0.1", "inf", "-inf", "NaN", "1e400", "10 ", "1,000", "10/s",
            "0x10", "1_000",
        ] {
            for field in ["rate", "burst"] {
                let key = format!("throttle:a:{field}");
                let text = check(&key, value).unwrap_err().to_string();
                assert!(text.contains("a finite number of at least"), "{text}");
                assert!(text.ends_with(&format!("got `{value}`")), "{text}");
            }
        }
        for value in ["0", "0.99", "-0"] {
            assert_eq!(
                check("throttle:a:burst", value).unwrap_err().to_string(),
                format!(
                    "`throttle:a:burst` takes a finite number of at least 1, in messages, as `20`; got `{value}`"
                )
            );
        }
    }

    #[test]
    fn what_throttles_do_not_have_is_refused_with_what_may_be_meant() {
        let said = |key| check(key, "10").unwrap_err().to_string();
        for (key, meant) in [
            ("throttle:x:rat", "throttle:x:rate"),
            ("throttle:a:b:Rate", "throttle:a:b:rate"),
            ("throttle:x:brust", "throttle:x:burst"),
        ] {
            assert!(
                said(key).ends_with(&format!("did you mean `{meant}`?")),
                "{key}"
            );
        }
        assert_eq!(
            said("throttle:x:window"),
            "`window` is no setting of a throttle; choose `rate` or `burst`"
        );
        for key in ["throttle:", "throttle:api", "throttle:api:"] {
            assert!(said(key).contains("names no setting"), "{key}");
        }
        assert!(said("throttle::rate").contains("names no throttle key"));
    }

    proptest! {
        #[test]
        fn what_is_taken_is_within_bounds_and_what_is_not_is_without_effect(
            key in "throttle:[a-z:]{0,8}:(rate|burst|rat)?",
            value in r"[-+]?[0-9.eE]{1,6}|inf|nan|.{0,4}",
        ) {
            let read = throttles(&[("throttle:other!:rate", "1"), (&key, &value)]);
            match check(&key, &value) {
                Ok(()) => for (_, setting) in read.iter() {
                    let (rate, burst) = pair(Some(setting)).unwrap();
                    prop_assert!(rate.is_finite() && rate >= 0.0);
                    prop_assert!(burst.is_finite() && burst >= 1.0);
                },
                Err(_) => prop_assert_eq!(read.len(), 1),
            }
        }
    }

    #[test]
    fn what_was_stored_and_is_not_allowed_has_no_effect() {
        let throttles = throttles(&[("throttle:a:rate", "many"), ("throttle:b", "1")]);
        assert!(throttles.is_empty());
    }
}
