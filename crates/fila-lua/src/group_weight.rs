//! The weights of groups in the answer of `on_enqueue`: `weights = { acme = 3 }`.
//!
//! This module checks the types and the numbers. Which paths are groups of the fairness key depends on the queue's
//! separator, so the caller checks that with [`Scheduling::keep_groups`].

use mlua::{Table, Value};

use crate::answer::{describe, mistake, nearest_weight, start_of};
use crate::{AnswerError, AnswerPart, Limits, Scheduling};

/// The weight of a group of fairness keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupWeight {
    /// The path of the group. UTF-8, no longer than a fairness key.
    pub path: String,
    /// The weight of the group among its siblings, at least 1.
    pub weight: u32,
    /// The number of the script, if it was brought into range.
    pub adjusted: Option<AnswerError>,
}

impl Scheduling {
    /// Leaves out the weights of paths that are no groups of the fairness key, and names the first of them.
    pub fn keep_groups(&mut self, is_group: impl Fn(&str) -> bool) {
        let weights = std::mem::take(&mut self.weights);
        for found in weights {
            if is_group(&found.path) {
                self.weights.push(found);
            } else {
                let weight = found.weight.to_string();
                let number = found.adjusted.map_or(weight, |it| it.found);
                let mistake = mistake(
                    &field(&format!("{:?}", start_of(&found.path))),
                    number,
                    "the path of a group that the fairness key is in is expected, as \"acme\" for \"acme/alice\"",
                );
                self.reject(AnswerPart::GroupWeight, mistake);
            }
        }
    }

    /// Takes the table of weights.
    pub(crate) fn take_weights(&mut self, weights: &Value, limits: &Limits) {
        let taken = match weights {
            Value::Nil => return,
            Value::Table(weights) => read(weights, limits),
            other => {
                let allowed =
                    "a table from the paths of groups to numbers is expected, or nil for none";
                Err(mistake("`weights`", describe(other), allowed))
            }
        };
        match taken {
            Ok(entries) => {
                for entry in entries {
                    match entry {
                        Ok(weight) => self.weights.push(weight),
                        Err(mistake) => self.reject(AnswerPart::GroupWeight, mistake),
                    }
                }
            }
            Err(mistake) => self.reject(AnswerPart::GroupTable, mistake),
        }
    }
}

type WeightEntry = Result<GroupWeight, AnswerError>;

/// Reads the entries of a table, sorted by their keys: Lua's own order differs from VM to VM.
fn read(weights: &Table, limits: &Limits) -> Result<Vec<WeightEntry>, AnswerError> {
    let max = limits.weights;
    let mut found: Vec<(Vec<u8>, WeightEntry)> = Vec::new();
    // No more is read than a table may have, because nothing interrupts this loop.
    for pair in weights.pairs::<Value, Value>() {
        if found.len() == max {
            let allowed = format!("at most {max} are allowed");
            return Err(mistake(
                "`weights`",
                format!("more than {max} entries"),
                allowed,
            ));
        }
        let (path, weight) = pair.map_err(|error| {
            mistake("`weights`", error.to_string(), "a plain table is expected")
        })?;
        let place = match &path {
            Value::String(path) => path.as_bytes().to_vec(),
            other => describe(other).into_bytes(),
        };
        found.push((place, entry(&path, &weight, limits)));
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found.into_iter().map(|(_, entry)| entry).collect())
}

fn entry(path: &Value, weight: &Value, limits: &Limits) -> WeightEntry {
    let max = limits.fairness_key_bytes;
    let name = describe(path);
    let path = match path {
        Value::String(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
        _ => None,
    };
    let Some(path) = path.filter(|path| !path.is_empty() && path.len() <= max) else {
        let allowed = format!("the path of a group is a string of 1 to {max} bytes of UTF-8");
        return Err(mistake(
            "`weights`",
            format!("a table with {name} as a key"),
            allowed,
        ));
    };
    let wrong = || {
        let allowed = format!("a whole number from 1 to {} is expected", limits.weight);
        mistake(&field(&name), describe(weight), allowed)
    };
    let (nearest, is_exact) = nearest_weight(weight, limits).ok_or_else(wrong)?;
    Ok(GroupWeight {
        path,
        weight: nearest,
        adjusted: (!is_exact).then(wrong),
    })
}

/// Returns the name of an entry, from its key as scripts write it.
fn field(key: &str) -> String {
    format!("`weights[{key}]`")
}
