//! Which shard a key belongs to: part of the contract, and never to change.
//!
//! FNV-1a with 32 bits ([the algorithm](http://www.isthe.com/chongo/tech/comp/fnv/)) over the bytes of the key,
//! modulo the number of shards. It is stable across versions, processes and machines, so that a key can be
//! looked up in yesterday's logs. It is not proof against keys that are chosen to collide; inside a shard, keys
//! are told apart by a seeded hash and by themselves.

const OFFSET_BASIS: u32 = 0x811c_9dc5;
const PRIME: u32 = 0x0100_0193;

/// Returns the FNV-1a hash of the bytes, with 32 bits.
pub(crate) const fn fnv1a(bytes: &[u8]) -> u32 {
    let mut hash = OFFSET_BASIS;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(PRIME);
        at += 1;
    }
    hash
}

/// Returns the shard of a key among `shards`, which is not zero.
pub(crate) const fn shard_for(key: &str, shards: usize) -> usize {
    fnv1a(key.as_bytes()) as usize % shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_published_vectors() {
        let vectors: [(&str, u32); 8] = [
            ("", 0x811c_9dc5),
            ("a", 0xe40c_292c),
            ("b", 0xe70c_2de5),
            ("foo", 0xa9f3_7ed7),
            ("foob", 0x3f50_76ef),
            ("fooba", 0x39aa_a18a),
            ("foobar", 0xbf9c_f968),
            ("chongo was here!\n", 0xd499_30d5),
        ];
        for (text, hash) in vectors {
            assert_eq!(fnv1a(text.as_bytes()), hash, "{text:?}");
        }
    }

    #[test]
    fn shards_of_keys_never_change() {
        let golden = [
            ("memory-123", 4, 3),
            ("memory-123", 7, 4),
            ("", 4, 1),
            ("a", 4, 0),
            ("foobar", 4, 0),
            ("foobar", 1000, 720),
            ("ключ", 16, 1),
        ];
        for (key, shards, shard) in golden {
            assert_eq!(shard_for(key, shards), shard, "{key:?} among {shards}");
        }
    }
}
