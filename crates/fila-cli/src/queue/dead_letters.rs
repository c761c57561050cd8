//! Queues of dead letters in lists: every queue has one, so lists fold them into a column.

use fila_sdk::QueueInfo;

/// How a list shows queues of dead letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DeadLetters {
    /// As a number beside their queue.
    #[default]
    Folded,
    /// As rows, too.
    Rows,
}

impl DeadLetters {
    pub(crate) fn from_flag(are_rows: bool) -> Self {
        match are_rows {
            true => Self::Rows,
            false => Self::Folded,
        }
    }

    /// Returns the queues that have a row. A queue of dead letters whose own queue is not in the list has one always.
    pub(crate) fn visible(self, queues: &[QueueInfo]) -> impl Iterator<Item = &QueueInfo> {
        queues
            .iter()
            .filter(move |queue| self == Self::Rows || !is_folded(&queue.name, queues))
    }
}

fn is_folded(name: &str, queues: &[QueueInfo]) -> bool {
    let own = name.strip_suffix(".dlq");
    own.is_some_and(|own| find(own, queues).is_some())
}

/// Returns the dead letters of a queue.
pub(crate) fn dead_letters_of<'a>(
    queue: &QueueInfo,
    queues: &'a [QueueInfo],
) -> Option<&'a QueueInfo> {
    find(&format!("{}.dlq", queue.name), queues)
}

/// The server lists queues by name.
fn find<'a>(name: &str, queues: &'a [QueueInfo]) -> Option<&'a QueueInfo> {
    let at = queues.binary_search_by(|queue| queue.name.as_str().cmp(name));
    at.ok().map(|at| &queues[at])
}
