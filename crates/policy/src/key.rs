//! What a request is recognised by: the chained hashes of its prompt, or one hash for the ring. It reads
//! bytes and knows nothing of workers.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes of routing text that one chain hash covers.
pub const BLOCK_BYTES: usize = 64;

/// Fixed, so that every replica builds the same ring.
const RING_SEED: u64 = 0x666f_7265_6261_7901;

/// Separates a partial last block from a whole one with the same bytes in front.
const PARTIAL_SEED: u64 = 0x666f_7265_6261_7902;

/// A prompt as a chain of hashes, one for each 64 bytes of routing text.
///
/// Hash `i` covers block `i` and, chained, everything before it: `h[i] = mix(h[i-1], xxh3(block[i]))`,
/// starting from the namespace. Two keys with an equal hash at position `i` have the same namespace and the
/// same text up to there, except by collision: among `n` distinct prefixes the odds that any two collide are
/// about n²/2^65 (10 million prefixes: one in 370 000). A collision costs a cache miss on a worker, never a
/// wrong answer; nothing here is meant to withstand somebody who looks for one.
///
/// The text after the last whole block is a block of its own, seeded with its length, so equal short prompts
/// match entirely and a partial block never equals a whole one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixKey {
    chain: Vec<u64>,
    len_bytes: u64,
}

impl PrefixKey {
    /// An empty key. Keep it as scratch: [`PrefixKey::builder`] reuses its memory.
    #[must_use]
    pub const fn new() -> Self {
        Self { chain: Vec::new(), len_bytes: 0 }
    }

    /// An empty key with room for a text of so many bytes, so that filling it allocates no more.
    #[must_use]
    pub fn with_room_for(bytes: usize) -> Self {
        Self { chain: Vec::with_capacity(bytes / BLOCK_BYTES + 1), len_bytes: 0 }
    }

    /// A key from the record of one: what [`PrefixKey::blocks`] and [`PrefixKey::len_bytes`] gave.
    #[must_use]
    pub const fn recorded(chain: Vec<u64>, len_bytes: u64) -> Self {
        Self { chain, len_bytes }
    }

    /// Empties the key and starts to fill it. `namespace` separates prompts that must never match each other
    /// (a hash of cache salt, LoRA adapter, …).
    pub fn builder(&mut self, namespace: u64) -> PrefixKeyBuilder<'_> {
        self.clear();
        PrefixKeyBuilder { chained: namespace, carry: [0; BLOCK_BYTES], carried: 0, key: self }
    }

    /// Empties the key, keeping its memory.
    pub fn clear(&mut self) {
        self.chain.clear();
        self.len_bytes = 0;
    }

    /// Length of the routing text, in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// True if there was no text.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    /// The chain, one hash for each block of [`BLOCK_BYTES`] bytes; the last may be partial.
    #[must_use]
    pub fn blocks(&self) -> &[u64] {
        &self.chain
    }

    /// Bytes that the first `blocks` blocks cover.
    #[must_use]
    pub fn covered_bytes(&self, blocks: usize) -> u64 {
        (blocks as u64 * BLOCK_BYTES as u64).min(self.len_bytes)
    }
}

/// Fills a [`PrefixKey`] from parts that are hashed as if they were one text.
#[derive(Debug)]
#[must_use = "a key is complete only after finish()"]
pub struct PrefixKeyBuilder<'key> {
    key: &'key mut PrefixKey,
    chained: u64,
    carry: [u8; BLOCK_BYTES],
    carried: usize,
}

impl PrefixKeyBuilder<'_> {
    /// Appends text. Where one part ends and the next begins leaves no trace: separators are the caller's.
    pub fn push(&mut self, mut part: &[u8]) {
        self.key.len_bytes += part.len() as u64;
        if self.carried > 0 {
            let take = part.len().min(BLOCK_BYTES - self.carried);
            self.carry[self.carried..self.carried + take].copy_from_slice(&part[..take]);
            self.carried += take;
            part = &part[take..];
            if self.carried < BLOCK_BYTES {
                return;
            }
            self.chained = mix(self.chained, xxh3_64(&self.carry));
            self.key.chain.push(self.chained);
            self.carried = 0;
        }
        let (blocks, rest) = part.as_chunks::<BLOCK_BYTES>();
        let mut chained = self.chained;
        self.key.chain.extend(blocks.iter().map(|block| {
            chained = mix(chained, xxh3_64(block));
            chained
        }));
        self.chained = chained;
        self.carry[..rest.len()].copy_from_slice(rest);
        self.carried = rest.len();
    }

    /// Hashes what is left as a block of its own.
    pub fn finish(self) {
        if self.carried > 0 {
            let seed = self.chained ^ PARTIAL_SEED.wrapping_mul(2 * self.carried as u64 + 1);
            self.key.chain.push(xxh3_64_with_seed(&self.carry[..self.carried], seed));
        }
    }
}

/// Chains two hashes. Seeding the block's hash with the chain would do too, but then no block can be hashed
/// before the one in front of it is done, which halves the speed.
const fn mix(chained: u64, block: u64) -> u64 {
    let product = (chained ^ 0x9e37_79b9_7f4a_7c15) as u128 * (block ^ 0xa076_1d64_78bd_642f) as u128;
    product as u64 ^ (product >> 64) as u64
}

/// Where the key of a hash-ring choice came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HashKeyKind {
    /// The session header.
    SessionHeader,
    /// The user header.
    UserHeader,
    /// A session or user field of the body.
    Body,
    /// The authorization header.
    Authorization,
    /// The address of the client.
    ClientIp,
    /// A digest of the body.
    BodyHash,
}

/// The key of a hash-ring choice: equal keys go to the same worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashKey {
    /// Position on the ring.
    pub hash: u64,
    /// Where the key came from; does not influence the position.
    pub kind: HashKeyKind,
}

impl HashKey {
    /// Hashes the value of a key. The same on every replica.
    #[must_use]
    pub fn new(kind: HashKeyKind, value: &[u8]) -> Self {
        Self { hash: ring_hash(value), kind }
    }
}

/// Ring position of some bytes.
pub(crate) fn ring_hash(bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, RING_SEED)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key_of(namespace: u64, parts: &[&[u8]]) -> PrefixKey {
        let mut key = PrefixKey::new();
        let mut builder = key.builder(namespace);
        for part in parts {
            builder.push(part);
        }
        builder.finish();
        key
    }

    #[test]
    fn an_empty_prompt_has_an_empty_key() {
        let key = key_of(7, &[b"", b""]);
        assert!(key.is_empty());
        assert_eq!(key.len_bytes(), 0);
    }

    #[test]
    fn namespaces_share_nothing() {
        let text = [b'x'; 200];
        let (one, other) = (key_of(1, &[&text]), key_of(2, &[&text]));
        assert!(one.blocks().iter().zip(other.blocks()).all(|(a, b)| a != b));
    }

    #[test]
    fn a_partial_block_is_told_apart_from_a_longer_one_that_continues_with_zeros() {
        let short = key_of(0, &[b"abc"]);
        let long = key_of(0, &[b"abc\0"]);
        assert_ne!(short.blocks(), long.blocks());
        assert_eq!(short, key_of(0, &[b"abc"]));
    }

    #[test]
    fn scratch_is_reused_without_a_trace_of_the_last_key() {
        let mut key = key_of(0, &[&[b'a'; 1000]]);
        let mut builder = key.builder(0);
        builder.push(b"short");
        builder.finish();
        assert_eq!(key, key_of(0, &[b"short"]));
    }

    #[test]
    fn covered_bytes_end_with_the_text() {
        let key = key_of(0, &[&[b'a'; 100]]);
        assert_eq!(key.blocks().len(), 2);
        assert_eq!(key.covered_bytes(1), 64);
        assert_eq!(key.covered_bytes(2), 100);
    }

    proptest! {
        #[test]
        fn the_way_a_text_is_cut_into_parts_leaves_no_trace(
            text in prop::collection::vec(any::<u8>(), 0..600),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let parts: Vec<&[u8]> = at.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            prop_assert_eq!(key_of(3, &parts), key_of(3, &[&text]));
        }

        #[test]
        fn keys_share_exactly_the_blocks_before_the_first_difference(
            text in prop::collection::vec(any::<u8>(), 1..600),
            at in any::<prop::sample::Index>(),
        ) {
            let at = at.index(text.len());
            let mut other = text.clone();
            other[at] ^= 1;
            let (one, two) = (key_of(0, &[&text]), key_of(0, &[&other]));
            let same = one.blocks().iter().zip(two.blocks()).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(same, at / BLOCK_BYTES);
            let differ = one.blocks().iter().zip(two.blocks()).skip(same).all(|(a, b)| a != b);
            prop_assert!(differ);
        }
    }
}
