//! Questions before the loss of data, and before a change that was tried.

use std::io::{self, BufRead, IsTerminal};

use anyhow::Context;

use crate::failure::Failure;
use crate::output;

/// Asks the user at the terminal. Without a terminal it asks nothing and fails, so that a script never hangs.
pub(crate) fn confirm(question: &str, is_agreed: bool) -> Result<(), Failure> {
    if is_agreed {
        return Ok(());
    }
    if !can_ask() {
        let text = "this cannot be undone, and there is no terminal to ask on; confirm with --yes";
        return Err(Failure::Usage(text.to_owned()));
    }
    output::say(&format!("{question} [y/N] "));
    let mut answer = String::new();
    io::stdin()
        .lock()
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    if is_yes(&answer) {
        return Ok(());
    }
    Err(Failure::Other(anyhow::anyhow!(
        "not confirmed; nothing was done"
    )))
}

/// Refuses a command that will ask, if it is not agreed and there is no terminal to ask on.
pub(crate) fn expect_answer(is_agreed: bool) -> Result<(), Failure> {
    if is_agreed || can_ask() {
        return Ok(());
    }
    let text = "there is no terminal to ask on; confirm the change with --yes";
    Err(Failure::Usage(text.to_owned()))
}

fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        assert!(is_yes("y\n") && is_yes("Yes\n"));
        for answer in ["", "\n", "n\n", "yep\n", "delete\n"] {
            assert!(!is_yes(answer), "{answer:?}");
        }
    }
}
