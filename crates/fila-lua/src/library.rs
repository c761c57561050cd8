//! The part of the library that is written in Rust: the functions that work on long texts or read settings.
//!
//! **Always holds.** Each function checks the [`Meter`] at least once per [`STRIDE`] of its work, and builds no text that
//! is longer than the script's memory. `library.lua` has the rest, and chooses the functions that a script sees.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Error, Integer, Lua, LuaString, MultiValue, Result, Table, Value};

use crate::Settings;
use crate::fault;
use crate::meter::{Meter, Stop};
use crate::pattern::{self, Budget, Captured, Matcher, PatternError};

/// Elements or matches between two checks of the meter.
const STRIDE: usize = 64;

/// Makes the table of functions that `library.lua` gets as `ours`.
pub(crate) fn create(
    lua: &Lua,
    meter: &Rc<Meter>,
    settings: &Rc<dyn Settings>,
    text_max: usize,
) -> Result<Table> {
    let ours = lua.create_table()?;
    let functions = MeteredFunctions {
        meter: Rc::clone(meter),
        text_max,
    };
    functions.add_patterns(lua, &ours)?;
    functions.add_builders(lua, &ours)?;
    add_checks(lua, &ours)?;

    let caught = lua.create_function(move |lua, raised| functions.caught(lua, raised))?;
    ours.raw_set("caught", caught)?;
    let settings = Rc::clone(settings);
    let get = lua.create_function(move |lua, key: LuaString| {
        // Every key is UTF-8, so a key of other bytes is not set.
        let value = key.to_str().ok().and_then(|key| settings.value(&key));
        value.map(|value| lua.create_string(value)).transpose()
    })?;
    ours.raw_set("get", get)?;
    Ok(ours)
}

/// Adds the functions that only check or convert an argument.
fn add_checks(lua: &Lua, ours: &Table) -> Result<()> {
    let check_format = lua.create_function(|_, format| check_format(&format))?;
    ours.raw_set("check_format", check_format)?;
    let integer = lua.create_function(|_, number: Integer| Ok(number))?;
    ours.raw_set("integer", integer)?;
    let text = lua.create_function(|_, text: LuaString| Ok(text))?;
    ours.raw_set("text", text)
}

/// The functions whose work the meter bounds.
#[derive(Clone)]
struct MeteredFunctions {
    meter: Rc<Meter>,
    text_max: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Search {
    Find,
    FindPlain,
    Match,
}

impl MeteredFunctions {
    /// Adds the functions that match patterns.
    fn add_patterns(&self, lua: &Lua, ours: &Table) -> Result<()> {
        let this = self.clone();
        let find = lua.create_function(move |lua, (subject, pattern, from, plain)| {
            let how = if matches!(plain, Value::Nil | Value::Boolean(false)) {
                Search::Find
            } else {
                Search::FindPlain
            };
            this.search(lua, &subject, &pattern, from, how)
        })?;
        ours.raw_set("find", find)?;
        let this = self.clone();
        let first = lua.create_function(move |lua, (subject, pattern, from)| {
            this.search(lua, &subject, &pattern, from, Search::Match)
        })?;
        ours.raw_set("match", first)?;
        let this = self.clone();
        let gmatch = lua.create_function(move |lua, (subject, pattern, from)| {
            this.gmatch(lua, subject, pattern, from)
        })?;
        ours.raw_set("gmatch", gmatch)?;
        let this = self.clone();
        let scan = lua.create_function(move |lua, (subject, pattern, from, last, captures)| {
            this.scan(lua, &subject, &pattern, (from, last), captures)
        })?;
        ours.raw_set("scan", scan)?;
        let this = self.clone();
        let gsub = lua.create_function(move |lua, (subject, pattern, replacement, limit)| {
            this.gsub(lua, &subject, &pattern, &replacement, limit)
        })?;
        ours.raw_set("gsub", gsub)
    }

    /// Adds the functions that build long texts.
    fn add_builders(&self, lua: &Lua, ours: &Table) -> Result<()> {
        let this = self.clone();
        let rep = lua.create_function(move |lua, (subject, count, separator)| {
            this.rep(lua, &subject, count, separator)
        })?;
        ours.raw_set("rep", rep)?;
        let this = self.clone();
        let concat = lua.create_function(move |lua, (list, separator, from, to)| {
            this.concat(lua, &list, separator, from, to)
        })?;
        ours.raw_set("concat", concat)
    }

    /// Returns the error that stock `pcall` has caught. Raises it again if the call has to stop: a script cannot catch that.
    fn caught(&self, lua: &Lua, raised: Value) -> Result<Value> {
        self.meter.check().map_err(Error::external)?;
        if fault::is_memory(&raised) {
            return Err(Error::external(self.meter.stop(Stop::Memory)));
        }
        match raised {
            Value::Error(error) => Ok(Value::String(lua.create_string(fault::text(&error))?)),
            other => Ok(other),
        }
    }

    fn search(
        &self,
        lua: &Lua,
        subject: &LuaString,
        pattern: &LuaString,
        from: Option<Integer>,
        how: Search,
    ) -> Result<MultiValue> {
        let (subject, pattern) = (&*subject.as_bytes(), &*pattern.as_bytes());
        let nothing = || Ok(MultiValue::from_vec(vec![Value::Nil]));
        let Some(from) = offset(from, subject.len()) else {
            return nothing();
        };
        if how == Search::FindPlain || how == Search::Find && pattern::is_plain(pattern) {
            let found = pattern::find_plain(subject, pattern, from, &*self.meter);
            return match found.map_err(Error::external)? {
                Some(start) => {
                    let ends = [start + 1, start + pattern.len()];
                    Ok(ends
                        .map(|end| Value::Integer(end as Integer))
                        .into_iter()
                        .collect())
                }
                None => nothing(),
            };
        }
        let (anchored, pattern) = split_anchor(pattern);
        let mut matcher = Matcher::new(subject, pattern, &*self.meter);
        let last = if anchored { from } else { subject.len() };
        for start in from..=last {
            let Some(end) = matcher.match_at(start).map_err(raise)? else {
                continue;
            };
            let mut results = MultiValue::new();
            if how == Search::Find {
                results.push_back(Value::Integer(start as Integer + 1));
                results.push_back(Value::Integer(end as Integer));
            }
            let captured = matcher.captured();
            let count = if how == Search::Match {
                captured.max(1)
            } else {
                captured
            };
            push_captures(lua, &matcher, start, end, count, &mut results)?;
            return Ok(results);
        }
        nothing()
    }

    fn gmatch(
        &self,
        lua: &Lua,
        subject: LuaString,
        pattern: LuaString,
        from: Option<Integer>,
    ) -> Result<mlua::Function> {
        let meter = Rc::clone(&self.meter);
        let beyond = subject.as_bytes().len() + 1;
        let next = Cell::new(offset(from, beyond - 1).unwrap_or(beyond));
        let last = Cell::new(None);
        lua.create_function(move |lua, ()| {
            let (subject, pattern) = (&*subject.as_bytes(), &*pattern.as_bytes());
            let mut matcher = Matcher::new(subject, pattern, &*meter);
            for start in next.get()..=subject.len() {
                let Some(end) = matcher.match_at(start).map_err(raise)? else {
                    continue;
                };
                if Some(end) == last.get() {
                    continue;
                }
                next.set(end);
                last.set(Some(end));
                let mut results = MultiValue::new();
                let count = matcher.captured().max(1);
                push_captures(lua, &matcher, start, end, count, &mut results)?;
                return Ok(results);
            }
            next.set(beyond);
            Ok(MultiValue::from_vec(vec![Value::Nil]))
        })
    }

    /// Finds the next match for a substitution. Returns its start, its end, and at most `captures` of its captures.
    ///
    /// `last` is the end of the match before, counted from one, or zero if there is none.
    fn scan(
        &self,
        lua: &Lua,
        subject: &LuaString,
        pattern: &LuaString,
        (from, last): (usize, usize),
        captures: usize,
    ) -> Result<MultiValue> {
        let (subject, pattern) = (&*subject.as_bytes(), &*pattern.as_bytes());
        let mut results = MultiValue::new();
        let (anchored, pattern) = split_anchor(pattern);
        if anchored && last > 0 {
            return Ok(results);
        }
        let mut matcher = Matcher::new(subject, pattern, &*self.meter);
        let until = if anchored { 0 } else { subject.len() };
        if let Some((start, end)) = next_match(&mut matcher, from - 1, until, last.checked_sub(1))?
        {
            results.push_back(Value::Integer(start as Integer + 1));
            results.push_back(Value::Integer(end as Integer + 1));
            let count = matcher.captured().max(1).min(captures);
            push_captures(lua, &matcher, start, end, count, &mut results)?;
        }
        Ok(results)
    }

    fn gsub(
        &self,
        lua: &Lua,
        subject: &LuaString,
        pattern: &LuaString,
        replacement: &LuaString,
        limit: Option<Integer>,
    ) -> Result<(LuaString, Integer)> {
        let (subject, pattern) = (&*subject.as_bytes(), &*pattern.as_bytes());
        let replacement = &*replacement.as_bytes();
        let limit = limit.unwrap_or(Integer::MAX);
        let (anchored, pattern) = split_anchor(pattern);
        let mut matcher = Matcher::new(subject, pattern, &*self.meter);
        let mut built = Vec::new();
        let (mut from, mut last, mut count) = (0, None, 0);
        let until = if anchored { 0 } else { subject.len() };
        while count < limit && (count == 0 || !anchored) {
            let Some((start, end)) = next_match(&mut matcher, from, until, last)? else {
                break;
            };
            count += 1;
            if count % STRIDE as Integer == 0 {
                self.meter.check().map_err(Error::external)?;
            }
            self.append(&mut built, &subject[from..start])?;
            self.expand(&mut built, replacement, &matcher, start, end)?;
            (from, last) = (end, Some(end));
        }
        self.append(&mut built, &subject[from..])?;
        Ok((lua.create_string(built)?, count))
    }

    /// Appends a replacement, with the captures in place of `%0` to `%9`.
    fn expand(
        &self,
        built: &mut Vec<u8>,
        replacement: &[u8],
        matcher: &Matcher<'_, Meter>,
        start: usize,
        end: usize,
    ) -> Result<()> {
        let mut rest = replacement;
        while let Some(escape) = rest.iter().position(|&byte| byte == b'%') {
            self.append(built, &rest[..escape])?;
            let index = match rest.get(escape + 1) {
                Some(b'%') => {
                    self.append(built, b"%")?;
                    None
                }
                Some(&digit @ b'0'..=b'9') => Some(usize::from(digit - b'0')),
                _ => return Err(Error::runtime("invalid use of '%' in replacement string")),
            };
            if let Some(index) = index {
                let captured = match index.checked_sub(1) {
                    Some(index) => matcher.capture(index, start, end).map_err(raise)?,
                    None => Captured::Text(matcher.text(start, end)),
                };
                match captured {
                    Captured::Text(text) => self.append(built, text)?,
                    Captured::Position(place) => {
                        self.append(built, place.to_string().as_bytes())?;
                    }
                }
            }
            rest = &rest[escape + 2..];
        }
        self.append(built, rest)
    }

    fn rep(
        &self,
        lua: &Lua,
        subject: &LuaString,
        count: Integer,
        separator: Option<LuaString>,
    ) -> Result<LuaString> {
        let subject = &*subject.as_bytes();
        let separator = separator
            .map(|text| text.as_bytes().to_vec())
            .unwrap_or_default();
        let count = usize::try_from(count).unwrap_or(0);
        let length = (subject.len() + separator.len()).saturating_mul(count);
        if length.saturating_sub(separator.len()) > self.text_max {
            return Err(self.too_long());
        }
        if length == 0 {
            return lua.create_string("");
        }
        let mut built = [subject, &separator].concat().repeat(count);
        built.truncate(length - separator.len());
        lua.create_string(built)
    }

    fn concat(
        &self,
        lua: &Lua,
        list: &Table,
        separator: Option<LuaString>,
        from: Option<Integer>,
        to: Option<Integer>,
    ) -> Result<LuaString> {
        let separator = separator
            .map(|text| text.as_bytes().to_vec())
            .unwrap_or_default();
        let from = from.unwrap_or(1);
        let to = match to {
            Some(to) => to,
            None => list.raw_len() as Integer,
        };
        let is_raw = list.metatable().is_none();
        let mut built = Vec::new();
        for (done, index) in (from..=to).enumerate() {
            if done % STRIDE == 0 {
                self.meter.check().map_err(Error::external)?;
            }
            if done > 0 {
                self.append(&mut built, &separator)?;
            }
            let value: Value = if is_raw {
                list.raw_get(index)?
            } else {
                list.get(index)?
            };
            let text = match value {
                Value::String(text) => text,
                Value::Integer(_) | Value::Number(_) => lua
                    .coerce_string(value)?
                    .ok_or_else(|| Error::runtime("a number has no text"))?,
                other => {
                    return Err(Error::runtime(format!(
                        "invalid value (a {}) at index {index} in table for 'concat'",
                        other.type_name()
                    )));
                }
            };
            self.append(&mut built, &text.as_bytes())?;
        }
        lua.create_string(built)
    }

    /// Appends to a text for the script; stops the call if the text gets longer than the script's memory.
    fn append(&self, built: &mut Vec<u8>, more: &[u8]) -> Result<()> {
        if built.len() + more.len() > self.text_max {
            return Err(self.too_long());
        }
        built.extend_from_slice(more);
        Ok(())
    }

    /// Stops the call: the script builds a text that is longer than its memory.
    fn too_long(&self) -> Error {
        Error::external(self.meter.stop(Stop::Memory))
    }
}

/// Finds the first match that starts in `from..=until`, except an empty match at the end of the last one.
fn next_match(
    matcher: &mut Matcher<'_, Meter>,
    from: usize,
    until: usize,
    last: Option<usize>,
) -> Result<Option<(usize, usize)>> {
    for start in from..=until {
        if let Some(end) = matcher.match_at(start).map_err(raise)?
            && Some(end) != last
        {
            return Ok(Some((start, end)));
        }
    }
    Ok(None)
}

fn push_captures(
    lua: &Lua,
    matcher: &Matcher<'_, Meter>,
    start: usize,
    end: usize,
    count: usize,
    results: &mut MultiValue,
) -> Result<()> {
    for index in 0..count {
        results.push_back(match matcher.capture(index, start, end).map_err(raise)? {
            Captured::Text(text) => Value::String(lua.create_string(text)?),
            Captured::Position(place) => Value::Integer(place as Integer),
        });
    }
    Ok(())
}

/// Converts a position of Lua, where negative ones count from the end, to an offset; `None` if it is beyond the end.
fn offset(from: Option<Integer>, length: usize) -> Option<usize> {
    let from = from.unwrap_or(1);
    let place = match usize::try_from(from) {
        Ok(from) => from.saturating_sub(1),
        Err(_) => {
            let back = usize::try_from(from.unsigned_abs()).unwrap_or(usize::MAX);
            length.saturating_sub(back)
        }
    };
    (place <= length).then_some(place)
}

fn split_anchor(pattern: &[u8]) -> (bool, &[u8]) {
    match pattern.strip_prefix(b"^") {
        Some(rest) => (true, rest),
        None => (false, pattern),
    }
}

fn raise(error: PatternError) -> Error {
    match error {
        PatternError::Stopped(stop) => Error::external(stop),
        other => Error::runtime(other.to_string()),
    }
}

/// Rejects `%p`, which prints addresses. Widths need no check: stock Lua takes at most two digits.
fn check_format(format: &LuaString) -> Result<()> {
    let bytes = &*format.as_bytes();
    let mut rest = bytes;
    while let Some(escape) = rest.iter().position(|&byte| byte == b'%') {
        rest = &rest[escape + 1..];
        let conversion = rest
            .iter()
            .position(|byte| !b"-+ #0123456789.".contains(byte))
            .unwrap_or(rest.len());
        if rest.get(conversion) == Some(&b'p') {
            return Err(Error::runtime("'%p' is not available in hooks"));
        }
        rest = rest.get(conversion + 1..).unwrap_or_default();
    }
    Ok(())
}
