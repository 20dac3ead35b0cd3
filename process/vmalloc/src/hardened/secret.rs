//! The secrets of an allocator: the addresses of its areas, and the bytes beside them.
//!
//! # Theory
//! A generator whose state can be computed from its outputs is not secret: every leaked address is an output. So both
//! are outputs of one keyed function, which reveal nothing about other outputs. A counter under one key yields
//! addresses; an address under another key yields the canary of the area there. The keys are random numbers of the
//! system, read once when the allocator is created. Each child of a fork reads one more, so that it does not draw the
//! addresses that its parent draws. Canaries keep their key, since areas outlive a fork.
//! # Source
//! Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012 (SipHash-2-4).

/// A key of 128 bits.
pub(crate) type Key = [u64; 2];

/// The keyed function, of one word.
fn keyed(key: Key, message: u64) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    // The second word of a message is its length in bytes, in the upper byte.
    for word in [message, 8 << 56] {
        v[3] ^= word;
        rounds(&mut v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    rounds(&mut v, 4);
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn rounds(v: &mut [u64; 4], count: u32) {
    for _ in 0..count {
        // Wrapping and rotating are the function itself.
        v[0] = v[0].wrapping_add(v[1]);
        v[2] = v[2].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].rotate_left(32).wrapping_add(v[3]);
        v[2] = v[2].wrapping_add(v[1]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    }
}

/// The generator of addresses.
#[derive(Debug)]
pub(crate) struct Draw {
    key: Key,
    drawn: u64,
}

impl Draw {
    pub(crate) const fn new(key: Key) -> Self {
        Self { key, drawn: 0 }
    }

    /// Returns a random number below `bound`, which must not be 0. The distribution is uniform, up to `bound` in 2^64.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.drawn = self.drawn.wrapping_add(1);
        ((u128::from(keyed(self.key, self.drawn)) * u128::from(bound)) >> 64) as u64
    }

    /// Changes the key, so that later draws differ from those of a copy. `fresh` may be zeros if the system has no
    /// random numbers; then `word` makes the difference.
    pub(crate) fn part(&mut self, fresh: Key, word: u64) {
        let mix = keyed(self.key, word);
        self.key = [fresh[0] ^ mix, fresh[1] ^ keyed(self.key, !word)];
    }
}

/// The canary, a word for each address: it fills the bytes of the pages beyond the requested ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Canary(Key);

impl Canary {
    pub(crate) const fn new(key: Key) -> Self {
        Self(key)
    }

    /// Returns the eight bytes that repeat beside the area with this first page.
    pub(crate) fn of(self, page: u64) -> [u8; 8] {
        keyed(self.0, page).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keyed_function_is_the_published_one() {
        // The vector of the reference implementation for the message 00 01 .. 07 under the key 00 01 .. 0f.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(keyed(key, 0x0706_0504_0302_0100), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn draws_are_below_their_bound_and_differ_after_a_fork() {
        let mut parent = Draw::new([1, 2]);
        assert!((0..1000).all(|_| parent.below(7) < 7));
        assert_eq!(parent.below(1), 0);
        for fresh in [[0, 0], [5, 6]] {
            let (mut one, mut other) = (Draw::new([1, 2]), Draw::new([1, 2]));
            assert_eq!(one.below(1 << 60), other.below(1 << 60));
            other.part(fresh, 4711);
            assert!((0..8).all(|_| one.below(1 << 60) != other.below(1 << 60)));
        }
    }
}
