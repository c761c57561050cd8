//! Lua's patterns with a budget.
//!
//! The stock matcher backtracks inside C, where no hook of the VM fires: six `a*` and two kilobytes of text keep it
//! busy for years. This one has the semantics of the [reference manual, 6.4.1](https://www.lua.org/manual/5.4/manual.html#6.4.1)
//! and checks a [`Budget`] as it goes, so that its caller can stop it.
//!
//! **Always holds.** For every pattern and text, [`STRIDE`] bounds the work between two checks of the budget, and
//! [`DEPTH_MAX`] the depth of recursion. The matcher allocates nothing. It reports a mistake in a pattern when it reaches
//! that part of the pattern, as stock Lua does; `tests/patterns.rs` compares the two.

use std::ops::ControlFlow;

use crate::meter::Stop;

/// Steps between two checks of the budget.
const STRIDE: usize = 1024;

/// The deepest nesting of alternatives. Stock Lua has the same limit.
const DEPTH_MAX: u32 = 200;

/// The most captures of a pattern. Stock Lua has the same limit.
const CAPTURES_MAX: usize = 32;

/// Stops a match that takes too long.
pub(crate) trait Budget {
    /// Fails if the match has to stop.
    fn check(&self) -> Result<(), Stop>;
}

/// Why the matcher stopped before the end of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PatternError {
    #[error("malformed pattern (ends with '%')")]
    EndsWithEscape,
    #[error("malformed pattern (missing ']')")]
    OpenSet,
    #[error("malformed pattern (missing arguments to '%b')")]
    BalanceArguments,
    #[error("missing '[' after '%f' in pattern")]
    FrontierSet,
    #[error("invalid pattern capture")]
    NothingToClose,
    #[error("invalid capture index %{0}")]
    CaptureIndex(usize),
    #[error("unfinished capture")]
    OpenCapture,
    #[error("too many captures; at most {CAPTURES_MAX} are allowed")]
    TooManyCaptures,
    #[error("pattern too complex")]
    TooDeep,
    #[error(transparent)]
    Stopped(#[from] Stop),
}

/// The capture of a pair of parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Captured<'a> {
    Text(&'a [u8]),
    /// The position of `()`, counted from one.
    Position(usize),
}

#[derive(Clone, Copy)]
enum Extent {
    Open,
    Position,
    Closed(usize),
}

#[derive(Clone, Copy)]
struct Capture {
    start: usize,
    extent: Extent,
}

/// Matches one pattern against one text.
pub(crate) struct Matcher<'a, B> {
    subject: &'a [u8],
    pattern: &'a [u8],
    captures: [Capture; CAPTURES_MAX],
    /// The number of `captures` in use.
    level: usize,
    depth: u32,
    steps: usize,
    budget: &'a B,
}

type Found = Result<Option<usize>, PatternError>;

type Repeated = ControlFlow<Option<usize>, (usize, usize)>;

impl<'a, B: Budget> Matcher<'a, B> {
    pub(crate) const fn new(subject: &'a [u8], pattern: &'a [u8], budget: &'a B) -> Self {
        let nothing = Capture {
            start: 0,
            extent: Extent::Open,
        };
        Self {
            subject,
            pattern,
            captures: [nothing; CAPTURES_MAX],
            level: 0,
            depth: 0,
            steps: 0,
            budget,
        }
    }

    /// Matches at this place and returns the end of the match.
    pub(crate) fn match_at(&mut self, start: usize) -> Found {
        self.level = 0;
        self.depth = 0;
        self.run(start, 0)
    }

    /// Returns the number of captures of the last match.
    pub(crate) const fn captured(&self) -> usize {
        self.level
    }

    /// Returns a capture of the last match, which is `start..end`. Without captures, the whole match is the first one.
    pub(crate) fn capture(
        &self,
        index: usize,
        start: usize,
        end: usize,
    ) -> Result<Captured<'a>, PatternError> {
        if index >= self.level {
            return if index == 0 {
                Ok(Captured::Text(&self.subject[start..end]))
            } else {
                Err(PatternError::CaptureIndex(index + 1))
            };
        }
        let Capture { start, extent } = self.captures[index];
        match extent {
            Extent::Open => Err(PatternError::OpenCapture),
            Extent::Position => Ok(Captured::Position(start + 1)),
            Extent::Closed(length) => Ok(Captured::Text(&self.subject[start..start + length])),
        }
    }

    /// Returns a piece of the text.
    pub(crate) fn text(&self, start: usize, end: usize) -> &'a [u8] {
        &self.subject[start..end]
    }

    /// Counts `steps` of work, and checks the budget once per [`STRIDE`].
    fn spend(&mut self, steps: usize) -> Result<(), PatternError> {
        self.steps += steps;
        if self.steps >= STRIDE {
            self.steps = 0;
            self.budget.check()?;
        }
        Ok(())
    }

    /// Matches the rest of the pattern from `at`, one level deeper.
    fn run(&mut self, place: usize, at: usize) -> Found {
        if self.depth == DEPTH_MAX {
            return Err(PatternError::TooDeep);
        }
        self.depth += 1;
        let found = self.items(place, at);
        self.depth -= 1;
        found
    }

    fn items(&mut self, mut place: usize, mut at: usize) -> Found {
        loop {
            self.spend(1)?;
            let Some(&item) = self.pattern.get(at) else {
                return Ok(Some(place));
            };
            match (item, self.pattern.get(at + 1)) {
                (b'(', Some(b')')) => return self.open(place, at + 2, Extent::Position),
                (b'(', _) => return self.open(place, at + 1, Extent::Open),
                (b')', _) => return self.close(place, at + 1),
                (b'$', None) => return Ok((place == self.subject.len()).then_some(place)),
                (b'%', Some(b'b')) => match self.balanced(place, at + 2)? {
                    Some(past) => {
                        place = past;
                        at += 4;
                    }
                    None => return Ok(None),
                },
                (b'%', Some(b'f')) => match self.frontier(place, at + 2)? {
                    Some(past_set) => at = past_set,
                    None => return Ok(None),
                },
                (b'%', Some(&digit @ b'0'..=b'9')) => match self.again(place, digit)? {
                    Some(past) => {
                        place = past;
                        at += 2;
                    }
                    None => return Ok(None),
                },
                _ => match self.repeated(place, at)? {
                    ControlFlow::Continue(next) => (place, at) = next,
                    ControlFlow::Break(found) => return Ok(found),
                },
            }
        }
    }

    /// Matches the character class at `at` with its repetition.
    ///
    /// Breaks with the end of the whole match, or continues with the next places in the text and in the pattern.
    fn repeated(&mut self, place: usize, at: usize) -> Result<Repeated, PatternError> {
        let past = self.past_class(at)?;
        match self.pattern.get(past) {
            Some(b'*') => return self.longest(place, at, past).map(ControlFlow::Break),
            Some(b'-') => return self.shortest(place, at, past).map(ControlFlow::Break),
            _ => {}
        }
        let is_here = self.is_single(place, at, past)?;
        match self.pattern.get(past) {
            Some(b'?') => {
                if is_here && let Some(end) = self.run(place + 1, past + 1)? {
                    return Ok(ControlFlow::Break(Some(end)));
                }
                Ok(ControlFlow::Continue((place, past + 1)))
            }
            _ if !is_here => Ok(ControlFlow::Break(None)),
            Some(b'+') => self.longest(place + 1, at, past).map(ControlFlow::Break),
            _ => Ok(ControlFlow::Continue((place + 1, past))),
        }
    }

    fn open(&mut self, place: usize, at: usize, extent: Extent) -> Found {
        if self.level == CAPTURES_MAX {
            return Err(PatternError::TooManyCaptures);
        }
        self.captures[self.level] = Capture {
            start: place,
            extent,
        };
        self.level += 1;
        let found = self.run(place, at)?;
        if found.is_none() {
            self.level -= 1;
        }
        Ok(found)
    }

    fn close(&mut self, place: usize, at: usize) -> Found {
        let begun = &self.captures[..self.level];
        let index = begun
            .iter()
            .rposition(|capture| matches!(capture.extent, Extent::Open))
            .ok_or(PatternError::NothingToClose)?;
        self.captures[index].extent = Extent::Closed(place - self.captures[index].start);
        let found = self.run(place, at)?;
        if found.is_none() {
            self.captures[index].extent = Extent::Open;
        }
        Ok(found)
    }

    /// Matches `%bxy`, whose two characters are at `at`.
    fn balanced(&mut self, place: usize, at: usize) -> Found {
        let (Some(&opening), Some(&closing)) = (self.pattern.get(at), self.pattern.get(at + 1))
        else {
            return Err(PatternError::BalanceArguments);
        };
        if self.subject.get(place) != Some(&opening) {
            return Ok(None);
        }
        let mut nested = 1_usize;
        for past in place + 1..self.subject.len() {
            self.spend(1)?;
            let byte = self.subject[past];
            if byte == closing {
                nested -= 1;
                if nested == 0 {
                    return Ok(Some(past + 1));
                }
            } else if byte == opening {
                nested += 1;
            }
        }
        Ok(None)
    }

    /// Matches `%f[set]`, whose set is at `at`; returns the end of the set.
    fn frontier(&mut self, place: usize, at: usize) -> Found {
        if self.pattern.get(at) != Some(&b'[') {
            return Err(PatternError::FrontierSet);
        }
        let past = self.past_class(at)?;
        let before = place.checked_sub(1).map_or(0, |left| self.subject[left]);
        let here = self.subject.get(place).copied().unwrap_or(0);
        let crossed = !self.is_in_set(before, at, past)? && self.is_in_set(here, at, past)?;
        Ok(crossed.then_some(past))
    }

    /// Matches `%1` to `%9`: the text of an earlier capture.
    fn again(&mut self, place: usize, digit: u8) -> Found {
        let index = usize::from(digit - b'0');
        let captured = match index.checked_sub(1) {
            Some(index) if index < self.level => self.captures[index],
            _ => return Err(PatternError::CaptureIndex(index)),
        };
        let length = match captured.extent {
            Extent::Open => return Err(PatternError::CaptureIndex(index)),
            Extent::Position => return Ok(None),
            Extent::Closed(length) => length,
        };
        self.spend(length / 16)?;
        let text = &self.subject[captured.start..captured.start + length];
        Ok(self.subject[place..]
            .starts_with(text)
            .then_some(place + length))
    }

    /// Repeats the class as often as it matches, and less often until the rest of the pattern matches.
    fn longest(&mut self, place: usize, at: usize, past: usize) -> Found {
        let mut end = place;
        while self.is_single(end, at, past)? {
            end += 1;
        }
        loop {
            if let Some(found) = self.run(end, past + 1)? {
                return Ok(Some(found));
            }
            if end == place {
                return Ok(None);
            }
            end -= 1;
        }
    }

    /// Repeats the class as seldom as the rest of the pattern allows.
    fn shortest(&mut self, mut place: usize, at: usize, past: usize) -> Found {
        loop {
            if let Some(found) = self.run(place, past + 1)? {
                return Ok(Some(found));
            }
            if !self.is_single(place, at, past)? {
                return Ok(None);
            }
            place += 1;
        }
    }

    /// Returns the end of the character class at `at`.
    fn past_class(&mut self, at: usize) -> Result<usize, PatternError> {
        match self.pattern[at] {
            b'%' if at + 1 == self.pattern.len() => Err(PatternError::EndsWithEscape),
            b'%' => Ok(at + 2),
            b'[' => {
                let mut next = at + 1;
                if self.pattern.get(next) == Some(&b'^') {
                    next += 1;
                }
                // The first character of a set is a member, even if it is a bracket.
                loop {
                    match self.pattern.get(next) {
                        None => return Err(PatternError::OpenSet),
                        Some(b'%') => next += 2,
                        Some(_) => next += 1,
                    }
                    self.spend(1)?;
                    if self.pattern.get(next) == Some(&b']') {
                        return Ok(next + 1);
                    }
                }
            }
            _ => Ok(at + 1),
        }
    }

    /// Returns whether the class in `at..past` contains the character at `place`.
    fn is_single(&mut self, place: usize, at: usize, past: usize) -> Result<bool, PatternError> {
        self.spend(1)?;
        let Some(&byte) = self.subject.get(place) else {
            return Ok(false);
        };
        match self.pattern[at] {
            b'.' => Ok(true),
            b'%' => Ok(is_of_class(byte, self.pattern[at + 1])),
            b'[' => self.is_in_set(byte, at, past),
            literal => Ok(literal == byte),
        }
    }

    /// Returns whether the set in `at..past`, brackets included, contains a byte.
    fn is_in_set(&mut self, byte: u8, at: usize, past: usize) -> Result<bool, PatternError> {
        self.spend((past - at) / 2)?;
        let negated = self.pattern[at + 1] == b'^';
        let mut rest = &self.pattern[at + 1 + usize::from(negated)..past - 1];
        let mut found = false;
        while !found {
            (found, rest) = match *rest {
                [] => break,
                [b'%', class, ref rest @ ..] => (is_of_class(byte, class), rest),
                [low, b'-', high, ref rest @ ..] => ((low..=high).contains(&byte), rest),
                [literal, ref rest @ ..] => (literal == byte, rest),
            };
        }
        Ok(found != negated)
    }
}

/// Returns whether the class `%x` contains a byte, in the C locale.
const fn is_of_class(byte: u8, class: u8) -> bool {
    let within = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => matches!(byte, b' ' | b'\t'..=b'\r'),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0, // the manual has dropped it, but Lua 5.4 still takes it
        _ => return class == byte,
    };
    within != class.is_ascii_uppercase()
}

/// Returns whether a pattern has no special characters, so that a search for plain text finds the same.
pub(crate) fn is_plain(pattern: &[u8]) -> bool {
    !pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

/// Returns the first place of a text at `from` or after.
pub(crate) fn find_plain(
    subject: &[u8],
    text: &[u8],
    from: usize,
    budget: &impl Budget,
) -> Result<Option<usize>, Stop> {
    let Some((&first, rest)) = text.split_first() else {
        return Ok(Some(from));
    };
    let mut steps = 0;
    let Some(last) = subject.len().checked_sub(text.len()) else {
        return Ok(None);
    };
    for place in from..=last {
        steps += 1;
        if subject[place] == first {
            let there = &subject[place + 1..place + text.len()];
            let alike = there.iter().zip(rest).take_while(|(a, b)| a == b).count();
            if alike == rest.len() {
                return Ok(Some(place));
            }
            steps += alike;
        }
        if steps >= STRIDE {
            steps = 0;
            budget.check()?;
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Checks {
        asked: Cell<usize>,
        allowed: usize,
    }

    impl Budget for Checks {
        fn check(&self) -> Result<(), Stop> {
            self.asked.set(self.asked.get() + 1);
            if self.asked.get() > self.allowed {
                return Err(Stop::Time);
            }
            Ok(())
        }
    }

    fn checks(allowed: usize) -> Checks {
        Checks {
            asked: Cell::new(0),
            allowed,
        }
    }

    #[test]
    fn backtracking_ends_with_the_budget() {
        let budget = checks(1_000);
        let subject = b"a".repeat(2_000);
        let pattern = [b"a*".repeat(6), b"b".to_vec()].concat();
        let mut matcher = Matcher::new(&subject, &pattern, &budget);
        assert_eq!(matcher.match_at(0), Err(PatternError::Stopped(Stop::Time)));
        assert_eq!(budget.asked.get(), 1_001);
    }

    #[test]
    fn a_long_set_is_paid_for() {
        let budget = checks(1_000);
        let subject = b"a".repeat(100_000);
        let pattern = [b"[".to_vec(), b"b".repeat(100_000), b"a]*c".to_vec()].concat();
        let mut matcher = Matcher::new(&subject, &pattern, &budget);
        assert_eq!(matcher.match_at(0), Err(PatternError::Stopped(Stop::Time)));
    }

    #[test]
    fn a_plain_search_is_paid_for() {
        let budget = checks(1_000);
        let subject = b"a".repeat(200_000);
        let text = [b"a".repeat(100_000), b"b".to_vec()].concat();
        let found = find_plain(&subject, &text, 0, &budget);
        assert_eq!(found, Err(Stop::Time));
    }

    #[test]
    fn captures_are_texts_and_positions() {
        let budget = checks(1);
        let mut matcher = Matcher::new(b"key = value", b"(%w+)%s*=%s*()(%w+)", &budget);
        let end = matcher.match_at(0).unwrap().unwrap();
        assert_eq!(matcher.captured(), 3);
        assert_eq!(matcher.capture(0, 0, end), Ok(Captured::Text(b"key")));
        assert_eq!(matcher.capture(1, 0, end), Ok(Captured::Position(7)));
        assert_eq!(matcher.capture(2, 0, end), Ok(Captured::Text(b"value")));
        let beyond = matcher.capture(3, 0, end);
        assert_eq!(beyond, Err(PatternError::CaptureIndex(4)));
    }
}
