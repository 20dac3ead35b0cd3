//! Bits of a chunk in words of 64: search, set and clear runs. One bit stands for [`BIT_BYTES`] bytes.
//!
//! Positions are numbers of bits from the beginning of the slice; ranges are half-open. A search without a result
//! returns the end of its range. Every function walks words, not bits: O(range / 64).

use va_base::Record;

/// Bytes that one bit stands for, the smallest object.
pub const BIT_BYTES: u32 = 4;
/// Bits of a page.
pub const PAGE_BITS: u32 = va_base::PAGE_SIZE as u32 / BIT_BYTES;
/// Bits of a word.
pub(crate) const WORD_BITS: u32 = u64::BITS;

/// 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct Word(pub(crate) u64);

impl Record for Word {
    const EMPTY: Self = Self(0);
}

/// The bits whose numbers are multiples of 2^n, for each n up to a word's.
pub(crate) const MULTIPLES: [u64; 7] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// Returns the number of words for so many bits.
pub(crate) const fn words_for(bits: u32) -> u32 {
    bits.div_ceil(WORD_BITS)
}

/// Returns the bits of the word from `from` on.
#[inline]
const fn from_mask(from: u32) -> u64 {
    u64::MAX << (from % WORD_BITS)
}

/// Returns the bits of the word below `end`; all of them if `end` is at its edge.
#[inline]
const fn below_mask(end: u32) -> u64 {
    u64::MAX >> (end.wrapping_neg() % WORD_BITS)
}

/// Returns the words of a page.
#[inline]
pub(crate) fn page(map: &[Word], page: u32) -> &[Word] {
    const WORDS: usize = (PAGE_BITS / WORD_BITS) as usize;
    &map[page as usize * WORDS..][..WORDS]
}

/// Returns a bit.
#[inline]
pub(crate) fn is_set(map: &[Word], at: u32) -> bool {
    map[(at / WORD_BITS) as usize].0 & (1 << (at % WORD_BITS)) != 0
}

/// Returns the first position in `[from, end)` where `of` a word has a 1, or `end`.
#[inline(always)]
fn next(map: &[Word], from: u32, end: u32, of: impl Fn(usize, u64) -> u64) -> u32 {
    if from >= end {
        return end;
    }
    let mut word = (from / WORD_BITS) as usize;
    let last = ((end - 1) / WORD_BITS) as usize;
    let mut bits = of(word, map[word].0) & from_mask(from);
    while bits == 0 {
        if word == last {
            return end;
        }
        word += 1;
        bits = of(word, map[word].0);
    }
    (word as u32 * WORD_BITS + bits.trailing_zeros()).min(end)
}

/// Returns the first 1 in `[from, end)`, or `end`.
#[inline]
pub(crate) fn next_set(map: &[Word], from: u32, end: u32) -> u32 {
    next(map, from, end, |_, word| word)
}

/// Returns the first 0 in `[from, end)`, or `end`.
#[inline]
pub(crate) fn next_clear(map: &[Word], from: u32, end: u32) -> u32 {
    next(map, from, end, |_, word| !word)
}

/// Returns the first position in `[from, end)` where `map` has a 0 or `marks` a 1, or `end`.
#[inline]
pub(crate) fn next_clear_or_marked(map: &[Word], marks: &[Word], from: u32, end: u32) -> u32 {
    next(map, from, end, |at, word| !word | marks[at].0)
}

/// Calls `run` with the beginning and the end of each run of zeros from `from` on, in order.
#[inline(always)]
pub(crate) fn each_clear_run(map: &[Word], from: u32, mut run: impl FnMut(u32, u32)) {
    let mut base = from - from % WORD_BITS;
    let mut words = map.iter().skip((base / WORD_BITS) as usize).map(|word| !word.0);
    let Some(first) = words.next() else { return };
    let mut clear = first & from_mask(from);
    loop {
        while clear == 0 {
            let Some(next) = words.next() else { return };
            (clear, base) = (next, base + WORD_BITS);
        }
        let start = base + clear.trailing_zeros();
        let mut end = start % WORD_BITS + (clear >> (start % WORD_BITS)).trailing_ones();
        if end >= WORD_BITS {
            // It goes on in the next words, and may end before the first bit of one.
            loop {
                base += WORD_BITS;
                let Some(next) = words.next() else { return run(start, base) };
                clear = next;
                if clear != u64::MAX {
                    break;
                }
            }
            end = clear.trailing_ones();
        }
        run(start, base + end);
        clear &= from_mask(end);
    }
}

/// Returns the position after the last 1 in `[from, end)`, or `from`.
#[inline]
pub(crate) fn after_last_set(map: &[Word], from: u32, end: u32) -> u32 {
    if from >= end {
        return from;
    }
    let first = (from / WORD_BITS) as usize;
    let mut word = ((end - 1) / WORD_BITS) as usize;
    let mut bits = map[word].0 & below_mask(end);
    loop {
        if word == first {
            bits &= from_mask(from);
        }
        if bits != 0 {
            return (word as u32 + 1) * WORD_BITS - bits.leading_zeros();
        }
        if word == first {
            return from;
        }
        word -= 1;
        bits = map[word].0;
    }
}

/// Calls `change` with each word that `[from, end)` touches, and a mask of the bits in the range.
#[inline(always)]
fn each(map: &mut [Word], from: u32, end: u32, change: impl Fn(&mut u64, u64)) {
    if from >= end {
        return;
    }
    let (first, last) = ((from / WORD_BITS) as usize, ((end - 1) / WORD_BITS) as usize);
    if first == last {
        return change(&mut map[first].0, from_mask(from) & below_mask(end));
    }
    change(&mut map[first].0, from_mask(from));
    for word in &mut map[first + 1..last] {
        change(&mut word.0, u64::MAX);
    }
    change(&mut map[last].0, below_mask(end));
}

/// Sets `[from, end)`.
#[inline]
pub(crate) fn set(map: &mut [Word], from: u32, end: u32) {
    each(map, from, end, |word, mask| *word |= mask);
}

/// Clears `[from, end)`.
#[inline]
pub(crate) fn clear(map: &mut [Word], from: u32, end: u32) {
    each(map, from, end, |word, mask| *word &= !mask);
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn map(of: &[bool]) -> Vec<Word> {
        let mut map = vec![Word(0); words_for(of.len() as u32) as usize];
        for (at, _) in of.iter().enumerate().filter(|(_, set)| **set) {
            set(&mut map, at as u32, at as u32 + 1);
        }
        map
    }

    #[test]
    fn searches_answer_what_a_walk_over_bits_answers() {
        let mut state = 7u64;
        for round in 0..200 {
            let bits: Vec<bool> = (0..200)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Long runs in some rounds.
                    (state >> 60) < round % 16
                })
                .collect();
            let map = map(&bits);
            for from in (0..200usize).step_by(7) {
                for end in (from..=200).step_by(9) {
                    let first = |wanted: bool| {
                        (from..end).find(|&at| bits[at] == wanted).map_or(end as u32, |at| at as u32)
                    };
                    assert_eq!(next_set(&map, from as u32, end as u32), first(true));
                    assert_eq!(next_clear(&map, from as u32, end as u32), first(false));
                    let last = (from..end).rev().find(|&at| bits[at]).map_or(from as u32, |at| at as u32 + 1);
                    assert_eq!(after_last_set(&map, from as u32, end as u32), last);
                }
            }
        }
    }

    #[test]
    fn each_run_of_zeros_is_maximal_and_every_zero_is_in_one() {
        let mut state = 7u64;
        for round in 0..400 {
            let bits: Vec<bool> = (0..256)
                .map(|at| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Long runs in some rounds, and in some a word of zeros in the middle.
                    (state >> 60) < round % 16 && !(round % 3 == 0 && (64..128).contains(&at))
                })
                .collect();
            let map = map(&bits);
            for from in (0..=256usize).step_by(3) {
                let mut seen = vec![true; 256];
                let mut last = from;
                each_clear_run(&map, from as u32, |start, end| {
                    let (start, end) = (start as usize, end as usize);
                    assert!(start < end && (start == from || bits[start - 1]), "{start}..{end} from {from}");
                    assert!(start >= last && (end == 256 || bits[end]), "{start}..{end} from {from}");
                    seen[start..end].fill(false);
                    last = end;
                });
                assert_eq!(seen[from..], bits[from..], "from {from}");
            }
        }
    }

    #[test]
    fn runs_are_set_and_cleared_exactly() {
        for (from, end) in [(0, 1), (0, 64), (63, 65), (64, 128), (5, 190), (0, 192), (191, 192), (70, 70)] {
            let mut map = vec![Word(0); 3];
            set(&mut map, from, end);
            assert!((0..192).all(|at| is_set(&map, at) == (from..end).contains(&at)), "{from}..{end}");
            let mut map = vec![Word(u64::MAX); 3];
            clear(&mut map, from, end);
            assert!((0..192).all(|at| is_set(&map, at) != (from..end).contains(&at)), "{from}..{end}");
        }
    }

    #[test]
    fn an_object_ends_where_another_begins_or_nothing_is() {
        let mut map = vec![Word(0); 2];
        let mut marks = map.clone();
        set(&mut map, 10, 90);
        set(&mut marks, 10, 11);
        set(&mut marks, 70, 71);
        assert_eq!(next_clear_or_marked(&map, &marks, 11, 128), 70);
        assert_eq!(next_clear_or_marked(&map, &marks, 71, 128), 90);
    }
}
