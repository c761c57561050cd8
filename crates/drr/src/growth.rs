//! How the tables of an engine grow, and those that its caller keeps beside it.

use alloc::vec::Vec;

/// From this many entries on, a table grows by an eighth of its size.
const LARGE: usize = 1024;

/// Makes room for one more entry, if there is none.
///
/// A vector doubles when it is full, so that half of a large table is empty after that. Growing by an eighth leaves at most
/// a ninth of it empty. An entry is then moved eight times on average instead of once, by allocators that move at all.
#[inline]
pub fn grow<T>(table: &mut Vec<T>) {
    if table.len() == table.capacity() && table.len() >= LARGE {
        grow_large(table);
    }
}

#[cold]
fn grow_large<T>(table: &mut Vec<T>) {
    table.reserve_exact(table.len() / 8);
}

/// Makes a table this long, if it is shorter, and grows it as [`grow`] does.
pub fn extend_to<T: Clone>(table: &mut Vec<T>, len: usize, vacant: &T) {
    while table.len() < len {
        grow(table);
        table.push(vacant.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_table_is_never_more_than_a_ninth_empty() {
        let mut table = Vec::new();
        let mut moves = 0;
        for number in 0..100_000_u32 {
            let before = table.capacity();
            grow(&mut table);
            table.push(number);
            moves += usize::from(table.capacity() != before);
            let room = table.capacity() - table.len();
            assert!(table.len() < LARGE || room <= table.len() / 8);
        }
        assert!(moves <= 60, "{moves} moves");
    }
}
