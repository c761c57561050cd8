//! The fenced blocks of a chapter.

/// The purpose of a fenced block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Commands for the shell.
    Commands,
    /// Messages to type into the call that waits for them.
    Typed,
    /// Messages that come back.
    Messages,
    /// Lines that come back.
    Lines,
}

/// A fenced block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) kind: Kind,
    /// Where its text begins in the document, counted from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// Returns the blocks of the chapter under a heading.
pub(crate) fn blocks(book: &str, heading: &str) -> Vec<Block> {
    let mut lines = (1..).zip(book.lines());
    assert!(lines.any(|(_, line)| line == heading), "no `{heading}`");
    let mut blocks = Vec::new();
    while let Some((number, line)) = lines.next() {
        if line.starts_with("## ") {
            break;
        }
        let Some(info) = line.strip_prefix("```") else {
            assert!(
                !line.contains("```"),
                "line {number}: a fence inside a line"
            );
            continue;
        };
        let kind = match info {
            "sh" => Kind::Commands,
            "json typed" => Kind::Typed,
            "json" => Kind::Messages,
            "text" => Kind::Lines,
            other => panic!("line {number}: blocks of `{other}` are not understood"),
        };
        let text = lines.by_ref().map(|(_, line)| line);
        let text: Vec<&str> = text.take_while(|line| *line != "```").collect();
        blocks.push(Block {
            kind,
            line: number + 1,
            text: text.join("\n"),
        });
    }
    blocks
}
