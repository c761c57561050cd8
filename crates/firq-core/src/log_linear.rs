//! Numbers sorted into classes whose width is an eighth of their size.
//!
//! Below 8 every number is a class of its own; from there on every power of two is divided into eight.

/// Parts that a power of two is divided into, as a power of two.
const PART_BITS: u32 = 3;
const PARTS: usize = 1 << PART_BITS;

/// Returns how many classes the numbers below `2^bits` are sorted into.
pub(crate) const fn classes(bits: u32) -> usize {
    (bits - PART_BITS + 1) as usize * PARTS
}

/// Returns the class of a number; a larger number is never in a lower class.
#[inline]
pub(crate) const fn class_of(value: u64) -> usize {
    if value < PARTS as u64 {
        return value as usize;
    }
    let shift = value.ilog2() - PART_BITS;
    (shift as usize) * PARTS + (value >> shift) as usize
}

/// Returns the largest number of a class.
pub(crate) const fn largest_of(class: usize) -> u64 {
    if class < PARTS {
        return class as u64;
    }
    let shift = class / PARTS - 1;
    let first = ((class % PARTS + PARTS) as u64) << shift;
    first + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_no_wider_than_an_eighth() {
        for value in (0..100_000).chain([u64::MAX, u64::MAX / 3, 1 << 40]) {
            let class = class_of(value);
            let largest = largest_of(class);
            assert!(value <= largest);
            assert!(
                largest - value <= value / 8,
                "{value} is in a class up to {largest}"
            );
            assert_eq!(class_of(largest), class);
            if let Some(next) = largest.checked_add(1) {
                assert_eq!(class_of(next), class + 1);
            }
        }
    }

    #[test]
    fn the_number_of_classes_is_exact() {
        for bits in [4, 20, 41, 64] {
            assert_eq!(class_of(u64::MAX >> (64 - bits)), classes(bits) - 1);
        }
    }
}
